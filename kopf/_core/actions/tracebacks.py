"""
Tracebacks for people: reduced to the code of the operator's author.
"""
import asyncio
import concurrent.futures.thread
import os
import types

_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(__file__)))
_STDLIB = os.path.dirname(os.__file__)
_POOL = concurrent.futures.thread.__file__


def trim(e: BaseException) -> BaseException:
    """Remove the outer frames of Kopf and of the thread pool, unless there are no other frames."""
    tb = e.__traceback__
    while tb is not None and _is_internal(tb):
        tb = tb.tb_next
    return e.with_traceback(tb) if tb is not None else e


def _is_internal(tb: types.TracebackType) -> bool:
    filename = tb.tb_frame.f_code.co_filename
    return filename.startswith(_ROOT) or filename == _POOL


def locate(frame: types.FrameType | None, *, own: bool = False) -> str | None:
    """
    Describe where the code is: the innermost frame of the author's code, and the innermost frame.

    With ``own``, only the former. The source code is not shown, as it can contain secrets.
    """
    frames: list[types.FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    shown = [frame for frame in frames if _is_authors(frame.f_code.co_filename)][:1]
    if frames and frames[0] not in shown and not own:
        shown.append(frames[0])
    return ', in '.join(
        f"{frame.f_code.co_filename}:{frame.f_lineno} {frame.f_code.co_name}()" for frame in shown
    ) or None


def find_awaiting(task: 'asyncio.Task[object]') -> types.FrameType | None:
    """
    Find the frame where a waiting task is: the innermost one of the author's coroutines.

    If the task has no coroutines of the author, it is the outermost frame.
    """
    found: types.FrameType | None = None
    coro: object = task.get_coro()
    while coro is not None:
        frame = getattr(coro, 'cr_frame', None) or getattr(coro, 'gi_frame', None)
        if frame is not None and (found is None or _is_authors(frame.f_code.co_filename)):
            found = frame
        coro = getattr(coro, 'cr_await', None) or getattr(coro, 'gi_yieldfrom', None)
    return found


def _is_authors(filename: str) -> bool:
    return not filename.startswith(('<', _ROOT, _STDLIB)) and 'site-packages' not in filename
