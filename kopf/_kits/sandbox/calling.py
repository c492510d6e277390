"""
Calling of webhooks: of admission, and of conversions.
"""
import ssl
from collections.abc import Mapping
from typing import Any

import aiohttp

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.webhookcalls import Unreachable

MAX_ANSWER = 3 * 1024 * 1024


class Caller:
    """Calls webhooks; each call has a connection of its own, as certificates can change."""

    def __init__(self) -> None:
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def post(
            self, url: str, review: Mapping[str, Any], *, context: ssl.SSLContext, timeout: float,
    ) -> bytes:
        """
        Get the body of the response; the timeout is in seconds.

        :raises Unreachable: for everything that is no response.
        """
        if self._session is None:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(force_close=True))
        failed = f'failed to call webhook: Post "{url}": '
        try:
            async with self._session.post(
                    url, data=encoding.encode(review), ssl=context,
                    headers={'Content-Type': 'application/json', 'Accept': 'application/json',
                             'User-Agent': 'kube-apiserver-admission'},
                    timeout=aiohttp.ClientTimeout(total=timeout),
            ) as answer:
                body = await answer.content.read(MAX_ANSWER)
                code = answer.status
        except TimeoutError:
            raise Unreachable(f"{failed}context deadline exceeded") from None
        except (aiohttp.ClientError, ValueError, OSError) as e:
            raise Unreachable(f"{failed}{e}") from None
        if code >= 400:
            text = body[:1000].decode('utf-8', 'replace')
            raise Unreachable(f"failed to call webhook: an error on the server ({text!r}) has "
                              f"prevented the request from succeeding ({code})")
        return body
