"""Tracebacks for people: those of an author's error begin in the author's code."""
import concurrent.futures.thread
import pathlib
import types

_ROOT = str(pathlib.Path(__file__).parents[2])
_POOL = concurrent.futures.thread.__file__


def trim(e: BaseException) -> BaseException:
    """Cut off the outer frames of the framework and of the thread pool; keep all if only those."""
    tb = e.__traceback__
    while tb is not None and _is_internal(tb):
        tb = tb.tb_next
    return e.with_traceback(tb) if tb is not None else e


def _is_internal(tb: types.TracebackType) -> bool:
    filename = tb.tb_frame.f_code.co_filename
    return filename.startswith(_ROOT) or filename == _POOL
