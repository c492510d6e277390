"""
The pytest fixtures and markers of Kopf. See "Test operators" in the documentation.

They are outside of the package ``kopf``, so that pytest imports nothing of the framework unless a
test needs it.
"""
from __future__ import annotations

import functools
import inspect
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator, Iterator

    from kopf import testing

MARKER = 'kopf_explore'


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        'markers',
        f'{MARKER}(*sources, **options): run the async test without faults, and then again with '
        f'each fault at each write of the operator; see kopf.testing.explore()')


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_pycollect_makeitem() -> Generator[None, Any, Any]:
    """Make sync tests of the explored ones, before plugins for async tests look at them."""
    found = yield
    for item in found if isinstance(found, list) else [found]:
        marker = item.get_closest_marker(MARKER) if isinstance(item, pytest.Function) else None
        if marker is not None:
            item.obj = _explored(item.obj, marker)
    return found


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """Let explorations show their progress, although pytest captures the output of tests."""
    reporting: Any = sys.modules.get('kopf._kits.testing.reporting')
    manager: Any = item.config.pluginmanager.getplugin('capturemanager')
    if reporting is not None and manager is not None and not hasattr(item.config, 'workerinput'):
        reporting.uncaptured = manager.global_and_fixture_disabled
    return (yield)


def _explored(
        test: Callable[..., Coroutine[Any, Any, None]], marker: pytest.Mark,
) -> Callable[..., None]:
    @functools.wraps(test)
    def explore(**fixtures: Any) -> None:
        __tracebackhide__ = True
        from kopf import testing
        if not inspect.iscoroutinefunction(test) or 'kopf_client' not in fixtures:
            pytest.fail(f"The marker {MARKER} is for async tests with the argument kopf_client.",
                        pytrace=False)

        async def scenario(client: testing.Client) -> None:
            await test(**{**fixtures, 'kopf_client': client})

        testing.explore(scenario, *marker.args, **marker.kwargs)
    return explore


@pytest.fixture()
def kopf_session() -> Iterator[testing.Session]:
    """
    An API, a client, operators, and the time for one sync test; see `kopf.testing.Session`.

    ``$KOPF_TEST_API`` chooses the API, see `kopf.testing.open_api`. On the sandbox, the time is
    virtual.
    """
    from kopf import testing
    with testing.Session() as session:
        yield session


@pytest.fixture()
def kopf_sandbox(kopf_session: testing.Session) -> testing.Sandbox:
    """
    The sandbox of the test, e.g. for its ``faults``; see `kopf.testing.Sandbox`.

    The test is skipped if it runs on a real API.
    """
    if kopf_session.sandbox is None:
        pytest.skip("It needs the sandbox, but the API is a real one.")
    return kopf_session.sandbox


@pytest.fixture()
def kopf_client(request: pytest.FixtureRequest) -> testing.SyncClient | None:
    """
    A client of the API of the test; see `kopf.testing.SyncClient`.

    Tests with the marker ``kopf_explore`` get a `kopf.testing.Client` for each of their runs.
    """
    if request.node.get_closest_marker(MARKER) is not None:
        return None
    session: testing.Session = request.getfixturevalue('kopf_session')
    return session.client


@pytest.fixture()
def kopf_operator(kopf_session: testing.Session) -> testing.OperatorStarter:
    """
    A function that starts an operator for the test: ``kopf_operator('handlers.py')``.

    It takes the arguments of `kopf.testing.Operator`, and returns `kopf.testing.SyncOperator`. The
    operator stops at the end of the test, and its error fails the test.
    """
    return kopf_session.start_operator


@pytest.fixture()
def kopf_time(kopf_session: testing.Session) -> testing.Time:
    """
    The virtual time of the test; see `kopf.testing.Time`.

    The test is skipped if it runs on a real API.
    """
    if kopf_session.sandbox is None:
        pytest.skip("It needs virtual time, but the API is a real one.")
    return kopf_session.time
