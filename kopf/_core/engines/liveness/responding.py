"""
Responding: what is served for the paths of the health checks and of other pages.
"""
import http
import logging
import urllib.parse
from collections.abc import Mapping

from kopf._cogs.serving import exchanges

POLICY = exchanges.Policy(
    head=16 * 1024, fields=100, body=16 * 1024,  # only the head of a request is used
    memory=0, connections=100, receiving=5.0, writing=5.0, idle=None, leaving=0.0,
    level=logging.DEBUG)


class Pages:
    """Responds to requests by their paths."""

    def __init__(self, pages: Mapping[str, exchanges.Respond]) -> None:
        super().__init__()
        self._pages = {urllib.parse.unquote(path): page for path, page in pages.items()}

    async def __call__(self, request: exchanges.Request) -> exchanges.Response:
        await request.read()
        page = self._pages.get(request.path)
        if page is None:
            response = _make_error(http.HTTPStatus.NOT_FOUND)
        elif request.method not in ('GET', 'HEAD'):
            response = _make_error(http.HTTPStatus.METHOD_NOT_ALLOWED, Allow='GET, HEAD')
        else:
            response = await page(request)
        return response._replace(headers={**response.headers, 'Cache-Control': 'no-store'})


def _make_error(status: http.HTTPStatus, **headers: str) -> exchanges.Response:
    return exchanges.Response(
        status.value, f"{status.value}: {status.phrase}".encode(), exchanges.TEXT, headers)
