import re
import signal
import sys

import kopf

HANDLERS = '''
@kopf.on.create(*KIND)
def fn(name, **_):
    print(f"it is {name}")
'''


async def test_operators_handle_objects_until_they_are_stopped(kube, kind, operator):
    op = operator(HANDLERS, kind=kind, command=(sys.executable, '-m', 'kopf'))
    await kube.create(kind, 'obj')
    await op.wait_for("it is obj")
    op.send(signal.SIGTERM)
    assert await op.wait() == 0
    assert op.find("Signal SIGTERM is received. Operator is stopping.")


async def test_operators_can_be_interrupted(kube, kind, operator):
    op = operator(HANDLERS, kind=kind)
    await kube.create(kind, 'obj')
    await op.wait_for("it is obj")
    op.send(signal.SIGINT)
    assert await op.wait() == 0


async def test_operators_go_on_after_they_were_killed(kube, kind, operator):
    op = operator(HANDLERS, kind=kind)
    await kube.create(kind, 'obj1')
    await op.wait_for("it is obj1")
    await kube.wait_for(kind, 'obj1', lambda obj: obj['metadata']['annotations'])
    op.kill()
    await kube.create(kind, 'obj2')
    op = operator(HANDLERS, kind=kind)
    await op.wait_for("it is obj2")
    assert not op.find("it is obj1")


async def test_only_the_given_namespaces_are_served(kube, kind, operator):
    op = operator(HANDLERS, kind=kind, scope=('--namespace=default', '--standalone', '--verbose'))
    await kube.create(kind, 'other', namespace='kube-public')
    await kube.create(kind, 'obj')
    await op.wait_for("it is obj")
    assert not op.find("it is other")


async def test_the_log_is_in_json_if_asked_for(kube, kind, operator):
    op = operator(HANDLERS, '--log-format=json', kind=kind)
    obj = await kube.create(kind, 'obj')
    line, = await op.wait_for("Handler 'fn' succeeded")
    assert re.search(f'"uid": "{obj["metadata"]["uid"]}"', line)
    assert '"severity": "info"' in line


async def test_operators_run_in_threads(kube, kind, embedded):
    seen = []
    registry = kopf.OperatorRegistry()

    @kopf.on.create(*kind.selector, registry=registry)
    def fn(name, **_):
        seen.append(name)

    embedded(registry=registry)
    await kube.create(kind, 'obj')
    await kube.wait_for(kind, 'obj', lambda obj: obj['metadata']['annotations'])
    assert seen == ['obj']


async def test_what_is_loaded_is_not_looked_at_by_the_garbage_collector(operator):
    op = operator('''
import gc

@kopf.on.startup()
def tell(**_):
    print("frozen:", gc.get_freeze_count())
''')
    line, = await op.wait_for("frozen:")
    assert int(line.split()[-1]) > 10_000
