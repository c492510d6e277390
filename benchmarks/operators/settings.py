"""The settings that are the same for all the measured operators made with Kopf."""

from typing import Any

import common
import kopf


@kopf.on.startup()
async def configure(settings: kopf.OperatorSettings, **_: Any) -> None:
    settings.posting.loggers = common.LOGGERS
