"""
Injected faults of the API, for tests of clients.

A fault affects the matching requests until it is removed or its count is reached. A seed makes
random faults repeatable.
"""
import fnmatch
import random
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from kopf._kits.sandbox.lagging import Lag
from kopf._kits.sandbox.requests import Target
from kopf._kits.sandbox.statuses import APIError

Action = Literal['refuse', 'delay', 'drop', 'cut', 'expire', 'compact', 'lose', 'slow']
ACTIONS = get_args(Action)


@dataclass(kw_only=True, eq=False)
class Fault:
    """
    A fault to inject into the sandbox: what goes wrong, with which requests, and how often.

    The patterns are globs such as ``'kopf*'``. By default, they match everything. ``hits`` is how
    often the fault has hit so far.

    :param action: what goes wrong. ``'refuse'``: the response is an error with the ``status``, and
        nothing is done. ``'delay'``: the request is executed and answered ``seconds`` later.
        ``'drop'``: the connection is closed without a response, and nothing is done. ``'lose'``:
        the same, but the request is executed. ``'cut'``: the response breaks off in the middle; in
        a watch, in the middle of the next line. ``'slow'``: the response comes in pieces for
        ``seconds``; in a watch, each line comes that much later. ``'expire'``: the response is
        ``410 Gone``; in a watch, a line of the type ``ERROR``. ``'compact'``: the history is
        forgotten first, so that earlier revisions and pages are gone.
    :param verb: a pattern of the verb of the API: ``'list'``, ``'watch'``, ``'patch'``, etc.
    :param resource: a pattern of the plural name, also with the group (``'deployments.apps'``) or a
        subresource (``'pods/status'``); or of a path (``'/version'``).
    :param namespace: a pattern of the namespace.
    :param name: a pattern of the name of the object.
    :param count: how many times the fault hits at most. Default: no limit.
    :param skip: how many of the first matching requests to spare.
    :param chance: the probability of a hit, from 0 to 1.
    :param seed: the seed of the random numbers, for repeatable runs. Default: none.
    :param status: the HTTP status code of the error, from 400 to 599.
    :param seconds: the duration in seconds.
    :raises ValueError: for an unknown action, a wrong status or chance, or negative seconds.
    """
    action: Action
    verb: str = '*'
    resource: str = '*'
    namespace: str = '*'
    name: str = '*'
    count: int | None = None
    skip: int = 0
    chance: float = 1.0
    seed: int | None = None
    status: int = 503
    seconds: float = 1.0
    #: How often it has hit so far.
    hits: int = field(default=0, init=False)
    _met: int = field(default=0, init=False, repr=False)
    _random: random.Random = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise ValueError(f"There is no fault {self.action!r}, only: {', '.join(ACTIONS)}.")
        if not 400 <= self.status <= 599:
            raise ValueError(f"{self.status} is not the HTTP status of an error.")
        if not 0 <= self.chance <= 1 or not self.seconds >= 0:  # nor NaN
            raise ValueError("A chance is from 0 to 1, and seconds are not negative.")
        self.rewind()

    def rewind(self) -> None:
        """Begin again, as if nothing was hit."""
        self.hits = self._met = 0
        self._random = random.Random(self.seed)

    def is_about(self, target: Target) -> bool:
        """Whether the request matches all patterns of the fault."""
        return (
            fnmatch.fnmatchcase(target.verb, self.verb)
            and any(fnmatch.fnmatchcase(resource, self.resource) for resource in target.resources)
            and fnmatch.fnmatchcase(target.namespace, self.namespace)
            and fnmatch.fnmatchcase(target.name, self.name)
        )

    def hit(self, target: Target) -> bool:
        """Whether the fault affects this request; if so, it is counted."""
        if not self.is_about(target) or (self.count is not None and self.hits >= self.count):
            return False
        self._met += 1
        if self._met <= self.skip or self._random.random() >= self.chance:
            return False
        self.hits += 1
        return True

    def error(self) -> APIError:
        """The error in the response to a refused request."""
        reason, message = _REASONS.get(self.status, ('', "refused on demand"))
        retry_after = 1 if self.status in (429, 503) else None
        return APIError(message, code=self.status, reason=reason, retry_after=retry_after)


class Faults:
    """The faults that are in effect now, in the order in which they were added."""

    def __init__(self) -> None:
        self._faults: list[Fault] = []

    def __iter__(self) -> Iterator[Fault]:
        return iter(tuple(self._faults))

    def __len__(self) -> int:
        return len(self._faults)

    def add(self, fault: Fault) -> Fault:
        """
        Add a fault. It affects new requests, and also open watches.

        :param fault: the fault.
        :returns: the same fault, e.g. to read its ``hits``, or to remove it.
        """
        self._faults.append(fault)
        return fault

    def remove(self, fault: Fault) -> None:
        """
        Remove a fault, if it is there.

        :param fault: the instance that was added.
        """
        self._faults = [other for other in self._faults if other is not fault]

    def clear(self) -> None:
        """Remove all faults."""
        self._faults.clear()

    def hitting(self, target: Target, *actions: Action) -> list[Fault]:
        """Find the faults with these actions that affect this request."""
        return [fault for fault in self._faults if fault.action in actions and fault.hit(target)]

    def get_lag(self, target: Target) -> Lag | None:
        """Get how far the server lags behind for this request: by default, not at all."""
        return None


def parse(text: str) -> Fault:
    """
    Parse a fault in the notation of ``--fault``.

    :param text: the fault: ``refuse:verb=patch,resource=pods,status=500,count=3``.
    :returns: the fault.
    :raises ValueError: if the action, an option, or a value is unknown.
    """
    action, _, rest = text.partition(':')
    known = {item.name: item.type for item in fields(Fault) if item.init and item.name != 'action'}
    options: dict[str, object] = {}
    for part in filter(None, rest.split(',')):
        key, equals, value = part.partition('=')
        key = key.strip()
        if not equals or key not in known or key in options:
            raise ValueError(f"{part!r} in the fault {text!r} is not understood; "
                             f"it can have: {', '.join(known)}, each once.")
        try:
            options[key] = _CASTS.get(key, str)(value.strip())
        except ValueError:
            raise ValueError(f"{value!r} in the fault {text!r} is not a number.") from None
    verb = options.get('verb', '*')
    if not any(fnmatch.fnmatchcase(known, str(verb)) for known in VERBS):
        raise ValueError(f"{verb!r} in the fault {text!r} matches no verb of the API: "
                         f"{', '.join(VERBS)}.")
    return Fault(action=action.strip(), **options)  # type: ignore[arg-type]


VERBS = ('get', 'list', 'watch', 'create', 'update', 'patch', 'delete', 'deletecollection')

_CASTS = {'count': int, 'skip': int, 'seed': int, 'status': int, 'chance': float, 'seconds': float}

_REASONS = {
    400: ('BadRequest', "the server rejected our request for an unknown reason"),
    401: ('Unauthorized', "Unauthorized"),
    403: ('Forbidden', "forbidden on demand"),
    404: ('NotFound', "the server could not find the requested resource"),
    405: ('MethodNotAllowed', "the server does not allow this method on the requested resource"),
    409: ('Conflict', "the server reported a conflict"),
    410: ('Expired', "The provided resource version is too old."),
    422: ('Invalid', "the server rejected our request due to an error in our request"),
    429: ('TooManyRequests', "The server has received too many requests and has asked us to try "
                             "again later"),
    500: ('InternalError', "an error on the server has prevented the request from succeeding"),
    503: ('ServiceUnavailable', "the server is currently unable to handle the request"),
    504: ('Timeout', "the server was unable to return a response in the time allotted, but may "
                     "still be processing the request"),
}
