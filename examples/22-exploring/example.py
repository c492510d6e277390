"""
Exploration of faults. The handler backs up each value of an object in a config map of its own. The
tests are in ``test_example.py`` in the same folder: they kill the operator after each of its
writes, lose each response, refuse each request, and so on; in the end, there must be the same
config maps. The operator in ``mistake.py`` numbers the config maps, and a test shows how this
mistake is found: if the operator is killed between two writes, there are two config maps for one
value. Type ``pytest examples/22-exploring``, and see that both tests pass in some seconds.
"""
import kopf


@kopf.on.create('kopfexamples')
@kopf.on.update('kopfexamples', field='spec.field')
async def back_up(name, spec, **_):
    backup = {
        'apiVersion': 'v1',
        'kind': 'ConfigMap',
        'metadata': {'name': f"{name}-{spec['field']}"},
        'data': {'field': spec['field']},
    }
    kopf.adopt(backup)
    await kopf.apply(backup)
