"""
Admission reviews over HTTP: a service for listeners.
"""
import base64
import gc
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, cast

from kopf._cogs.serving import exchanges
from kopf._cogs.structs import reviews
from kopf._core.engines.admission import questions

if TYPE_CHECKING:
    from kopf._cogs.serving import inbound

POLICY = exchanges.Policy(
    head=64 * 1024, fields=100,
    # The old and the new state. etcd keeps up to 1.5 MiB, and Go escapes some bytes to six in JSON.
    body=20 * 1024 * 1024,
    memory=64 * 1024 * 1024, connections=500, receiving=15.0, writing=15.0,
    # API servers close idle connections after 90 seconds. If this server closed them first, a
    # request that is sent at the same time could be lost.
    idle=150.0, leaving=5.0)

CONTENT_TYPES = ('application/json', 'application/x-www-form-urlencoded')
"""The accepted content types: of API servers, and of ``curl -d @review.json``."""

MAX_MESSAGE = 300
"""The longest description of an error in a response, in characters."""

LARGE = 1024 * 1024
"""From which size (bytes) a body is parsed without garbage collection."""


class Reviews:
    """Answers requests with the review function of Kopf."""

    def __init__(self, fn: reviews.WebhookFn, *, root: str) -> None:
        self._fn = fn
        self._prefix = f'{root}/'

    async def __call__(self, request: exchanges.Request) -> exchanges.Response:
        self._check(request)
        try:
            payload = _parse(await request.read())
        except (ValueError, RecursionError) as e:
            kind = 'too deeply nested' if isinstance(e, RecursionError) else 'not valid'
            raise exchanges.Refusal(400, f"The JSON is {kind}.") from None
        if not isinstance(payload, dict):
            raise exchanges.Refusal(400, "The JSON is no review.")
        try:
            response = await self._fn(
                cast(reviews.Request, payload),
                webhook=request.path[len(self._prefix):],
                headers=join_fields(request.fields),
                sslpeer=request.sslpeer,
            )
        except questions.ReviewError as e:
            raise exchanges.Refusal(e.status, str(e)[:MAX_MESSAGE]) from None
        return exchanges.Response(200, json.dumps(response).encode(), 'application/json')

    def _check(self, request: exchanges.Request) -> None:
        """
        Refuse requests that are not reviews, or are of web pages.

        Browsers send the requests of any page to any address, including local ones. They do so
        without a preflight request if the content type is that of a text or a form. But such
        requests always have the header ``Origin``, so these are refused.
        """
        if not f'{request.path}/'.startswith(self._prefix):
            raise exchanges.Refusal(404)
        if [name.lower() for name, _ in request.fields].count('authorization') > 1:
            raise exchanges.Refusal(400, "An ambiguous header.")
        if request.method != 'POST':
            raise exchanges.Refusal(405, headers={'Allow': 'POST'})
        if request.has_header('Origin'):
            raise exchanges.Refusal(403, "Web pages cannot ask for reviews.")
        content_type = request.get_header('Content-Type').partition(';')[0]
        if content_type.strip().lower() not in CONTENT_TYPES:
            raise exchanges.Refusal(415, "The Content-Type of reviews is application/json.")
        if request.length == 0:
            raise exchanges.Refusal(411)


def join_fields(fields: exchanges.Fields) -> Mapping[str, str]:
    """Join the values of repeated headers by commas, under the first of their names."""
    names: dict[str, str] = {}
    joined: dict[str, str] = {}
    for name, value in fields:
        name = names.setdefault(name.lower(), name)
        joined[name] = f'{joined[name]}, {value}' if name in joined else value
    return joined


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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not valid JSON.")


def make_listener(
        fn: reviews.WebhookFn, *, addr: str | None, port: int, root: str, shared: bool = False,
) -> 'inbound.Listener':
    """
    Open the sockets of a listener. If the port is 0, a free port is used.

    If the port is ``shared``, other processes can also listen at it.

    :raises OSError: if the sockets cannot be opened.
    """
    from kopf._cogs.serving import inbound  # only if it is used

    return inbound.Listener(
        inbound.bind(addr, port, shared=shared), Reviews(fn, root=root), policy=POLICY,
        title='webhooks')


def normalise_root(path: str | None) -> str:
    """Normalise the path: no slash at the end, a slash at the beginning; or an empty path."""
    path = (path or '').strip('/')
    return f'/{path}' if path else ''


def build_url(*, secure: bool, host: str, port: int, root: str) -> str:
    """Build the URL of webhooks."""
    host = f'[{host}]' if ':' in host and not host.startswith('[') else host
    return f"{'https' if secure else 'http'}://{host}:{port}{root}"


def add_bundle(
        config: reviews.WebhookClientConfig, bundle: bytes | None,
) -> reviews.WebhookClientConfig:
    """Add the certificates that API servers must trust to the client configuration, if any."""
    return {**config, 'caBundle': base64.b64encode(bundle).decode()} if bundle else config
