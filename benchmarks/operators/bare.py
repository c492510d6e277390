"""
What plain aiohttp needs for the same: list, watch, and one PATCH per object that is new or changed.

It takes no care of anything but lost connections: not of errors, nor of two changes at a time.
"""

import asyncio
import base64
import json
import os
import pathlib
import signal
import ssl
from typing import Any

import aiohttp
import yaml

import common

KEY = 'kopf.zalando.org/last-handled-configuration'
PATH = f'/apis/{common.GROUP}/{common.VERSION}/{common.PLURAL}'
PATCHING = os.environ['BENCH_BARE'] == 'patch'
SUBRESOURCE = os.environ.get('BENCH_STATUS') == 'yes'


def load_config() -> Any:
    return yaml.safe_load(pathlib.Path(os.environ['KUBECONFIG']).read_text(encoding='utf-8'))


async def main() -> None:
    config = load_config()
    cluster = config['clusters'][0]['cluster']
    context = ssl.create_default_context(
        cadata=base64.b64decode(cluster['certificate-authority-data']).decode())
    headers = {'Authorization': f"Bearer {config['users'][0]['user']['token']}"}
    connector = aiohttp.TCPConnector(ssl=context, limit=10)
    async with aiohttp.ClientSession(
            base_url=cluster['server'], headers=headers, connector=connector) as session:
        while True:
            try:
                await watch(session)
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)


async def watch(session: aiohttp.ClientSession) -> None:
    async with session.get(PATH) as response:
        listing = json.loads(await response.read())
    for obj in listing.pop('items'):
        see(session, obj)
    version = listing['metadata']['resourceVersion']
    params = {'watch': 'true', 'resourceVersion': version, 'allowWatchBookmarks': 'true'}
    timeout = aiohttp.ClientTimeout(total=None)
    async with session.get(PATH, params=params, timeout=timeout, read_bufsize=2**20) as response:
        rest = b''
        async for chunk in response.content.iter_any():
            lines = (rest + chunk).split(b'\n')
            rest = lines.pop()
            for line in lines:
                event = json.loads(line)
                if event['type'] in ('ADDED', 'MODIFIED'):
                    see(session, event['object'])


tasks: dict[str, asyncio.Task[None]] = {}


def see(session: aiohttp.ClientSession, obj: dict[str, Any]) -> None:
    metadata = obj['metadata']
    if not PATCHING:
        common.record(metadata['name'])
        return
    essence = json.dumps({'spec': obj.get('spec')}, separators=(',', ':')) + '\n'
    if metadata.get('annotations', {}).get(KEY) != essence and metadata['name'] not in tasks:
        common.record(metadata['name'])
        tasks[metadata['name']] = asyncio.create_task(patch(session, metadata, essence))


async def patch(session: aiohttp.ClientSession, metadata: dict[str, Any], essence: str) -> None:
    path = f"/apis/{common.GROUP}/{common.VERSION}/namespaces/{metadata['namespace']}"
    path = f"{path}/{common.PLURAL}/{metadata['name']}"
    annotated = {'metadata': {'annotations': {KEY: essence}}}
    result = {'status': {'created': {'ok': 1}}}
    bodies = [(f'{path}/status', result), (path, annotated)] if SUBRESOURCE else [
        (path, {**annotated, **result})]
    headers = {'Content-Type': 'application/merge-patch+json'}
    for url, body in bodies:
        data = json.dumps(body).encode()
        while True:
            try:
                async with session.patch(url, data=data, headers=headers) as response:
                    json.loads(await response.read())
                break
            except aiohttp.ClientError:
                await asyncio.sleep(0.1)
    del tasks[metadata['name']]


async def run() -> None:
    task = asyncio.create_task(main())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        pass


asyncio.run(run())
