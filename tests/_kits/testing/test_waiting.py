import asyncio

import pytest

from kopf.testing import virtual_time, wait_for, wait_for_sync


@virtual_time
async def test_the_value_is_returned_when_it_is_true():
    values = iter([0, '', [], 'done'])
    assert await wait_for(lambda: next(values)) == 'done'


@virtual_time
async def test_assertions_are_waited_for():
    seen = []

    def condition():
        seen.append(1)
        assert len(seen) > 2

    assert await wait_for(condition) is None


@virtual_time
async def test_what_is_absent_is_waited_for():
    found = {}
    asyncio.get_running_loop().call_later(5, found.update, {'a': {'b': 1}})
    assert await wait_for(lambda: found['a']['b']) == 1


@virtual_time
async def test_none_of_a_lambda_is_waited_for():
    found = {}
    asyncio.get_running_loop().call_later(5, found.update, {'a': 1})
    assert await wait_for(lambda: found.get('a')) == 1


@virtual_time
async def test_virtual_time_is_exact():
    loop, seen = asyncio.get_running_loop(), []
    loop.call_later(3599.5, seen.append, 1)
    await wait_for(lambda: seen, timeout=7200)
    assert loop.time() == 3599.5


@virtual_time
async def test_async_conditions_are_awaited():
    async def condition():
        await asyncio.sleep(1)
        return 'done'

    assert await wait_for(condition) == 'done'


@virtual_time
async def test_other_errors_are_raised_at_once():
    def condition():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await wait_for(condition)
    assert asyncio.get_running_loop().time() == 0


@virtual_time
async def test_the_failure_tells_what_was_seen_instead():
    numbers = [1, 2]
    with pytest.raises(AssertionError) as info:
        await wait_for(lambda: sum(numbers) == 7, timeout=5)
    text = str(info.value)
    assert "in 5 seconds" in text
    assert "sum(numbers) == 7" in text
    assert "Last seen: False" in text
    assert "with numbers = [1, 2]" in text


@virtual_time
async def test_the_failure_tells_the_last_error():
    def there():
        raise KeyError('x')

    with pytest.raises(AssertionError, match=r"there\nLast seen: KeyError: 'x'"):
        await wait_for(there, timeout=5)


@virtual_time
async def test_a_stuck_condition_is_told_of():
    with pytest.raises(AssertionError, match="nothing yet"):
        await wait_for(lambda: asyncio.sleep(100), timeout=5)


@virtual_time
async def test_timeouts_of_the_condition_are_its_own():
    async def condition():
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        await wait_for(condition)


async def test_real_time_is_polled():
    seen = []
    asyncio.get_running_loop().call_later(0.05, seen.append, 1)
    assert await wait_for(lambda: seen) == [1]


def test_sync_tests_can_wait_too():
    values = iter([0, 1])
    assert wait_for_sync(lambda: next(values)) == 1
    with pytest.raises(AssertionError):
        wait_for_sync(lambda: False, timeout=0.05)
