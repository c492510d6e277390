from tests._cogs.clients.conftest import (  # noqa: F401
    Recorder,
    client,
    server,
    settings,
    until,
)
