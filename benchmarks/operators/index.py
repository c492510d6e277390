"""One index, and a handler which is called once it is filled."""

from typing import Any

import common
import kopf
import settings  # noqa: F401


@kopf.index(*common.KIND)
async def by_counter(name: str, spec: kopf.Spec, **_: Any) -> dict[Any, str]:
    return {spec.get('counter'): name}


@kopf.on.event(*common.KIND, when=lambda name, **_: name == 'object0')
async def filled(name: str, **_: Any) -> None:
    common.record(name)
