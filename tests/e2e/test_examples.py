"""
Every example does what the paragraph at its head promises: one section for each, in their order.
Their own tests, which need no cluster, are among the unit tests.

The operators are run as a reader runs them, but each in a namespace of its own.
"""
import asyncio
import base64
import json
import pathlib
import signal
import socket
import time
import uuid

import aiohttp.web
import pytest
import yaml
from aiohttp import test_utils

from kopf import testing
from tests import expressions
from tests.e2e import accounts
from tests.e2e.journals import is_handled, wait_handled, wait_settled
from tests.e2e.kubes import CRDS, NAMESPACES, Kind, Kube, KubeError
from tests.e2e.operators import Operator, Program
from tests.e2e.ports import find_free_ports

EXAMPLES = pathlib.Path(__file__).parents[2] / 'examples'
KEX = Kind('kopf.dev', 'v1', 'kopfexamples', 'KopfExample')


def load(path):
    return list(yaml.safe_load_all((EXAMPLES / path).read_text()))


OBJ, = load('obj.yaml')
SWITCHING = ('13-admission', '24-versions')
"""The examples whose startup handlers switch on what needs rights."""
UNKNOWN = ('16-several-operators',)
"""The examples whose handlers are in registries of their own, which ``kopf rbac`` does not see."""
RULES_SINCE = 25
"""The minor version of Kubernetes that evaluates rules in CEL by default."""
DEFINITIONS = [
    definition for path in [EXAMPLES / 'crd.yaml', *EXAMPLES.glob('*/crd.yaml')]
    for definition in load(path)]
CRDS_OF_EXAMPLES = [
    arg for path in [EXAMPLES / 'crd.yaml', *EXAMPLES.glob('*/crd.yaml')]
    for arg in ('--crd', str(path))]


@pytest.fixture(scope='module')
def kinds(cluster, examples_alone):
    """
    All the kinds of the examples, by their plurals; they are made once, for it takes seconds.

    The one that the examples share stays there. If the last kind of a group goes and comes again,
    the API server answers HTTP 404 to requests for it for some seconds.
    """
    kinds = {kind.plural: kind for kind in map(get_kind, DEFINITIONS)}
    created = asyncio.run(install(cluster, DEFINITIONS))
    yield kinds
    asyncio.run(uninstall(cluster, [each for each in created if get_kind(each) != KEX]))


async def install(cluster, definitions):
    """Install the kinds that are not there yet; returns their definitions."""
    created = []
    async with Kube(cluster) as kube:
        for definition in definitions:
            try:
                await kube.request('POST', CRDS, body=definition)
                created.append(definition)
            except KubeError as e:
                if e.status != 409:
                    raise
        await asyncio.gather(*(kube.wait_served(get_kind(each)) for each in definitions))
        await asyncio.gather(*(kube.wait_known_as_owners(get_kind(each)) for each in created))
    return created


async def uninstall(cluster, definitions):
    async with Kube(cluster) as kube:
        await asyncio.gather(*(kube.delete_kind(get_kind(each)) for each in definitions))


def get_kind(definition):
    spec = definition['spec']
    return Kind(
        spec['group'], spec['versions'][0]['name'], spec['names']['plural'],
        spec['names']['kind'], namespaced=spec['scope'] == 'Namespaced')


@pytest.fixture()
async def namespace(kube, kinds):
    """A namespace of the test's own; nothing is left in it."""
    namespace = f'test-{uuid.uuid4().hex[:8]}'
    await kube.create(NAMESPACES, namespace)
    yield namespace
    await asyncio.gather(*(kube.clear_kind(kind) for kind in kinds.values()))
    await kube.delete(NAMESPACES, namespace)


@pytest.fixture()
def run(cluster, namespace, tmp_path):
    """
    Run an example by its folder's name, with the arguments: by ``kopf run``, in the namespace of
    the test, with only the rights that ``kopf rbac`` prints; or as a program of its own.
    """
    started, accounts_made = [], []

    def confine(args):
        roles = accounts.print_roles(*args, *CRDS_OF_EXAMPLES)
        account = f'{namespace}-{len(accounts_made)}'
        accounts_made.append((account, roles))
        return accounts.wait(cluster, lambda kube: accounts.create(
            kube, cluster, tmp_path / account, account, roles))

    def run(name, *args, program=False, env=None):
        path = str(EXAMPLES / name / 'example.py')
        peering = [] if '--peering' in args else ['--standalone']
        scope = [] if '-A' in args else ['--namespace', namespace]
        options = ['-A', '--standalone'] if program else [*scope, '--verbose', *peering, *args]
        kubeconfig = cluster if name in UNKNOWN else confine([
            *options, path, *(['--startup'] if name in SWITCHING else [])])
        op = Program([path, *args], kubeconfig=kubeconfig) if program else (
            Operator([*options, path], kubeconfig=kubeconfig, env=env))
        started.append(op)
        return op

    yield run
    for op in started:
        op.stop()
        print(op.text)
    for account, roles in accounts_made:
        accounts.wait(cluster, lambda kube, account=account, roles=roles: accounts.delete(
            kube, account, roles))
    for op in started:
        assert 'is forbidden' not in op.text and 'cannot list' not in op.text


@pytest.fixture()
def user(kube, namespace):
    return User(kube, namespace)


class User:
    """Who has typed the commands."""

    def __init__(self, kube, namespace):
        self.kube = kube
        self.namespace = namespace

    async def apply(self, obj, **changes):
        """Create the object in the namespace of the test."""
        group, _, version = obj['apiVersion'].rpartition('/')
        kind = Kind(group, version, f"{obj['kind'].lower()}s", obj['kind'])
        obj = {**obj, **changes}
        return await self.kube.request('POST', kind.get_path(namespace=self.namespace), body=obj)

    async def patch(self, kind, name, patch, **kwargs):
        return await self.kube.patch(kind, name, patch, namespace=self.namespace, **kwargs)

    async def wait_settled(self, kind, name):
        return await wait_settled(self.kube, kind, name, namespace=self.namespace)

    async def delete(self, kind, name):
        return await self.kube.delete(kind, name, namespace=self.namespace)

    async def delete_at_once(self, kind, name):
        """As with ``kubectl delete --force``: pods do not wait for their node to stop them."""
        path = kind.get_path(name, self.namespace)
        await self.kube.request('DELETE', path, params={'gracePeriodSeconds': '0'})

    async def get(self, kind, name):
        return await self.kube.get(kind, name, namespace=self.namespace)

    async def wait_for(self, kind, name, predicate):
        return await self.kube.wait_for(kind, name, predicate, namespace=self.namespace)

    async def wait_gone(self, kind, name):
        await self.kube.wait_gone(kind, name, namespace=self.namespace)

    async def wait_collected(self, kind, name):
        await self.kube.wait_collected(kind, name, namespace=self.namespace)

    async def wait_handled(self, kind, name):
        return await wait_handled(self.kube, kind, name, namespace=self.namespace)


NAME = OBJ['metadata']['name']


# 01-minimal

async def test_the_minimal_one_tells_what_happens_to_objects(run, user):
    op = run('01-minimal')
    await user.apply(OBJ)
    obj = await user.wait_handled(KEX, NAME)
    assert obj['status'] == {'create_fn': {'message': 'hello'}}
    await user.patch(KEX, NAME, {'spec': {'field': 'other'}})
    await op.wait_for(f"field of {NAME}: change from 'value' to 'other'")
    await user.delete(KEX, NAME)
    await user.wait_gone(KEX, NAME)
    assert op.find(f'^Welcome, {NAME}! You stay for 1m')
    assert op.find(f'^Good-bye, {NAME}')


# 02-causes

async def test_of_causes_a_book_is_right_all_the_time(run, user):
    op = run('02-causes')
    await user.apply(OBJ)
    await user.wait_handled(KEX, NAME)
    assert op.find(f"Written down on create: {NAME} has value")
    op.stop()

    op = run('02-causes')
    await op.wait_for(f"Written down on resume: {NAME} has value")
    await user.patch(KEX, NAME, {'spec': {'field': 'other'}})
    await op.wait_for(f"Corrected: {NAME} has other, it was value")
    await user.delete(KEX, NAME)
    await op.wait_for(f"Struck out: {NAME}; numbers left: 0")
    await user.wait_gone(KEX, NAME)
    assert not op.find("Written down on create")


# 03-errors

async def test_of_errors_some_are_retried_and_some_are_not(run, user):
    op = run('03-errors')
    await user.apply(OBJ)
    await user.apply(OBJ, metadata={'name': 'empty'}, spec={})
    obj = await user.wait_handled(KEX, NAME)
    assert obj['status'] == {'fetch_from_stock': {'fetched': 2, 'tries': 3}}
    assert len(op.find(f"/{NAME}.*'fetch_from_stock' failed temporarily: It is sold out")) == 2
    assert len(op.find(f"/{NAME}.*'call_courier' failed .*Nobody answers")) == 3
    assert len(op.find(f"/{NAME}.*'check_order' (is invoked|succeeded)")) == 2
    assert len(op.find(f"/{NAME}.*'thank_customer' is invoked")) == 1
    await op.wait_for("/empty.*'check_order' failed permanently: There is nothing in the order.")
    events = await user.kube.wait_events(obj, 5)
    assert any("It is sold out" in event['message'] for event in events)


# 04-owned-resources

CONFIGMAPS = Kind('', 'v1', 'configmaps', 'ConfigMap')
DEPLOYMENTS = Kind('apps', 'v1', 'deployments', 'Deployment')


async def test_children_follow_their_parent_and_go_with_it(run, user, kinds):
    blog, = load('04-owned-resources/obj.yaml')
    run('04-owned-resources')
    parent = await user.apply(blog)
    await user.wait_handled(kinds['blogs'], 'hello')
    page = await user.get(CONFIGMAPS, 'hello')
    server = await user.get(DEPLOYMENTS, 'hello')
    assert page['data'] == {'index.html': '<h1>Hello, world!</h1>'}
    assert page['metadata']['labels'] == {'team': 'greeters'}
    assert server['metadata']['labels'] == {'blog': 'hello', 'team': 'greeters'}
    assert server['spec']['template']['metadata']['labels'] == server['metadata']['labels']
    for child in page, server:
        owner, = child['metadata']['ownerReferences']
        assert owner['uid'] == parent['metadata']['uid'] and owner['controller']

    await user.patch(kinds['blogs'], 'hello', {'spec': {'text': 'Bye.'}})
    await user.wait_for(
        CONFIGMAPS, 'hello', lambda obj: obj['data']['index.html'] == '<h1>Bye.</h1>')
    await user.wait_handled(kinds['blogs'], 'hello')
    await user.delete(kinds['blogs'], 'hello')
    await user.wait_collected(CONFIGMAPS, 'hello')
    await user.wait_collected(DEPLOYMENTS, 'hello')


# 05-subhandlers

async def test_subhandlers_deliver_each_item_once(run, user):
    op = run('05-subhandlers')
    await user.apply(OBJ)
    obj = await user.wait_handled(KEX, NAME)
    assert obj['status'] == {
        'deliver_all/spec.items/item1': {'tries': 1}, 'deliver_all/spec.items/item2': {'tries': 1}}
    await user.patch(KEX, NAME, {'spec': {'items': ['item1', 'heavy', 'light']}})
    obj = await user.wait_for(KEX, NAME, lambda obj: is_handled(obj) and 'heavy' in str(obj))
    assert obj['status']['deliver_all/spec.items/heavy'] == {'tries': 2}
    delivered = [line.split(' ')[-3] for line in op.find("is delivered")]
    assert delivered == ['item1', 'item2', 'light', 'heavy']


# 06-fields

async def test_of_fields_only_the_handlers_concerned_are_called(run, user):
    op = run('06-fields')
    await user.apply(OBJ)
    await op.wait_for("It is going to take 1m")
    await user.wait_handled(KEX, NAME)
    await user.patch(KEX, NAME, {'spec': {'duration': '5m'}})
    await op.wait_for("It is going to take 5m instead of 1m")
    await user.patch(KEX, NAME, {'metadata': {'labels': {'somelabel': None, 'colour': 'red'}}})
    await op.wait_for("Labels: remove somelabel, from somevalue to None")
    await op.wait_for("Labels: add colour, from None to red")
    for value in 'other', 'draft', 'published':
        await user.patch(KEX, NAME, {'spec': {'field': value}})
        await user.wait_handled(KEX, NAME)
    await op.wait_for(f"News: {NAME} is published!")
    assert len(op.find("It is going to take")) == 2
    assert len(op.find("Labels: ")) == 2
    assert len(op.find("News: ")) == 1


# 07-filters

async def test_filters_let_in_what_they_say(run, user):
    op = run('07-filters')
    for obj in load('07-filters/objs.yaml'):
        await user.apply(obj)
    await op.wait_for("Somebody is awake because of fire")
    await op.wait_for("fire is assigned")
    await op.wait_for("leak is too much at once")
    await op.wait_for("when is answered")
    obj = await user.wait_for(KEX, 'fire', lambda obj: obj['metadata']['annotations']['assignee'])
    assert obj['metadata']['annotations']['assignee'] == 'the-next-one'
    assert len(op.find("Somebody is awake|is assigned|is answered|is too much")) == 4
    obj = await user.get(KEX, 'someday')
    assert 'annotations' not in obj['metadata']


# 08-daemons

async def test_daemons_watch_what_their_object_says_until_they_are_told_to_stop(run, user, kinds):
    async def serve():
        server = await asyncio.start_server(lambda _, writer: writer.close(), '127.0.0.1', 0)
        return server, server.sockets[0].getsockname()[1]

    check, = load('08-daemons/obj.yaml')
    checks = kinds['checks']
    server, port = await serve()
    another, another_port = await serve()
    op = run('08-daemons')
    await user.apply(check, spec={'host': 'localhost', 'port': port, 'interval': 0.1})
    await op.wait_for(f"localhost:{port} is open")
    await op.wait_for("localhost is at .*127.0.0.1")
    server.close()
    await op.wait_for(f"localhost:{port} is closed")
    await user.patch(checks, 'local-web', {'spec': {'port': another_port}})
    await op.wait_for(f"localhost:{another_port} is open")

    await user.patch(checks, 'local-web', {'metadata': {'labels': {'paused': 'yes'}}})
    await op.wait_for("The port is not watched any more: FILTERS_MISMATCH")
    another.close()
    await user.patch(checks, 'local-web', {'metadata': {'labels': {'paused': None}}})
    await op.wait_for(f"localhost:{another_port} is closed")
    await user.delete(checks, 'local-web')
    await op.wait_for("The port is not watched any more: RESOURCE_DELETED")
    await user.wait_gone(checks, 'local-web')


# 09-timers

async def test_of_timers_one_ticks_until_another_one_saves_what_is_not_edited(run, user):
    started = time.monotonic()
    op = run('09-timers')
    await user.apply(OBJ)
    await op.wait_for("Not saved for 1 s")
    await user.patch(KEX, NAME, {'spec': {'field': 'better'}})
    obj = await user.wait_for(KEX, NAME, lambda obj: obj['status']['save'])
    assert obj['status'] == {'save': {'text': 'better'}}
    ticks = len(op.find("Not saved for"))
    assert 2 <= ticks <= 1 + time.monotonic() - started
    await asyncio.sleep(2.4)
    assert len(op.find("Not saved for")) <= ticks + 1  # one can be under way when it is saved
    assert len(op.find("Saved: ")) == 1


# 10-indices

PODS = Kind('', 'v1', 'pods', 'Pod')


async def test_indices_tell_which_pods_use_a_config_map(run, user):
    op = run('10-indices')
    config, pod = load('10-indices/objs.yaml')
    await user.apply(config)
    await user.apply(pod)
    await user.apply(config, metadata={'name': 'others'})
    await user.wait_handled(CONFIGMAPS, 'colours')
    await user.patch(CONFIGMAPS, 'others', {'data': {'background': 'black'}})
    await user.patch(CONFIGMAPS, 'colours', {'data': {'background': 'black'}})
    await op.wait_for("WARNING.*/colours.*restart painter")
    await user.delete_at_once(PODS, 'painter')
    await user.wait_gone(PODS, 'painter')
    await user.patch(CONFIGMAPS, 'colours', {'data': {'background': 'blue'}})
    await op.wait_for("/colours.*No pod is concerned")
    assert 'annotations' not in (await user.get(CONFIGMAPS, 'others'))['metadata']


# 11-memos

async def test_memos_are_of_the_operator_and_of_each_object(run, user):
    said = []

    async def listen(request):
        said.append((await request.json())['text'])
        return aiohttp.web.Response()

    server = test_utils.RawTestServer(listen)
    async with server:
        run('11-memos', env={'CHAT': str(server.make_url('/'))})
        for name in 'one', 'two':
            await user.apply(OBJ, metadata={'name': name})
            await user.wait_handled(KEX, name)
        for value, name in enumerate(['one', 'two', 'one']):
            await user.patch(KEX, name, {'spec': {'field': str(value)}})
            await user.wait_handled(KEX, name)
    assert said == [
        "one is edited; edits so far: 1.",
        "two is edited; edits so far: 1.",
        "one is edited; edits so far: 2.",
    ]


# 12-events

async def test_of_events_those_that_matter_are_posted_and_nothing_is_written_on_pods(run, user):
    op = run('12-events')
    template, = load('12-events/pod.yaml')
    pods = {}
    for name, phase in ('winner', 'Succeeded'), ('loser', 'Failed'):
        pods[name] = await user.apply(template, metadata={'name': name})
        await user.patch(PODS, name, {'status': {'phase': phase}}, subresource='status')
    for name, kind, reason in ('winner', 'Normal', 'Won'), ('loser', 'Warning', 'Lost'):
        event, = await user.kube.wait_events(pods[name], 1)
        assert (event['type'], event['reason']) == (kind, reason)
        pod = await user.get(PODS, name)
        assert not {'annotations', 'finalizers'} & set(pod['metadata'])
        await user.delete_at_once(PODS, name)
    await op.wait_for("Handler 'follow' succeeded")


# 13-admission

CONFIGURATIONS = [
    Kind('admissionregistration.k8s.io', 'v1', f'{word}webhookconfigurations', '', False)
    for word in ('validating', 'mutating')]


@pytest.fixture()
async def webhooks(kube):
    """Nothing is checked after the test any more."""
    yield
    for kind in CONFIGURATIONS:
        await kube.delete(kind, 'examples.kopf.dev')


async def test_of_admission_the_wrong_is_refused_and_the_absent_filled_in(run, user, webhooks):
    run('13-admission')
    for kind in CONFIGURATIONS:
        await user.kube.wait_for(kind, 'examples.kopf.dev', lambda obj: obj['webhooks'])

    async def is_refused():
        try:
            await user.apply(OBJ, metadata={'name': 'wrong'}, spec={'field': 123})
        except KubeError as e:
            assert e.status == 400 and "spec.field must be a text." in str(e)
            return True
        await user.delete(KEX, 'wrong')  # the API has not heard of the webhooks yet
        return False

    while not await is_refused():
        await asyncio.sleep(0.1)
    obj = await user.apply(OBJ, spec={'field': 'text'})
    assert obj['spec'] == {'field': 'text', 'duration': '1m'}


# 14-peering

@pytest.fixture(scope='module')
def peerings(cluster):
    """The kinds of peerings; they stay there, for other tests can use them at the same time."""
    asyncio.run(install(cluster, load(EXAMPLES.parent / 'peering.yaml')))


async def test_of_peers_the_one_with_the_highest_priority_works(run, user, peerings):
    peering, = load('14-peering/peering.yaml')
    await user.apply(peering)
    low = run('14-peering', '--peering', 'example', '--priority', '1')
    await user.apply(OBJ)
    await low.wait_for(f"It is me who handles the create of {NAME}")
    await user.wait_handled(KEX, NAME)

    high = run('14-peering', '--peering', 'example', '--priority', '2')
    await low.wait_for("Pausing operations")
    await user.patch(KEX, NAME, {'spec': {'field': 'first'}})
    await high.wait_for(f"It is me who handles the update of {NAME}")
    await user.wait_handled(KEX, NAME)

    assert high.stop() == 0
    await low.wait_for("Resuming operations")
    await user.patch(KEX, NAME, {'spec': {'field': 'second'}})
    await low.wait_for(f"It is me who handles the update of {NAME}")
    assert len(low.find("It is me")) == 2
    assert len(high.find("It is me")) == 1


# 15-embedding

async def test_an_embedded_operator_serves_its_application(run, user, namespace):
    with socket.socket() as sock:
        sock.bind(('localhost', 0))
        port = sock.getsockname()[1]
    program = run('15-embedding', str(port), program=True)
    await program.wait_for(f"See http://localhost:{port}")

    async def get():
        async with aiohttp.ClientSession() as session:
            async with session.get(f'http://localhost:{port}') as response:
                return (await response.json()).get(f'{namespace}/{NAME}')

    async def wait_for(expected):
        async with asyncio.timeout(30):
            while await get() != expected:
                await asyncio.sleep(0.05)

    await user.apply(OBJ)
    await wait_for(OBJ['spec'])
    await user.patch(KEX, NAME, {'spec': {'field': 'other'}})
    await wait_for({**OBJ['spec'], 'field': 'other'})
    await user.delete(KEX, NAME)
    await wait_for(None)
    program.send(signal.SIGINT)
    assert await program.wait() == 0
    assert program.lines[-1] == "Good-bye."


# 16-several-operators

async def test_several_operators_do_not_mix_up_what_they_remember(run, user):
    program = run('16-several-operators', program=True)
    await user.apply(OBJ)
    await program.wait_for(f"Welcome, {NAME}!")

    def get_notes(obj):
        notes = obj['metadata'].get('annotations', {})
        return {key.split('/')[0]: json.loads(notes[key])
                for key in notes if key.endswith('last-handled-configuration')}

    await user.wait_for(KEX, NAME, lambda obj: len(get_notes(obj)) == 2)
    for count, value in (1, 'other'), (2, 'another'):
        await user.patch(KEX, NAME, {'spec': {'field': value}})
        await program.wait_for(f"Changes so far: {count}")
        await user.wait_for(KEX, NAME, lambda obj, value=value: all(
            note['spec']['field'] == value for note in get_notes(obj).values()))
    await user.wait_for(KEX, NAME, lambda obj: obj['status'] == {'count': 2})
    await user.wait_settled(KEX, NAME)
    assert len(program.find("Changes so far")) == 2
    assert len(program.find("Welcome")) == 1
    program.send(signal.SIGTERM)
    assert await program.wait() == 0


# 23-typed-kinds

async def test_of_typed_kinds_the_api_checks_the_values_and_the_handlers_get_them(
        run, user, kinds, minor):
    if minor < RULES_SINCE:
        pytest.skip("This API takes the empty messages of conditions for null.")
    cache, = load('23-typed-kinds/obj.yaml')
    op = run('23-typed-kinds')
    await user.apply(cache)
    server = await user.wait_for(DEPLOYMENTS, 'hello', lambda obj: obj)
    [container] = server['spec']['template']['spec']['containers']
    assert container['image'] == 'valkey:latest'
    await user.patch(
        DEPLOYMENTS, 'hello', {'status': {'replicas': 1, 'readyReplicas': 1}}, subresource='status')
    obj = await user.wait_for(
        kinds['caches'], 'hello', lambda obj: obj['status']['readyReplicas'] == 1)
    assert get_conditions(obj)['Ready'] == 'True'
    await user.patch(kinds['caches'], 'hello', {'spec': {'replicas': 3}})
    await user.wait_for(DEPLOYMENTS, 'hello', lambda obj: obj['spec']['replicas'] == 3)
    await op.wait_for("From 1 to 3 replicas.")
    for spec in [{'replicas': 99}, {'engine': 'Memcached'}, {'engine': 'Redis'}]:
        with pytest.raises(KubeError) as info:
            await user.patch(kinds['caches'], 'hello', {'spec': spec})
        assert info.value.status == 422
    await user.delete(kinds['caches'], 'hello')
    await user.wait_collected(DEPLOYMENTS, 'hello')


# 24-versions

async def test_of_versions_the_handlers_know_one_and_users_another(run, user, kinds):
    archive, = load('24-versions/obj.yaml')
    op = run('24-versions')
    await op.wait_for(r"Starting the watch-stream for archives\.v1\.example\.com")  # now converted
    await user.apply(archive)
    await op.wait_for("hello has 5G for ann")
    old = Kind('example.com', 'v1alpha1', 'archives', 'Archive')
    await user.patch(kinds['archives'], 'hello', {'spec': {'owners': ['ann', 'bob']}})
    await user.patch(old, 'hello', {'spec': {'sizeGb': 7}})
    await op.wait_for("Resized from 5G to 7G")
    obj = await user.get(kinds['archives'], 'hello')
    assert obj['spec'] == {'size': '7G', 'owners': ['ann', 'bob']}


# 25-external

async def wait_empty(cloud, kind):
    """Wait until all is deleted there; the operator waits for longer, as the cloud could lie."""
    async with asyncio.timeout(60):
        while cloud.things(kind):
            await asyncio.sleep(0.1)


async def test_of_external_systems_each_object_has_one_account(run, user, kinds, minor):
    if minor < RULES_SINCE:
        pytest.skip("This API takes the empty messages of conditions for null.")
    tenant, = load('25-external/obj.yaml')
    async with testing.FakeCloud(unique='tenant') as cloud:
        op = run('25-external', env={'BILLING_URL': cloud.url})
        await user.apply(tenant)
        obj = await user.wait_for(
            kinds['tenants'], 'hello', lambda obj: obj['status']['billing']['key'])
        [account] = cloud.things('accounts')
        assert (account['id'], account['limit']) == (obj['status']['billing']['key'], 20)
        op.kill()
        run('25-external', env={'BILLING_URL': cloud.url})
        await user.patch(kinds['tenants'], 'hello', {'spec': {'limit': 30}})
        await user.wait_for(
            kinds['tenants'], 'hello', lambda _: cloud.things('accounts')[0]['limit'] == 30)
        await user.delete(kinds['tenants'], 'hello')
        await wait_empty(cloud, 'accounts')
        assert [call.method for call in cloud.calls].count('POST') == 1


# 26-database

CLAIMS = Kind('', 'v1', 'persistentvolumeclaims', 'PersistentVolumeClaim')
SECRETS = Kind('', 'v1', 'secrets', 'Secret')
STATEFULSETS = Kind('apps', 'v1', 'statefulsets', 'StatefulSet')


async def test_users_of_databases_can_log_in_until_they_are_deleted(run, user, kinds, minor):
    if minor < RULES_SINCE:
        pytest.skip("This API takes the empty messages of conditions for null.")
    database, web = load('26-database/obj.yaml')
    databases, users = kinds['databases'], kinds['databaseusers']
    async with testing.FakeCloud() as server:
        args = ['26-database', str(EXAMPLES / '26-database' / 'fakes' / 'asyncpg.py')]
        op = run(*args, env={'FAKE_SERVER_URL': server.url})
        await user.apply(database)
        await user.wait_for(STATEFULSETS, 'shop', lambda obj: obj)
        await user.patch(STATEFULSETS, 'shop', {'status': {'replicas': 1, 'readyReplicas': 1}},
                         subresource='status')
        await user.wait_for(databases, 'shop', lambda obj: obj['status']['ready'])
        await user.apply(web)
        await user.wait_for(users, 'web', lambda obj: obj['status']['role']['key'])
        [role] = server.things('roles')
        secret = await user.get(SECRETS, 'web-login')
        assert base64.b64decode(secret['data']['password']).decode() == role['password']
        op.kill()
        run(*args, env={'FAKE_SERVER_URL': server.url})
        await user.patch(users, 'web', {'spec': {'connections': 5}})
        await user.wait_for(users, 'web', lambda _: server.things('roles')[0]['connections'] == 5)
        assert (await user.get(SECRETS, 'web-login'))['data'] == secret['data']
        await user.delete(users, 'web')
        await user.wait_gone(users, 'web')
        assert server.things('roles') == []
    await user.delete(databases, 'shop')
    await user.wait_collected(STATEFULSETS, 'shop')
    assert await user.get(CLAIMS, 'shop-backups') and await user.get(SECRETS, 'shop-admin')


# 27-tenant

BINDINGS = Kind('rbac.authorization.k8s.io', 'v1', 'rolebindings', 'RoleBinding')
QUOTAS = Kind('', 'v1', 'resourcequotas', 'ResourceQuota')


async def test_of_tenants_each_has_its_namespaces_and_an_account(
        run, user, kinds, namespace, minor):
    if minor < RULES_SINCE:
        pytest.skip("This API takes the empty messages of conditions for null.")
    team, = load('27-tenant/obj.yaml')
    teams, kube = kinds['teams'], user.kube
    async with testing.FakeCloud(unique='team') as service:
        run('27-tenant', '-A', env={'BILLING_URL': service.url})
        await kube.request('POST', teams.get_path(), body={**team, 'metadata': {'name': namespace}})
        obj = await kube.wait_for(teams, namespace, lambda obj: (
            obj['status']['billing']['key'] and obj['status']['namespaces']))
        [account] = service.things('accounts')
        assert (account['team'], account['seats']) == (namespace, 2)
        for place in obj['status']['namespaces']:
            quota = await kube.wait_for(QUOTAS, 'plan', lambda obj: obj, namespace=place)
            assert quota['spec']['hard']['pods'] == '20'
            for name, role in ('ann', 'admin'), ('bob', 'edit'):
                binding = await kube.wait_for(
                    BINDINGS, f'members-{role}', lambda obj: obj, namespace=place)
                assert [subject['name'] for subject in binding['subjects']] == [name]
        with pytest.raises(KubeError, match="deleted with their team only"):
            await kube.patch(teams, namespace, {'spec': {'environments': ['dev']}})
        await kube.delete(teams, namespace)
        await wait_empty(service, 'accounts')


# 28-dns

async def test_of_dns_records_each_is_at_the_provider(run, user, kinds, minor):
    if minor < RULES_SINCE:
        pytest.skip("This API takes the empty messages of conditions for null.")
    record, = load('28-dns/obj.yaml')
    records = kinds['dnsrecords']
    async with testing.FakeCloud(rate=5) as provider:
        run('28-dns', env={'DNS_URL': provider.url})
        await user.apply(record)
        await user.apply({
            'apiVersion': 'v1', 'kind': 'Service',
            'metadata': {'name': 'shop', 'annotations': {'example.com/dns-name': 'shop'}},
            'spec': {'type': 'LoadBalancer', 'ports': [{'port': 80, 'protocol': 'TCP'}]}})
        await user.patch(
            SERVICES, 'shop', {'status': {'loadBalancer': {'ingress': [{'ip': '192.0.2.1'}]}}},
            subresource='status')
        for name in 'www', 'shop-a':
            await user.wait_for(
                records, name, lambda obj: get_conditions(obj)['Synced'] == 'True')
        assert {each['name']: each['values'] for each in provider.things('records')} == {
            'www.example.org': ['192.0.2.10', '192.0.2.11'], 'shop.example.org': ['192.0.2.1']}
        await user.delete(SERVICES, 'shop')
        await user.delete(records, 'www')
        await wait_empty(provider, 'records')


# 20-reconcile

SERVICES = Kind('', 'v1', 'services', 'Service')


def get_conditions(obj):
    return {item['type']: item['status'] for item in obj['status'].get('conditions', [])}


async def test_reconciled_children_are_as_the_function_says_whoever_changes_them(run, user, kinds):
    homepage, = load('20-reconcile/obj.yaml')
    homepages = kinds['homepages']
    run('20-reconcile')
    parent = await user.apply(homepage)
    obj = await user.wait_for(homepages, 'hello', lambda obj: obj['status']['conditions'])
    assert get_conditions(obj) == {
        'Available': 'False', 'Ready': 'True', 'Reconciling': 'False', 'Stalled': 'False'}
    for kind in CONFIGMAPS, DEPLOYMENTS, SERVICES:
        child = await user.get(kind, 'hello')
        owner, = child['metadata']['ownerReferences']
        assert owner['uid'] == parent['metadata']['uid'] and owner['controller']
        assert child['metadata']['labels']['team'] == 'greeters'

    service = await user.get(SERVICES, 'hello')
    await user.delete(SERVICES, 'hello')
    await user.wait_for(SERVICES, 'hello', lambda obj: (
        obj['metadata']['uid'] != service['metadata']['uid']))
    await user.patch(CONFIGMAPS, 'hello', {'data': {'index.html': 'broken', 'more': 'kept'}})
    page = await user.wait_for(
        CONFIGMAPS, 'hello', lambda obj: obj['data']['index.html'] != 'broken')
    assert page['data'] == {'index.html': '<h1>Hello, world!</h1>', 'more': 'kept'}

    await user.patch(
        DEPLOYMENTS, 'hello', {'status': {'replicas': 1, 'readyReplicas': 1}}, subresource='status')
    obj = await user.wait_for(
        homepages, 'hello', lambda obj: get_conditions(obj)['Available'] == 'True')
    assert obj['status']['readyReplicas'] == 1
    await user.patch(homepages, 'hello', {'spec': {'public': False, 'text': 'Bye.'}})
    await user.wait_gone(SERVICES, 'hello')
    await user.wait_for(
        CONFIGMAPS, 'hello', lambda obj: obj['data']['index.html'] == '<h1>Bye.</h1>')
    await user.delete(homepages, 'hello')
    await user.wait_collected(CONFIGMAPS, 'hello')
    await user.wait_collected(DEPLOYMENTS, 'hello')


# 21-observability

async def test_metrics_of_the_example_are_those_of_its_dashboard_and_alerts(run, user):
    port = find_free_ports(1)
    op = run('21-observability', f'--liveness=http://127.0.0.1:{port}/healthz',
             f'--metrics=http://127.0.0.1:{port}/metrics',
             f'--debug-endpoint=http://127.0.0.1:{port}/debug', '--leader-elect=kopf-example-21',
             env={'POD_ID': 'pod1'})

    async def fetch(path):
        async with aiohttp.ClientSession() as session:
            async with session.get(f'http://127.0.0.1:{port}{path}') as response:
                assert response.status == 200
                return await response.text()

    await op.wait_for("Leading: handling the objects")
    await user.apply(OBJ)
    async with asyncio.timeout(8):
        while not (found := json.loads(await fetch('/debug'))['waiting']['shown']):
            await asyncio.sleep(0.05)
    waiting, = found
    assert (waiting['name'], waiting['reason']) == ('kopf-example-1', 'retry')
    assert [handler['id'] for handler in waiting['handlers']] == ['greet']
    await op.wait_for("Handler 'greet' succeeded")
    series = expressions.parse_text(await fetch('/metrics'))
    assert series['greetings_total'] == [({'language': 'en'}, 1)]
    assert [expr for expr in [*expressions.get_dashboard(), *expressions.get_alerts()]
            if expressions.find_missing(expr, series)] == []


# 18-walkthrough

async def test_the_walkthrough_leads_to_websites_with_pages_servers_and_records(run, user, kinds):
    website, = load('18-walkthrough/website.yaml')
    websites = kinds['websites']
    async with testing.FakeCloud() as cloud:
        op = run('18-walkthrough', env={'DNS_URL': cloud.url})
        await user.apply(website)
        obj = await user.wait_for(websites, 'hello', lambda obj: obj['status']['dns']['key'])
        [record] = cloud.things('records')
        assert (record['id'], record['name']) == (obj['status']['dns']['key'], 'hello.example.com')
        page = await user.wait_for(CONFIGMAPS, 'hello', lambda obj: obj)
        assert page['data'] == {'index.html': '<h1>Hello, world!</h1>'}
        await user.wait_for(SERVICES, 'hello', lambda obj: obj)
        await user.wait_for(DEPLOYMENTS, 'hello', lambda obj: obj)
        await user.patch(DEPLOYMENTS, 'hello', {'status': {'replicas': 1, 'readyReplicas': 1}},
                         subresource='status')
        await user.wait_for(websites, 'hello', lambda obj: obj['status']['ready'] == 1)

        await user.delete(CONFIGMAPS, 'hello')
        await user.wait_for(CONFIGMAPS, 'hello', lambda obj: (
            obj['metadata']['uid'] != page['metadata']['uid']))
        await user.patch(websites, 'hello', {'spec': {'title': 'Bye.', 'domain': 'example.org'}})
        await op.wait_for("'Hello, world!' is called 'Bye.' now.")
        await user.wait_for(
            websites, 'hello', lambda obj: obj['status']['dns']['name'] == 'example.org')
        await user.wait_for(
            CONFIGMAPS, 'hello', lambda obj: obj['data']['index.html'] == '<h1>Bye.</h1>')
        with pytest.raises(KubeError) as info:
            await user.patch(websites, 'hello', {'spec': {'title': ' '}})
        assert info.value.status == 422

        await user.delete(websites, 'hello')
        await user.wait_gone(websites, 'hello')
        assert cloud.things('records') == []
        for kind in CONFIGMAPS, DEPLOYMENTS, SERVICES:
            await user.wait_collected(kind, 'hello')
