"""
Continue tokens: where the next page of a list starts, and at which revision it is read.
"""
import base64
import json

from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.statuses import BadRequest, Expired
from kopf._kits.sandbox.storage import Key

VERSION = 'meta.k8s.io/v1'
EXPIRED = (
    "The provided continue parameter is too old to display a consistent list result. You can "
    "start a new list without the continue parameter, or use the continue token in this "
    "response to retrieve the remainder of the results. Continuing with the provided token "
    "results in an inconsistent list - objects that were created, modified, or deleted between "
    "the time the first chunk was returned and now may show up in the list.")


def make_token(revision: int, last: Key) -> str:
    value = {'v': VERSION, 'rv': revision, 'start': '/'.join(last) + '\0'}
    return base64.urlsafe_b64encode(encoding.encode(value)).decode().rstrip('=')


def parse_token(token: str) -> tuple[int, Key]:
    """The revision and the last key of the page before. Raises `BadRequest`."""
    try:
        raw = base64.urlsafe_b64decode(token + '=' * (-len(token) % 4))
    except ValueError:
        raise _bad(f"illegal base64 data at input byte {len(token)}") from None
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError):
        char = raw[:1].decode('latin-1')
        raise _bad(f"invalid character '{char}' looking for beginning of value") from None
    if not isinstance(value, dict):
        raise _bad("json: cannot unmarshal into Go value of type storage.continueToken")
    if value.get('v') != VERSION:
        raise _bad(f"server does not recognize this encoded version {value.get('v', '')}")
    revision, start = value.get('rv'), value.get('start')
    if not isinstance(revision, int) or isinstance(revision, bool) \
            or not isinstance(start, str) or start.count('/') != 1:
        raise _bad("encoded start key empty (version meta.k8s.io/v1)")
    namespace, _, name = start.rstrip('\0').partition('/')
    return revision, (namespace, name)


def expired(last: Key) -> Expired:
    """The token is too old; the error brings one that goes on with an inconsistent list."""
    error = Expired(EXPIRED)
    error.continuing = make_token(-1, last)
    return error


def _bad(why: str) -> BadRequest:
    return BadRequest(f"invalid continue token: continue key is not valid: {why}")
