"""
Errors of the API: exceptions here, ``Status`` objects on the wire.

Everything in the sandbox refuses a request by raising an `APIError`; the server turns it into
the ``Status`` object that the real API would answer: the same code, reason, message, details.
"""
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Obj = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Cause:
    """
    One finding of a validation: ``type`` is the API's reason (e.g. ``FieldValueInvalid``),
    ``message`` starts with its human name (e.g. ``Invalid value: 5: must be ...``).
    """
    type: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message

    def as_dict(self) -> Obj:
        cause: Obj = {'reason': self.type, 'message': self.message}
        return {**cause, 'field': self.field} if self.field else cause


class APIError(Exception):
    """
    A request is refused. ``code`` is of HTTP, ``reason`` of Kubernetes; ``details`` is as in
    ``Status.details`` (``None`` for none); ``retry_after`` in seconds also goes to the header;
    ``continuing`` is a token to go on with in spite of the error; ``warnings`` were due before it.
    """
    code: int = 500
    reason: str = 'InternalError'

    def __init_subclass__(cls, *, code: int, reason: str = '') -> None:
        """The reason of a subclass is its name, unless another one is given."""
        cls.code, cls.reason = code, reason or cls.__name__

    def __init__(
            self,
            message: str,
            *,
            details: Mapping[str, Any] | None = None,
            code: int | None = None,
            reason: str | None = None,
            retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.details: Obj | None = None if details is None else dict(details)
        self.retry_after = retry_after
        self.continuing = ''
        self.warnings: Sequence[str] = ()
        if code is not None:
            self.code = code
        if reason is not None:
            self.reason = reason

    def status(self) -> Obj:
        """The ``Status`` object for the response."""
        status: Obj = {
            'kind': 'Status', 'apiVersion': 'v1',
            'metadata': {'continue': self.continuing} if self.continuing else {},
            'status': 'Failure', 'message': self.message,
        }
        if self.reason:
            status['reason'] = self.reason
        details = self.details
        if self.retry_after is not None:
            details = {**(details or {}), 'retryAfterSeconds': self.retry_after}
        if details is not None:
            status['details'] = details
        status['code'] = self.code
        return status


def qualified(group: str, name: str) -> str:
    """A resource or a kind with its group, as messages name it: ``kopfexamples.kopf.dev``."""
    return f"{name}.{group}" if group else name


def dig(obj: Any, path: str) -> Any:
    """The value at a path such as ``spec.replicas``; None if there is none."""
    for key in path.split('.'):
        obj = obj.get(key) if isinstance(obj, dict) else None
    return obj


def omit(obj: Mapping[str, Any], *keys: str) -> Obj:
    """A copy of the object without these keys."""
    return {key: value for key, value in obj.items() if key not in keys}


def set_condition(
        conditions: list[Obj], now: str, type: str, status: str, reason: str, message: str,
) -> None:
    """Put a condition in its place among others, with the time since when it has this status."""
    condition = {'type': type, 'status': status, 'lastTransitionTime': now,
                 'reason': reason, 'message': message}
    for index, old in enumerate(conditions):
        if old.get('type') == type:
            if old.get('status') == status:
                condition['lastTransitionTime'] = old.get('lastTransitionTime', now)
            conditions[index] = condition
            return
    conditions.append(condition)


def described(name: str, group: str, kind: str) -> Obj:
    """The details that tell which object is meant; empty parts are left out."""
    details = {'name': name, 'group': group, 'kind': kind}
    return {key: value for key, value in details.items() if value}


class BadRequest(APIError, code=400):
    """The request is wrong, whatever objects there are."""


class Unauthorized(APIError, code=401):
    def __init__(self) -> None:
        super().__init__("Unauthorized")


class Forbidden(APIError, code=403):
    """A missing permission, or a protected object. `Forbidden.to` makes the usual message."""

    @classmethod
    def to(cls, why: str, *, group: str, plural: str, name: str = '') -> 'Forbidden':
        shown = f'{qualified(group, plural)} "{name}"' if name else qualified(group, plural)
        return cls(f"{shown} is forbidden: {why}", details=described(name, group, plural))


class NotFound(APIError, code=404):
    """No such object; with no arguments: no such resource (a path that leads nowhere)."""

    def __init__(self, group: str = '', plural: str = '', name: str = '') -> None:
        if plural:
            message = f'{qualified(group, plural)} "{name}" not found'
        else:
            message = "the server could not find the requested resource"
        super().__init__(message, details=described(name, group, plural))


class NoPage(Exception):
    """There is nothing at all at the path: not even a status is answered, but a text."""


class MethodNotAllowed(APIError, code=405):
    def __init__(self) -> None:
        super().__init__(
            "the server does not allow this method on the requested resource", details={})


class NotAcceptable(APIError, code=406):
    def __init__(self, accepted: Iterable[str]) -> None:
        super().__init__(f"only the following media types are accepted: {', '.join(accepted)}")


class AlreadyExists(APIError, code=409):
    def __init__(
            self, group: str, plural: str, name: str, *, is_being_deleted: bool = False,
    ) -> None:
        prefix = "object is being deleted: " if is_being_deleted else ""
        super().__init__(
            f'{prefix}{qualified(group, plural)} "{name}" already exists',
            details=described(name, group, plural),
        )


class Conflict(APIError, code=409):
    """The object has changed, or another manager owns the fields: see `Conflict.of_managers`."""

    @classmethod
    def on(cls, group: str, plural: str, name: str, why: str = '') -> 'Conflict':
        why = why or ("the object has been modified; please apply your changes "
                      "to the latest version and try again")
        return cls(
            f'Operation cannot be fulfilled on {qualified(group, plural)} "{name}": {why}',
            details=described(name, group, plural),
        )

    @classmethod
    def of_managers(cls, message: str, causes: Iterable[Cause]) -> 'Conflict':
        return cls(message, details={'causes': [cause.as_dict() for cause in causes]})


class Expired(APIError, code=410):
    """The revision asked for, or the continue token's, is not kept any more."""


class RequestEntityTooLarge(APIError, code=413):
    def __init__(self, why: str) -> None:
        super().__init__(f"Request entity too large: {why}")


class UnsupportedMediaType(APIError, code=415):
    def __init__(self, accepted: Iterable[str]) -> None:
        super().__init__(
            "the body of the request was in an unknown format - "
            f"accepted media types include: {', '.join(accepted)}"
        )


class Invalid(APIError, code=422):
    """
    The object breaks the rules of its kind, as the causes say; or the request is wrong, as the
    message says.
    """

    @classmethod
    def on(cls, group: str, kind: str, name: str, causes: Iterable[Cause]) -> 'Invalid':
        causes = list(causes)
        texts = list(dict.fromkeys(str(cause) for cause in causes))
        shown = texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"
        return cls(
            f'{qualified(group, kind)} "{name}" is invalid: {shown}',
            details={
                **described(name, group, kind),
                'causes': [cause.as_dict() for cause in causes],
            },
        )


class InternalError(APIError, code=500):
    """Something behind the API has failed, e.g. a webhook. ``why`` is the message as it is."""

    def __init__(self, why: str) -> None:
        super().__init__(f"Internal error occurred: {why}", details={'causes': [{'message': why}]})


class GatewayTimeout(APIError, code=504, reason='Timeout'):
    """The server does not know as much as it is asked for, and has waited for it in vain."""

