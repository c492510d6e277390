"""One handler of updates."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.on.update(*common.KIND)
async def updated(name: str, **_: Any) -> None:
    common.record(name)
