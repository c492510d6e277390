"""
Virtual time: an event loop whose clock jumps to the next timer when the loop has nothing to do.

The time stands still while threads work for the loop, and while the loop waits for processes or
foreign servers. Servers in the same loop are connected in memory, so that the loop sees all data in
transit. Other programs can connect to these servers too.
"""
import asyncio
import collections
import concurrent.futures
import contextvars
import datetime
import functools
import selectors
import socket
import time
import weakref
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, TypeVar

from kopf._kits.testing import pipes

P = ParamSpec('P')
T = TypeVar('T')
E = TypeVar('E', bound=concurrent.futures.Executor)

PATIENCE = 1.0
"""How many real seconds a foreign connection must be silent before the time can jump."""


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Do the same as :func:`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coro)


def virtual_time(fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """
    Decorate an async test: it becomes a sync test that runs in its own event loop, in virtual time.

    The clock of the loop jumps to the next timer as soon as there is nothing else to do.

    :param fn: the async test.
    :returns: the sync test.
    """
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        return run(fn(*args, **kwargs))
    return wrapper


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, which begins at 0. The wall time moves equally."""

    def __init__(self) -> None:
        self.holds = 0
        """How many threads and processes work for the loop now."""
        self.is_patient = True
        """Whether the time stands still for these, and for foreign servers."""
        self._now = 0.0
        self._origin = datetime.datetime.now(datetime.UTC)
        self._servers: dict[tuple[str, int], _Server] = {}
        self._virtual: dict[socket.socket, tuple[str, int]] = {}
        self._waiters: list[tuple[float, asyncio.Future[None]]] = []
        super().__init__(_Selector(self))
        self._threads = concurrent.futures.ThreadPoolExecutor()
        self.set_default_executor(self._threads)

    def time(self) -> float:
        return self._now

    @property
    def wall_time(self) -> datetime.datetime:
        return self._origin + datetime.timedelta(seconds=self._now)

    def add_signal_handler(  # type: ignore[override]
            self, sig: int, callback: Any, *args: Any) -> None:
        raise NotImplementedError("Signals are for whoever runs the loop.")

    async def wait_idle(self, *, after: float | None = None) -> None:
        """
        Wait until the loop has nothing to do until its next timer, at a time later than ``after``.

        Before the time jumps to this timer, all waiters continue, until they have nothing to do.
        """
        future: asyncio.Future[None] = self.create_future()
        self._waiters.append((float('-inf') if after is None else after, future))
        await future

    def rest(self) -> bool:
        """Wake up the callers of `wait_idle`; return whether there are any."""
        due = [future for after, future in self._waiters if after < self._now]
        self._waiters = [(after, future) for after, future in self._waiters if after >= self._now]
        for future in due:
            if not future.done():
                future.set_result(None)
        return bool(due)

    def jump(self, seconds: float) -> None:
        """Move the time forward."""
        self._now += seconds

    def run_in_executor(  # type: ignore[override]
            self, executor: Any, func: Any, *args: Any) -> 'asyncio.Future[Any]':
        future = super().run_in_executor(executor, func, *args)
        self.holds += 1
        future.add_done_callback(self._release)
        return future

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        self.holds += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self.holds -= 1

    def release(self) -> None:
        """Note that a thread has finished its work. Threads can call this method."""
        try:
            self.call_soon_threadsafe(self._release)
        except RuntimeError:  # the loop is closed
            pass

    def _release(self, _: object = None) -> None:
        self.holds -= 1

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        return self._hold_for_process(*await super().subprocess_exec(*args, **kwargs))

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        return self._hold_for_process(*await super().subprocess_shell(*args, **kwargs))

    def _hold_for_process(self, transport: Any, protocol: Any) -> Any:
        def process_exited() -> None:
            self._release()
            told()

        if transport.get_returncode() is None:
            self.holds += 1
            told, protocol.process_exited = protocol.process_exited, process_exited
        return transport, protocol

    async def create_server(self, protocol_factory: Any, *args: Any, **kwargs: Any) -> Any:
        server = await super().create_server(protocol_factory, *args, **kwargs)
        tls: Any = kwargs.get('ssl')

        def make_secured() -> asyncio.BaseProtocol:
            return pipes.secure(self, protocol_factory(), tls, is_server=True)

        for sock in server.sockets:
            if sock.family in (socket.AF_INET, socket.AF_INET6):
                self._servers[sock.getsockname()[:2]] = _Server(
                    server, make_secured if tls else protocol_factory)
        return server

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        super().add_reader(fd, callback, *args)
        if isinstance(fd, socket.socket) and _is_listening(fd.fileno()):
            fd.__class__ = _ListeningSocket  # its server calls its methods, and not the loop
            _backlogs[fd] = collections.deque()
            self._servers[fd.getsockname()[:2]] = _Listener(
                fd, functools.partial(callback, *args))

    def remove_reader(self, fd: Any) -> bool:
        if isinstance(fd, _ListeningSocket) and fd.fileno() < 0:
            return False  # its process was killed
        listener = isinstance(fd, _ListeningSocket) and self._servers[fd.getsockname()[:2]]
        if isinstance(listener, _Listener):
            listener.close()
        return super().remove_reader(fd)

    async def sock_connect(self, sock: socket.socket, address: Any) -> None:
        if self._find_server(address) is None:
            await super().sock_connect(sock, address)
        else:
            self._virtual[sock] = address[:2]

    async def create_connection(
            self, protocol_factory: Any, host: Any = None, port: Any = None, **kwargs: Any,
    ) -> Any:
        sock = kwargs.get('sock')
        address = (host, port) if sock is None else self._virtual.pop(sock, None)
        server = self._find_server(address)
        if server is None or address is None:
            return await super().create_connection(protocol_factory, host, port, **kwargs)
        if sock is not None:
            sock.close()
        tls: Any = kwargs.get('ssl')
        waiter: asyncio.Future[None] = self.create_future()

        def make_secured() -> asyncio.BaseProtocol:
            return pipes.secure(
                self, protocol_factory(), tls, waiter=waiter,
                hostname=kwargs.get('server_hostname') or host)

        near = self.join(
            make_secured if tls else protocol_factory, server.factory, address, server.context)
        assert near.other is not None
        server.take(near.other)
        return await pipes.take_secured(near, waiter) if tls else (near, near.get_protocol())

    async def connect_accepted_socket(
            self, protocol_factory: Any, sock: socket.socket, **kwargs: Any,
    ) -> Any:
        if not isinstance(sock, _AcceptedSocket):
            return await super().connect_accepted_socket(protocol_factory, sock, **kwargs)
        pipe = sock.detach_pipe()
        tls: Any = kwargs.get('ssl')
        if not tls:
            pipe.adopt(protocol_factory())
            return pipe, pipe.get_protocol()
        waiter: asyncio.Future[None] = self.create_future()
        pipe.adopt(pipes.secure(self, protocol_factory(), tls, waiter=waiter, is_server=True))
        return await pipes.take_secured(pipe, waiter)

    def join(
            self,
            client: pipes.Factory,
            server: pipes.Factory,
            address: tuple[str, int],
            context: contextvars.Context,
    ) -> pipes.Pipe:
        """Connect a new client to a new server in this loop; return the end of the client."""
        return pipes.connect(self, client, server, address=address, context=context)

    def _find_server(self, address: Any) -> '_Server | None':
        server = self._servers.get(tuple(address[:2])) if isinstance(address, tuple) else None
        return server if server is not None and server.is_open else None


class _Server:
    """A server in the loop, and the context in which it was created."""

    def __init__(self, server: asyncio.Server, factory: pipes.Factory) -> None:
        super().__init__()
        self.factory = factory
        self.context = contextvars.copy_context()
        self._server = server

    @property
    def is_open(self) -> bool:
        return bool(self._server.sockets)

    def take(self, pipe: pipes.Pipe) -> None:
        """Take the server's end of a new connection."""

    def kill(self) -> None:
        """Close the listening sockets, as the operating system does for a killed process."""
        self._server.close()


class _Listener(_Server):
    """A server that waits until its socket is readable, and accepts connections by itself."""

    def __init__(self, sock: socket.socket, accept: Callable[[], None]) -> None:
        self.factory = asyncio.Protocol  # until the connection is accepted
        self.context = contextvars.copy_context()
        self.is_closed = False
        self._sock = sock
        self._accept = accept

    @property
    def is_open(self) -> bool:
        return not self.is_closed

    def take(self, pipe: pipes.Pipe) -> None:
        pipe.pause_reading()
        _backlogs[self._sock].append(_AcceptedSocket(pipe))
        asyncio.get_running_loop().call_soon(self._accept, context=self.context)

    def kill(self) -> None:
        asyncio.get_running_loop().remove_reader(self._sock)
        self._sock.close()

    def close(self) -> None:
        self.is_closed = True
        for sock in _backlogs.pop(self._sock, ()):
            sock.close()


class _ListeningSocket(socket.socket):
    """A listening socket that also accepts connections from inside of the loop."""
    __slots__ = ()

    def accept(self) -> tuple[socket.socket, Any]:
        backlog = _backlogs.get(self)
        return (backlog.popleft(), self.getsockname()) if backlog else super().accept()


class _AcceptedSocket(socket.socket):
    """Stands for the server's end of a connection, until the server connects its protocol."""

    def __init__(self, pipe: pipes.Pipe) -> None:
        super().__init__()
        self._pipe: pipes.Pipe | None = pipe

    def detach_pipe(self) -> pipes.Pipe:
        pipe, self._pipe = self._pipe, None
        assert pipe is not None
        self.close()
        return pipe

    def close(self) -> None:
        super().close()
        if self._pipe is not None:
            self._pipe.close()


_backlogs: 'weakref.WeakKeyDictionary[socket.socket, collections.deque[_AcceptedSocket]]' = (
    weakref.WeakKeyDictionary())
"""The connections from inside of the loop that are not accepted yet."""


class _Selector(selectors.DefaultSelector):
    """Moves the time of the loop, unless foreign files or threads must be waited for."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._own: set[int] = set()
        self._foreign: set[int] = set()
        self._active = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if not self._own or _is_listening(key.fd):
            self._own.add(key.fd)  # the first file is the socket that wakes up the loop
        else:
            self._foreign.add(key.fd)
            self._active = time.monotonic()
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._foreign.discard(key.fd)
        if key.fd in self._own and len(self._own) > 1:
            self._own.discard(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            self._active = time.monotonic()
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if not self._loop.is_patient or (not self._loop.holds and not self._is_waiting()):
            if self._loop.rest():
                return []
            if timeout is not None:
                self._loop.jump(timeout)
                return []
        limit = PATIENCE if self._foreign and not self._loop.holds else timeout
        limit = limit if timeout is None or limit is None else min(timeout, limit)
        ready = super().select(limit)
        if ready:
            self._active = time.monotonic()
        elif limit is not None and limit == timeout:
            self._loop.jump(timeout)
        return ready

    def _is_waiting(self) -> bool:
        """Whether to wait in real time: a foreign file is not a socket, or was active recently."""
        return bool(self._foreign) and (
            time.monotonic() - self._active < PATIENCE
            or not all(_is_connection(fd) for fd in self._foreign))


def hold(loop: VirtualLoop, executor: E) -> E:
    """Hold the time of the loop while the executor works; return the executor."""
    submit = executor.submit

    def submit_and_hold(
            fn: Callable[..., T], /, *args: Any, **kwargs: Any,
    ) -> 'concurrent.futures.Future[T]':
        shown: concurrent.futures.Future[T] = concurrent.futures.Future()

        def work() -> None:
            try:
                if shown.set_running_or_notify_cancel():
                    try:
                        shown.set_result(fn(*args, **kwargs))
                    except BaseException as e:
                        shown.set_exception(e)
            finally:
                loop.release()  # after the result is set, or the time could jump before

        loop.holds += 1
        submit(work)
        return shown

    executor.submit = submit_and_hold  # type: ignore[method-assign]
    return executor


def _is_listening(fd: int) -> bool:
    return bool(_ask_socket(fd, socket.SO_ACCEPTCONN))


def _is_connection(fd: int) -> bool:
    return _ask_socket(fd, socket.SO_TYPE) is not None


def _ask_socket(fd: int, option: int) -> int | None:
    """Read an option of a socket; `None` if the file is not a socket."""
    try:
        sock = socket.socket(fileno=fd)
    except OSError:
        return None
    try:
        return sock.getsockopt(socket.SOL_SOCKET, option)
    except OSError:
        return None
    finally:
        sock.detach()


async def pause(attempt: int, since: float) -> None:
    """
    Wait before the next check of a condition.

    In virtual time, wait until the loop has nothing more to do at the present time. In real time,
    wait for a short delay, which grows with the attempts.
    """
    loop = asyncio.get_running_loop()
    delay = 0.01 * 1.5 ** min(attempt, 40)
    if not isinstance(loop, VirtualLoop):
        await asyncio.sleep(min(delay, 0.2))
        return
    reminder = loop.call_later(delay, lambda: None)  # limits the next jump of the time
    await loop.wait_idle(after=None if attempt == 0 else since)
    reminder.cancel()
