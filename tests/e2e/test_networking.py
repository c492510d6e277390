"""
How operators bear with networks and with a real API that has too much to do.
"""
import asyncio
import contextlib
import pathlib

import pytest
import yaml

from tests.e2e.kubes import Kube, KubeError
from tests.e2e.proxy import Proxy, is_list, is_patch, is_watch

FLOWS = '/apis/flowcontrol.apiserver.k8s.io/v1'
BINDINGS = '/apis/rbac.authorization.k8s.io/v1/clusterrolebindings'

HANDLERS = '''
@kopf.on.startup()
def configure(settings, **_):
    settings.posting.enabled = False
    settings.networking.error_backoffs = [0.2, 0.5, 1, 1]
@kopf.on.create(*KIND)
def fn(name, **_):
    return 'done'
'''


@pytest.fixture()
def proxy(cluster):
    with Proxy(cluster) as proxy:
        yield proxy


@pytest.fixture()
def proxied(operator, proxy, kind, tmp_path):
    """Start an operator that goes through the proxy."""
    return lambda: operator(
        HANDLERS, kind=kind, kubeconfig=proxy.write_kubeconfig(tmp_path / 'proxied'))


async def wait_done(kube, kind, name, *, timeout=20):
    await kube.wait_for(kind, name, lambda obj: obj['status']['fn'] == 'done', timeout=timeout)


@pytest.fixture()
async def plain(kube, cluster, tmp_path):
    """The kubeconfig of a user with all rights, for whom the API can be made busy."""
    config = yaml.safe_load(pathlib.Path(cluster).read_text(encoding='utf-8'))
    config['current-context'] = 'plain'
    (tmp_path / 'plain').write_text(yaml.safe_dump(config))
    await kube.request('POST', BINDINGS, body={
        'apiVersion': 'rbac.authorization.k8s.io/v1', 'kind': 'ClusterRoleBinding',
        'metadata': {'name': 'kopf-plain'},
        'roleRef': {'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'ClusterRole',
                    'name': 'cluster-admin'},
        'subjects': [{'apiGroup': 'rbac.authorization.k8s.io', 'kind': 'User', 'name': 'plain'}]})
    yield str(tmp_path / 'plain')
    await kube.request('DELETE', f'{BINDINGS}/kopf-plain')


@contextlib.asynccontextmanager
async def busy(kube, plain):
    """
    The API has no time for the plain user, by its priority and fairness.

    It serves only one request at once, and there is always one of others of the same name.
    """
    name = 'kopf-busy'
    version = {'apiVersion': 'flowcontrol.apiserver.k8s.io/v1', 'metadata': {'name': name}}
    try:
        await kube.request('POST', f'{FLOWS}/prioritylevelconfigurations', body={
            **version, 'kind': 'PriorityLevelConfiguration', 'spec': {
                'type': 'Limited', 'limited': {
                    'nominalConcurrencyShares': 0, 'lendablePercent': 0,
                    'borrowingLimitPercent': 0, 'limitResponse': {'type': 'Reject'}}}})
    except KubeError as e:
        if e.status != 404:
            raise
        pytest.skip("This API has no such priority and fairness.")
    try:
        await kube.request('POST', f'{FLOWS}/flowschemas', body={
            **version, 'kind': 'FlowSchema', 'spec': {
                'priorityLevelConfiguration': {'name': name}, 'matchingPrecedence': 2,
                'rules': [{
                    'subjects': [{'kind': 'User', 'user': {'name': 'plain'}}],
                    'resourceRules': [{'verbs': ['*'], 'apiGroups': ['*'], 'resources': ['*'],
                                       'namespaces': ['*'], 'clusterScope': True}],
                    'nonResourceRules': [{'verbs': ['*'], 'nonResourceURLs': ['*']}]}]}})
        async with Kube(plain, user='plain') as other:
            refused: set[int] = set()
            others = [asyncio.create_task(occupy(other, refused)) for _ in range(8)]
            try:
                await asyncio.sleep(1)
                if not refused:
                    pytest.skip("This API has no priority and fairness, only its objects.")
                yield
            finally:
                for task in others:
                    task.cancel()
                await asyncio.gather(*others, return_exceptions=True)
    finally:
        with contextlib.suppress(KubeError):
            await kube.request('DELETE', f'{FLOWS}/flowschemas/{name}')
        await kube.request('DELETE', f'{FLOWS}/prioritylevelconfigurations/{name}')


async def occupy(kube, refused):
    while True:
        try:
            await kube.request('GET', '/api/v1/namespaces')
        except KubeError as e:
            refused.add(e.status)


async def test_priority_and_fairness_of_the_api_are_borne_with(operator, kube, kind, plain):
    op = operator(HANDLERS, kind=kind, kubeconfig=plain)
    await kube.create(kind, 'one')
    await wait_done(kube, kind, 'one')
    async with busy(kube, plain):
        for number in range(20):
            await kube.create(kind, f'obj{number}')
        await op.wait_for('PATCH .*Too many requests')
    for number in range(20):
        await wait_done(kube, kind, f'obj{number}', timeout=80)
    assert not op.find('rejects|Traceback')


@pytest.mark.parametrize('match', [is_list, is_watch, is_patch], ids=['list', 'watch', 'patch'])
async def test_the_api_is_not_asked_before_it_wants_to_be(proxy, proxied, kube, kind, match):
    fault = proxy.fail(429, 'slow down', headers={'Retry-After': '2'}, times=1, match=lambda req: (
        match(req) and kind.plural in req.path))
    proxied()
    await kube.create(kind, 'one')
    await wait_done(kube, kind, 'one')
    async with asyncio.timeout(30):
        while len(times := get_times(proxy, kind, match)) < 2:
            await asyncio.sleep(0.1)
    assert fault.hits == 1
    assert times[1] - times[0] >= 2


def get_times(proxy, kind, match):
    """When requests came that are of this sort."""
    wanted = {
        is_list: lambda request: request.method == 'GET' and not request.is_watch,
        is_watch: lambda request: request.is_watch,
        is_patch: lambda request: request.method == 'PATCH',
    }[match]
    return [request.time for request in proxy.requests
            if kind.plural in request.path and wanted(request)]


@pytest.mark.parametrize('is_list_denied', [False, True], ids=['object', 'resource'])
async def test_objects_are_handled_though_the_api_denies_for_a_moment_that_they_are_there(
        proxy, proxied, kube, kind, is_list_denied):
    op = proxied()
    await op.wait_for('Starting the watch-stream')
    faults = [proxy.fail(404, match=lambda request: (
        is_patch(request) and kind.plural in request.path))]
    if is_list_denied:
        faults.append(proxy.fail(404, match=lambda request: (
            is_list(request) and 'metadata.name=one' in request.query.get('fieldSelector', ''))))
    await kube.create(kind, 'one')
    await wait_done(kube, kind, 'one')
    assert [fault.hits for fault in faults] == [1] * len(faults)
    assert len(op.find("Handler 'fn' is invoked")) == 1
    assert len(op.find('Throttling for 1 seconds')) == 1


async def test_a_slow_api_slows_down_but_harms_nothing(proxy, proxied, kube, kind):
    proxy.delay(0.5, times=None)
    proxied()
    await asyncio.gather(*[kube.create(kind, f'obj{number}') for number in range(20)])
    for number in range(20):
        await wait_done(kube, kind, f'obj{number}')
    assert len(proxy.patches) == 20


async def test_connections_are_few_and_kept(proxy, proxied, kube, kind):
    op = proxied()
    await asyncio.gather(*[kube.create(kind, f'obj{number}') for number in range(100)])
    for number in range(100):
        await wait_done(kube, kind, f'obj{number}')
    sockets = [path.readlink() for path in pathlib.Path(f'/proc/{op.pid}/fd').iterdir()
               if path.is_symlink() and str(path.readlink()).startswith('socket:')]
    assert len(sockets) <= 16 + 16 + 10
    assert len(proxy.patches) == 100


async def test_an_operator_that_cannot_trust_the_api_says_what_to_check(
        operator, cluster, kind, tmp_path,
):
    config = yaml.safe_load(pathlib.Path(cluster).read_text(encoding='utf-8'))
    del config['clusters'][0]['cluster']['certificate-authority-data']
    (tmp_path / 'config').write_text(yaml.safe_dump(config))
    op = operator(HANDLERS, kind=kind, kubeconfig=str(tmp_path / 'config'))
    await op.wait_for('(WARNING|ERROR).*check the CA of the cluster', timeout=20)


async def test_an_operator_whose_api_has_no_such_name_says_so(operator, kind, tmp_path):
    (tmp_path / 'config').write_text(yaml.safe_dump({
        'current-context': 'none',
        'contexts': [{'name': 'none', 'context': {'cluster': 'none', 'user': 'none'}}],
        'clusters': [{'name': 'none', 'cluster': {'server': 'https://kube.invalid'}}],
        'users': [{'name': 'none', 'user': {'token': 'x'}}]}))
    op = operator(HANDLERS, kind=kind, kubeconfig=str(tmp_path / 'config'))
    await op.wait_for('(WARNING|ERROR).*kube.invalid', timeout=20)
