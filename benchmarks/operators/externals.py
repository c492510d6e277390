"""An account in an external system for each object, over HTTP."""

import os
from typing import Any

import aiohttp

import common
import kopf
import settings  # noqa: F401

RATE = float(os.environ['BENCH_RATE'])

billing = kopf.external(
    *common.KIND, id='billing', interval=float(os.environ['BENCH_INTERVAL']),
    limit=kopf.Rate(RATE, per=1.0) if RATE else None)


@kopf.on.startup()
async def connect(memo: kopf.Memo, **_: Any) -> None:
    memo.session = aiohttp.ClientSession(os.environ['BENCH_URL'], raise_for_status=True)


@kopf.on.cleanup()
async def disconnect(memo: kopf.Memo, **_: Any) -> None:
    await memo.session.close()


@billing.observe
async def observe(key: str, memo: kopf.Memo, **_: Any) -> Any:
    async with memo.session.get(f'/accounts/{key}') as response:
        return await response.json()  # null if there is none


@billing.create(idempotent=True)
async def create(desired: Any, token: str, name: str, memo: kopf.Memo, **_: Any) -> Any:
    account = {**desired, 'name': name, 'token': token}
    async with memo.session.post('/accounts', json=account) as response:
        return (await response.json())['id']


@billing.update
async def update(key: str, desired: Any, memo: kopf.Memo, **_: Any) -> None:
    async with memo.session.patch(f'/accounts/{key}', json=desired):
        pass


@billing.delete
async def delete(key: str, memo: kopf.Memo, **_: Any) -> None:
    async with memo.session.delete(f'/accounts/{key}'):
        pass
