"""
A server for webhooks behind a Service: all replicas serve one certificate, which they renew.

`generations` decides what to do. Here, it is done: the Secret is watched and written, and the
certificates are loaded into the listener.
"""
import asyncio
import base64
import contextlib
import dataclasses
import datetime
import hashlib
import json
import logging
import random
import ssl
import urllib.parse
from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from kopf._cogs.aiokits import clocks, tasks, timeouts
from kopf._cogs.clients import errors, listing, patching, screening, streaks, watching
from kopf._cogs.logins import serviceaccounts
from kopf._cogs.structs import bodies, credentials, references, reviews
from kopf._core.engines.admission import sites
from kopf._core.engines.peering import records
from kopf._kits import siblings
from kopf._kits.webhooks import certificates, generations, httpreviews, servers
from kopf._kits.webhooks.generations import Do

if TYPE_CHECKING:
    from kopf._cogs.serving import inbound

logger = logging.getLogger(__name__)

SECRETS = references.Resource('', 'v1', 'secrets', kind='Secret', namespaced=True)

SERVICE_PORT = 443
"""The port of the Service: Kubernetes assumes it if a webhook configuration names none."""

REPEATED_PAUSE = 1.0
"""How long (seconds) to wait before a step is repeated, e.g. as others also write the Secret."""

FAREWELL_TIMEOUT = 0.5
"""How long (seconds) it can take to remove the report of a replica that exits."""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WebhookServiceServer(servers.WebhookContextManager, sites.SitedServer):
    """
    A webhook server behind a Service of the cluster, with certificates that renew themselves.

    A server is for ``settings.admission.server``, and ``settings.admission.managed`` must be set.
    All replicas serve one self-signed certificate. It is in a Secret, which Kopf creates. Kopf
    renews it at two thirds of its 90 days. API servers trust the new certificate before it is
    served. If the Secret is of the type ``kubernetes.io/tls``, e.g. of cert-manager, Kopf only
    reads it. See "Validate and mutate objects" in the documentation.

    The operator exits if the library ``cryptography`` is not installed, if the namespace is not
    known, or if the port is taken.

    :param service: the name of the Service. It forwards its port 443 to the ``port`` of the pods.
    :param namespace: the namespace of the Service and of the Secret. Default: that of the operator.
    :param secret: the name of the Secret. Default: the name of the service with
        ``-webhook-tls`` appended.
    :param port: the port to listen on. With ``--processes``, all processes listen on it.
    :param addr: the address to listen on; None for all addresses, including those of IPv6.
    :param url: the URL under which API servers reach the replicas without the Service. Default:
        they use the Service.
    :param extra_sans: more hostnames and addresses for the certificate.
    """

    service: str
    namespace: str | None = None
    secret: str | None = None
    port: int = servers.DEFAULT_PORT
    addr: str | None = '0.0.0.0'
    url: str | None = None
    extra_sans: Iterable[str] = ()
    _times: generations.Times = dataclasses.field(default=generations.Times(), init=False)

    def __repr__(self) -> str:
        return f'<{self.__class__.__name__} {self.service} at {self.addr or "*"}:{self.port}>'

    @property
    def secret_name(self) -> str:
        """The name of the Secret."""
        return self.secret or f'{self.service}-webhook-tls'

    async def _serve(
            self, fn: reviews.WebhookFn,
    ) -> AsyncGenerator[reviews.WebhookClientConfig, None]:
        site = self.site
        if site is None or site.settings.admission.managed is None:
            raise ValueError("kopf.WebhookServiceServer needs settings.admission.managed, as it "
                             "changes the certificates in the webhook configurations.")
        namespace = self.namespace or _find_namespace(site)
        url = urllib.parse.urlsplit(self.url or '')
        keeper = Keeper(site, namespace, self.secret_name, self._times, [
            url.hostname or '', f'{self.service}.{namespace}.svc', f'{self.service}.{namespace}',
            self.service, *self.extra_sans])
        task = asyncio.create_task(keeper.watch(), name="watch of the certificates of webhooks")
        task.add_done_callback(lambda _: site.news.set())
        listener: inbound.Listener | None = None
        served: ssl.SSLContext | None = None
        known: reviews.WebhookClientConfig | None = None
        try:
            while True:
                site.news.clear()
                if task.done():
                    task.result()
                pause = await keeper.advance()
                if keeper.context is not None and keeper.context is not served:
                    if listener is None:
                        listener = httpreviews.make_listener(
                            fn, addr=self.addr, port=self.port,
                            root=httpreviews.normalise_root(url.path),
                            shared=siblings.are_there())
                    served = keeper.context
                    listener.listen(served)
                if listener is not None:
                    config = self._make_config(namespace, keeper.bundle)
                    if config != known:
                        known = config
                        yield config.copy()
                if pause != 0:
                    await timeouts.wait(site.news, pause)
        finally:
            await tasks.cancel([task])
            if listener is not None:
                await listener.close()
            await keeper.leave()

    def _make_config(self, namespace: str, bundle: bytes) -> reviews.WebhookClientConfig:
        config: reviews.WebhookClientConfig = {'url': self.url} if self.url else {
            'service': {'name': self.service, 'namespace': namespace, 'port': SERVICE_PORT}}
        return httpreviews.add_bundle(config, bundle)


class Keeper(watching.Sink):
    """Keeps the Secret as far as this replica has to, and what this replica serves of it."""

    def __init__(
            self, site: sites.Site, namespace: str, name: str, times: generations.Times,
            hostnames: Iterable[str],
    ) -> None:
        """The first one of the names is that in the webhook configurations."""
        super().__init__()
        self.context: ssl.SSLContext | None = None
        """With the certificate that the server serves; None before the first one."""
        self.bundle = b''
        """The certificates that API servers must trust, in PEM, as they are known last."""
        self._site = site
        self._namespace = references.NamespaceName(namespace)
        self._name = name
        self._times = times
        self._hostnames = list(filter(None, hostnames))
        self._title = records.make_identity()
        suffix = f'/{random.random()}' if siblings.are_there() else ''  # they share the identity
        self._me = generations.Replica(
            id=hashlib.sha256(f'{self._title}{suffix}'.encode()).hexdigest()[:16],
            names=certificates.normalise(self._hostnames),
            address=certificates.normalise(self._hostnames[:1]))
        self._raw: bodies.RawBody | None = None
        self._listed: bodies.RawBody | None = None
        self._is_known = False
        self._done = Do.WAIT
        """The previous step."""
        self._served: generations.Generation | None = None
        self._foreign: list[bytes] = []
        """The latest two authorities of a Secret that others keep."""
        self._store: generations.Store | None = None
        self._streak = streaks.Streak(
            f"Keeping of the certificates in the Secret {namespace}/{name}",
            settings=site.settings, logger=logger)

    async def watch(self) -> None:
        settings = listing.select_only(self._site.settings, fields=f'metadata.name={self._name}')
        await watching.watch(
            self._site.client, settings=settings, resource=SECRETS, namespace=self._namespace,
            sink=self, logger=logger)

    def list_started(self, *, restored: bool) -> None:
        self._listed = None

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        self._listed = body

    def list_ended(self) -> None:
        self._raw, self._is_known = self._listed, True
        self._site.news.set()

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        self._take(body, is_deleted=type == 'DELETED')

    def _take(self, body: bodies.RawBody, *, is_deleted: bool = False) -> None:
        """Take a newer state. Both the watch and the responses bring them."""
        known = self._raw
        if known is None or bodies.is_newer(
                bodies.parse_version(body), bodies.parse_version(known)):
            if not is_deleted:
                self._raw = body
            elif known is not None and known['metadata'].get('uid') == body['metadata'].get('uid'):
                self._raw = None
            self._site.news.set()

    async def advance(self) -> float | None:
        """Do the next step. Return after how long (seconds) to look again; None if never."""
        if not self._is_known:
            return None
        now = self._site.clock.now().wall
        try:
            store = None if self._raw is None else generations.parse(self._raw, now=now)
            self._note(store, now)
            step = generations.decide(store, self._me, now=now, times=self._times)
            logger.debug(f"The next step for the certificates of webhooks: {step.do.value}.")
            if step.do is Do.WAIT:
                self._done = Do.WAIT
                return None if step.until is None else (
                    max(clocks.PRECISION, (step.until - now).total_seconds()))
            if step.do is Do.LOAD and store is not None and store.current is not None:
                self._load(store.current, now)
            elif step.do is Do.REPORT and store is not None:
                await self._patch({'metadata': {'annotations': generations.make_report(
                    store, self._me, self._title, now=now, times=self._times)}})
            else:
                await self._write(step.do, store, now)
        except errors.APIConflictError:
            return REPEATED_PAUSE
        except (errors.APIError, OSError, ValueError) as e:
            return self._streak.fail(e)
        self._streak.end()
        repeated, self._done = step.do is self._done, step.do
        return REPEATED_PAUSE if repeated else 0

    def _note(self, store: generations.Store | None, now: datetime.datetime) -> None:
        """Note what is new: what the Secret has, and what the operator has written elsewhere."""
        site, me, known, times = self._site, self._me, self._store, self._times
        if store is not None:
            me.is_guest = store.is_foreign
        if store is not None and store.is_foreign:
            self._foreign = list(dict.fromkeys([*self._foreign, *store.authorities]))[-2:]
            if known is None or known.current != store.current:
                me.changed_at = now
        self._store = store
        found = [] if store is None else self._foreign if store.is_foreign else store.authorities
        if found:
            self.bundle = b''.join(each.strip() + b'\n' for each in found)
        placed = base64.b64decode((site.placed or {}).get('caBundle') or '')
        if placed != me.placed:
            me.placed, me.placed_at = placed, now
        me.is_writer = site.is_writer
        is_rotating = store is not None and store.current is not None and (
            store.current.id != me.serves or len(store.authorities) > 1)
        # What is overwritten during a rotation is repaired before the switch.
        refresh = times.settling / 2 if is_rotating else times.report
        site.ask(
            is_helping=store is not None and generations.is_late(store, now=now, times=times),
            refresh=refresh.total_seconds())

    def _load(self, generation: generations.Generation, now: datetime.datetime) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        certificates.load_pair(context, (generation.certificate, generation.key), None)
        self.context, self._served = context, generation
        self._me.serves, self._me.serves_since = generation.id, now
        logger.info(f"The webhooks are served with the certificate {generation.id} of the Secret "
                    f"{self._namespace}/{self._name}.")

    async def _write(self, do: Do, store: generations.Store | None, now: datetime.datetime) -> None:
        fresh = self._served if do is Do.CREATE else None  # the Secret was deleted
        if fresh is None and do in (Do.CREATE, Do.ANNOUNCE):
            fresh = generations.Generation(*certificates.build_certificate(
                self._hostnames, validity=self._times.life, now=now))
        data = generations.make_data(do, store, fresh)
        logger.info(f"Changing the Secret {self._namespace}/{self._name}: {do.value}.")
        if store is not None:
            await self._patch({'metadata': {'resourceVersion': store.version}, 'data': data})
            return
        path = f'{SECRETS.get_url(namespace=self._namespace)}?fieldManager={patching.FIELD_MANAGER}'
        self._take(await self._site.client.request('POST', path, body=json.dumps({
            'apiVersion': 'v1', 'kind': 'Secret', 'type': 'Opaque',
            'metadata': {'name': self._name}, 'data': data}).encode()))

    async def _patch(self, payload: Mapping[str, Any]) -> None:
        body = await patching.patch(
            self._site.client, resource=SECRETS, namespace=self._namespace, name=self._name,
            payload=payload)
        if body is None:
            self._raw = None
        else:
            self._take(body)

    async def leave(self) -> None:
        """Remove the own report, so that nobody waits for this replica."""
        if self._store is not None and self._me.id in self._store.reports:
            with contextlib.suppress(errors.APIError, credentials.LoginError, TimeoutError):
                async with timeouts.timeout(FAREWELL_TIMEOUT):
                    await self._patch({'metadata': {'annotations': {
                        f'{generations.PREFIX}{self._me.id}': None}}})


def _find_namespace(site: sites.Site) -> str:
    """
    Find the namespace of the pod, or else that of the credentials.

    :raises ValueError: if there is none.
    """
    for namespace in [serviceaccounts.get_namespace(), *(
            item.default_namespace for item in site.client.vault.select_all())]:
        if namespace:
            return namespace
    raise ValueError("In which namespace is the Service of the webhooks? Set namespace= of "
                     "kopf.WebhookServiceServer.")
