"""One handler of both creation and resuming."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.on.resume(*common.KIND)
@kopf.on.create(*common.KIND)
async def resumed(name: str, **_: Any) -> None:
    common.record(name)
