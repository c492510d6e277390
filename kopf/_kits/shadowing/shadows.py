"""
Shadows: an operator on a sandbox over the cluster in which another version of it works.
"""
import asyncio
import base64
import collections
import contextlib
import contextvars
import json
import logging
import random
import urllib.parse
import uuid
from collections.abc import AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

import click

from kopf._cogs.clients import patching, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.logins import kubeconfigs
from kopf._cogs.structs import reviews, texts
from kopf._core.engines.admission import questions
from kopf._core.engines.reconciling import externals, generating
from kopf._core.intents import handlers, registries
from kopf._kits import sandboxing
from kopf._kits.planning import attribution, comparing, dryruns, guarding, plans
from kopf._kits.sandbox import admission, handling, requests
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.overlays import Overlay
from kopf._kits.sandbox.statuses import APIError, Obj, qualified
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.shadowing import twins, verdicts

logger = logging.getLogger(__name__)

MAX_SHOWN = 100
"""How many of the latest differences are kept."""


class Shadow(attribution.Attribution):
    """
    What compares a new version with the one in production; it observes the operator.

    ``counts`` are the numbers of differences by their categories and kinds, and ``latest`` are the
    latest of them.

    :param registry: the handlers of the new version.
    :param window: for how long (seconds) both versions can differ.
    :param managers: the field managers of production, besides those that are found.
    :param share: for which part of the changes the admission handlers are called: 0 to 1.
    :param allowed: the hosts and programs that handlers may use, besides the API.
    """

    def __init__(
            self, registry: registries.OperatorRegistry, *, window: float,
            managers: Collection[str] = (), share: float = 1.0, allowed: Collection[str] = (),
    ) -> None:
        super().__init__()
        self.window = window
        self.counts: collections.Counter[tuple[verdicts.Category, str]] = collections.Counter()
        self.latest: collections.deque[verdicts.Difference] = collections.deque(maxlen=MAX_SHOWN)
        self.withheld: set[tuple[str, str, Any]] = set()
        """The calls of external systems that were not made: the functions, objects, and keys."""
        self.refused: dict[tuple[plans.Place, str], plans.Refused] = {}
        """The writes of the new version that the API refuses, by the objects and the verbs."""
        self.unknown: Sequence[str] = ()
        """What is not known of resources in the end, in words."""
        self.unjudged = 0
        """How many objects differ in the end, for less than the window."""
        self.guard = guarding.Guard(allowed, command="kopf run --shadow", is_wide=False)
        self._registry = registry
        self._managers = {patching.FIELD_MANAGER, *managers}
        self._share = share
        self._ask: tuple[reviews.WebhookFn, asyncio.AbstractEventLoop] | None = None
        self._finalizer: str | None = None

    def make_upstream(self, *args: Any, **kwargs: Any) -> Upstream:
        return _Upstream(self, *args, **kwargs)

    @contextlib.contextmanager
    def accompany(self, **options: Any) -> Iterator[vaults.Vault]:
        """
        Run the sandbox for the block, in which the handlers are guarded, and yield its credentials.
        After it, print the differences, and what handlers were not allowed to do.
        """
        if unseen := self.guard.describe_unseen():
            raise click.ClickException(unseen)
        with sandboxing.accompany(make_upstream=self.make_upstream, **options) as vault:
            found = kubeconfigs.login_with_kubeconfig()
            assert found is not None
            self.guard.port = urllib.parse.urlsplit(found.server).port or 0
            self.hold_back()
            with self.guard.stand():
                yield vault
        for text in (
                *map(str, self.latest), *map(_describe, self.refused.values()), *self.unknown, *(
                    f"Refused: {what}, by {plans.name_some(sorted(names))}"
                    for (what, _), names in self.guard.attempts.items())):
            click.echo(f"! {texts.make_entry(text)}")
        if self.withheld:
            verbs = collections.Counter(verb for verb, *_ in self.withheld)
            calls = ', '.join(f"{count} {verb}" for verb, count in sorted(verbs.items()))
            click.echo(f"Calls of external systems, which are left to production: {calls}.")
        if self.unjudged:
            click.echo(f"Objects that are not judged, as they differ for less than the window of "
                       f"{self.window:g} seconds: {self.unjudged}.")
        counts = ', '.join(f"{count} {category}" for category, count in self._summarize().items())
        click.echo("Differences from production: " + (
            f"{sum(self.counts.values())} ({counts})." if counts else "none."))

    def hold_back(self) -> None:
        """Leave to production what only one of both can make, in this context."""
        externals.withholding_var.set(self.withhold)
        generating.making_var.set(lambda make: generating.SHOWN)

    def withhold(self, call: externals.Withheld) -> None:
        """Note a call of an external system: what it would change, production also changes."""
        place = attribution.describe(call.cause.resource, call.cause.body)
        self.withheld.add((call.verb, f"{call.handler.id} for {place}", call.key))

    def describe(self) -> Mapping[str, Any]:
        """Describe the differences, without values."""
        return {
            'window_seconds': self.window,
            'total': self._summarize(),
            'latest': [{
                'category': each.category, 'object': str(each.place),
                'handlers': each.handlers, 'fields': [field.path for field in each.fields],
            } for each in list(self.latest)]}  # the sandbox's thread adds some meanwhile

    def make_headers(self) -> Mapping[str, str]:
        """Make the header that tells the sandbox which handlers are behind a request."""
        found = attribution.find_handlers(contextvars.copy_context())
        return {handling.SENDER_HEADER: json.dumps(list(found))}

    def _summarize(self) -> Mapping[str, int]:
        return {category: count for category in verdicts.CATEGORIES if (
            count := sum(n for (each, _), n in list(self.counts.items()) if each == category))}

    def tell(self, difference: verdicts.Difference) -> None:
        """Take a difference."""
        self.counts[difference.category, difference.kind] += 1
        self.latest.append(difference)
        logger.warning(f"The shadow differs: {difference}")

    # In the thread of the sandbox.

    def hear_refusal(self, request: requests.Request, error: APIError) -> None:
        """
        Note a write that is refused as invalid. It is no difference: nobody knows whether
        production also refuses it.
        """
        refused = dryruns.make_refused(request, error, self._find_writers())
        if refused is not None and refused.handlers and error.code == 422:
            if (refused.place, refused.verb) not in self.refused:
                logger.warning(_describe(refused))
            self.refused[refused.place, refused.verb] = refused

    def _is_handled(self, kind: Kind) -> bool:
        return _is_for(
            [*self._registry._changing, *self._registry._spawning, *self._registry._reconciling,
             *self._registry._watching], kind)

    def _find_writers(self) -> Sequence[str]:
        header = handling.sender_var.get()
        return json.loads(header) if header else (
            self.guard.senders.get(handling.port_var.get(), ()))

    def _review(self, kind: Kind, old: Obj | None, new: Obj | None) -> None:
        """Let the admission handlers review a change that others have made."""
        if self._ask is None or not _is_for(self._registry._webhooks, kind) or (
                random.random() >= self._share):
            return
        ended = [obj is None or 'deletionTimestamp' in obj['metadata'] for obj in (old, new)]
        if old is not None and ended[0]:
            return  # it was reviewed when its deletion began
        request = _make_request(kind, old, None if ended[1] else new)
        fn, loop = self._ask
        with contextlib.suppress(RuntimeError):  # the operator has stopped
            asyncio.run_coroutine_threadsafe(self._compare_review(fn, kind, request), loop)

    # In the operator.

    def isolate(self, settings: configuration.OperatorSettings) -> None:
        """Let the operator be alone, whatever its startup handlers have set."""
        dryruns.isolate(settings)
        self._finalizer = settings.persistence.finalizer
        settings.admission.server = self._serve

    async def _serve(self, fn: reviews.WebhookFn) -> AsyncIterator[reviews.WebhookClientConfig]:
        """Be the webhook server, whose reviews are made of the changes in the cluster."""
        self._ask = fn, asyncio.get_running_loop()
        try:
            yield {'url': 'https://localhost/shadow'}
            await asyncio.Event().wait()
        finally:
            self._ask = None

    async def _compare_review(
            self, fn: reviews.WebhookFn, kind: Kind, request: reviews.Request) -> None:
        try:
            response = (await fn(request))['response']
        except questions.ReviewError as e:
            logger.warning(f"The admission handlers cannot review a change of {kind.plural}: {e}")
            return
        payload, notes = request['request'], []
        if not response['allowed']:
            message = response.get('status', {}).get('message', '')
            notes.append(f"the {payload['operation']} would be denied: {message}")
        elif response.get('patch'):
            paths = sorted({op['path'] for op in json.loads(base64.b64decode(response['patch']))})
            notes.append(f"the {payload['operation']} would be changed: {', '.join(paths)}")
        place = plans.locate(kind, payload.get('namespace') or '', payload['name'])
        if notes:
            self.tell(verdicts.Difference('refused', kind.kind.lower(), place, notes=notes))


class _Upstream(Upstream):
    """An upstream that mirrors all resources, as production can write to any of them."""

    def __init__(self, shadow: Shadow, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._shadow = shadow

    def _make_overlay(self, cluster: Cluster) -> Overlay:
        shadow = self._shadow
        self._twins = twins.Twins(
            cluster, window=shadow.window, managers=shadow._managers, is_handled=shadow._is_handled,
            find_finalizer=lambda: shadow._finalizer, find_writers=shadow._find_writers,
            tell=shadow.tell, review=shadow._review)
        return self._twins

    async def start(self, cluster: Cluster) -> None:
        cluster.refusal_listeners.append(self._shadow.hear_refusal)
        await super().start(cluster)
        await self.fetch_all()

    async def stop(self) -> None:
        if hasattr(self, '_twins'):
            self._shadow.unjudged = self._twins.conclude()
            self._shadow.unknown = [
                *dryruns.find_unserved(self._shadow._registry, self._cluster.kinds),
                *(f"How {qualified(*resource)} differ in the end: all logins have failed."
                  for resource in sorted(self._twins.unfollowed))]
        await super().stop()


def _describe(refused: plans.Refused) -> str:
    return (f"The API refuses to {refused.verb} {refused.place}: {refused.message} "
            f"(by {', '.join(refused.handlers)})")


def _is_for(known: Iterable[handlers.ResourceHandler], kind: Kind) -> bool:
    resource = kind.as_resource()
    return any(handler.selector is not None and handler.selector.check(resource)
               for handler in known)


def _make_request(kind: Kind, old: Obj | None, new: Obj | None) -> Any:
    """Make the review of a change as the API server would have, but nobody knows for which user."""
    is_status = old is not None and new is not None and _strip(old) == _strip(new)
    namespace = (new or old or {})['metadata'].get('namespace', '')
    operation = 'DELETE' if new is None else 'CREATE' if old is None else 'UPDATE'
    made = admission.make_review(
        kind, requests.Request(
            verb=operation.lower(), kind=kind, namespace=namespace,
            subresource='status' if is_status else '', query={'dryRun': ['All']}),
        operation, new, old, uid=str(uuid.uuid4()))
    made['request']['userInfo'] = {'username': '', 'uid': '', 'groups': []}
    return made


def _strip(obj: Obj) -> Obj:
    return {**comparing.reduce(obj), 'status': None}
