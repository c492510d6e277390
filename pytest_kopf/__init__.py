"""
The fixtures of Kopf for pytest: see "Testing" in the docs.

It is outside of the package, so that nothing of the framework is imported where no test needs it.
"""
from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kopf import testing


@pytest.fixture()
def kopf_session() -> Iterator[testing.Session]:
    """An API for the test and all that works with it; see `kopf.testing.Session`."""
    from kopf import testing
    with testing.Session() as session:
        yield session


@pytest.fixture()
def kopf_sandbox(kopf_session: testing.Session) -> testing.Sandbox:
    """The sandbox of the test, e.g. for its ``faults``. It is skipped on a real API."""
    if kopf_session.sandbox is None:
        pytest.skip("It needs the sandbox, but the API is a real one.")
    return kopf_session.sandbox


@pytest.fixture()
def kopf_client(kopf_session: testing.Session) -> testing.SyncClient:
    """A client of the API."""
    return kopf_session.client


@pytest.fixture()
def kopf_operator(kopf_session: testing.Session) -> testing.OperatorStarter:
    """
    Start an operator: ``kopf_operator('handlers.py')``; it is stopped at the end of the test.

    What can be given is told in `kopf.testing.Operator`; it returns a `kopf.testing.SyncOperator`.
    """
    return kopf_session.start_operator


@pytest.fixture()
def kopf_time(kopf_session: testing.Session) -> testing.Time:
    """The virtual time of the test. It is skipped on a real API."""
    if kopf_session.sandbox is None:
        pytest.skip("It needs virtual time, but the API is a real one.")
    return kopf_session.time
