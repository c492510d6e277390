"""
Which kinds of objects and which namespaces are served, as they come and go.
"""

import asyncio
import contextlib
import uuid

import pytest
import yaml

import kopf
from tests.e2e.journals import FINALIZER, wait_handled
from tests.e2e.kubes import CONFIGMAPS, CRDS, NAMESPACES, PODS, Kind, KubeError

DEPLOYMENTS = Kind('apps', 'v1', 'deployments', 'Deployment')
CRD = Kind(
    'apiextensions.k8s.io', 'v1', 'customresourcedefinitions', 'CustomResourceDefinition',
    namespaced=False)
JUST_A_POD = {'containers': [{'name': 'main', 'image': 'any'}]}
JUST_A_DEPLOYMENT = {
    'replicas': 0,
    'selector': {'matchLabels': {'app': 'any'}},
    'template': {'metadata': {'labels': {'app': 'any'}}, 'spec': JUST_A_POD},
}


@pytest.fixture()
def suffix():
    return uuid.uuid4().hex[:8]


def get_warnings(caplog):
    return [record.getMessage() for record in caplog.records
            if record.levelname == 'WARNING' and 'OS signals' not in record.getMessage()]


async def get_verbs(kube, kind):
    """The verbs of the kind as discovery names them."""
    answer = await kube.request('GET', f'/apis/{kind.group}/{kind.version}')
    return next(item['verbs'] for item in answer['resources'] if item['name'] == kind.plural)


async def test_handlers_are_told_all_about_the_kind(kube, make_kind, suffix, journal, embedded):
    kind = Kind(f'a{suffix}.test', 'v1', f'alphas{suffix}', f'Alpha{suffix}')

    @kopf.on.create(*kind.selector)
    def fn(resource, **_):
        journal.append((tuple(resource), resource.shortcuts, resource.categories))

    embedded()
    await make_kind(kind, short_names=[f'al{suffix}'], categories=[f'cat{suffix}'])
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == [
        ((kind.group, 'v1', kind.plural), {f'al{suffix}'}, {f'cat{suffix}'})]


async def test_all_forms_of_selectors_choose_the_kinds(
        kube, make_kind, suffix, journal, embedded, caplog):
    group, another = f'a{suffix}.test', f'c{suffix}.test'
    alphas = Kind(group, 'v1', f'alphas{suffix}', f'Alpha{suffix}')
    old_alphas = Kind(group, 'v1beta1', f'alphas{suffix}', f'Alpha{suffix}')
    betas = Kind(group, 'v1', f'betas{suffix}', f'Beta{suffix}')
    clones = Kind(another, 'v1', f'alphas{suffix}', f'Alpha{suffix}')
    pods = Kind(another, 'v1', 'pods', 'Pod')
    await make_kind(alphas, more_versions=['v1beta1'], short_names=[f'al{suffix}'],
                    categories=[f'cat{suffix}'])
    await make_kind(betas, short_names=[f'be{suffix}'], categories=[f'cat{suffix}'])
    await make_kind(clones)
    await make_kind(pods)
    cases = {
        'three': ([group, 'v1', alphas.plural], {}, {alphas}),
        'three-old': ([group, 'v1beta1', alphas.plural], {}, {old_alphas}),
        'slashed': ([f'{group}/v1', alphas.plural], {}, {alphas}),
        'slashed-old': ([f'{group}/v1beta1', alphas.kind], {}, {old_alphas}),
        'two': ([group, alphas.plural], {}, {alphas}),
        'dotted': ([f'{alphas.plural}.{group}'], {}, {alphas}),
        'dotted-singular': ([f'{alphas.kind.lower()}.{group}'], {}, {alphas}),
        'dotted-version': ([f'{alphas.plural}.v1beta1.{group}'], {}, {old_alphas}),
        'plural': ([betas.plural], {}, {betas}),
        'singular': ([betas.kind.lower()], {}, {betas}),
        'kind': ([betas.kind], {}, {betas}),
        'short': ([f'be{suffix}'], {}, {betas}),
        'short-of-one': ([f'al{suffix}'], {}, {alphas}),
        'kind=': ([], {'kind': betas.kind}, {betas}),
        'plural=': ([], {'plural': betas.plural}, {betas}),
        'singular=': ([], {'singular': betas.kind.lower()}, {betas}),
        'shortcut=': ([], {'shortcut': f'be{suffix}'}, {betas}),
        'group=': ([], {'group': another, 'plural': alphas.plural}, {clones}),
        'version=': (
            [], {'group': group, 'version': 'v1beta1', 'plural': alphas.plural}, {old_alphas}),
        'category=': ([], {'category': f'cat{suffix}'}, {alphas, betas}),
        'category-group=': ([], {'category': f'cat{suffix}', 'group': another}, set()),
        'everything-3': ([group, 'v1', kopf.EVERYTHING], {}, {alphas, betas}),
        'everything-3-old': ([group, 'v1beta1', kopf.EVERYTHING], {}, {old_alphas}),
        'everything-slashed': ([f'{group}/v1', kopf.EVERYTHING], {}, {alphas, betas}),
        'everything-2': ([group, kopf.EVERYTHING], {}, {alphas, betas}),
        'callable': (
            [lambda resource: resource.plural == betas.plural and resource.preferred],
            {}, {betas}),
        'callable-versions': (
            [lambda resource: resource.plural == alphas.plural], {},
            {alphas, old_alphas, clones}),
        'callable-group=': (
            [lambda resource: resource.plural == alphas.plural and resource.preferred],
            {'group': group}, {alphas}),
        'ambiguous': ([alphas.plural], {}, set()),
        'ambiguous-kind=': ([], {'kind': alphas.kind}, set()),
        'pods': (['pods'], {}, {PODS}),
        'Pod': (['Pod'], {}, {PODS}),
        'po': (['po'], {}, {PODS}),
        'pods-v1': (['v1', 'pods'], {}, {PODS}),
        'pods-v1-3': (['', 'v1', 'pods'], {}, {PODS}),
        'pods.v1': (['pods.v1'], {}, {PODS}),
        'pods-another': ([f'pods.{another}'], {}, {pods}),
        'deployments': (['deployments'], {}, {DEPLOYMENTS}),
        'deployments-apps': (['apps', 'deployments'], {}, {DEPLOYMENTS}),
        'deployments-apps-v1': (['apps/v1', 'deployments'], {}, {DEPLOYMENTS}),
        'deployments.apps': (['deployments.apps'], {}, {DEPLOYMENTS}),
        'unknown': ([f'no-such-{suffix}'], {}, set()),
    }

    def fn(param, resource, type, **_):
        journal.append((param, resource.group, resource.version, resource.plural))

    for id, (args, kwargs, _) in cases.items():
        kopf.on.event(
            *args, **kwargs, id=id, param=id, when=lambda name, **_: name == f'x{suffix}')(fn)

    kinds = [alphas, betas, clones, pods]
    await asyncio.gather(*(kube.create(kind, f'x{suffix}') for kind in kinds))
    await kube.create(PODS, f'x{suffix}', spec=JUST_A_POD)
    await kube.create(DEPLOYMENTS, f'x{suffix}', spec=JUST_A_DEPLOYMENT)
    try:
        operator = embedded()
        expected = {
            (id, kind.group, kind.version, kind.plural)
            for id, (*_, kinds) in cases.items() for kind in kinds
        }
        await journal.wait_until(lambda: expected <= set(journal))
        operator.stop()
    finally:
        await kube.request(
            'DELETE', PODS.get_path(f'x{suffix}', 'default'), params={'gracePeriodSeconds': '0'})
        await kube.delete(DEPLOYMENTS, f'x{suffix}')
    assert set(journal) == expected
    warnings = get_warnings(caplog)
    assert len([warning for warning in warnings if 'Ambiguous resources' in warning]) == 2
    assert all(alphas.plural in warning or alphas.kind in warning
               for warning in warnings if 'Ambiguous resources' in warning)
    assert [warning for warning in warnings if 'Unresolved resources' in warning and
            f'no-such-{suffix}' in warning]


async def test_everything_is_everything_but_events(
        kube, kind, suffix, journal, embedded, settings):
    settings.persistence.finalizer = f'{suffix}.test/finalizer'  # or it releases others' objects
    label = f'only-{suffix}'

    def fn(param, resource, namespace, name, **_):
        journal.append((param, resource.plural, namespace, name))

    kopf.on.event(kopf.EVERYTHING, id='all', param='all', labels={label: kopf.PRESENT})(fn)
    kopf.on.event(
        lambda resource: resource.group == '' and resource.preferred, id='core', param='core',
        labels={label: kopf.PRESENT})(fn)
    kopf.on.event('v1', 'events', id='named', param='named', labels={label: kopf.PRESENT})(fn)

    labels = {label: 'yes'}
    try:
        await kube.request('POST', '/api/v1/namespaces/default/events', body={
            'metadata': {'name': suffix, 'labels': labels},
            'involvedObject': {'namespace': 'default'}})
        await kube.create(kind, suffix, labels=labels)
        await kube.create(kind, f'{suffix}-unlabelled')
        await kube.create(CONFIGMAPS, suffix, labels=labels)
        await kube.create(NAMESPACES, suffix, labels=labels)
        embedded()
        expected = [
            ('all', kind.plural, 'default', suffix),
            ('all', 'configmaps', 'default', suffix),
            ('all', 'namespaces', None, suffix),
            ('core', 'configmaps', 'default', suffix),
            ('core', 'namespaces', None, suffix),
            ('named', 'events', 'default', suffix),
        ]
        await journal.wait(*expected)
        await asyncio.sleep(0.3)
        assert set(journal) == set(expected)
    finally:
        await kube.delete(CONFIGMAPS, suffix)
        await kube.delete(NAMESPACES, suffix)


async def test_a_kind_that_comes_and_goes_and_comes_back_is_served_while_it_is_there(
        kube, make_kind, journal, embedded, caplog):
    kind = Kind.make_unique()

    @kopf.on.create(*kind.selector)
    def create_fn(uid, **_):
        journal.append(('create', uid))

    @kopf.on.event(*kind.selector)
    def event_fn(uid, type, **_):
        if type == 'DELETED':
            journal.append((type, uid))

    embedded()
    for _ in range(100):
        if any(kind.plural in warning for warning in get_warnings(caplog)):
            break
        await asyncio.sleep(0.05)
    warning, = get_warnings(caplog)
    assert warning.startswith("Unresolved resources cannot be served (try creating their CRDs): ")

    for _ in range(2):
        caplog.clear()
        await make_kind(kind)
        obj = await kube.create(kind, 'x')
        await wait_handled(kube, kind, 'x')
        await kube.request('DELETE', f'{CRDS}/{kind.plural}.{kind.group}')
        await kube.wait_gone(CRD, f'{kind.plural}.{kind.group}')
        await kube.wait_unserved(kind)
        uid = obj['metadata']['uid']
        await journal.wait(('create', uid), ('DELETED', uid))
        assert len(journal) == 2
        journal.clear()
        assert [record.getMessage() for record in caplog.records
                if record.levelname == 'ERROR'] == []


@pytest.mark.parametrize('is_late', [False, True])
async def test_objects_of_a_deleted_definition_are_handled_before_they_are_gone(
        kube, make_kind, journal, embedded, caplog, is_late):
    kind = await make_kind(Kind.make_unique())
    path = f'{CRDS}/{kind.plural}.{kind.group}'

    @kopf.on.delete(*kind.selector)
    def delete_fn(name, retry, **_):
        if retry == 0:
            raise kopf.TemporaryError("Later, when discovery does not name all verbs.", delay=3)
        journal.append(('delete', name))

    if is_late:
        await kube.create(kind, 'x', finalizers=[FINALIZER])
        await kube.request('DELETE', path)
        async with asyncio.timeout(30):
            while 'patch' in await get_verbs(kube, kind):
                await asyncio.sleep(0.05)
        embedded()
    else:
        embedded()
        await kube.create(kind, 'x')
        await kube.wait_for(kind, 'x', lambda obj: obj['metadata'].get('finalizers'))
        await kube.request('DELETE', path)
    await kube.wait_gone(CRD, f'{kind.plural}.{kind.group}')
    assert journal == [('delete', 'x')]
    assert 'will not be served' not in caplog.text


async def test_a_change_of_the_version_is_no_change_of_the_objects(
        kube, make_kind, journal, embedded):
    kind = await make_kind(Kind.make_unique())
    newer = Kind(kind.group, 'v2', kind.plural, kind.kind)

    @kopf.on.create(kind.group, kind.plural)
    @kopf.on.resume(kind.group, kind.plural)
    @kopf.on.update(kind.group, kind.plural)
    def fn(name, reason, resource, **_):
        journal.append((name, str(reason), resource.version))

    @kopf.on.create(*kind.selector, id='old')
    def old_fn(name, **_):
        journal.append((name, 'old'))

    embedded()
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == [('x', 'create', 'v1'), ('x', 'old')]
    journal.clear()

    path = f'{CRDS}/{kind.plural}.{kind.group}'
    crd = await kube.request('GET', path)
    version = crd['spec']['versions'][0]
    await kube.request('PATCH', path, content_type='application/merge-patch+json', body={
        'spec': {'versions': [
            {**version, 'served': False, 'storage': False},
            {**version, 'name': 'v2'},
        ]}})
    await kube.wait_served(newer)
    await kube.create(newer, 'y')
    await wait_handled(kube, newer, 'y', timeout=20)
    await kube.patch(newer, 'x', {'spec': {'field': 1}})
    await wait_handled(kube, newer, 'x')
    assert journal == [('y', 'create', 'v2'), ('x', 'update', 'v2')]


@pytest.mark.parametrize('decorator', [kopf.on.event, kopf.index, kopf.on.update])
async def test_finalizer_is_left_to_the_version_whose_handlers_need_it(
        kube, make_kind, journal, embedded, decorator):
    kind = await make_kind(Kind.make_unique(), more_versions=['v1beta1'])
    names = [f'x{number}' for number in range(10)]

    @decorator(kind.group, 'v1beta1', kind.plural)
    def other_fn(**_):
        pass

    @kopf.on.delete(*kind.selector)
    def delete_fn(name, **_):
        journal.append(name)

    embedded()
    for name in names:
        await kube.create(kind, name)
    for name in names:
        await kube.wait_for(kind, name, lambda obj: obj['metadata'].get('finalizers'))
    versions = [(await kube.get(kind, name))['metadata']['resourceVersion'] for name in names]
    await asyncio.sleep(0.5)
    assert versions == [
        (await kube.get(kind, name))['metadata']['resourceVersion'] for name in names]
    for name in names:
        await kube.delete(kind, name)
    for name in names:
        await kube.wait_gone(kind, name)
    assert sorted(journal) == sorted(names)


async def test_kinds_that_come_late_are_not_served_if_scanning_is_disabled(
        kube, kind, make_kind, journal, embedded):
    late = Kind.make_unique()

    def start(name, settings):
        registry = kopf.OperatorRegistry()
        settings.posting.enabled = False

        @kopf.on.event(*kind.selector, registry=registry)
        @kopf.on.event(*late.selector, registry=registry)
        def fn(resource, **_):
            journal.append((name, resource.plural))

        embedded(registry=registry, settings=settings)

    settings = kopf.OperatorSettings()
    settings.scanning.disabled = True
    start('disabled', settings)
    start('usual', kopf.OperatorSettings())
    await kube.create(kind, 'x')
    await journal.wait(('disabled', kind.plural), ('usual', kind.plural))
    await make_kind(late)
    await kube.create(late, 'x')
    await journal.wait(('usual', late.plural))
    await asyncio.sleep(0.5)
    assert ('disabled', late.plural) not in journal


async def test_namespaces_are_served_as_they_are_named_and_as_they_come_and_go(
        kube, kind, suffix, journal, embedded):
    live, pr456, pr123 = f'a{suffix}-live', f'a{suffix}-pr-456', f'a{suffix}-pr-123'
    other_live, other_pr123 = f'b{suffix}-live', f'b{suffix}-pr-123'
    late = f'a{suffix}-late'
    first = [live, pr456, pr123, other_live, other_pr123]
    cases = {
        'one': ([live], {live}),
        'two': ([live, other_pr123], {live, other_pr123}),
        'not-there-yet': ([late], {late}),
        'glob': ([f'a{suffix}-*'], {live, pr456, pr123, late}),
        'character': ([f'?{suffix}-live'], {live, other_live}),
        'negation': (['!*-pr-*'], {live, other_live, late, 'default'}),
        'several-negations': ([f'*{suffix}*,!*-pr-*,!*-late'], {live, other_live}),
        'exception': ([f'a{suffix}-*,!*-pr-*,*-pr-123'], {live, pr123, late}),
        'any-of': ([f'a{suffix}-*,!*-pr-*', '*-pr-123'], {live, pr123, other_pr123, late}),
    }
    everywhere = {*first, late, 'default'}

    def start(name, patterns):
        registry = kopf.OperatorRegistry()

        @kopf.on.event(*kind.selector, registry=registry)
        def fn(namespace, type, uid, **_):
            if namespace in everywhere and type != 'DELETED':  # that can come late
                journal.append((name, namespace, uid))

        return embedded(registry=registry, namespaces=patterns)

    async def make(namespace):
        await kube.create(NAMESPACES, namespace)
        obj = await kube.create(kind, 'x', namespace=namespace)
        return namespace, obj['metadata']['uid']

    try:
        objs = dict(await asyncio.gather(*(make(namespace) for namespace in first)))
        objs['default'] = (await kube.create(kind, 'x'))['metadata']['uid']
        operators = [start(name, patterns) for name, (patterns, _) in cases.items()]
        expected = {
            (name, namespace, objs[namespace])
            for name, (_, namespaces) in cases.items() for namespace in namespaces
            if namespace in objs
        }
        await journal.wait_until(lambda: set(journal) >= expected)
        assert set(journal) == expected

        journal.clear()
        _, uid = await make(late)
        expected = {(name, late, uid) for name, (_, namespaces) in cases.items()
                    if late in namespaces}
        await journal.wait_until(lambda: set(journal) >= expected)
        assert set(journal) == expected

        await kube.delete(NAMESPACES, late)
        await kube.wait_gone(NAMESPACES, late, timeout=240)  # Kubernetes takes its time for it
        journal.clear()
        _, uid = await make(late)
        expected = {(name, late, uid) for name, *_ in expected}
        await journal.wait_until(lambda: set(journal) >= expected)
        assert set(journal) == expected
        for operator in operators:
            operator.stop()
    finally:
        for namespace in [*first, late]:
            with contextlib.suppress(KubeError):
                await kube.delete(NAMESPACES, namespace)


async def test_objects_without_namespaces_are_served_whatever_the_namespaces(
        kube, make_kind, suffix, journal, embedded):
    kind = await make_kind(namespaced=False)

    @kopf.on.create(*kind.selector)
    def fn(name, namespace, **_):
        journal.append((name, namespace))

    embedded(namespaces=[f'no-such-{suffix}', 'default'])
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == [('x', None)]


async def test_objects_are_chosen_by_the_server_if_so_set(
        kube, kind, borrow, journal, embedded, settings):
    another = borrow()
    settings.watching.label_selectors[kind.selector] = 'chosen=yes'
    settings.watching.field_selectors[kopf.EVERYTHING] = 'metadata.name!=excluded'

    @kopf.on.create(*kind.selector)
    @kopf.on.create(*another.selector)
    def fn(name, resource, **_):
        journal.append((resource.plural, name))

    embedded()
    for k in (kind, another):
        await kube.create(k, 'excluded', labels={'chosen': 'yes'})
        await kube.create(k, 'unlabelled')
        await kube.create(k, 'labelled', labels={'chosen': 'yes'})
        await wait_handled(kube, k, 'labelled')
    assert set(journal) == {
        (kind.plural, 'labelled'), (another.plural, 'labelled'), (another.plural, 'unlabelled')}
    await kube.patch(kind, 'unlabelled', {'metadata': {'labels': {'chosen': 'yes'}}})
    await wait_handled(kube, kind, 'unlabelled')
    assert len(journal) == 4


class Account:
    """A service account with nothing but the rights that are granted to it."""

    def __init__(self, kube, name, token):
        self.name = name
        self.token = token
        self._kube = kube
        self._paths = [f'/api/v1/namespaces/default/serviceaccounts/{name}']

    async def grant(self, kind, *verbs, everywhere=False):
        sort, scope = ('ClusterRole', '') if everywhere else ('Role', '/namespaces/default')
        rbac = f'/apis/rbac.authorization.k8s.io/v1{scope}'
        roles, bindings = f'{rbac}/{sort.lower()}s', f'{rbac}/{sort.lower()}bindings'
        name = f'{self.name}-{len(self._paths)}'
        await self._kube.request('POST', roles, body={
            'metadata': {'name': name},
            'rules': [{'apiGroups': [kind.group], 'verbs': [*verbs],
                       'resources': [kind.plural, f'{kind.plural}/status']}],
        })
        await self._kube.request('POST', bindings, body={
            'metadata': {'name': name},
            'roleRef': {'apiGroup': 'rbac.authorization.k8s.io', 'kind': sort, 'name': name},
            'subjects': [
                {'kind': 'ServiceAccount', 'name': self.name, 'namespace': 'default'}],
        })
        self._paths += [f'{bindings}/{name}', f'{roles}/{name}']

    async def remove(self):
        for path in self._paths[::-1]:
            await self._kube.request('DELETE', path)


@pytest.fixture()
async def account(kube, embedded, cluster, suffix, monkeypatch, tmp_path):
    """A service account; operators in the test use its rights."""
    name = f'sa-{suffix}'
    path = '/api/v1/namespaces/default/serviceaccounts'
    await kube.request('POST', path, body={'metadata': {'name': name}})
    response = await kube.request('POST', f'{path}/{name}/token', body={
        'apiVersion': 'authentication.k8s.io/v1', 'kind': 'TokenRequest', 'spec': {}})
    account = Account(kube, name, response['status']['token'])
    with open(cluster, encoding='utf-8') as file:
        config = yaml.safe_load(file)
    config['users'] = [
        {'name': user['name'], 'user': {'token': account.token}} for user in config['users']]
    kubeconfig = tmp_path / 'kubeconfig'
    kubeconfig.write_text(yaml.safe_dump(config))
    monkeypatch.setenv('KUBECONFIG', str(kubeconfig))
    yield account
    await account.remove()


async def test_exact_namespaces_are_served_without_rights_to_see_kinds_and_namespaces(
        kube, kind, journal, embedded, account, caplog):

    @kopf.on.create(*kind.selector)
    def fn(name, **_):
        journal.append(name)

    await account.grant(kind, 'list', 'watch', 'patch')
    embedded(namespaces=['default', 'some-*'])
    await kube.create(kind, 'x')
    await wait_handled(kube, kind, 'x')
    assert journal == ['x']
    warnings = get_warnings(caplog)
    assert len([text for text in warnings if 'no permission to watch CRDs' in text]) == 1
    assert len([text for text in warnings if 'no permission to watch namespaces' in text]) == 1
    assert len(warnings) == 2


async def test_absent_namespaces_are_watched_at_once_without_rights_to_see_namespaces(
        kube, kind, suffix, journal, embedded, account, caplog):
    caplog.set_level('DEBUG')

    @kopf.on.create(*kind.selector)
    def fn(namespace, **_):
        journal.append(namespace)

    await account.grant(kind, 'list', 'watch', 'patch', everywhere=True)
    embedded(namespaces=[f'late-{suffix}'])
    await journal.wait_until(lambda: any(
        f"watch-stream for {kind.plural}" in text and suffix in text for text in caplog.messages))
    await kube.create(NAMESPACES, f'late-{suffix}')
    try:
        await kube.create(kind, 'x', namespace=f'late-{suffix}')
        await journal.wait(f'late-{suffix}')
    finally:
        await kube.delete(NAMESPACES, f'late-{suffix}')


async def test_kinds_are_served_as_soon_as_there_are_rights_to(
        kube, kind, borrow, journal, embedded, account, caplog):
    another = borrow()

    @kopf.on.create(*kind.selector)
    @kopf.on.create(*another.selector)
    def fn(resource, **_):
        journal.append(resource.plural)

    await account.grant(another, 'list', 'watch', 'patch')
    embedded(namespaces=['default'])
    await kube.create(kind, 'x')
    await kube.create(another, 'x')
    await wait_handled(kube, another, 'x')
    for _ in range(100):
        if any('forbidden' in warning for warning in get_warnings(caplog)):
            break
        await asyncio.sleep(0.05)
    assert journal == [another.plural]
    await account.grant(kind, 'list', 'watch', 'patch')
    await wait_handled(kube, kind, 'x', timeout=20)
    forbidden = [text for text in get_warnings(caplog) if 'forbidden' in text]
    assert len(forbidden) == 1
    assert kind.plural in forbidden[0]


async def test_objects_that_cannot_be_patched_are_handled_once_and_written_when_there_are_rights(
        kube, kind, journal, embedded, settings, account, caplog):
    settings.queueing.error_delays = [0.2]

    @kopf.on.create(*kind.selector)
    def fn(name, **_):
        journal.append(name)

    await account.grant(kind, 'list', 'watch')
    embedded(namespaces=['default'])
    await kube.create(kind, 'x')
    for _ in range(100):
        if len([text for text in caplog.messages if 'Throttling for 0.2 seconds' in text]) > 1:
            break
        await asyncio.sleep(0.05)
    await account.grant(kind, 'patch')
    await wait_handled(kube, kind, 'x')
    assert journal == ['x']
