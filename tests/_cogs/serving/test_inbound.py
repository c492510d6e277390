"""
For how long clients may be slow, in virtual time.
"""
import asyncio
import logging

import pytest

from kopf._cogs.serving import inbound
from tests._cogs.serving.corpus import POLICY, START, Wire, connect, feed, get_statuses

POLICY = POLICY._replace(receiving=15.0, writing=20.0, idle=150.0)
GOOD = START + b'Content-Length: 2\r\n\r\nok'


async def wait_until_closed(wire):
    """Return how long it takes."""
    loop = asyncio.get_running_loop()
    since = loop.time()
    while wire.is_open:
        await asyncio.sleep(0.1)
    return round(loop.time() - since)


@pytest.mark.looptime
async def test_silent_clients_have_the_time_of_a_request():
    _, wire, _ = connect(POLICY)
    assert await wait_until_closed(wire) == 15
    assert wire.written == b''


@pytest.mark.looptime
@pytest.mark.parametrize('start', [b'P', GOOD[:-1]])
async def test_the_time_of_a_request_counts_from_its_first_byte(start):
    connection, wire, _ = connect(POLICY)
    await asyncio.sleep(10)
    await feed(connection, start)
    await asyncio.sleep(10)
    await feed(connection, b'')
    assert await wait_until_closed(wire) == 5 + inbound.LINGERING_TIMEOUT
    assert get_statuses(wire) == [408]


@pytest.mark.looptime
async def test_connections_are_kept_between_requests():
    connection, wire, keeper = connect(POLICY)
    for number in range(1, 4):
        await feed(connection, GOOD)
        await asyncio.sleep(100)
        assert get_statuses(wire) == [200] * number
    assert await wait_until_closed(wire) == 50
    assert len(keeper.requests) == 3


@pytest.mark.looptime
async def test_clients_that_read_nothing_are_ended():
    connection, wire, keeper = connect(POLICY)
    connection.pause_writing()
    keeper.body = b'x' * 100_000
    await feed(connection, GOOD)
    assert await wait_until_closed(wire) == 20


@pytest.mark.looptime
async def test_broken_chunks_are_refused_as_slow_requests_are():
    connection, wire, keeper = connect(POLICY)
    await feed(connection, START + b'Transfer-Encoding: chunked\r\n\r\n')
    await feed(connection, b'nonsense\r\n')
    assert await wait_until_closed(wire) == 15 + inbound.LINGERING_TIMEOUT
    assert get_statuses(wire) == [408]
    assert not keeper.requests


@pytest.mark.looptime
@pytest.mark.parametrize('start', [b'P', GOOD[:-1]])
async def test_those_who_leave_in_the_middle_are_not_worth_a_line_of_the_log(start, caplog):
    caplog.set_level(logging.DEBUG)
    connection, wire, _ = connect(POLICY)
    await feed(connection, start)
    wire.close()
    await asyncio.sleep(100)
    assert [record for record in caplog.records if record.name != 'asyncio'] == []


@pytest.mark.looptime
@pytest.mark.parametrize('start', [b'', b'P', GOOD[:-1], GOOD])
async def test_clients_do_not_delay_the_end(start):
    connection, wire, _ = connect(POLICY)
    await feed(connection, start)
    connection.leave()
    assert not wire.is_open


@pytest.mark.looptime
async def test_bugs_are_logged_and_answered(caplog):
    connection, wire, _ = connect(POLICY, respond=lambda request: 1 / 0)
    await feed(connection, GOOD)
    await wait_until_closed(wire)
    assert get_statuses(wire) == [500]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert 'ZeroDivisionError' in caplog.text


@pytest.mark.looptime
async def test_bugs_fill_the_log_once_a_minute(caplog):
    async def fail(request):
        raise ZeroDivisionError(await request.read())

    connection, wire, _ = connect(POLICY, respond=fail)
    for _ in range(3):
        await feed(connection, GOOD)
    await wait_until_closed(wire)
    assert get_statuses(wire) == [500] * 3
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


@pytest.mark.looptime
async def test_clients_that_are_gone_at_the_last_word_are_not_worth_a_line_of_the_log(caplog):
    class Gone(Wire):
        def can_write_eof(self):
            return True

        def write_eof(self):
            raise OSError("The endpoint is not connected.")

    connection, wire, _ = connect(POLICY, wire=Gone())
    await feed(connection, b'nonsense\r\n')
    await wait_until_closed(wire)
    assert get_statuses(wire) == [400]
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
