import pytest

import kopf
from tests._cogs.clients.conftest import (  # noqa: F401
    Recorder,
    client,
    server,
    settings,
    until,
)


@pytest.fixture()
def registry():
    return kopf.OperatorRegistry()


@pytest.fixture()
def calls():
    return []
