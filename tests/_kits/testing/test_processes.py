import asyncio
import threading

from kopf._kits.testing.processes import Process, SeededLoop


def test_the_tasks_of_a_closed_loop_are_not_gone_through_for_other_loops(monkeypatch):
    async def main():
        return [asyncio.create_task(asyncio.sleep(1, 'done')) for _ in range(3)]

    unregistered = []
    monkeypatch.setattr(asyncio, '_unregister_task', unregistered.append)
    with asyncio.Runner(loop_factory=lambda: SeededLoop(0)) as runner:
        tasks = runner.run(main())
        assert not unregistered
    assert set(tasks) <= set(unregistered)


def test_callbacks_of_threads_are_not_lost_while_those_of_a_killed_process_are_sorted_out():
    async def main():
        loop = asyncio.get_running_loop()
        called = []

        class Interrupted(Process):
            def freeze(self, handle):
                thread = threading.Thread(
                    target=loop.call_soon_threadsafe, args=[called.append, 1])
                thread.start()
                thread.join()
                super().freeze(handle)

        process = Interrupted('killed', loop)
        process.run(loop.call_soon, called.append, 'dead')
        loop.call_soon(called.append, 0)
        process.kill()
        await asyncio.sleep(1)
        return called

    with asyncio.Runner(loop_factory=lambda: SeededLoop(0)) as runner:
        assert runner.run(main()) == [0, 1]
