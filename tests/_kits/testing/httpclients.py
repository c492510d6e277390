"""The HTTP clients that operators use: each of them asks, and returns the status and the body."""
import asyncio
import urllib.error
import urllib.request

import aiohttp
import httpx
import requests


async def ask_aiohttp(method, url, body=None, headers=None):
    async with (aiohttp.ClientSession() as session,
                session.request(method, url, data=body, headers=headers) as response):
        return response.status, await response.read()


async def ask_httpx(method, url, body=None, headers=None):
    async with httpx.AsyncClient() as client:
        response = await client.request(method, url, content=body, headers=headers)
        return response.status_code, response.content


async def ask_requests(method, url, body=None, headers=None):
    response = await asyncio.to_thread(
        requests.request, method, url, data=body, headers=headers, timeout=10)
    return response.status_code, response.content


async def ask_urllib(method, url, body=None, headers=None):
    return await asyncio.to_thread(_open, method, url, body, headers)


def _open(method, url, body, headers):
    request = urllib.request.Request(url, method=method, data=body, headers=headers or {})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, response.read()
    except urllib.error.HTTPError as e:
        with e:
            return e.status, e.read()


CLIENTS = [ask_aiohttp, ask_httpx, ask_requests, ask_urllib]
