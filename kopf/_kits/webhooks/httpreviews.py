"""
Admission reviews over HTTP: responses to the requests of a listener.
"""
import base64
import gc
import json
from typing import Any, NoReturn

from kopf._cogs.structs import reviews
from kopf._core.engines.admission import questions
from kopf._kits.webhooks import listeners, messages

MAX_MESSAGE = 300
"""The longest description of an error in a response, in characters."""


LARGE = 1024 * 1024
"""From which size (bytes) a body is parsed without garbage collection."""


class Responder:
    """Answers the requests of a listener with the review function of Kopf."""

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
    """Parse JSON. Parsing makes no garbage, so collecting it would only delay large bodies."""
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
    raise ValueError(f"{name} is not valid JSON.")


def make_listener(
        fn: reviews.WebhookFn, *, addr: str | None, port: int, root: str, shared: bool = False,
) -> listeners.Listener:
    """
    Open the sockets of a listener. If the port is 0, a free port is used.

    If the port is ``shared``, other processes can listen at it, too.

    :raises OSError: if the sockets cannot be opened.
    """
    return listeners.Listener(
        listeners.bind(addr, port, shared=shared), Responder(fn, root=root), root=root)


def normalise_root(path: str | None) -> str:
    """Normalise the path: no slash at the end, a slash at the beginning; or an empty path."""
    path = (path or '').strip('/')
    return f'/{path}' if path else ''


def build_url(*, secure: bool, host: str, port: int, root: str) -> str:
    """Build the URL of webhooks."""
    host = f'[{host}]' if ':' in host and not host.startswith('[') else host
    return f"{'https' if secure else 'http'}://{host}:{port}{root}"


def as_config(url: str, bundle: bytes | None) -> reviews.WebhookClientConfig:
    """Make the client configuration for the API server."""
    if bundle is None:
        return {'url': url}
    return {'url': url, 'caBundle': base64.b64encode(bundle).decode()}
