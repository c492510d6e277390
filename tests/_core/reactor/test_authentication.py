import asyncio
import copy
import datetime
import gc
import logging
import threading

import pytest
import yaml

import kopf
from kopf._cogs.aiokits import clocks, tasks
from kopf._cogs.clients import api, vaults
from kopf._cogs.cluster import discovery
from kopf._cogs.logins import piggybacking, serviceaccounts
from kopf._cogs.structs import credentials, memos
from kopf._core.actions import execution
from kopf._core.engines import activities
from kopf._core.intents import causes
from kopf._core.reactor import authentication

KUBECONFIG = {
    'current-context': 'context',
    'contexts': [{'name': 'context', 'context': {'cluster': 'cluster', 'user': 'user'}}],
    'clusters': [{'name': 'cluster', 'cluster': {'server': 'https://own.test'}}],
    'users': [{'name': 'user', 'user': {'token': 's3cret'}}],
}


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def settings():
    return kopf.OperatorSettings()


@pytest.fixture()
def prepare(registry, settings):
    """Make a vault as operators do."""
    def make(vault=None):
        async def run(registry):
            return await activities.run_activity(
                registry=registry, activity=causes.Activity.AUTHENTICATION, memo=memos.Memo(),
                context=execution.Context(
                    settings=settings, clock=clocks.Clock(), indices={}))

        vault = vaults.Vault() if vault is None else vault
        authentication.prepare(vault, registry=registry, run=run)
        return vault
    return make


@pytest.fixture()
def _no_libraries(monkeypatch):
    monkeypatch.setattr(authentication, '_find_libraries', lambda _: [])


@pytest.fixture(autouse=True)
def kubeconfig(tmp_path, monkeypatch):
    path = tmp_path / 'config'
    monkeypatch.setenv('KUBECONFIG', str(path))
    return path


def info(token, **kwargs):
    return kopf.ConnectionInfo(server='https://host', token=token, **kwargs)


def get_tokens(vault):
    return sorted(item.token for item in vault._items.values())


# Handlers of the author.


async def test_all_handlers_bring_credentials(registry, prepare):
    @kopf.on.login(registry=registry)
    def sync_one(**_):
        return info('a')

    @kopf.on.login(registry=registry)
    async def async_one(**_):
        return info('b')

    @kopf.on.login(registry=registry)
    async def one_without_any(**_):
        return None

    vault = prepare()
    await vault.obtain()
    assert get_tokens(vault) == ['a', 'b']


async def test_handlers_get_what_activities_have(registry, prepare, settings):
    seen = {}

    @kopf.on.login(registry=registry, param='x')
    async def login(**kwargs):
        seen.update(kwargs)
        return info('a')

    await prepare().obtain()
    assert seen['settings'] is settings
    assert seen['activity'] == 'authentication'
    assert (seen['param'], seen['retry']) == ('x', 0)
    assert {'logger', 'memo', 'started', 'runtime'} <= set(seen)


async def test_a_handler_that_has_failed_for_good_does_not_matter_beside_a_good_one(
        registry, prepare, caplog,
):
    @kopf.on.login(id='bad', registry=registry)
    async def bad(**_):
        raise kopf.PermanentError("boo!")

    @kopf.on.login(registry=registry)
    async def good(**_):
        return info('a')

    assert (await prepare().obtain()).token == 'a'
    assert "Activity 'bad' failed permanently: boo!" in caplog.text


@pytest.mark.looptime
async def test_if_all_have_failed_for_good_it_is_told_why(registry, prepare):
    @kopf.on.login(id='one', registry=registry)
    async def one(**_):
        raise kopf.PermanentError("no key")

    @kopf.on.login(id='other', registry=registry, retries=2, backoff=1)
    async def other(**_):
        raise kopf.TemporaryError("no luck", delay=1)

    with pytest.raises(credentials.LoginError, match="one: no key; other: .*no luck"):
        await prepare().obtain()


async def test_if_all_have_nothing_it_is_told(registry, prepare):
    @kopf.on.login(registry=registry)
    async def login(**_):
        return None

    with pytest.raises(credentials.LoginError, match="no login handler has returned any"):
        await prepare().obtain()


async def test_if_all_have_expired_it_is_told(registry, prepare):
    @kopf.on.login(registry=registry)
    async def login(**_):
        return credentials.ConnectionInfo(
            server='https://host', token='t', expiration=datetime.datetime(2020, 1, 1))

    with pytest.raises(credentials.LoginError, match="expired before: at 2020-01-01 00:00:00 UTC"):
        await prepare().obtain()


async def test_the_environment_does_not_matter_beside_handlers(registry, prepare, kubeconfig):
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))

    @kopf.on.login(registry=registry)
    async def login(**_):
        return None

    with pytest.raises(credentials.LoginError):
        await prepare().obtain()


@pytest.mark.looptime
async def test_handlers_are_retried(registry, prepare, looptime):
    @kopf.on.login(registry=registry)
    async def login(retry, **_):
        if retry < 3:
            raise kopf.TemporaryError("not yet", delay=10)
        return info('a')

    assert (await prepare().obtain()).token == 'a'
    assert looptime == 30


@pytest.mark.looptime
async def test_handlers_are_given_up_at_their_timeout(registry, prepare, looptime):
    @kopf.on.login(registry=registry, timeout=20)
    async def login(**_):
        await asyncio.Event().wait()

    with pytest.raises(credentials.LoginError, match="timed out"):
        await prepare().obtain()
    assert looptime == 20


@pytest.mark.looptime
async def test_a_handler_that_hangs_does_not_hold_the_others_up_for_long(
        registry, prepare, looptime, caplog,
):
    cancelled = False

    @kopf.on.login(id='hanging', registry=registry)
    async def hanging(**_):
        nonlocal cancelled
        try:
            await asyncio.Event().wait()
        finally:
            cancelled = True

    @kopf.on.login(registry=registry)
    async def good(**_):
        return info('a')

    assert (await prepare().obtain()).token == 'a'
    assert looptime == authentication.PATIENCE
    assert cancelled
    assert "Not waiting any more for the login by 'hanging': there are others." in caplog.text


async def test_a_handler_in_a_thread_that_hangs_is_left_to_itself(
        registry, prepare, monkeypatch,
):
    monkeypatch.setattr(authentication, 'PATIENCE', 0.1)
    monkeypatch.setattr(authentication, 'CANCELLATION_TIMEOUT', 0.1)
    unlocking = threading.Event()

    @kopf.on.login(registry=registry)
    def hanging(**_):
        unlocking.wait()

    @kopf.on.login(registry=registry)
    async def good(**_):
        return info('a')

    assert (await prepare().obtain()).token == 'a'
    unlocking.set()
    await asyncio.gather(*(asyncio.all_tasks() - {asyncio.current_task()}))


@pytest.mark.looptime
async def test_errors_of_handlers_that_are_cancelled_are_no_errors_of_asyncio(
        registry, prepare, caplog,
):
    @kopf.on.login(registry=registry)
    async def interrupted(**_):
        try:
            await asyncio.Event().wait()
        finally:
            raise kopf.PermanentError("it was interrupted")

    task = asyncio.create_task(prepare().obtain())
    await asyncio.sleep(1)
    await tasks.cancel([task])
    del task
    gc.collect()
    assert "it was interrupted" in caplog.text
    assert 'asyncio' not in [record.name for record in caplog.records]


@pytest.mark.looptime
async def test_a_slow_handler_is_waited_for_beside_a_quick_one(registry, prepare, looptime):
    @kopf.on.login(registry=registry)
    async def slow(**_):
        await asyncio.sleep(authentication.PATIENCE - 1)
        return info('b', priority=10)

    @kopf.on.login(registry=registry)
    async def quick(**_):
        return info('a')

    assert (await prepare().obtain()).token == 'b'


@pytest.mark.looptime
async def test_a_handler_that_hangs_alone_is_named_in_the_log(registry, prepare, caplog):
    @kopf.on.login(id='hanging', registry=registry)
    async def hanging(**_):
        await asyncio.Event().wait()

    task = asyncio.create_task(prepare().obtain())
    await asyncio.sleep(authentication.SLOW + 1)
    assert caplog.messages.count(
        "The login by 'hanging' takes long, and is still waited for.") == 1
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_what_is_no_credentials_is_told(registry, prepare):
    @kopf.on.login(registry=registry)
    async def login(**_):
        return 's3cret'

    with pytest.raises(credentials.LoginError, match="login: it has returned str, which") as e:
        await prepare().obtain()
    assert 's3cret' not in str(e.value)


async def test_what_is_no_credentials_does_not_matter_beside_good_ones(registry, prepare, caplog):
    @kopf.on.login(registry=registry, id='bad')
    async def bad(**_):
        return {'token': 's3cret'}

    @kopf.on.login(registry=registry)
    async def good(**_):
        return info('a')

    assert (await prepare().obtain()).token == 'a'
    assert "Activity 'bad' failed permanently: it has returned dict" in caplog.text
    assert 's3cret' not in caplog.text


async def test_the_log_tells_the_first_login_from_the_next_ones(registry, prepare, caplog):
    caplog.set_level(logging.DEBUG)
    tokens = iter('ab')

    @kopf.on.login(registry=registry)
    async def login(**_):
        return info(next(tokens))

    vault = prepare()
    vault.accept(await vault.obtain())
    vault.invalidate(vault.select())
    await vault.obtain()
    assert [
        (record.name, record.getMessage()) for record in caplog.records
        if 'uthentication' in record.getMessage()
    ] == [('kopf._core.engines.activities', message) for message in [
        "Initial authentication has been initiated.",
        "Initial authentication has finished.",
        "Re-authentication has been initiated.",
        "Re-authentication has finished.",
    ]]


async def test_the_log_names_the_cluster_once_when_it_has_accepted_the_credentials(
        prepare, kubeconfig, caplog):
    caplog.set_level(logging.INFO)
    config = copy.deepcopy(KUBECONFIG)
    config['clusters'][0]['cluster']['server'] = 'https://user:s3cret@host:6443'
    kubeconfig.write_text(yaml.safe_dump(config))
    vault = prepare()
    item = await vault.obtain()
    assert not caplog.record_tuples
    vault.accept(item)
    vault.accept(item)
    [(name, level, text)] = caplog.record_tuples
    assert (name, level) == ('kopf._core.engines.activities', logging.INFO)
    assert text == f"Connected to https://host:6443 (context {config['current-context']})."


async def test_the_log_names_the_cluster_of_the_login_handlers(registry, prepare, caplog):
    caplog.set_level(logging.INFO)

    @kopf.on.login(registry=registry, id='login')
    async def login(**_):
        return info('a')

    vault = prepare()
    vault.accept(await vault.obtain())
    assert [record.getMessage() for record in caplog.records] == [
        "Activity 'login' succeeded.", f"Connected to {info('a').server}."]


async def test_without_a_cluster_a_sandbox_is_offered(prepare, kubeconfig):
    with pytest.raises(credentials.LoginError, match=r"neither a kubeconfig .* run --sandbox"):
        await prepare().obtain()


@pytest.mark.parametrize('is_proven', [False, True])
async def test_a_sandbox_is_offered_once_if_the_cluster_has_never_answered(
        prepare, kubeconfig, settings, caplog, is_proven):
    config = copy.deepcopy(KUBECONFIG)
    config['clusters'][0]['cluster']['server'] = 'http://127.0.0.1:1'
    kubeconfig.write_text(yaml.safe_dump(config))
    settings.scanning.disabled = True
    settings.networking.error_backoffs = [0.001] * 4
    vault = prepare()
    vault.proven = is_proven
    caplog.set_level(logging.INFO)
    async with api.Client(credentials=vault, settings=settings) as client:
        scanning = asyncio.create_task(discovery.observe_resources(
            client=client, settings=settings, groups=None, insights=discovery.Insights(),
            logger=logging.getLogger('kopf')))
        while not caplog.messages:
            await asyncio.sleep(0)
        await tasks.cancel([scanning])
    [message] = caplog.messages
    assert message.startswith("Scanning of the resources has failed, and will be tried again: ")
    assert ("To try an operator without a cluster: kopf run --sandbox" in message) != is_proven


async def test_the_log_can_be_silenced_as_documented(registry, prepare, caplog, monkeypatch):
    caplog.set_level(logging.DEBUG)
    for name in ['kopf.activities.authentication', 'kopf._core.engines.activities']:
        monkeypatch.setattr(logging.getLogger(name), 'disabled', True)

    @kopf.on.login(registry=registry)
    async def login(**_):
        return info('a')

    await prepare().obtain()
    assert [name for name, *_ in caplog.record_tuples if name.startswith('kopf')] == []


# What there is by default.


async def test_given_credentials_are_not_mixed_with_those_of_the_environment(prepare, kubeconfig):
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    vault = prepare(vaults.Vault({'given': info('a')}))
    vault.invalidate(vault.select())
    with pytest.raises(credentials.LoginError):
        await vault.obtain()


async def test_given_credentials_can_be_renewed_by_handlers(registry, prepare):
    @kopf.on.login(registry=registry)
    async def login(**_):
        return info('b')

    vault = prepare(vaults.Vault({'given': info('a')}))
    vault.invalidate(vault.select())
    assert (await vault.obtain()).token == 'b'


@pytest.mark.usefixtures('_no_libraries')
async def test_without_libraries_the_kubeconfig_is_used(prepare, kubeconfig):
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    vault = prepare()
    assert (await vault.obtain()).server == 'https://own.test'
    assert list(vault._items) == ['login_with_kubeconfig']


@pytest.mark.usefixtures('_no_libraries')
async def test_without_libraries_the_service_account_is_used_in_pods(
        prepare, kubeconfig, tmp_path, monkeypatch,
):
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    monkeypatch.setattr(serviceaccounts, 'FOLDER', str(tmp_path))
    (tmp_path / 'token').write_text('of-pod')
    vault = prepare()
    assert (await vault.obtain()).token == 'of-pod'
    assert list(vault._items) == ['login_with_service_account']


@pytest.mark.parametrize('loaded, expected', [
    ({'pykube', 'kubernetes', 'kubernetes_asyncio'}, ['login_via_client', 'login_via_pykube']),
    ({'kubernetes', 'kubernetes_asyncio'}, ['login_via_client']),
    ({'kubernetes_asyncio'}, ['login_via_async_client']),
    ({'pykube'}, ['login_via_pykube']),
    (set(), ['login_with_kubeconfig']),
])
@pytest.mark.filterwarnings('ignore')
async def test_libraries_are_used_if_the_operator_has_imported_them(
        prepare, kubeconfig, monkeypatch, loaded, expected,
):
    for name in loaded:
        pytest.importorskip(name)
    monkeypatch.setattr(piggybacking, 'is_loaded', lambda name: name in loaded)
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    vault = prepare()
    assert (await vault.obtain()).token == 's3cret'
    assert sorted(vault._items) == expected


@pytest.mark.parametrize('installed, expected', [
    ({'pykube', 'kubernetes', 'kubernetes_asyncio'}, ['login_via_client', 'login_via_pykube']),
    ({'kubernetes', 'kubernetes_asyncio'}, ['login_via_client']),
    ({'kubernetes_asyncio'}, ['login_via_async_client']),
    ({'pykube'}, ['login_via_pykube']),
])
@pytest.mark.filterwarnings('ignore')
async def test_libraries_are_used_if_they_are_installed_and_kopf_cannot_log_in(
        prepare, kubeconfig, monkeypatch, installed, expected,
):
    for name in installed:
        pytest.importorskip(name)

    def fail(**_):
        raise credentials.LoginError("Only libraries can.")

    monkeypatch.setattr(authentication, '_find_files', lambda: [fail])
    monkeypatch.setattr(piggybacking, 'is_loaded', lambda name: False)
    monkeypatch.setattr(piggybacking, 'is_installed', lambda name: name in installed)
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    vault = prepare()
    assert (await vault.obtain()).token == 's3cret'
    assert sorted(vault._items) == expected


@pytest.mark.filterwarnings('ignore')
async def test_libraries_work_in_handlers_after_the_login(prepare, kubeconfig):
    client = pytest.importorskip('kubernetes.client')
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    await prepare().obtain()
    assert client.Configuration.get_default_copy().host == 'https://own.test'


async def test_a_library_that_fails_does_not_matter_beside_another(
        prepare, kubeconfig, monkeypatch):
    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))

    def fail(**_):
        raise credentials.LoginError("boo!")

    def succeed(**_):
        return info('a')

    monkeypatch.setattr(authentication, '_find_libraries', lambda _: [fail, succeed])
    assert (await prepare().obtain()).token == 'a'


async def test_if_no_library_can_log_in_kopf_does_it_alone(prepare, kubeconfig, monkeypatch):
    def fail(**_):
        raise credentials.LoginError("boo!")

    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    monkeypatch.setattr(authentication, '_find_libraries', lambda _: [fail])
    vault = prepare()
    assert (await vault.obtain()).token == 's3cret'
    assert list(vault._items) == ['login_with_kubeconfig']


async def test_what_to_do_is_told_if_there_is_nothing_at_all(prepare, monkeypatch, caplog):
    def login_via_something(**_):
        raise credentials.LoginError("it has nothing")

    monkeypatch.setattr(authentication, '_find_libraries', lambda _: [login_via_something])
    with pytest.raises(credentials.LoginError, match=r"there is no such file.* Make one, or"):
        await prepare().obtain()
    assert caplog.messages == []  # the error is enough


async def test_a_broken_kubeconfig_is_reported_once(prepare, kubeconfig, monkeypatch, caplog):
    def login_via_something(**_):
        raise credentials.LoginError("it is broken")

    kubeconfig.write_text('[')
    monkeypatch.setattr(authentication, '_find_libraries', lambda _: [login_via_something])
    with pytest.raises(credentials.LoginError, match=r"^Nothing to log in with: .* is not YAML"):
        await prepare().obtain()
    assert caplog.messages == []  # the error is enough


async def test_equal_failures_of_libraries_are_reported_once(prepare, kubeconfig, monkeypatch):
    def login_via_one(**_):
        raise credentials.LoginError("it is expired.")

    def login_via_two(**_):
        raise credentials.LoginError("it is expired.")

    kubeconfig.write_text(yaml.safe_dump(KUBECONFIG))
    monkeypatch.setattr(authentication, '_find_libraries', lambda _: [login_via_one, login_via_two])
    monkeypatch.setattr(authentication, '_find_files', list)
    with pytest.raises(credentials.LoginError, match=r"^Nothing to log in with: it is expired\.$"):
        await prepare().obtain()
