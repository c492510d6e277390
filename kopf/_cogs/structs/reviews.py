"""
Admission reviews: the requests of the API server, the responses, and the protocol of webhook
servers.

The formats are of ``admission.k8s.io/v1`` and ``admissionregistration.k8s.io/v1``.
"""
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, Literal, Protocol, TypedDict

from kopf._cogs.structs import bodies

Operation = Literal['CREATE', 'UPDATE', 'DELETE', 'CONNECT']

Headers = dict[str, str]
"""The headers of the HTTP request of the API server."""

SSLPeer = dict[str, Any]
"""The certificate of the client, as `ssl.SSLSocket.getpeercert` returns it."""


class UserInfo(TypedDict):
    """The user who makes the change that is under review: a dict, as the API server sends it."""
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
    """The request of a review: the operation, the object, and the user."""
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
    """An AdmissionReview with a request, from the API server."""
    apiVersion: str
    kind: str
    request: RequestPayload


class ResponseStatus(TypedDict, total=False):
    message: str
    code: int


class ResponsePayload(TypedDict, total=False):
    """The response of a review. Responses of mutating webhooks have the patch of the object."""
    uid: str
    allowed: bool
    status: ResponseStatus
    warnings: list[str]
    patch: str
    patchType: Literal['JSONPatch']


class Response(TypedDict):
    """An AdmissionReview with a response, for the API server."""
    apiVersion: str
    kind: str
    response: ResponsePayload


class WebhookClientConfigService(TypedDict, total=False):
    """
    How the API server reaches webhooks through a service of the cluster.

    The ``namespace`` and ``name`` are those of the service, ``path`` is the beginning of the path
    of the URLs, and ``port`` is the port of the service.
    """
    namespace: str | None
    name: str | None
    path: str | None
    port: int | None


class WebhookClientConfig(TypedDict, total=False):
    """
    How the API server reaches webhooks: by a ``url`` or by a ``service``.

    ``caBundle`` contains the certificates that sign the certificate of the webhook server: PEM in
    base64. Webhook servers yield it, see `kopf.WebhookServerProtocol`.
    """
    caBundle: str | None
    url: str | None
    service: WebhookClientConfigService | None


class WebhookFn(Protocol):
    """
    The function of Kopf that webhook servers call for every admission review, and await.

    Its argument is the review as a dict, and it returns the response as a dict. The keyword
    arguments are: ``webhook``, the end of the URL, which selects the handler (by default, Kopf
    calls all handlers that match the request); ``headers``, the headers of the request;
    ``sslpeer``, the certificate of the client. The handlers get the headers and the certificate.
    See "Validate and mutate objects" in the documentation.
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
A webhook server or a tunnel: an asynchronous generator function, or an object that is called so.

It serves the webhooks. It yields how to reach them, at the start and whenever that changes. If it
ends, the operator exits.
"""
