"""
Virtual time: an event loop whose clock jumps to the next timer when the loop has nothing to do.

The time stands still while threads work for the loop, and while the loop waits for processes or
foreign servers. If a timer is due sooner, the time goes on as fast as the real time meanwhile. A
thread that waits for the loop does not work: e.g. for a request, or for the ``stopped`` flag.

Servers in the same loop are connected in memory, so that the loop sees all data in transit. Other
programs can also connect to these servers.
"""
import asyncio
import asyncio.sslproto
import collections
import concurrent.futures
import contextlib
import contextvars
import dataclasses
import datetime
import functools
import inspect
import math
import selectors
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterable, Iterator
from typing import Any, ParamSpec, TypeVar

from kopf._core.actions import inflight
from kopf._core.intents import handlers, stopping
from kopf._kits.testing import pipes

P = ParamSpec('P')
T = TypeVar('T')

Work = concurrent.futures.Future[T]

PATIENCE = 1.0
"""
How many real seconds a foreign connection must be silent before the time can jump.

Likewise, how long the thread of a daemon holds the time: daemons can block their threads for as
long as their objects exist.
"""


def run(coro: Coroutine[Any, Any, T]) -> T:
    """Do the same as :func:`asyncio.run` in virtual time."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(coro)


def virtual_time(fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, T]:
    """
    Decorate an async test: it becomes a sync test that runs in its own event loop, in virtual time.

    The clock of the loop jumps to the next timer as soon as there is nothing else to do.

    ::

        @kopf.testing.virtual_time
        async def test_an_hour_takes_no_time():
            await asyncio.sleep(3600)

    See "Test operators" in the documentation.

    :param fn: the async test.
    :returns: the sync test, which raises a TypeError if the given one is not async.
    """
    @functools.wraps(fn)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        coro = fn(*args, **kwargs)
        if not inspect.isawaitable(coro):
            raise TypeError(f"virtual_time is for async functions, and {fn.__name__}() is none.")
        return run(coro)
    return wrapper


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, which begins at 0. The wall time moves equally."""

    farewell = 60.0
    """For how many real seconds a daemon still holds the time after the operator cancelled it."""

    def __init__(self) -> None:
        self.holds = 0
        """How many threads and processes work for the loop now, besides those of handlers."""
        self._calls: dict[inflight.Call, float] = {}
        """The calls of handlers whose threads work now, with the real times of the beginnings."""
        self._cancelled: dict[inflight.Call, float] = {}
        """Those of them that are cancelled, with the real times when this was noticed."""
        self._waiting: set[Work[None]] = set()
        """What is done when a thread has to go on that waits for the loop."""
        self.blocks = 0
        """In how many blocks of `stand_still` the loop is now."""
        self.is_patient = True
        """Whether the time stands still for these, and for foreign servers."""
        self._now = 0.0
        self._origin = datetime.datetime.now(datetime.UTC)
        self._listeners: dict[tuple[str, int], Listener] = {}
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

    def get_hold(self) -> float:
        """
        For how many more real seconds threads or processes hold the time: 0 if none of them works.

        The threads are also those of anyio, e.g. of kr8s.
        """
        if self.holds or ('anyio' in sys.modules and any(
                type(thread).__module__ == 'anyio._backends._asyncio' and self._is_busy(thread)
                for thread in threading.enumerate())):
            return math.inf
        now = time.monotonic()
        return max((0.0, *(self._get_end(call, now) - now for call in self._calls)))

    def _get_end(self, call: inflight.Call, now: float) -> float:
        """
        Get the real time until which a working thread holds the time.

        For all handlers but daemons, this is until its end. So it is for a daemon that is stopped,
        until it is abandoned or cancelled.
        """
        if not isinstance(call.handler, handlers.DaemonHandler):
            return math.inf
        if call.is_interrupted:
            return self._cancelled.setdefault(call, now) + self.farewell
        stopped = call.kwargs.get('stopped')
        reason = stopped.reason if isinstance(stopped, stopping.DaemonStopped) else None
        is_ending = reason and not reason & stopping.DaemonStoppingReason.DAEMON_ABANDONED
        return math.inf if is_ending else self._calls[call] + PATIENCE

    def _is_busy(self, thread: Any) -> bool:
        return (getattr(thread, 'loop', None) is self and not thread.stopping
                and thread not in thread.idle_workers)

    def rest(self) -> bool:
        """Wake up the callers of `wait_idle`; return whether there are any."""
        due = [future for after, future in self._waiters if after < self._now]
        self._waiters = [(after, future) for after, future in self._waiters if after >= self._now]
        for future in due:
            if not future.done():
                future.set_result(None)
        return bool(due)

    def describe_time(self) -> str:
        """Say what the time is, and what holds it: in an error of a test that takes too long."""
        selector: Any = self._selector  # type: ignore[attr-defined]
        counts = {
            "threads or processes": self.holds, "threads of handlers": len(self._calls),
            "connections or files of other programs": len(selector.foreign),
            "blocks without time": self.blocks}
        held = [f"{count} {what}" for what, count in counts.items() if count]
        return f"The virtual time is {self._now:g}, and {', '.join(held) or 'nothing'} held it."

    def remind(self) -> None:
        """Wake up the callers of `wait_idle` also while threads work: the time goes on."""
        if self.get_hold():
            self.rest()

    def jump(self, seconds: float) -> None:
        """Move the time forward."""
        self._now += seconds

    @contextlib.contextmanager
    def stand_still(self) -> Iterator[None]:
        """Let no time pass in the block, however long it takes in reality."""
        self.blocks += 1
        try:
            yield
        finally:
            self.blocks -= 1

    def run_in_executor(  # type: ignore[override]
            self, executor: Any, func: Any, *args: Any) -> 'asyncio.Future[Any]':
        # If the thread is quick, its result is noted in this context.
        future = contextvars.Context().run(super().run_in_executor, executor, func, *args)
        self.holds += 1
        future.add_done_callback(self._release, context=contextvars.Context())
        return future

    async def getaddrinfo(self, host: Any, port: Any, **options: Any) -> Any:
        """Resolve in a thread, with the context of the caller."""
        resolve = functools.partial(socket.getaddrinfo, host, port, **options)
        return await self.run_in_executor(None, contextvars.copy_context().run, resolve)

    async def shutdown_default_executor(self, *args: Any, **kwargs: Any) -> None:
        self.holds += 1
        try:
            await super().shutdown_default_executor(*args, **kwargs)
        finally:
            self.holds -= 1

    # The threads of handlers. What is noted about them must not depend on whether their processes
    # are killed, so it has a context of its own. The timers do: these threads are not woken up.

    def hold_for(self, running: 'Work[Any]', call: inflight.Call) -> None:
        """Hold the time until the call in a thread is done, except while it waits for the loop."""
        def forget() -> None:
            self._calls.pop(call, None)
            self._cancelled.pop(call, None)

        def tell(_: object) -> None:
            if not self.is_closed():
                self.call_soon_threadsafe(forget, context=contextvars.Context())

        self._calls[call] = time.monotonic()
        running.add_done_callback(tell)

    def wait_in_thread(self, work: 'Work[Any]', timeout: float | None) -> float | None:
        """
        Wait in a thread until the loop has done this work, or for so many seconds of its time.

        Returns for how many real seconds to wait then: only if there is no loop to wait for.
        """
        until = math.inf if timeout is None else self.time() + timeout
        if asyncio._get_running_loop() is self:  # the executor of the handler has no threads
            return timeout
        call = inflight.call_var.get()
        if call is not None and call.thread != threading.get_ident():
            call = None  # a thread of the author: it holds nothing
        waiting: Work[None] = concurrent.futures.Future()
        self._waiting.add(waiting)
        try:
            self.call_soon_threadsafe(
                self._let_wait, waiting, work, until, call, contextvars.copy_context(),
                context=contextvars.Context())
            waiting.result()
        except RuntimeError:  # the loop is closed
            pass
        finally:
            self._waiting.discard(waiting)
        return timeout if self.is_closed() else 0

    def _let_wait(
            self, waiting: 'Work[None]', work: 'Work[Any]', until: float,
            call: inflight.Call | None, context: contextvars.Context,
    ) -> None:
        if until < math.inf:
            timer = self.call_at(until, _finish, waiting, context=context)
            waiting.add_done_callback(lambda _: timer.cancel())
        if call is not None and self._calls.pop(call, None) is not None:
            # The thread holds the time again before it goes on.
            waiting.add_done_callback(lambda _: self._calls.update({call: time.monotonic()}))
        work.add_done_callback(lambda _: _finish(waiting))

    def make_flag(self) -> threading.Event | None:
        """Make an event for which threads wait in virtual time. Set it only in the loop."""
        return _Flag(self)

    def close(self) -> None:
        super().close()
        for waiting in list(self._waiting):
            _finish(waiting)

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

    # The connections: asyncio's own code makes them, but they are pipes instead of sockets.

    def _start_serving(self, protocol_factory: Any, sock: Any, *args: Any, **options: Any) -> None:
        asyncio_loop: Any = super()
        asyncio_loop._start_serving(protocol_factory, sock, *args, **options)
        accept: Any = self._accept_connection  # type: ignore[attr-defined]
        self._listen(sock, functools.partial(accept, protocol_factory, sock, *args, **options))

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        super().add_reader(fd, callback, *args)
        if isinstance(fd, socket.socket) and _is_listening(fd.fileno()):
            self._listen(fd, functools.partial(callback, *args))

    def _listen(self, sock: Any, accept: Callable[[], None]) -> None:
        if sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.__class__ = _Socket  # its server calls its methods, and not the loop
            _pipes.setdefault(sock, collections.deque())
            self._listeners[sock.getsockname()[:2]] = Listener(sock, accept)

    def _remove_reader(self, fd: Any) -> bool:
        if (fd if isinstance(fd, int) else fd.fileno()) < 0:
            return False  # its process was killed
        removed: bool = super()._remove_reader(fd)  # type: ignore[misc]
        return removed

    async def sock_connect(self, sock: Any, address: Any) -> None:
        listener = self._find_listener(address)
        if listener is None or not listener.is_open:
            await super().sock_connect(sock, address)
            return
        near, far = self.join(address, listener.context)
        sock.__class__ = _Socket
        _pipes[sock] = collections.deque([near])
        _pipes[listener.sock].append(far)
        self.call_soon(listener.accept, context=listener.context)

    def join(
            self, address: tuple[str, int], context: contextvars.Context,
    ) -> tuple[pipes.Pipe, pipes.Pipe]:
        """Connect to a server in this loop; return the ends of the client and of the server."""
        peer = (address[0], 0)
        near = self.make_pipe(contextvars.copy_context(), {'peername': address, 'sockname': peer})
        far = self.make_pipe(context, {'peername': peer, 'sockname': address})
        near.other, far.other = far, near
        return near, far

    def make_pipe(self, context: contextvars.Context, extra: dict[str, Any]) -> pipes.Pipe:
        """Make one end of a connection."""
        return pipes.Pipe(self, context, extra)

    def _find_listener(self, address: Any) -> 'Listener | None':
        return self._listeners.get(address[:2]) if isinstance(address, tuple) else None

    def _make_socket_transport(
            self, sock: Any, protocol: Any, waiter: Any = None, **options: Any) -> Any:
        pipe = _take_pipe(sock)
        if pipe is None:
            asyncio_loop: Any = super()
            return asyncio_loop._make_socket_transport(sock, protocol, waiter, **options)
        pipe.begin(protocol)
        waiter.set_result(None)
        return pipe

    def _make_ssl_transport(
            self, rawsock: Any, protocol: Any, sslcontext: Any, waiter: Any = None,
            *, extra: Any = None, server: Any = None, **options: Any) -> Any:
        pipe = _take_pipe(rawsock)
        if pipe is None:
            asyncio_loop: Any = super()
            return asyncio_loop._make_ssl_transport(
                rawsock, protocol, sslcontext, waiter, extra=extra, server=server, **options)
        options.pop('context', None)  # since 3.15; the pipe has one
        secured: Any = asyncio.sslproto.SSLProtocol(self, protocol, sslcontext, waiter, **options)
        pipe.begin(secured)
        return secured._app_transport


@dataclasses.dataclass(frozen=True)
class Listener:
    """A listening socket, and the context in which its server accepts the connections."""
    sock: socket.socket
    accept: Callable[[], None]
    context: contextvars.Context = dataclasses.field(default_factory=contextvars.copy_context)

    @property
    def is_open(self) -> bool:
        return self.sock.fileno() >= 0


class _Socket(socket.socket):
    """A socket with pipes: the connections to accept, or the only one until it has a protocol."""
    __slots__ = ()

    def accept(self) -> tuple[socket.socket, Any]:
        if not _pipes.get(self):
            return super().accept()
        sock = _Socket()
        _pipes[sock] = collections.deque([_pipes[self].popleft()])
        return sock, self.getsockname()

    def close(self) -> None:
        super().close()
        for pipe in _pipes.pop(self, ()):
            pipe.close()


_pipes: 'weakref.WeakKeyDictionary[socket.socket, collections.deque[pipes.Pipe]]' = (
    weakref.WeakKeyDictionary())


def _take_pipe(sock: socket.socket) -> pipes.Pipe | None:
    """Replace a connected socket by its pipe; None if the socket is connected otherwise."""
    if not _pipes.get(sock):
        return None
    pipe = _pipes[sock].popleft()
    sock.close()
    return pipe


class _Selector(selectors.DefaultSelector):
    """Moves the time of the loop, unless foreign files or threads must be waited for."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._own: set[int] = set()
        self.foreign: set[int] = set()
        """The files that are neither listening sockets nor what wakes up the loop."""
        self._active = 0.0

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        if not self._own or _is_listening(key.fd):
            self._own.add(key.fd)  # the first file is the socket that wakes up the loop
        else:
            self.foreign.add(key.fd)
            self._active = time.monotonic()
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self.foreign.discard(key.fd)
        if key.fd in self._own and len(self._own) > 1:
            self._own.discard(key.fd)
        return key

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready:
            self._active = time.monotonic()
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self._loop.blocks and self._loop.is_patient:
            return super().select(None)
        hold = self._loop.get_hold()
        if not self._loop.is_patient or (not hold and not self._is_waiting()):
            if self._loop.rest():
                return []
            if timeout is not None:
                self._loop.jump(timeout)
                return []
        limit = hold or (PATIENCE if self.foreign else math.inf)
        limit = limit if timeout is None else min(timeout, limit)
        ready = super().select(limit if limit < math.inf else None)
        if ready:
            self._active = time.monotonic()
        elif limit == timeout:
            self._loop.jump(timeout)
        return ready

    def _is_waiting(self) -> bool:
        """Whether to wait in real time: a foreign file is not a socket, or was active recently."""
        return bool(self.foreign) and (
            time.monotonic() - self._active < PATIENCE
            or not all(_is_connection(fd) for fd in self.foreign))


class _Flag(threading.Event):
    """An event for which threads wait in virtual time. After the end of the loop, it is real."""

    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop
        self._works: set[Work[None]] = set()
        """What the threads wait for: one for each."""

    def set(self) -> None:
        super().set()
        for work in list(self._works):
            _finish(work)

    def wait(self, timeout: float | None = None) -> bool:
        work: Work[None] = concurrent.futures.Future()
        self._works.add(work)  # before the look: the loop looks in the reverse order
        try:
            is_over = self.is_set() or (timeout is not None and timeout <= 0)
            return super().wait(0 if is_over else self._loop.wait_in_thread(work, timeout))
        finally:
            self._works.discard(work)


def forget(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Do not wait for these tasks at the end of the loop, and do not complain about them."""
    for task in tasks:
        asyncio._unregister_task(task)
        task._log_destroy_pending = False  # type: ignore[attr-defined]


def _finish(work: 'Work[None]') -> None:
    if not work.done():
        work.set_result(None)


def _is_listening(fd: int) -> bool:
    return bool(_ask_socket(fd, socket.SO_ACCEPTCONN))


def _is_connection(fd: int) -> bool:
    return _ask_socket(fd, socket.SO_TYPE) is not None


def _ask_socket(fd: int, option: int) -> int | None:
    """Read an option of a socket; `None` if the file is not a socket."""
    with contextlib.suppress(OSError):
        sock = socket.socket(fileno=fd)
        try:
            return sock.getsockopt(socket.SOL_SOCKET, option)
        finally:
            sock.detach()
    return None


async def pause(attempt: int, since: float) -> None:
    """
    Wait before the next check of a condition.

    In virtual time, wait until the loop has nothing more to do at the present time. In real time,
    and while threads hold the virtual time, wait for a short delay, which grows with the attempts.
    """
    loop = asyncio.get_running_loop()
    delay = 0.01 * 1.5 ** min(attempt, 40)
    if not isinstance(loop, VirtualLoop):
        await asyncio.sleep(min(delay, 0.2))
        return
    reminder = loop.call_later(delay, loop.remind)  # limits the next jump of the time
    await loop.wait_idle(after=None if attempt == 0 else since)
    reminder.cancel()
