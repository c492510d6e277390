"""
The pytest fixtures of Kopf. See "Test operators" in the documentation.

They are outside of the package ``kopf``, so that pytest imports nothing of the framework unless a
test needs it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kopf import testing


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
def kopf_client(kopf_session: testing.Session) -> testing.SyncClient:
    """A client of the API of the test; see `kopf.testing.SyncClient`."""
    return kopf_session.client


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
