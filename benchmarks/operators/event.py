"""One handler of raw events."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.on.event(*common.KIND)
async def seen(name: str, **_: Any) -> None:
    common.record(name)
