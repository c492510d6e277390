"""
Webhooks as they are configured: which requests they concern, and how they are called.
"""
import base64
import binascii
import functools
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import aiohttp

from kopf._cogs.structs import credentials
from kopf._kits.sandbox import encoding, selecting, wordings
from kopf._kits.sandbox.cluster import NAMESPACES, Cluster
from kopf._kits.sandbox.kinds import Kind, Resource
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.sandbox.storage import Entry

GROUP = 'admissionregistration.k8s.io'
MUTATING: Resource = (GROUP, 'mutatingwebhookconfigurations')
VALIDATING: Resource = (GROUP, 'validatingwebhookconfigurations')


MAX_ANSWER = 3 * 1024 * 1024


class Unreachable(Exception):
    """There is nothing that could be called; the text is the API's."""


@dataclass(frozen=True, eq=False)
class Webhook:
    """One webhook of a configuration, with the defaults filled in."""
    config: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.config.get('name') or '')

    @property
    def is_ignored_when_failing(self) -> bool:
        return self.config.get('failurePolicy') == 'Ignore'

    @property
    def is_reinvoked(self) -> bool:
        return self.config.get('reinvocationPolicy') == 'IfNeeded'

    @property
    def timeout(self) -> int:
        """In seconds."""
        return int(self.config.get('timeoutSeconds') or 10)

    def match(self, cluster: Cluster, request: Request, operation: str) -> Kind | None:
        """The version of the kind that it wants, if rules concern the operation."""
        kinds = [request.kind]
        if self.config.get('matchPolicy') != 'Exact':
            kinds += cluster.kinds.of_resource(*request.kind.resource)
        for kind in kinds:
            if any(_permits(rule, kind, request.subresource, operation)
                   for rule in self.config.get('rules') or ()):
                return kind
        return None

    def selects(self, cluster: Cluster, request: Request, states: Iterable[Obj | None]) -> bool:
        """Whether the object and its namespace have the labels that it wants."""
        objs = [obj for obj in states if obj is not None]
        if self._by_namespace and (request.kind.resource == NAMESPACES or request.namespace):
            namespace = objs[0] if request.kind.resource == NAMESPACES else \
                cluster.namespace(request.namespace) or {'metadata': {}}
            if not self._by_namespace.matches(namespace['metadata'].get('labels')):
                return False
        return not self._by_object or any(
            self._by_object.matches(obj['metadata'].get('labels')) for obj in objs)

    @functools.cached_property
    def _by_namespace(self) -> selecting.LabelSelector:
        return selecting.labels_of(self.config.get('namespaceSelector'))

    @functools.cached_property
    def _by_object(self) -> selecting.LabelSelector:
        return selecting.labels_of(self.config.get('objectSelector'))

    def url(self, cluster: Cluster) -> str:
        """Where it is. Raises `Unreachable` for services: nothing runs behind them here."""
        client: Mapping[str, Any] = self.config.get('clientConfig') or {}
        query = f'?timeout={self.timeout}s'
        if client.get('url'):
            return str(client['url']) + query
        service = client.get('service') or {}
        namespace, name = service.get('namespace', ''), service.get('name', '')
        port, path = service.get('port') or 443, service.get('path') or '/'
        url = f'https://{name}.{namespace}.svc:{port}{path}{query}'
        entry = cluster.store.get(('', 'services'), (namespace, name))
        why = f'service "{name}" not found' if entry is None else \
            f'no endpoints available for service "{name}"'
        raise Unreachable(f'failed to call webhook: Post "{url}": {why}')

    async def call(self, cluster: Cluster, review: Mapping[str, Any]) -> bytes:
        """
        Get the body of the response, by a connection of its own, as certificates can change.

        Raises `Unreachable` for everything that is no response.
        """
        url, context = self.url(cluster), self.context
        failed = f'failed to call webhook: Post "{url}": '
        try:
            async with (
                aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as session,
                session.post(
                    url, data=encoding.encode(review), ssl=context,
                    headers={'Content-Type': 'application/json', 'Accept': 'application/json',
                             'User-Agent': 'kube-apiserver-admission'},
                    timeout=aiohttp.ClientTimeout(total=self.timeout)) as answer,
            ):
                body = await answer.content.read(MAX_ANSWER)
        except TimeoutError:
            raise Unreachable(f"{failed}context deadline exceeded") from None
        except (aiohttp.ClientError, ValueError, OSError) as e:
            raise Unreachable(f"{failed}{e}") from None
        if answer.status >= 400:
            text = wordings.shown(body[:1000].decode('utf-8', 'replace'))
            raise Unreachable(f"failed to call webhook: an error on the server ({text}) has "
                              "prevented the request from succeeding")
        return body

    @functools.cached_property
    def context(self) -> ssl.SSLContext:
        """Raises `Unreachable` if the bundle of authorities is none."""
        bundle = (self.config.get('clientConfig') or {}).get('caBundle')
        try:
            text = base64.b64decode(bundle).decode('ascii') if bundle else None
            return credentials.make_client_context(cadata=text)
        except (binascii.Error, ValueError, ssl.SSLError):
            raise Unreachable("unable to load root certificates: "
                              "unable to parse bytes as PEM block") from None


def _permits(rule: Mapping[str, Any], kind: Kind, subresource: str, operation: str) -> bool:
    plural = kind.plural
    names = ('*/*', f'*/{subresource}', f'{plural}/*', f'{plural}/{subresource}') \
        if subresource else ('*', '*/*', plural)
    wanted = {
        'resources': names, 'operations': ('*', operation), 'apiGroups': ('*', kind.group),
        'apiVersions': ('*', kind.version),
    }
    scopes = ('*', 'Namespaced' if kind.namespaced else 'Cluster')
    return (rule.get('scope') or '*') in scopes and all(
        any(value in (rule.get(key) or ()) for value in values) for key, values in wanted.items())


class Webhooks:
    """The webhooks that are configured now, in the order of their calls."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[Resource, list[Webhook]] = {}
        for resource in (MUTATING, VALIDATING):
            cluster.store.listen(resource, lambda change: self._known.clear())

    def of(self, resource: Resource) -> list[Webhook]:
        if resource not in self._known:
            self._known[resource] = [
                Webhook(config) for entry in self._cluster.store.select(resource)
                for config in self._find_own(resource, entry)]
        return self._known[resource]

    def _find_own(self, resource: Resource, entry: Entry) -> list[Mapping[str, Any]]:
        """Find the webhooks that can be called: those of the origin would have effects there."""
        base = self._cluster.origin.get(resource, entry.key) or {}
        theirs = [config.get('clientConfig') for config in base.get('webhooks') or ()]
        return [config for config in entry.decode().get('webhooks') or ()
                if config.get('clientConfig') not in theirs]
