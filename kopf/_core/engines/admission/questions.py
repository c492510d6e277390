"""
Questions: the requests of admission reviews, validated and parsed.
"""
import dataclasses
import typing
from collections.abc import Mapping
from typing import Any, cast

from kopf._cogs.structs import bodies, references, reviews

API_VERSIONS = ('admission.k8s.io/v1', 'admission.k8s.io/v1beta1')
OPERATIONS = frozenset(typing.get_args(reviews.Operation))


class ReviewError(Exception):
    """The request cannot be answered."""
    status = 400
    """The HTTP status for the client."""


class MalformedRequestError(ReviewError):
    """The request is not a proper AdmissionReview."""


class UnknownResourceError(ReviewError):
    """The request is about a resource or a webhook that has no handlers."""
    status = 404


@dataclasses.dataclass(frozen=True, kw_only=True)
class Question:
    """The request of a review: may this operation be done?"""
    api_version: str
    uid: str
    resource: references.Resource
    """The resource with those details that are in the request. It equals the observed resource."""
    subresource: str | None
    operation: reviews.Operation
    dryrun: bool
    userinfo: Mapping[str, Any]
    name: str | None
    namespace: str | None
    old: bodies.RawBody | None
    new: bodies.RawBody | None

    @property
    def raw(self) -> bodies.RawBody:
        """The object to review: the new one, or the old one if the operation is a deletion."""
        return self.new if self.new is not None else self.old if self.old is not None else {}


def parse(request: object) -> Question:
    """
    Parse an AdmissionReview. The objects are not copied.

    :raises MalformedRequestError: if a required field is absent, or any used field is of a wrong
        type.
    """
    review = _as_mapping(request, "The review")
    if review.get('kind', 'AdmissionReview') != 'AdmissionReview':
        raise MalformedRequestError("It is not an AdmissionReview.")
    api_version = review.get('apiVersion', API_VERSIONS[0])
    if api_version not in API_VERSIONS:
        raise MalformedRequestError("The version of the review is not known.")
    payload = _as_mapping(review.get('request'), "The request")
    resource = _as_mapping(payload.get('resource'), "The resource")
    kind = _as_optional_mapping(payload.get('kind'), "The kind")
    operation = payload.get('operation')
    if not isinstance(operation, str) or operation not in OPERATIONS:
        raise MalformedRequestError("The operation is not known.")
    old = _parse_object(payload.get('oldObject'), "The old object")
    new = _parse_object(payload.get('object'), "The object")
    if old is None and new is None and operation != 'CONNECT':
        raise MalformedRequestError("There is neither an old nor a new object.")
    dryrun = payload.get('dryRun')
    if dryrun is not None and not isinstance(dryrun, bool):
        raise MalformedRequestError("Whether it is a dry run, must be true or false.")
    return Question(
        api_version=api_version,
        uid=_as_string(payload.get('uid'), "The uid"),
        resource=references.Resource(
            group=_as_string(resource.get('group', ''), "The group"),
            version=_as_string(resource.get('version'), "The version"),
            plural=_as_string(resource.get('resource'), "The name of the resource"),
            kind=_as_optional_string(kind.get('kind'), "The name of the kind"),
        ),
        subresource=_as_optional_string(payload.get('subResource'), "The subresource"),
        operation=cast(reviews.Operation, operation),
        dryrun=bool(dryrun),
        userinfo=_as_optional_mapping(payload.get('userInfo'), "The user's information"),
        name=_as_optional_string(payload.get('name'), "The name"),
        namespace=_as_optional_string(payload.get('namespace'), "The namespace"),
        old=old,
        new=new,
    )


def _parse_object(value: object, what: str) -> bodies.RawBody | None:
    if value is None:
        return None
    meta = _as_optional_mapping(_as_mapping(value, what).get('metadata'), f"{what}'s metadata")
    for key in ('labels', 'annotations'):
        _as_optional_mapping(meta.get(key), f"{what}'s {key}")
    for key in ('name', 'namespace', 'uid'):
        _as_optional_string(meta.get(key), f"{what}'s {key}")
    return cast(bodies.RawBody, value)


def _as_mapping(value: object, what: str) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise MalformedRequestError(f"{what} must be there, as a JSON object.")
    return value


def _as_optional_mapping(value: object, what: str) -> Mapping[str, Any]:
    return {} if value is None else _as_mapping(value, what)


def _as_string(value: object, what: str) -> str:
    if not isinstance(value, str) or not value.isprintable():
        raise MalformedRequestError(f"{what} must be there, as a printable string.")
    return value


def _as_optional_string(value: object, what: str) -> str | None:
    return None if value is None else _as_string(value, what) or None
