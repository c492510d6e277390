"""
Shadows: a new version is compared with the one in production, which notices nothing of that.
"""
import collections
import pathlib
import re
import signal
import uuid

import pytest

from tests.e2e.kubes import CONFIGMAPS, Kube
from tests.e2e.proxy import Proxy
from tests.e2e.replicas import read_audit

HANDLERS = '''
import asyncio

COLOUR = 'blue'

@kopf.on.startup()
def configure(settings, **_):
    settings.peering.standalone = True

@kopf.on.create(*KIND, id='fn')
@kopf.on.update(*KIND, id='fn')
async def fn(name, namespace, body, spec, patch, **_):
    manifest = {'apiVersion': 'v1', 'kind': 'ConfigMap', 'metadata': {'name': f'{KIND[2]}-{name}'},
                'data': {'size': str(spec.get('size')), 'colour': COLOUR}}
    kopf.adopt(manifest, owner=body)
    await kopf.apply(manifest)
    patch.status['seen'] = spec.get('size')

@kopf.on.delete(*KIND)
async def delete_fn(name, **_):
    print(f"it was {name}")
'''


@pytest.fixture()
def agents():
    return [f'{name}-{uuid.uuid4().hex[:8]}' for name in ('production', 'shadow')]


def is_handled(obj, size):
    """Whether all requests for this size are done: the last one writes the last-handled state."""
    annotations = obj['metadata'].get('annotations') or {}
    return f'"size":{size}' in annotations.get('kopf.zalando.org/last-handled-configuration', '')


async def work(kube, kind, op, names):
    """Let an operator handle some changes, and count its requests."""
    for name in names:
        await kube.create(kind, name, spec={'size': 1})
        await kube.wait_for(kind, name, lambda obj: is_handled(obj, 1))
        await kube.patch(kind, name, {'spec': {'size': 2}})
        await kube.wait_for(kind, name, lambda obj: is_handled(obj, 2))
        await kube.delete(kind, name)
        await op.wait_for(f"it was {name}")
        await kube.wait_gone(kind, name)


def count(requests):
    """Count the requests that write, regardless of the names; events are posted some time later."""
    return collections.Counter(
        (request.method, re.sub(r'(?<=-)?(one|two)\d', 'NAME', request.path.partition('?')[0]))
        for request in requests if request.method != 'GET' and '/events' not in request.path)


async def test_a_shadow_finds_the_difference_and_production_works_as_before(
        cluster, kube, kind, operator, agents, tmp_path):
    with (Proxy(cluster, agent=agents[0]) as production,
          Proxy(cluster, agent=agents[1]) as watched):
        op = operator(HANDLERS, kind=kind,
                      kubeconfig=production.write_kubeconfig(tmp_path / 'production'))
        await op.wait_for("Watching .* handler")
        await work(kube, kind, op, ['one1', 'one2'])
        before = count(production.requests)
        production.requests.clear()

        path = tmp_path / 'sandbox'
        shadow = operator(
            HANDLERS.replace('blue', 'red'), '--shadow', '--shadow-window=5',
            f'--kubeconfig-out={path}', kind=kind, scope=('--all-namespaces',),
            kubeconfig=watched.write_kubeconfig(tmp_path / 'watched'))
        await shadow.wait_for("Watching .* handler")
        await work(kube, kind, op, ['two1', 'two2'])
        assert count(production.requests) == before

        await kube.create(kind, 'stays', spec={'size': 1})
        name = f'{kind.plural}-stays'
        await shadow.wait_for(rf'different: configmaps default/{name}: data.colour: "blue" in '
                              rf'production, "red" here \(by fn for .* default/stays\)')
        assert (await kube.get(CONFIGMAPS, name))['data']['colour'] == 'blue'
        await kube.delete(kind, 'stays')
        await kube.wait_gone(kind, 'stays')

        shadow.send(signal.SIGTERM)
        assert await shadow.wait() == 0
        assert shadow.find(r"Differences from production: 1 \(1 different\).")
        assert {request.method for request in watched.requests} == {'GET'}
    audit = pathlib.Path(cluster).with_name('audit.log')
    if audit.exists():
        entries = read_audit(audit, agents[1])
        assert entries
        assert {entry['verb'] for entry in entries} <= {'get', 'list', 'watch'}


EXTERNAL = """
@kopf.on.startup()
def configure(settings, **_):
    settings.peering.standalone = True

billing = kopf.external(*KIND, id='billing', interval=5)

@billing.observe
def observe(key, **_):
    print(f"it observes {key}")
    return {'n': 0}

@billing.create
@billing.update
@billing.delete
def change(**_):
    print("it changes something")

@billing.desired
def desired(spec, **_):
    return {'n': spec['n']}
"""


async def test_a_shadow_changes_nothing_in_external_systems(kube, kind, operator):
    shadow = operator(EXTERNAL, '--shadow', kind=kind, scope=('--all-namespaces',))
    await shadow.wait_for("Watching .* handler", timeout=60)
    await kube.create(kind, 'new', spec={'n': 1})
    await kube.create(kind, 'known', spec={'n': 1}, annotations={
        'external.kopf.dev/billing': '{"phase":"known","key":"key1"}'})
    await shadow.wait_for("it observes key1")
    shadow.send(signal.SIGTERM)
    assert await shadow.wait() == 0
    assert shadow.find(
        "Calls of external systems, which are left to production: 1 create, 1 update.")
    assert not shadow.find("it changes something")


WINDOW = 15.0
"""In seconds: much more than one version can be behind the other one on a busy machine."""

VERSIONS = '''
import asyncio

@kopf.on.startup()
def configure(settings, **_):
    settings.peering.standalone = True

@kopf.reconcile(*KIND, id='children', owns=['configmaps', 'deployments.apps'])
async def children(spec, **_):
    await asyncio.sleep(spec[VERSION].get('delay', 0))
    for child in spec[VERSION].get('children', ()):
        yield child

@kopf.on.create(*KIND, id='tell')
def tell(spec, patch, **_):
    patch.status.update(spec[VERSION].get('status', {}))

@kopf.on.update(*KIND, id='linger')
async def linger(**_):
    await asyncio.sleep(WINDOW / 2)  # only a deletion while a change is handled is production's

@kopf.on.delete(*KIND, when=lambda spec, **_: spec[VERSION].get('holds', False))
def release(**_):
    pass

if VERSION == 'new':
    @kopf.on.validate(*KIND)
    def review(spec, **_):
        if spec['new'].get('denies'):
            raise kopf.AdmissionError("no more")
'''


def config(name, field='blue', **labels):
    return {'apiVersion': 'v1', 'kind': 'ConfigMap', 'data': {'field': field},
            'metadata': {'name': name, 'labels': labels}}


def deployment(name, replicas=2, selector='app'):
    return {'apiVersion': 'apps/v1', 'kind': 'Deployment', 'metadata': {'name': name}, 'spec': {
        'replicas': replicas, 'selector': {'matchLabels': {selector: 'a'}},
        'template': {'metadata': {'labels': {'app': 'a', 'part': 'a'}}, 'spec': {'containers': [
            {'name': 'app', 'image': 'nginx:1'}]}}}}


def plant(of):
    """
    Plant differences. For each object: what the old version makes of it, and the new one; and what
    is told. The names of the children begin with the kind's, as other tests have some, too.
    """
    def made(*children, **others):
        return {'children': children, **others}

    cm, own = f'configmaps default/{of}', f'{of}.{of.replace("things", "g", 1)}.test default'
    return {
        'field': (made(config(f'{of}-field')), made(config(f'{of}-field', 'red')), [
            f'different: {cm}-field: data.field: "blue" in production, "red" here']),
        'label': (made(config(f'{of}-label')), made(config(f'{of}-label', tier='web')), [
            f'different: {cm}-label: metadata.labels.tier: nothing in production, "web" here']),
        'count': (made(deployment(f'{of}-count')), made(deployment(f'{of}-count', 3)), [
            f'different: deployments.apps default/{of}-count: spec.replicas: '
            '2 in production, 3 here']),
        'selector': (
            made(deployment(f'{of}-immutable')), made(deployment(f'{of}-immutable', 2, 'part')), [
                f'different: deployments.apps default/{of}-immutable: '
                'spec.selector.matchLabels.app: "a" in production, nothing here; '
                'spec.selector.matchLabels.part: nothing in production, "a" here']),
        'name': (made(config(f'{of}-old')), made(config(f'{of}-new')), [
            f'missing: {cm}-old: only production has created it',
            f'more: {cm}-new: only the new version has created it']),
        'less': (made(config(f'{of}-less')), made(), [
            f'missing: {cm}-less: only production has created it']),
        'more': (made(), made(config(f'{of}-more')), [
            f'more: {cm}-more: only the new version has created it']),
        'later': (
            made(config(f'{of}-later')), made(config(f'{of}-later'), delay=1.5 * WINDOW), []),
        'kept': (made(config(f'{of}-kept')), made(config(f'{of}-kept')), [
            f'missing: {cm}-kept: only production has deleted it']),
        'gone': (made(config(f'{of}-gone')), made(config(f'{of}-gone')), [
            f'more: {cm}-gone: only the new version has deleted it']),
        'status': (made(status={'phase': 'ok'}), made(status={'phase': 'fine'}), [
            f'different: {own}/status: status.phase: "ok" in production, "fine" here']),
        'finalizer': (made(holds=True), made(holds=False), [
            f'missing: {own}/finalizer: '
            'metadata.finalizers[kopf.zalando.org/KopfFinalizerMarker]: '
            'true in production, nothing here']),
        'review': (made(), made(denies=True), [
            f'refused: {own}/review: the CREATE would be denied: no more']),
    }


async def test_ten_differences_are_told_once_each(
        cluster, kube, kind, minor, operator, tmp_path):
    if minor < 22:
        pytest.skip("Versions are compared in the same way, whatever the server is.")
    path, planted = tmp_path / 'sandbox', plant(kind.plural)
    production, shadow = (
        operator(f"VERSION, WINDOW = {version!r}, {WINDOW}\n{VERSIONS}", *options, kind=kind,
                 scope=('--all-namespaces',))
        for version, options in {
            'old': (), 'new': ('--shadow', f'--shadow-window={WINDOW}',
                               f'--kubeconfig-out={path}')}.items())
    for op in (production, shadow):
        await op.wait_for("Watching .* handler", timeout=60)
    async with Kube(str(path)) as overlay:
        for name, (old, new, _) in planted.items():
            await kube.create(kind, name, spec={'old': old, 'new': new})
        for name in ('kept', 'gone'):
            for each in (kube, overlay):
                await each.wait_for(CONFIGMAPS, f'{kind.plural}-{name}', bool)
                await each.wait_for(kind, name, lambda obj: obj['metadata']['annotations'])
        await kube.patch(kind, 'kept', {'spec': {'old': {'children': []}}})
        await kube.patch(kind, 'gone', {'spec': {'new': {'children': []}}})
        late = (rf"later: configmaps default/{kind.plural}-later: all of it after \d+ seconds "
                r"\(by children for ")
        for pattern in [late, *(re.escape(text) for *_, told in planted.values() for text in told)]:
            await shadow.wait_for(f"differs: {pattern}", timeout=120)
        # It goes on with the selector of production, and wants to change it again.
        refused = f"The API refuses to patch deployments.apps default/{kind.plural}-immutable: "
        await shadow.wait_for(refused, timeout=120)

    shadow.send(signal.SIGTERM)
    assert await shadow.wait() == 0
    told = [line.removeprefix('! ') for line in shadow.find('^! ')]
    for pattern in (late, refused):
        assert len([line for line in told if re.search(pattern, line)]) == 1
    assert sorted(
        line.partition(' (by ')[0] for line in told
        if not line.startswith(('later: ', refused))
    ) == sorted(text for *_, told in planted.values() for text in told)
