"""
Serving: requests of HTTP on one side, reviews on the other.
"""
import base64
import gc
import json
from typing import Any, NoReturn

from kopf._cogs.structs import reviews
from kopf._core.engines.admission import questions
from kopf._kits.webhooks import listeners, messages

MAX_MESSAGE = 300
"""How much is told about what was wrong with a request, in characters."""


LARGE = 1024 * 1024
"""From what size on (bytes) a body is parsed with special care."""


class Responder:
    """Answers the requests of a listener by the framework's function."""

    def __init__(self, fn: reviews.WebhookFn, *, root: str) -> None:
        super().__init__()
        self._fn = fn
        self._prefix = f'{root}/'

    async def __call__(self, request: messages.Request) -> messages.Response:
        try:
            payload = _parse(request.body)
        except (ValueError, RecursionError) as e:
            kind = 'too deeply nested' if isinstance(e, RecursionError) else 'not valid'
            return messages.Response(400, f'The JSON is {kind}.\n'.encode())
        try:
            response = await self._fn(
                payload,
                webhook=request.head.path[len(self._prefix):],
                headers=request.head.headers,
                sslpeer=request.sslpeer,
            )
        except questions.UnknownResourceError as e:
            return messages.Response(404, _shorten(e))
        except questions.ReviewError as e:
            return messages.Response(400, _shorten(e))
        return messages.Response(200, json.dumps(response).encode(), is_json=True)


def _parse(body: bytes) -> Any:
    """Parse JSON; without looking for garbage meanwhile if it is large, for there can be none."""
    paused = len(body) > LARGE and gc.isenabled()
    if paused:
        gc.disable()
    try:
        return json.loads(body, parse_constant=_refuse_constant)
    finally:
        if paused:
            gc.enable()


def _shorten(e: Exception) -> bytes:
    return f'{str(e)[:MAX_MESSAGE]}\n'.encode(errors='replace')


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON.")


def make_listener(
        fn: reviews.WebhookFn, *, addr: str | None, port: int, root: str,
) -> listeners.Listener:
    """
    Open the sockets, of the next free port if it is 0.

    :raises OSError: if that is not possible.
    """
    return listeners.Listener(
        listeners.bind(addr, port), Responder(fn, root=root), root=root)


def normalise_root(path: str | None) -> str:
    """The path without a slash at its end, and with one at its beginning unless it is empty."""
    path = (path or '').strip('/')
    return f'/{path}' if path else ''


def build_url(*, secure: bool, host: str, port: int, root: str) -> str:
    """The URL of webhooks."""
    host = f'[{host}]' if ':' in host and not host.startswith('[') else host
    return f"{'https' if secure else 'http'}://{host}:{port}{root}"


def as_config(url: str, bundle: bytes | None) -> reviews.WebhookClientConfig:
    """What the API is to be told."""
    if bundle is None:
        return {'url': url}
    return {'url': url, 'caBundle': base64.b64encode(bundle).decode()}
