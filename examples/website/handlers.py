import kopf


@kopf.reconcile('websites', owns=['configmaps'])
def website(spec, name, **_):
    return {
        'apiVersion': 'v1',
        'kind': 'ConfigMap',
        'metadata': {'name': name},
        'data': {'index.html': f"<h1>{spec['title']}</h1>"},
    }
