"""One handler of creation with a result."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.on.create(*common.KIND)
async def created(name: str, **_: Any) -> Any:
    common.record(name)
    return {'ok': 1}
