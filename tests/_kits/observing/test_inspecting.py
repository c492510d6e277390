"""
Requests for the metrics, and for what the operator does, share what is read of its objects.
"""
import asyncio

import pytest

import kopf
from kopf._cogs.serving import exchanges
from kopf._kits.observing import debug, metrics
from tests import expressions
from tests._core.reactor.worlds import run_virtually
from tests._kits.observing.scrapes import Measured

REQUEST = exchanges.Request('GET', '/', peer='127.0.0.1')


class Pages(Measured):
    """An operator with both pages, and how many times its objects are looked at."""

    def __init__(self):
        super().__init__(lambda registry: kopf.on.event('kopfexamples', registry=registry)(
            lambda **_: None))
        self.tours = 0
        self.lasts = 0
        self._tour = self.inspector.tour
        self.inspector.tour = self.tour
        self.pages = {
            'metrics': self.measures,
            'debug': debug.Debugger(self.inspector),
        }

    async def tour(self):
        self.tours += 1
        await asyncio.sleep(self.lasts)
        async for item in self._tour():
            yield item

    async def __aexit__(self, *_):
        for page in self.pages.values():
            await page.close()
        await super().__aexit__(*_)


@pytest.fixture(params=['metrics', 'debug'])
def name(request):
    return request.param


def test_concurrent_requests_look_at_the_objects_once(name):
    async def run():
        async with Pages() as pages:
            pages.lasts = 0.01
            found = await asyncio.gather(*[
                pages.pages[name].respond(REQUEST) for _ in range(10)])
            return pages.tours, {response.status for response in found}

    assert run_virtually(run()) == (1, {200})


def test_a_request_within_a_second_looks_at_nothing(name):
    async def run():
        async with Pages() as pages:
            counts = []
            for pause in [0, 0.9, 0.2]:
                await asyncio.sleep(pause)
                await pages.pages[name].respond(REQUEST)
                counts.append(pages.tours)
            return counts

    assert run_virtually(run()) == [1, 1, 2]


def test_a_cancelled_request_does_not_cancel_what_others_wait_for(name):
    async def run():
        async with Pages() as pages:
            pages.lasts = 1
            first, second = [
                asyncio.create_task(pages.pages[name].respond(REQUEST)) for _ in range(2)]
            await asyncio.sleep(0.5)
            first.cancel()
            return (await second).status, pages.tours

    assert run_virtually(run()) == (200, 1)


def test_those_who_ask_all_the_time_take_a_tenth_of_it(name):
    async def run():
        async with Pages() as pages:
            pages.lasts = 0.5
            async with asyncio.TaskGroup() as group:
                async def ask():
                    while asyncio.get_running_loop().time() < 40:
                        await pages.pages[name].respond(REQUEST)
                        await asyncio.sleep(0.05)

                for _ in range(3):
                    group.create_task(ask())
            return pages.tours

    assert run_virtually(run()) <= 8


def test_what_was_read_too_late_for_a_request_is_for_the_next_ones():
    async def run():
        async with Pages() as pages:
            pages.lasts = metrics.PATIENCE + 1
            await pages.measures.respond(REQUEST)
            await asyncio.sleep(metrics.PATIENCE + 20)
            response = await pages.measures.respond(REQUEST)
            return expressions.parse_text(response.body.decode())['kopf_objects']

    assert run_virtually(run()) == [({'kind': 'kopfexample'}, 0)]


def test_nothing_is_left_of_a_request_at_the_end(name):
    async def run():
        pages = Pages()
        async with pages:
            pages.lasts = 1000
            await pages.pages[name].respond(REQUEST)
        return [task.get_name() for task in asyncio.all_tasks()
                if task is not asyncio.current_task()]

    assert run_virtually(run()) == []
