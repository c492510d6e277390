"""Five quick handlers of creation."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.on.create(*common.KIND)
async def first(**_: Any) -> None:
    pass


@kopf.on.create(*common.KIND)
async def second(**_: Any) -> None:
    pass


@kopf.on.create(*common.KIND)
async def third(**_: Any) -> None:
    pass


@kopf.on.create(*common.KIND)
async def fourth(**_: Any) -> None:
    pass


@kopf.on.create(*common.KIND)
async def fifth(name: str, **_: Any) -> None:
    common.record(name)
