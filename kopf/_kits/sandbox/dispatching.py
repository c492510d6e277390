"""
Dispatching of parsed and authorized requests to the modules that answer them.
"""
from kopf._kits.sandbox import conversions, reading
from kopf._kits.sandbox.access import Access
from kopf._kits.sandbox.accessreviews import Reviews
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.requests import Request, Target
from kopf._kits.sandbox.statuses import APIError, MethodNotAllowed, NoPage, NotFound
from kopf._kits.sandbox.subresources import Subresources
from kopf._kits.sandbox.writing import Writer

READS = {'get': reading.get, 'list': reading.list_}
WRITES = {'create': Writer.create, 'update': Writer.update, 'patch': Writer.patch,
          'delete': Writer.delete, 'deletecollection': Writer.delete_collection}


class Dispatcher:
    """Answers all requests but watches, by a code and a body."""

    def __init__(self, cluster: Cluster, writer: Writer, access: Access) -> None:
        self._cluster = cluster
        self._writer = writer
        self._access = access
        self._reviews = Reviews(cluster, access)
        self._subresources = Subresources(cluster, writer)

    async def dispatch(self, request: Request) -> tuple[int, bytes]:
        try:
            await self._cluster.origin.prepare(request)
            return await conversions.run(self._cluster, lambda: self._dispatch(request))
        except APIError as e:
            for hear in self._cluster.refusal_listeners:
                hear(request, e)
            raise

    async def _dispatch(self, request: Request) -> tuple[int, bytes]:
        review = self._reviews.answer(request)
        if review is not None:
            return review
        if self._subresources.concern(request):
            return await self._subresources.answer(request)
        if request.verb != 'create' and self._writer.creates(request):
            kind = request.kind
            self._access.authorize(request.user, Target(
                verb='create', group=kind.group, resource=kind.plural, namespace=request.namespace,
                name=request.name))
        if request.verb in READS:
            return 200, READS[request.verb](self._cluster, request)
        if request.verb in WRITES:
            return await WRITES[request.verb](self._writer, request)
        raise MethodNotAllowed


def check_route(request: Request, *, namespaced: bool) -> None:
    """Check that the resource or the subresource supports the verb."""
    kind = request.kind
    verbs = kind.verbs
    if request.subresource:
        sub = kind.subresources.get(request.subresource)
        if sub is None:
            raise NotFound(kind.group, kind.plural, request.name) if kind.custom else NotFound()
        verbs = sub.verbs
    lost = kind.namespaced and not namespaced and bool(
        request.name or request.verb not in ('list', 'watch'))
    if lost and kind.custom:
        raise NoPage
    if lost and request.name:
        raise NotFound
    wants_name = request.verb in ('get', 'update', 'patch', 'delete')
    if lost or request.verb not in verbs or (
            not request.subresource and wants_name != bool(request.name)):
        raise MethodNotAllowed
