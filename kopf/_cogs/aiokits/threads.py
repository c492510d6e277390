"""
Threads for long-running functions.
"""
import concurrent.futures
import threading
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec('P')
T = TypeVar('T')


class ThreadPerCall(concurrent.futures.Executor):
    """
    An executor that starts a thread for every call, so that no call waits for any other one.

    As with other executors, the interpreter waits for the threads when it exits, except for those
    that a daemon thread has started.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def submit(
            self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs,
    ) -> 'concurrent.futures.Future[T]':
        future: concurrent.futures.Future[T] = concurrent.futures.Future()
        threading.Thread(target=_run, args=(future, fn, args, kwargs), name=self._name).start()
        return future


def _run(
        future: 'concurrent.futures.Future[Any]', fn: Callable[..., Any], args: Any, kwargs: Any,
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = fn(*args, **kwargs)
    except BaseException as e:
        future.set_exception(e)
    else:
        future.set_result(result)
