import asyncio
import logging

import pytest

from kopf._core.reactor.watches import listprogress

pytestmark = pytest.mark.looptime


@pytest.fixture()
def observer(caplog):
    caplog.set_level('INFO')
    observer = listprogress.ListProgress(logging.getLogger('test'))
    yield observer
    observer.close()


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
