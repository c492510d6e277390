import asyncio

from kopf._kits.testing.processes import SeededLoop


def test_the_tasks_of_a_closed_loop_are_not_gone_through_for_other_loops(monkeypatch):
    async def main():
        return [asyncio.create_task(asyncio.sleep(1, 'done')) for _ in range(3)]

    unregistered = []
    monkeypatch.setattr(asyncio, '_unregister_task', unregistered.append)
    with asyncio.Runner(loop_factory=lambda: SeededLoop(0)) as runner:
        tasks = runner.run(main())
        assert not unregistered
    assert set(tasks) <= set(unregistered)
