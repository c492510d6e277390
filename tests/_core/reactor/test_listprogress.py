import asyncio
import fcntl
import logging
import os
import pty
import re
import struct
import termios

import pytest

from kopf._core.actions import loggers
from kopf._core.reactor.watches import listprogress

pytestmark = pytest.mark.looptime


@pytest.fixture()
def observer(caplog):
    caplog.set_level('INFO')
    observer = listprogress.ListProgress(logging.getLogger('test'))
    yield observer
    observer.close()


class Terminal:
    """A pseudo-terminal; what is written to it can be read again and again."""
    COLUMNS = 100

    def __init__(self):
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack('HHHH', 25, self.COLUMNS, 0, 0))
        os.set_blocking(self._master, False)
        self.stream = open(slave, 'w', encoding='utf-8')  # noqa: SIM115
        self._seen = b''

    def read(self):
        while True:
            try:
                self._seen += os.read(self._master, 65536)
            except BlockingIOError:
                return self._seen.decode()

    def close(self):
        self.stream.close()
        os.close(self._master)


@pytest.fixture()
def terminal(monkeypatch):
    """The terminal to which the log goes."""
    monkeypatch.setenv('TERM', 'xterm')
    terminal = Terminal()
    handler = loggers.KopfStreamHandler(terminal.stream)
    logging.getLogger().addHandler(handler)
    yield terminal
    logging.getLogger().removeHandler(handler)
    terminal.close()


class Listed:
    """What is being listed, or has ended (None)."""

    def __init__(self, listing=0, expected=None, filling=None):
        self.listing = listing
        self.expected = expected
        self.filling = filling


async def test_long_lists_are_told_of_more_and_more_seldom(observer, caplog):
    listed = Listed()
    observer.observe('key', 'things', listed)
    for _ in range(100):
        listed.listing += 1
        await asyncio.sleep(1)
    listed.listing = None
    await asyncio.sleep(1000)
    counts = [int(text.split(':')[1].split()[0]) for text in caplog.messages]
    assert len(counts) == 4  # after 5, 15, 35, 75 seconds
    assert counts == pytest.approx([5, 15, 35, 75], abs=1)
    assert caplog.messages[0].startswith("Listing is in progress: ")
    assert caplog.messages[0].endswith(" things so far.")


async def test_lists_of_several_namespaces_are_added_up(observer, caplog):
    for namespace in ['ns1', 'ns2']:
        observer.observe(('things', namespace), 'things', Listed(1))
    observer.observe('other', 'others', Listed(1))
    await asyncio.sleep(6)
    assert caplog.messages == ["Listing is in progress: 2 things, 1 others so far."]


async def test_the_size_of_lists_is_told_if_the_server_tells_it(observer, caplog):
    for namespace in ['ns1', 'ns2']:
        observer.observe(('things', namespace), 'things', Listed(500, expected=2000))
    observer.observe('other', 'others', Listed(1))
    await asyncio.sleep(6)
    assert caplog.messages == ["Listing is in progress: 1000 of 4000 things, 1 others so far."]


async def test_the_filling_of_indices_is_told_after_the_list(observer, caplog):
    listed = Listed(500)
    observer.observe('key', 'things', listed)
    await asyncio.sleep(6)
    listed.listing, listed.filling = None, (300, 500)
    await asyncio.sleep(10)
    listed.filling = None
    await asyncio.sleep(100)
    assert caplog.messages == [
        "Listing is in progress: 500 things so far.",
        "Filling of the indices is in progress: 300 of 500 things."]


async def test_progress_is_a_line_below_the_log_on_a_terminal(observer, caplog, terminal):
    listed = Listed(0, expected=4000)
    observer.observe('key', 'things', listed)
    await asyncio.sleep(1)
    listed.listing = 1000
    await asyncio.sleep(1)
    logging.getLogger('test').warning("Something else.")
    listed.listing, listed.filling = None, (3900, 4000)
    await asyncio.sleep(1)
    listed.filling = None
    await asyncio.sleep(1)
    assert "Listing things ██████░░░░░░░░░░░░░░░░░░ 25%, 1000 of 4000" in terminal.read()
    assert re.search(r"\r\x1b\[KSomething else\.\r?\nListing things █", terminal.read())
    assert "\r\x1b[KIndexing things ███████████████████████░ 98%, 3900 of 4000" in terminal.read()
    assert terminal.read().endswith('\r\x1b[K')
    assert caplog.messages == ["Something else."]


async def test_lines_on_a_terminal_are_never_broken(observer, terminal):
    for number in range(9):
        observer.observe(number, f'things{number}', Listed(1, expected=2))
    await asyncio.sleep(1)
    shown = terminal.read().rsplit('\r\x1b[K', 1)[-1]
    assert len(shown) == terminal.COLUMNS - 1


async def test_nothing_is_shown_on_a_terminal_for_quick_lists(observer, terminal):
    listed = Listed(1)
    observer.observe('key', 'things', listed)
    await asyncio.sleep(listprogress.PATIENCE / 2)
    listed.listing = None
    await asyncio.sleep(100)
    assert terminal.read().replace('\r\x1b[K', '') == ''


async def test_nothing_is_said_of_quick_lists_and_of_those_that_do_not_begin(observer, caplog):
    observer.observe('key', 'things', Listed(0))
    observer.observe('other', 'others', Listed(None))
    await asyncio.sleep(100)
    assert not caplog.messages


async def test_nothing_is_said_of_what_is_not_listed_any_more(observer, caplog):
    observer.observe('key', 'things', Listed(1))
    observer.forget('key')
    await asyncio.sleep(100)
    assert not caplog.messages
