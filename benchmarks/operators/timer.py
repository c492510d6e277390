"""One timer of a second."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.timer(*common.KIND, interval=1.0)
async def tick(name: str, **_: Any) -> None:
    common.record(name)
