"""One daemon, which sleeps."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.daemon(*common.KIND)
async def sleeper(name: str, stopped: kopf.DaemonStopped, **_: Any) -> None:
    common.record(name)
    await stopped.wait()
