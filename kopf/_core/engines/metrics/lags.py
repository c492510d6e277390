"""
Lags: how late the event loop is.
"""
import asyncio

from kopf._core.engines.metrics import histograms

INTERVAL = 1.0
"""How often (seconds) it is measured."""


async def measure(lag: histograms.Histogram) -> None:
    """Measure how late this task is woken up, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + INTERVAL
        await asyncio.sleep(INTERVAL)
        lag.observe(max(0.0, loop.time() - due))
