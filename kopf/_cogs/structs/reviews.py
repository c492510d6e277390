"""
Admission reviews: what Kubernetes asks of webhooks, what is answered, and who serves it.

The formats are those of ``admission.k8s.io/v1`` and ``admissionregistration.k8s.io/v1``.
"""
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypedDict

from kopf._cogs.structs import bodies

Operation = Literal['CREATE', 'UPDATE', 'DELETE', 'CONNECT']

Headers = dict[str, str]
"""The headers of the request by which Kubernetes calls the webhook."""

SSLPeer = dict[str, Any]
"""The certificate of the client, as `ssl.SSLSocket.getpeercert` returns it."""


class UserInfo(TypedDict):
    """Who makes the change that is under review, as Kubernetes tells it."""
    username: str
    uid: str
    groups: list[str]


class RequestKind(TypedDict):
    group: str
    version: str
    kind: str


class RequestResource(TypedDict):
    group: str
    version: str
    resource: str


class RequestPayload(TypedDict):
    """The question: may this operation be done with this object?"""
    uid: str
    kind: RequestKind
    resource: RequestResource
    requestKind: RequestKind
    requestResource: RequestResource
    subResource: str | None
    requestSubResource: str | None
    userInfo: UserInfo
    name: str
    namespace: str | None
    operation: Operation
    options: Mapping[str, Any] | None
    object: bodies.RawBody
    oldObject: bodies.RawBody | None
    dryRun: bool


class Request(TypedDict):
    """A review with a question, as it comes from Kubernetes."""
    apiVersion: str
    kind: str
    request: RequestPayload


class ResponseStatus(TypedDict, total=False):
    message: str
    code: int


class ResponsePayload(TypedDict, total=False):
    """The answer, with the changes to the object if it is a mutating webhook."""
    uid: str
    allowed: bool
    status: ResponseStatus
    warnings: list[str]
    patch: str
    patchType: Literal['JSONPatch']


class Response(TypedDict):
    """A review with an answer, as it goes to Kubernetes."""
    apiVersion: str
    kind: str
    response: ResponsePayload


class WebhookClientConfigService(TypedDict, total=False):
    """A webhook reachable as a service inside of the cluster."""
    namespace: str | None
    name: str | None
    path: str | None
    port: int | None


class WebhookClientConfig(TypedDict, total=False):
    """How Kubernetes reaches the webhooks: by a URL or as a service; the CA is in base64."""
    caBundle: str | None
    url: str | None
    service: WebhookClientConfigService | None


class WebhookFn(Protocol):
    """
    The framework's function that webhook servers call for every admission review.

    The ``webhook`` is the handler's id if it is known from the URL; otherwise, all the handlers
    that match the request are called.
    """

    def __call__(
            self,
            request: Request,
            *,
            webhook: str | None = None,
            headers: Mapping[str, str] | None = None,
            sslpeer: Mapping[str, Any] | None = None,
    ) -> Awaitable[Response]: ...


WebhookServerProtocol = Callable[[WebhookFn], AsyncIterator[WebhookClientConfig]]
"""
A webhook server or tunnel: an async generator function, or an object that is called as one.

It serves the webhooks, and yields how to reach them, at the start and whenever that changes.
The end of it is the end of the operator.
"""
