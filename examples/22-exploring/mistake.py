import kopf


@kopf.index('configmaps')
async def backups(body, name, **_):
    owners = [owner['name'] for owner in body.metadata.get('ownerReferences', [])]
    return dict.fromkeys(owners, name)


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec.field')
async def back_up(name, spec, backups: kopf.Index, **_):
    number = len(backups.get(name, []))  # if the handler is repeated, this is another number
    backup = {
        'apiVersion': 'v1',
        'kind': 'ConfigMap',
        'metadata': {'name': f'{name}-{number}'},
        'data': {'field': spec['field']},
    }
    kopf.adopt(backup)
    await kopf.apply(backup)
