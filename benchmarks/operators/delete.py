"""One handler of deletion."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.on.delete(*common.KIND)
async def deleted(name: str, **_: Any) -> None:
    common.record(name)
