"""The client of the billing API, which the operators in Python share."""

import os
from typing import Any

import aiohttp

URL = os.environ['BILLING_URL']
KIND = ('benchmarks.kopf.dev', 'v1', 'tenants')


async def call(method: str, path: str, **options: Any) -> Any:
    """Call the billing API. To delete what is not there is a success."""
    timeout = aiohttp.ClientTimeout(total=2)
    async with (
            aiohttp.ClientSession(URL, timeout=timeout) as session,
            session.request(method, path, **options) as response):
        if method != 'DELETE' or response.status != 404:
            response.raise_for_status()
        return await response.json()
