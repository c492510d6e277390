"""
The life of a kind with versions: one is added, becomes the stored one, and the old one is dropped.
"""
import asyncio
import base64
import json
import socket
import subprocess
import sys
import urllib.parse

import aiohttp
import pytest
import yaml

from tests.conversions import convert_first
from tests.e2e import commands
from tests.e2e.kubes import CRDS, NAMESPACES, Kind, Kube, KubeError, Patience

KINDS = """
import dataclasses

@dataclasses.dataclass(frozen=True, kw_only=True)
class OldSpec:
    size_gb: int = 1  # sizeGb
    note: str | None = None

@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    size: str = '1G'
    mode: str = 'auto'
    note: str | None = None

@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
"""

OLD = """
@kopf.crd('{group}', 'v1alpha1', plural='{plural}', kind='{kind}', storage={old})
class Old:
    spec: OldSpec = OldSpec()
"""

NEW = """
@kopf.crd('{group}', 'v1', plural='{plural}', kind='{kind}', storage={new})
class New:
    spec: Spec = Spec()
"""

CONVERSION = """
kopf.convert(Old, New, kopf.Move('.spec.sizeGb', '.spec.size', up='{{}}G'.format,
                                 down=lambda size: int(float(size.removesuffix('G')))))

@kopf.on.startup()
def serve(settings, **_):
    settings.admission.server = kopf.WebhookServer(addr='127.0.0.1', port=0)
    settings.admission.managed = 'versions.test'
"""

HANDLERS = """
@kopf.on.create({cls})
@kopf.on.update({cls})
@kopf.on.resume({cls}, annotations={{'resumed': 'yes'}})
def handle(reason, name, spec, diff, **_):
    print(f"Called: {{reason}} of {{name}} with {{spec.get('size') or spec.get('sizeGb')}}.")

@kopf.on.event({cls})
def seen(name, **_):
    print(f"Seen: {{name}}.")
"""


class PatientKube(Kube):
    """While a definition changes, the API answers with 429 and 503 for some moments."""

    async def request(self, *args, **kwargs):
        patience = Patience(30)
        while True:
            try:
                return await super().request(*args, **kwargs)
            except KubeError as e:
                if e.status not in (429, 503) or patience.is_over():
                    raise
                await asyncio.sleep(0.1)


@pytest.fixture()
async def kube(cluster):
    async with PatientKube(cluster) as kube:
        yield kube


@pytest.fixture()
async def new(kube):
    kind = Kind.make_unique()
    yield kind
    try:
        # Without the operator, nothing converts the objects any more, and nothing can delete them.
        await kube.request(
            'PATCH', f'{CRDS}/{kind.plural}.{kind.group}',
            body={'spec': {'conversion': {'strategy': 'None', 'webhook': None}}},
            content_type='application/merge-patch+json')
        await wait_convertible(kube, kind)
        await kube.delete_kind(kind)
    except KubeError as e:
        assert e.status == 404


async def wait_convertible(kube, kind):
    """Wait until the API has learned of the definition's change, and calls no webhook any more."""
    patience = Patience(30)
    while True:
        try:
            return await kube.wait_served(kind)
        except KubeError as e:
            if 'conversion webhook' not in str(e) or patience.is_over():
                raise
            await asyncio.sleep(0.1)


@pytest.fixture()
def old(new):
    return Kind(new.group, 'v1alpha1', new.plural, new.kind)


@pytest.fixture()
def write(new):
    """Write the text of the operator of a stage."""
    def write(*parts, cls, stored='v1'):
        names = {'group': new.group, 'plural': new.plural, 'kind': new.kind, 'cls': cls,
                 'old': stored == 'v1alpha1', 'new': stored == 'v1'}
        return ''.join([KINDS, *(part.format(**names) for part in [*parts, HANDLERS])])
    return write


@pytest.fixture()
def define(kube, tmp_path):
    """Apply the definition of an operator, as it is printed."""
    async def define(text):
        path = tmp_path / 'definition.py'
        path.write_text(f'import kopf\n{text}')
        process = await asyncio.create_subprocess_exec(
            sys.executable, '-m', 'kopf', 'crd', path, stdout=subprocess.PIPE)
        printed, _ = await process.communicate()
        definition = yaml.safe_load(printed)
        name = definition['metadata']['name']
        try:
            await kube.request('PATCH', f'{CRDS}/{name}', body={'spec': definition['spec']},
                               content_type='application/merge-patch+json')
        except KubeError as e:
            assert e.status == 404
            await kube.request('POST', CRDS, body=definition)
        names = definition['spec']['names']
        for version in definition['spec']['versions']:
            await kube.wait_served(Kind(
                definition['spec']['group'], version['name'], names['plural'], names['kind']))
    return define


def find_calls(op):
    return sorted(line.partition('Called: ')[2] for line in op.find(r"Called: "))


async def wait_quiet(op, names):
    """Wait until the operator has seen all objects, and rests."""
    for name in names:
        await op.wait_for(rf"Seen: {name}\.")
    await asyncio.sleep(1.0)


async def wait_converted(kube, old, new):
    """Wait until the API converts: it takes a moment after the change of the definition."""
    converted = None
    while converted != 3:
        await kube.create(new, 'probe', spec={'size': '3G'})
        converted = (await kube.get(old, 'probe'))['spec'].get('sizeGb')
        await kube.delete(new, 'probe')
        await kube.wait_gone(new, 'probe')


async def find_stored(kube, kind, name):
    """Find the version in which the database has an object; None if it is out of reach."""
    server = urllib.parse.urlsplit(kube._server)
    key = f'/registry/{kind.group}/{kind.plural}/default/{name}'
    try:
        async with aiohttp.ClientSession() as session, session.post(
                f'http://{server.hostname}:{server.port + 1}/v3/kv/range',
                json={'key': base64.b64encode(key.encode()).decode()}) as response:
            [found] = (await response.json())['kvs']
    except aiohttp.ClientError:
        return None
    return json.loads(base64.b64decode(found['value']))['apiVersion'].rpartition('/')[2]


async def test_a_version_comes_and_another_one_goes_without_calls(
        cluster, kube, old, new, write, define, operator):
    names = [f'obj-{n}' for n in range(10)]

    # There is only the old version, and an operator that knows nothing of conversions.
    text = write(OLD, cls='Old', stored='v1alpha1')
    await define(text)
    first = operator(text)
    for n, name in enumerate(names):
        await kube.create(old, name, spec={'sizeGb': n + 1})
    for name in names:
        await kube.wait_for(old, name, lambda obj: obj['metadata']['annotations'])
    await first.wait_for(r"Called: create of obj-9 with 10\.")
    first.stop()
    assert len(find_calls(first)) == 10

    # The new version is added, and watched. One object was changed in between.
    await kube.patch(old, 'obj-3', {'spec': {'sizeGb': 40}})
    text = write(OLD, NEW, CONVERSION, cls='New', stored='v1alpha1')
    await define(text)
    second = operator(text)
    await second.wait_for(r"Called: update of obj-3 with 40G\.")
    await wait_quiet(second, names)
    assert find_calls(second) == ["update of obj-3 with 40G."]
    await kube.patch(old, 'obj-4', {'spec': {'sizeGb': 50}})
    await kube.patch(new, 'obj-5', {'spec': {'mode': 'fast'}})  # the old version has no such field
    await second.wait_for(r"Called: update of obj-4 with 50G\.")
    await second.wait_for(r"Called: update of obj-5 with 6G\.")
    await kube.patch(old, 'obj-5', {'spec': {'note': 'edited'}})
    await kube.wait_for(new, 'obj-5', lambda obj: obj['spec'] == {
        'size': '6G', 'mode': 'fast', 'note': 'edited'})

    # It becomes the one that is stored, while the operator goes on; all objects are migrated.
    await define(write(OLD, NEW, CONVERSION, cls='New', stored='v1'))
    assert await find_stored(kube, new, 'obj-0') in ('v1alpha1', None)
    code, output = await commands.run(cluster, 'migrate', f'{new.plural}.{new.group}')
    assert code == 0, output
    assert await find_stored(kube, new, 'obj-0') in ('v1', None)
    namespace = f'ns-{new.plural}'
    await kube.request('POST', NAMESPACES.get_path(), body={'metadata': {'name': namespace}})
    await kube.delete(NAMESPACES, namespace, namespace='')
    await kube.wait_gone(NAMESPACES, namespace, namespace='', timeout=240)

    # The old version is dropped; the operator after that knows only the new one.
    text = write(NEW, cls='New')
    await define(text)
    second.stop()
    assert len(find_calls(second)) == 4
    third = operator(text)
    await wait_quiet(third, names)
    assert find_calls(third) == []
    await kube.patch(new, 'obj-6', {'spec': {'size': '70G'}})
    await third.wait_for(r"Called: update of obj-6 with 70G\.")


async def test_an_operator_is_rolled_back_without_calls(kube, old, new, write, define, operator):
    text = write(OLD, NEW, CONVERSION, cls='New', stored='v1alpha1')
    await define(text)
    second = operator(text)
    await second.wait_for("Reconfiguring the conversion")
    await wait_converted(kube, old, new)
    await kube.create(new, 'one', spec={'size': '1.5G', 'mode': 'fast'})
    await second.wait_for(r"Called: create of one with 1\.5G\.")
    await kube.wait_for(new, 'one', lambda obj: obj['metadata']['annotations'])
    second.stop()
    first = operator(write(OLD, NEW, CONVERSION, cls='Old', stored='v1alpha1'))
    await wait_quiet(first, ['one'])
    assert find_calls(first) == []
    await kube.patch(old, 'one', {'spec': {'note': 'edited'}})
    await first.wait_for(r"Called: update of one with 1\.")
    first.stop()
    third = operator(text)
    await wait_quiet(third, ['one'])
    assert find_calls(third) == []
    assert (await kube.get(new, 'one'))['spec'] == {
        'size': '1.5G', 'mode': 'fast', 'note': 'edited'}


async def test_a_definition_that_is_created_again_is_converted_again(
        kube, old, new, write, define, operator):
    text = write(OLD, NEW, CONVERSION, cls='New', stored='v1alpha1')
    await define(text)
    op = operator(text)
    await op.wait_for("Reconfiguring the conversion")
    await kube.delete_kind(new)
    patience = Patience(30)
    while True:  # the definition is deleted after its objects
        try:
            await kube.request('GET', f'{CRDS}/{new.plural}.{new.group}')
        except KubeError as e:
            assert e.status == 404
            break
        assert not patience.is_over()
    await define(text)
    await wait_converted(kube, old, new)
    await kube.create(old, 'one', spec={'sizeGb': 5})
    await op.wait_for(r"Called: create of one with 5G\.")


async def test_replicas_serve_before_they_list(kube, old, new, write, define, operator):
    text = write(OLD, NEW, CONVERSION, cls='New', stored='v1alpha1')
    await define(text)
    await kube.create(old, 'one', spec={'sizeGb': 1})
    with socket.create_server(('127.0.0.1', 0)) as sock:
        port = sock.getsockname()[1]
    standby = operator(text.replace('port=0', f'port={port}').replace("'versions.test'", 'None'))
    made = await convert_first(port, f'{new.plural}.{new.group}', {
        'apiVersion': old.api_version, 'kind': old.kind, 'spec': {'sizeGb': 2}}, new.version)
    assert made['spec'] == {'size': '2G'}
    await standby.wait_for("Waiting until .* is converted by a webhook")
    assert not standby.find("Seen: one")
    operator(text)  # it writes the definition
    await standby.wait_for("Seen: one")


async def test_two_managers_apply_in_two_versions(
        kube, old, new, write, define, operator, is_sandbox):
    text = write(OLD, NEW, CONVERSION, cls='New')
    await define(text)
    op = operator(text)
    await op.wait_for("Reconfiguring the conversion")

    async def apply(kind, manager, **spec):
        body = {'apiVersion': kind.api_version, 'kind': kind.kind, 'metadata': {'name': 'one'},
                'spec': spec}
        return await kube.request(
            'PATCH', kind.get_path('one', 'default'), body=body,
            params={'fieldManager': manager}, content_type='application/apply-patch+yaml')

    await wait_converted(kube, old, new)
    await apply(old, 'a', sizeGb=5)
    await apply(new, 'b', mode='fast')
    assert (await kube.get(new, 'one'))['spec'] == {'size': '5G', 'mode': 'fast'}
    await apply(old, 'a', sizeGb=6)
    assert (await kube.get(new, 'one'))['spec'] == {'size': '6G', 'mode': 'fast'}
    if is_sandbox:  # it compares the fields of managers by their names only
        return
    with pytest.raises(KubeError, match=r'HTTP 409'):
        await apply(new, 'b', mode='fast', size='7G')
    await apply(new, 'b')
    assert (await kube.get(old, 'one'))['spec']['sizeGb'] == 6
    assert 'fast' not in json.dumps((await kube.get(new, 'one'))['spec'])


async def test_what_cannot_be_converted_is_told_to_the_user(
        kube, old, new, write, define, operator):
    text = write(OLD, NEW, CONVERSION, cls='New')
    await define(text)
    op = operator(text)
    await op.wait_for("Reconfiguring the conversion")
    await wait_converted(kube, old, new)
    await kube.create(new, 'one', spec={'size': 'huge'})
    with pytest.raises(KubeError, match=r"'one' cannot be converted from .*spec\.size cannot be"):
        await kube.get(old, 'one')
    assert (await kube.get(new, 'one'))['spec']['size'] == 'huge'
