import asyncio
import datetime
import types

import aiohttp
import pytest

from kopf._cogs.clients import vaults
from kopf._cogs.clients.vaults import MAX_REJECTED, PAUSES, Vault
from kopf._cogs.structs.credentials import AiohttpSession, ConnectionInfo, LoginError

OLD = datetime.datetime(2020, 1, 1)


class WallClock:
    """The wall clock of vaults, which stands still until it is moved."""

    def __init__(self):
        self.time = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)

    def now(self, zone):
        return self.time.astimezone(zone)

    def soon(self, seconds):
        return self.time + datetime.timedelta(seconds=seconds)

    def move(self, seconds):
        self.time = self.soon(seconds)


@pytest.fixture()
def wall(monkeypatch):
    clock = WallClock()
    monkeypatch.setattr(
        vaults, 'datetime', types.SimpleNamespace(datetime=clock, UTC=datetime.UTC))
    return clock


def info(token, **kwargs):
    return ConnectionInfo(server='https://host', token=token, **kwargs)


def test_an_empty_vault_has_nothing():
    assert Vault().select() is None


def test_the_highest_priority_is_chosen():
    vault = Vault({'a': info('a', priority=1), 'b': info('b', priority=3), 'c': info('c')})
    assert {vault.select().token for _ in range(50)} == {'b'}


def test_of_the_same_priority_any_is_chosen():
    vault = Vault({'a': info('a'), 'b': info('b')})
    assert {vault.select().token for _ in range(100)} == {'a', 'b'}


def test_expired_ones_are_not_chosen():
    vault = Vault({'a': info('a', expiration=OLD, priority=9), 'b': info('b')})
    assert vault.select().token == 'b'


def test_invalid_ones_are_not_chosen():
    vault = Vault({'a': info('a'), 'b': info('b')})
    vault.invalidate(info('a'))
    assert {vault.select().token for _ in range(20)} == {'b'}


def test_known_invalid_ones_are_not_taken_again():
    vault = Vault({'a': info('a')})
    vault.invalidate(info('a'))
    vault.populate({'a': info('a')})
    assert vault.select() is None


def test_ids_are_replaced():
    vault = Vault({'a': info('old')})
    vault.populate({'a': info('new')})
    assert {vault.select().token for _ in range(20)} == {'new'}


def test_secrets_are_not_shown():
    assert 's3cret' not in repr(Vault({'a': info('s3cret')}))


async def test_without_login_there_is_only_what_was_given():
    assert (await Vault({'a': info('a')}).obtain()).token == 'a'
    with pytest.raises(LoginError, match="no valid credentials"):
        await Vault().obtain()


async def test_rejected_credentials_are_told_of():
    vault = Vault({'a': info('a')})
    vault.invalidate(info('a'))
    with pytest.raises(LoginError, match="rejects"):
        await vault.obtain()


async def test_login_is_made_when_there_is_nothing():
    async def login():
        return {'a': info('new')}
    assert (await Vault(login=login).obtain()).token == 'new'


async def test_login_is_not_made_while_there_is_something():
    async def login():
        raise AssertionError
    assert (await Vault({'a': info('a')}, login=login).obtain()).token == 'a'


async def test_login_is_made_once_for_all_who_wait():
    count = 0

    async def login():
        nonlocal count
        count += 1
        await asyncio.sleep(0.01)
        return {'a': info(f'new{count}')}

    vault = Vault(login=login)
    tokens = [item.token for item in await asyncio.gather(*[vault.obtain() for _ in range(10)])]
    assert tokens == ['new1'] * 10


async def test_a_login_with_the_same_rejected_credentials_is_an_error():
    async def login():
        return {'a': info('a')}
    vault = Vault({'a': info('a')}, login=login)
    vault.invalidate(info('a'))
    with pytest.raises(LoginError):
        await vault.obtain()


async def test_errors_of_the_login_are_raised():
    async def login():
        raise LoginError("boo")
    with pytest.raises(LoginError, match="boo"):
        await Vault(login=login).obtain()


# The patience with credentials that have worked before.


class Source:
    """A login that brings what the test says, and remembers when it was called."""

    def __init__(self, *tokens, **kwargs):
        self.tokens = tokens
        self.kwargs = kwargs
        self.times = []

    async def __call__(self):
        self.times.append(asyncio.get_running_loop().time())
        return {token: info(token, **self.kwargs) for token in self.tokens}


async def lose(vault):
    """Use what is there, and be rejected; return when something is there again."""
    vault.invalidate(await vault.obtain())
    return await vault.obtain()


@pytest.mark.looptime
async def test_wrong_credentials_are_told_of_at_once(looptime):
    vault = Vault(login=Source('a'))
    with pytest.raises(LoginError, match="rejects"):
        await lose(vault)
    assert looptime == 0
    assert len(vault.login.times) == 2


@pytest.mark.looptime
async def test_new_wrong_credentials_each_time_are_tried_for_a_minute_only(looptime):
    vault = Vault(login=Source())
    with pytest.raises(LoginError, match="rejects"):
        for number in range(100):
            vault.login.tokens = [f'wrong{number}']
            vault.invalidate(await vault.obtain())
    assert len(vault.login.times) == 2 + len(PAUSES)
    assert sum(PAUSES) <= looptime <= sum(PAUSES) * 1.2


@pytest.mark.looptime
async def test_other_credentials_of_the_login_are_used_at_once(looptime):
    vault = Vault({'a': info('a')}, login=Source('a', 'b'))
    vault.accept(vault.select())
    assert (await lose(vault)).token == 'b'
    assert looptime == 0


@pytest.mark.looptime
async def test_what_has_worked_gets_another_chance_after_a_pause(looptime):
    vault = Vault(login=Source('a'))
    vault.accept(await vault.obtain())
    assert (await lose(vault)).token == 'a'
    assert PAUSES[0] <= looptime <= PAUSES[0] * 1.2


@pytest.mark.looptime
async def test_what_is_given_without_a_login_gets_another_chance_too(looptime):
    vault = Vault({'a': info('a')})
    vault.accept(vault.select())
    assert (await lose(vault)).token == 'a'
    assert PAUSES[0] <= looptime <= PAUSES[0] * 1.2


@pytest.mark.looptime
async def test_what_comes_new_goes_before_what_was_rejected(looptime):
    vault = Vault(login=Source('a'))
    vault.accept(await vault.obtain())
    asyncio.get_running_loop().call_later(0.5, setattr, vault.login, 'tokens', ['b'])
    assert (await lose(vault)).token == 'b'


@pytest.mark.looptime
async def test_pauses_grow_and_chances_end_after_a_minute(looptime):
    vault = Vault(login=Source('a'))
    vault.accept(await vault.obtain())
    chances = 0
    with pytest.raises(LoginError, match="rejects"):
        while True:
            await lose(vault)
            chances += 1
    times = vault.login.times[2:]
    pauses = [after - before for before, after in zip([0, *times[:-1]], times, strict=True)]
    assert all(base <= pause <= base * 1.2
               for base, pause in zip(PAUSES, pauses, strict=True))
    assert chances == len(PAUSES)
    assert 60 <= sum(PAUSES) <= looptime <= 75


@pytest.mark.looptime
async def test_after_a_success_all_chances_are_there_again():
    vault = Vault(login=Source('a'))
    vault.accept(await vault.obtain())
    for _ in range(100):
        vault.accept(await lose(vault))


@pytest.mark.looptime
async def test_a_login_that_brings_nothing_for_a_moment_does_not_end_it(looptime):
    vault = Vault(login=Source('a'))
    vault.accept(await vault.obtain())
    vault.login.tokens = []
    asyncio.get_running_loop().call_later(6, setattr, vault.login, 'tokens', ['b'])
    vault.invalidate(info('a'))
    tokens = [(await vault.obtain()).token]
    while tokens[-1] != 'b':
        tokens.append((await lose(vault)).token)
    assert tokens == ['a', 'a', 'b']


@pytest.mark.looptime
async def test_credentials_that_expire_in_an_outage_do_not_count_as_rejected(looptime, wall):
    async def login():
        return {'a': info('b', expiration=wall.soon(10))}

    vault = Vault({'a': info('a')}, login=login)
    vault.accept(vault.select())
    vault.invalidate(vault.select())
    for _ in range(50):
        assert (await vault.obtain()).token == 'b'
        wall.move(10)
    assert looptime == 0


@pytest.mark.looptime
async def test_expired_credentials_get_no_other_chance(wall):
    vault = Vault({'a': info('a', expiration=wall.soon(10))}, login=Source())
    vault.accept(vault.select())
    vault.invalidate(vault.select())
    wall.move(10)
    with pytest.raises(LoginError):
        await vault.obtain()


@pytest.mark.looptime
async def test_those_who_watch_over_the_vault_are_told_when_it_is_over():
    vault = Vault(login=Source('a'))
    guard = asyncio.create_task(vault.guard())
    vault.accept(await vault.obtain())
    await lose(vault)
    await asyncio.sleep(100)
    assert not guard.done()
    with pytest.raises(LoginError):
        while True:
            await lose(vault)
    with pytest.raises(LoginError, match="rejects"):
        await guard


@pytest.mark.parametrize(('is_guarded', 'number'), [(True, 1), (False, 3)])
async def test_a_login_that_has_failed_is_not_repeated_if_the_operator_ends(is_guarded, number):
    logins = []

    async def login():
        logins.append(1)
        raise LoginError("boo!")

    vault = Vault(login=login)
    guard = asyncio.create_task(vault.guard()) if is_guarded else None
    await asyncio.sleep(0)
    for _ in range(3):
        with pytest.raises(LoginError, match="boo!"):
            await vault.obtain()
    assert len(logins) == number
    if guard is not None:
        with pytest.raises(LoginError, match="boo!"):
            await guard


@pytest.mark.looptime
async def test_it_is_known_since_when_new_credentials_are_waited_for():
    async def login():
        await asyncio.sleep(10)
        return {'a': info('a')}

    vault = Vault(login=login)
    assert vault.waiting_since is None
    await asyncio.sleep(5)
    obtaining = asyncio.create_task(vault.obtain())
    await asyncio.sleep(1)
    assert vault.waiting_since == 5
    await obtaining
    assert vault.waiting_since is None


@pytest.mark.looptime
async def test_failed_chances_do_not_make_the_waiting_shorter():
    vault = Vault(login=Source('a'))
    vault.accept(await vault.obtain())
    await asyncio.sleep(5)
    await lose(vault)
    obtaining = asyncio.create_task(lose(vault))
    await asyncio.sleep(1)
    assert vault.waiting_since == 5
    vault.accept(await obtaining)
    obtaining = asyncio.create_task(lose(vault))
    await asyncio.sleep(0.1)
    assert vault.waiting_since > 8
    await obtaining


@pytest.mark.looptime
async def test_every_expiration_is_a_new_waiting(wall):
    async def login():
        await asyncio.sleep(3)
        return {'a': info('a', expiration=wall.soon(10))}

    vault = Vault(login=login)
    for _ in range(3):
        now = asyncio.get_running_loop().time()
        obtaining = asyncio.create_task(vault.obtain())
        await asyncio.sleep(1)
        assert vault.waiting_since == now
        item = await obtaining
        if vault.on_trial:
            vault.accept(item)
        await asyncio.sleep(10)
        wall.move(10)


@pytest.mark.looptime
async def test_what_the_login_has_failed_with_is_told_to_those_who_watch_over_it():
    async def login():
        raise LoginError("boo!")

    vault = Vault(login=login)
    with pytest.raises(LoginError, match="boo!"):
        await vault.obtain()
    with pytest.raises(LoginError, match="boo!"):
        await vault.guard()


def test_late_answers_for_rejected_credentials_change_nothing():
    vault = Vault({'a': info('a')})
    late = vault.select()
    vault.invalidate(late)
    vault.accept(late)
    assert not vault.proven
    assert vault.on_trial


def test_rejected_credentials_do_not_pile_up():
    vault = Vault()
    for number in range(MAX_REJECTED * 3):
        vault.populate({'a': info(f'{number}')})
        vault.invalidate(vault.select())
    assert len(vault._rejected) == MAX_REJECTED


async def test_sessions_that_are_closed_get_no_other_chance():
    async with aiohttp.ClientSession() as session:
        item = AiohttpSession(server='https://host', aiohttp_session=session)
        assert item.is_usable()
    assert not item.is_usable()
