"""What editors strike through: each marked line is deprecated, and no other is."""
# pyright: reportDeprecated=error
from typing import Any

import kopf

settings = kopf.OperatorSettings()
settings.batching.worker_limit = 1  # deprecated
settings.queueing.worker_limit = 1
settings.queueing.batch_window = 1  # deprecated
print(settings.queueing.batch_window)  # deprecated
print(settings.queueing.idle_timeout)

kopf.label({}, {'x': 'y'}, force=True)  # deprecated
kopf.label({}, {'x': 'y'}, forced=True)
kopf.label({})


@kopf.on.validate('kopfexamples', operation='CREATE')  # deprecated
@kopf.on.mutate('kopfexamples', operation='CREATE')  # deprecated
@kopf.on.validate('kopfexamples', operations=['CREATE'])
@kopf.on.mutate('kopfexamples', operations={'CREATE'})
@kopf.on.mutate('kopfexamples')
def review(**_: Any) -> None:
    pass
