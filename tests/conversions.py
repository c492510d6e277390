"""
Requests for conversions, as API servers send them.
"""
import asyncio
import contextlib

import aiohttp


async def convert_first(port, name, obj, version):
    """
    Convert an object by the first connection that the port accepts; ``name`` is the definition's.

    Only refused connections are repeated: whatever comes in another way is a failure.
    """
    group = name.partition('.')[2]
    review = {'apiVersion': 'apiextensions.k8s.io/v1', 'kind': 'ConversionReview', 'request': {
        'uid': 'u', 'desiredAPIVersion': f'{group}/{version}', 'objects': [obj]}}
    async with aiohttp.ClientSession() as session:
        while True:
            with contextlib.suppress(aiohttp.ClientConnectorError):
                async with session.post(
                        f'https://127.0.0.1:{port}/convert/{name}', ssl=False, json=review,
                ) as response:
                    [made] = (await response.json())['response']['convertedObjects']
                    return made
            await asyncio.sleep(0.001)
