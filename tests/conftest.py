"""
What holds for all tests: the end-to-end ones run only when asked for, and nothing may be left
behind.
"""

import asyncio
import functools
import gc
import inspect
import logging
import pathlib
import signal
import time
import warnings
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import hypothesis
import pytest
from looptime._internal import plugin as looptime_plugin

from kopf._kits.typed import kinds

# It is ignored in the background of a shell; the programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Few examples, and the same each time, so that a change is blamed only for its own faults;
# ``--hypothesis-profile=thorough`` tries many, and others each time.
# How long an example takes, says more about the machine; what is too slow, runs into the timeout.
hypothesis.settings.register_profile(
    'kopf', max_examples=25, deadline=None, derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.register_profile(
    'thorough', hypothesis.settings.get_profile('kopf'), max_examples=1000,
    derandomize=False)
hypothesis.settings.load_profile('kopf')


# By itself, it goes through all names of the other plugin for each fixture of each test.
looptime_plugin._should_patch = (
    lambda fixturedef, request: fixturedef.func.__module__ == 'pytest_asyncio.plugin')

E2E = pathlib.Path(__file__).parent / 'e2e'


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup('kopf')
    group.addoption('--with-e2e', action='store_true', help="Run the end-to-end tests, too.")
    group.addoption('--only-e2e', action='store_true', help="Run only the end-to-end tests.")


def pytest_configure() -> None:
    # Otherwise, when pytest-asyncio looks for the current loop, one is made that is never closed.
    asyncio.set_event_loop(None)


def pytest_ignore_collect(collection_path: pathlib.Path, config: pytest.Config) -> bool | None:
    """Do not load the end-to-end tests if none of them is run: that takes a fifth of the time."""
    wanted = config.getoption('--with-e2e') or config.getoption('--only-e2e')
    return True if collection_path == E2E and not wanted else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector away from the thousands of tests: their scans take its time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(10_000, 20, 10)
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    with_e2e, only_e2e = config.getoption('--with-e2e'), config.getoption('--only-e2e')
    wanted, unwanted = [], []
    for item in items:
        is_e2e = item.get_closest_marker('e2e') is not None
        (wanted if with_e2e or is_e2e == only_e2e else unwanted).append(item)
    if unwanted:
        config.hook.pytest_deselected(items=unwanted)
        items[:] = wanted
    for item in items:
        if isinstance(item, pytest.Function) and inspect.iscoroutinefunction(item.obj):
            item.obj = fail_on_leaked_tasks(item.obj)
    # The longest first: at the end, a process would wait for another one.
    items.sort(key=lambda item: not item.nodeid.startswith('tests/test_types.py'))


def pytest_sessionfinish() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter('ignore', ResourceWarning)
        gc.collect()


@pytest.fixture(autouse=True)
def _kept_levels() -> Iterator[None]:
    """Restore the levels of the log, which the command line changes in the process of the test."""
    loggers = [logging.getLogger(name) for name in (None, 'asyncio', 'aiohttp')]
    levels = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture(autouse=True)
def _kept_declarations() -> Iterator[None]:
    """Forget the kinds that the test declares: the command line defines all that are declared."""
    known = {name: dict(family) for name, family in kinds._declared.items()}
    yield
    for name, family in list(kinds._declared.items()):
        if name in known:
            family.clear()
            family.update(known[name])
        else:
            del kinds._declared[name]


def fail_on_leaked_tasks(test: Callable[..., Awaitable[None]]) -> Callable[..., Awaitable[None]]:
    """Let the test fail if some of the tasks that were started in it are still there at its end."""
    @functools.wraps(test)
    async def wrapper(*args: Any, **kwargs: Any) -> None:
        before = asyncio.all_tasks()
        await test(*args, **kwargs)
        for _ in range(10):  # those already cancelled or finishing need a few turns of the loop
            if not asyncio.all_tasks() - before:
                break
            await asyncio.sleep(0)
        # A busy system tells servers only later that their clients have disconnected.
        deadline = time.monotonic() + 0.2
        while (leaked := asyncio.all_tasks() - before) and time.monotonic() < deadline and all(
                map(is_serving, leaked)):
            await asyncio.sleep(0)
        assert not leaked, f"Tasks are left behind: {leaked}"
    return wrapper


def is_serving(task: asyncio.Task[Any]) -> bool:
    """Whether the task serves a connection of an aiohttp server."""
    return getattr(task.get_coro(), '__qualname__', '') == 'RequestHandler.start'
