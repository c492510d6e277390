import asyncio
import concurrent.futures
import contextlib
import socket
import threading

import pytest

from kopf._core.actions import inflight
from kopf._kits.testing.processes import Process, ProcessLoop


def test_the_tasks_of_a_closed_loop_are_not_gone_through_for_other_loops(monkeypatch):
    async def main():
        return [asyncio.create_task(asyncio.sleep(1, 'done')) for _ in range(3)]

    unregistered = []
    monkeypatch.setattr(asyncio, '_unregister_task', unregistered.append)
    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
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

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        assert runner.run(main()) == [0, 1]


async def serve_by_loop(port):
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, '127.0.0.1', port)
    return server.sockets[0].getsockname()[1], server.close


async def serve_by_socket(port):
    sock = socket.create_server(('127.0.0.1', port))
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    loop.add_reader(sock, lambda: None)

    def close():
        loop.remove_reader(sock)
        sock.close()

    return sock.getsockname()[1], close


@pytest.mark.parametrize('serve', [serve_by_loop, serve_by_socket])
def test_another_process_can_listen_at_the_port_of_a_killed_one(serve):
    async def main():
        loop = asyncio.get_running_loop()
        process = Process('killed', loop)
        port, close = await process.run(lambda: loop.create_task(serve(0)))
        process.kill()
        _, close_other = await serve(port)
        with contextlib.closing(socket.socket()) as client:
            client.setblocking(False)
            await loop.sock_connect(client, ('127.0.0.1', port))
        close()  # when the killed process is buried
        close_other()

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        runner.run(main())


class QuickExecutor(concurrent.futures.Executor):
    """Each call has ended before the loop awaits it, as in a thread that is quick."""

    def submit(self, fn, /, *args, **kwargs):
        future = concurrent.futures.Future()
        future.set_result(fn(*args, **kwargs))
        return future


@pytest.mark.parametrize('is_of_handler', [True, False])
def test_quick_threads_of_a_killed_process_do_not_hold_the_time(is_of_handler):
    async def main():
        loop = asyncio.get_running_loop()
        process = Process('killed', loop)

        def start():
            if not is_of_handler:
                return loop.run_in_executor(QuickExecutor(), int)
            running = QuickExecutor().submit(int)
            future = asyncio.wrap_future(running)
            loop.hold_for(running, inflight.Call(None, {}, None))
            return future

        process.run(start)
        process.kill()
        await asyncio.sleep(1)
        assert loop.get_hold() == 0

    with asyncio.Runner(loop_factory=ProcessLoop) as runner:
        runner.run(main())
