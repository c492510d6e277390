"""
The threads of the simulation: they run in lockstep with the loop, and in virtual time.
"""
import asyncio

import pytest

from tests.simulation import threads


def run(fn):
    """Run an async function in a process for some time, and end the threads of the process."""
    async def main():
        host = threads.Host('operator', asyncio.get_running_loop())
        task = host.run(asyncio.create_task, fn(host))
        await asyncio.wait([task], timeout=5000)
        await host.bury()
        assert not host.threads
        return task.result()

    with asyncio.Runner(loop_factory=lambda: threads.Loop(0)) as runner:
        return runner.run(main())


def sleep(seconds):
    threads.make_sync(threads.pause)(seconds=seconds)


def test_a_pause_of_a_thread_is_virtual_time():
    async def main(host):
        await asyncio.wrap_future(threads.Pool(host).submit(sleep, 1000))
        return host.loop.time()

    assert 1000 <= run(main) < 1001


def test_the_loop_goes_on_during_a_pause():
    async def main(host):
        future = threads.Pool(host).submit(sleep, 1000)
        await asyncio.sleep(999)
        return future.running()

    assert run(main)


def test_the_errors_of_a_thread_are_raised_to_its_caller():
    async def main(host):
        await asyncio.wrap_future(threads.Pool(host).submit(int, 'x'))

    with pytest.raises(ValueError):
        run(main)


def test_calls_wait_for_a_thread_of_the_pool():
    async def main(host):
        pool = threads.Pool(host, 2)
        futures = [pool.submit(sleep, 1000) for _ in range(3)]
        await asyncio.sleep(999)
        return [future.running() for future in futures]

    assert run(main) == [True, True, False]


def test_a_call_that_is_cancelled_before_its_beginning_leaves_its_thread_to_others():
    async def main(host):
        pool = threads.Pool(host, 1)
        pool.submit(sleep, 1)
        assert pool.submit(sleep, 1).cancel()
        return await asyncio.wrap_future(pool.submit(int, '1'))

    assert run(main) == 1


def test_an_event_ends_the_waiting_of_a_thread():
    async def main(host):
        event = threads.Event()
        future = threads.Pool(host).submit(event.wait)
        host.loop.call_later(100, event.set)
        return await asyncio.wrap_future(future), host.loop.time()

    was_set, ended = run(main)
    assert was_set
    assert 100 <= ended < 101


def test_a_thread_waits_for_an_event_until_its_timeout_only():
    async def main(host):
        return await asyncio.wrap_future(threads.Pool(host).submit(threads.Event().wait, 100))

    assert run(main) is False


def test_a_thread_of_a_killed_process_stops_where_it_is():
    passed = []

    def work():
        sleep(1)
        passed.append('before')
        sleep(1000)
        passed.append('after')

    async def main(host):
        threads.Pool(host).submit(work)
        await asyncio.sleep(10)
        host.kill()
        await asyncio.sleep(5000)

    with pytest.raises(asyncio.CancelledError):
        run(main)
    assert passed == ['before']


def test_a_handler_that_awaits_in_a_thread_is_refused():
    async def handler():
        await asyncio.sleep(0)

    with pytest.raises(RuntimeError, match="awaits in a thread"):
        threads.make_sync(handler)()
