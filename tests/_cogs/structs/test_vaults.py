import asyncio
import datetime

import pytest

from kopf._cogs.structs.credentials import ConnectionInfo, LoginError
from kopf._cogs.structs.vaults import Vault

OLD = datetime.datetime(2020, 1, 1)


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
