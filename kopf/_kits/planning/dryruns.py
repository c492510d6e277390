"""
Dry runs: an operator on a sandbox over a cluster, in virtual time, until it rests.
"""
import asyncio
import collections
import contextlib
import contextvars
import dataclasses
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import errors
from kopf._cogs.configs import configuration
from kopf._cogs.logins import piggybacking
from kopf._cogs.structs import references, reviews
from kopf._core.actions import application
from kopf._core.engines.reconciling import externals, generating
from kopf._core.intents import handlers, registries
from kopf._kits import redirecting
from kopf._kits.planning import attribution, comparing, guarding, plans, stages
from kopf._kits.sandbox import faults, handling, overlays, requests, selecting
from kopf._kits.sandbox.cluster import CRDS, stored_resource
from kopf._kits.sandbox.kinds import Kinds, Resource
from kopf._kits.sandbox.statuses import APIError, NotFound, qualified
from kopf._kits.sandbox.storage import Change, Item
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import clients, operators, processes, runs, snapshots

REFUSALS = (400, 403, 413, 422)
"""With these statuses, the API refuses what a write would make of an object."""

writers_var: contextvars.ContextVar[Sequence[str] | None] = contextvars.ContextVar(
    'writers_var', default=None)
"""In the API server: the handlers that are behind the request; None outside of requests."""

staging_var: contextvars.ContextVar[bool] = contextvars.ContextVar('staging_var', default=False)
"""In the API server: whether the request is that of a stage."""


WEBHOOK = {'strategy': 'Webhook', 'webhook': {
    'conversionReviewVersions': ['v1'], 'clientConfig': {'url': 'https://localhost/plan'}}}
"""The webhook of conversions. It is never called: they are made in this process."""


class DryRun(runs.Run):
    """
    A dry run. Afterwards, there are the ``items`` of the plan; the ``writers``, which are the
    handlers that have written to an object; the ``staged`` objects, whose statuses are those of
    stages; what was ``refused``; and the number of the ``requests`` by verbs.
    """

    def __init__(
            self, setup: runs.Setup, upstream: Upstream, place: redirecting.Place, *,
            definitions: Sequence[Mapping[str, Any]], horizon: float,
            selector: selecting.LabelSelector, allowed: Sequence[str],
            rules: Sequence[stages.Stage],
    ) -> None:
        super().__init__(setup, upstream=upstream, place=place)
        self.items: Sequence[plans.Item] = ()
        self.writers: dict[Item, dict[str, None]] = {}
        self.staged: set[Item] = set()
        self.refused: dict[tuple[Item, Sequence[str]], plans.Refused] = {}
        """The latest refusals, by the objects and the handlers."""
        self.requests: collections.Counter[str] = collections.Counter()
        self.withheld: dict[object, plans.ExternalCall] = {}
        """The calls of external systems that are not made, the latest ones of each thing."""
        self.left_out: list[str] = []
        """The handlers that are never called here."""
        self.absent: list[str] = []
        """The namespaces that are named, and not there."""
        self.unserved: Sequence[str] = ()
        """Which resources are not served, in words."""
        self.requested: set[Resource] = set()
        """What the operator has asked for."""
        self.is_resting = False
        """Whether nothing more would happen after the end."""
        self.unended: Sequence[str] = ()
        """The handlers, with their objects, that have not ended before the end."""
        self.attribution = attribution.Attribution(horizon)
        self.guard = guarding.Guard(allowed)
        self._definitions = {each['metadata']['name']: each for each in definitions}
        self._converters = setup.options['registry']._converters
        for name, converter in self._converters.items():
            plural, _, group = name.partition('.')
            self.sandbox.cluster.converters[group, plural] = converter.convert
        self._upstream = upstream
        self._selector = selector
        self._rules = rules
        self._place = place
        self._horizon = horizon
        self._rest = setup.rest
        self._staging: set[asyncio.Task[None]] = set()

    def go(self) -> None:
        with self.guard.stand():
            self.play(_do_nothing)

    async def open(self) -> None:
        generating.making_var.set(lambda make: generating.SHOWN)
        externals.withholding_var.set(self._withhold)
        self.guard.port = int(self.sandbox.url.rpartition(':')[2])
        self.sandbox.write_kubeconfig(self._place.kubeconfig)
        self.sandbox.cluster.refusal_listeners.append(self._hear_refusal)
        await piggybacking.configure_clients()
        self._arrange(self.setup.options['registry'])
        await self._define()
        await self.start(_observer=self.attribution, _adjust=self._isolate)

    def _withhold(self, call: externals.Withheld) -> None:
        place = attribution.describe(call.cause.resource, call.cause.body)
        self.withheld[call.handler.id, call.verb, call.key, place] = plans.ExternalCall(
            str(call.handler.id), call.verb, '' if call.key is None else str(call.key), tuple(
                plans.Placeholder(comparing.join(item.field), item.new)
                for item in call.diff), place)

    def make_operator(self, **options: Any) -> operators.Operator:
        operator = super().make_operator(**options)
        operator.before_start = None  # the kinds are defined already
        return operator

    async def _define(self) -> None:
        """Apply the definitions of this version, as people do before they deploy it."""
        for name in self._converters:  # an operator waits until its webhook is in the definition
            known: Mapping[str, Any] = {}
            with contextlib.suppress(NotFound):
                known = await self.sandbox.get('customresourcedefinitions', name)
            definition = self._definitions.get(name) or (known and {
                'apiVersion': known['apiVersion'], 'kind': known['kind'],
                'metadata': {'name': name}, 'spec': {}})
            if definition and not (known and known['spec']['conversion'].get('webhook')):
                self._definitions[name] = {
                    **definition, 'spec': {**definition['spec'], 'conversion': WEBHOOK}}
        await self.sandbox.load(*self._definitions.values())

    async def close(self) -> None:
        for name in references.select_specific_namespaces(
                self.setup.options.get('namespaces', ())):
            try:
                await self.sandbox.get('namespaces', name)
            except APIError as e:  # without the right to read them, nobody knows
                if isinstance(e, NotFound):
                    self.absent.append(name)

    def conclude(self) -> None:
        keyed = [((stored_resource(each.kind), each.key), each) for each in self._upstream.changes()
                 if each.kind.plural not in snapshots.IGNORED_RESOURCES]
        kinds = self.sandbox.cluster.kinds
        served = {qualified(*kind.resource) for kind in kinds}
        self.unserved = [
            *find_unserved(self.setup.options['registry'], kinds),
            *(f"What becomes of {stage.resource}: there is a stage, but no such resource. Names "
              f"have the plural, and the group: deployments.apps"
              for stage in self._rules if stage.resource not in served)]
        defined = [(CRDS, ('', name)) for name in self._definitions]
        self.items = plans.make_items(
            (each, self.writers.get(item), item in self.staged)
            for item, each in keyed if item not in defined and not self._is_left(item, each))

    def _is_left(self, item: Item, difference: overlays.Difference) -> bool:
        """
        Whether only Kopf has changed an object that is not selected: it removes its finalizer, as
        no handlers are left.
        """
        base = difference.base
        return self.writers.get(item) == {} and base is not None and not self._selector.matches(
            base['metadata'].get('labels'))

    async def wait_rest(self) -> None:
        """Wait until no handlers run or are due, and nothing is written; at most to the horizon."""
        self._latest = now = self.loop.time()
        while now < (until := min(self._horizon, self._get_due())):
            await asyncio.sleep(until - now)
            now = self.loop.time()
        self.is_resting = now >= self._get_due()
        self.unended = sorted(
            name for name, began in self.attribution.running.items() if began < now)

    def _get_due(self) -> float:
        now = self.loop.time() if self.attribution.running else 0.0
        return max(self._latest, self.attribution.due, now) + self._rest

    # The operator.

    def _arrange(self, registry: registries.OperatorRegistry) -> None:
        """Leave out what is not planned, and find out how long to wait for the handlers."""
        self.left_out = [str(handler.id) for handler in registry._webhooks]
        registry._webhooks = registries.GenericRegistry()
        for handler in registry.iter_resource_handlers():
            if isinstance(handler, handlers.DaemonHandler) or (
                    callable(getattr(handler, 'initial_delay', None))):
                self._rest = self._horizon  # nobody knows when they act
            times = (getattr(handler, name, None) for name in ('interval', 'idle', 'initial_delay'))
            self._rest = max(self._rest, self.setup.rest + sum(
                time for time in times if isinstance(time, int | float)))
        if self._selector:
            for sort in (registry._watching, registry._spawning, registry._changing,
                         registry._reconciling):
                sort._handlers[:] = map(self._narrow, sort._handlers)  # type: ignore[arg-type]

    def _isolate(self, settings: configuration.OperatorSettings) -> None:
        """Let the operator be alone, and serve nothing, whatever its startup handlers have set."""
        isolate(settings)
        settings.tracing.enabled = False
        settings.admission.server = _serve_nothing
        settings.metrics.endpoint = settings.debugging.endpoint = None
        self.attribution.settings = settings
        self.attribution.ids = [handler.id for handler in self.setup.options['registry']._changing]

    def _narrow(self, handler: handlers.ResourceHandler) -> handlers.ResourceHandler:
        """Let a handler be only for the selected objects."""
        def when(**kwargs: Any) -> bool:
            return self._selector.matches(kwargs['labels']) and (
                handler.when is None or bool(handler.when(**kwargs)))

        return dataclasses.replace(handler, when=when)

    # The API server.

    def meet(self, target: requests.Target) -> faults.Fault | None:
        near = processes.connection.get()
        writers_var.set(
            self.guard.senders.get(handling.port_var.get(), ()) if near is None else
            () if near.sender is None else attribution.find_handlers(near.sender))
        if not self._is_over:
            self.requests[target.verb] += 1
            self.requested.add((target.group, target.resource))
        return None

    def _hear_refusal(self, request: requests.Request, error: APIError) -> None:
        refused = make_refused(request, error, writers_var.get() or ())
        if refused is not None and not (self._is_over or staging_var.get()):
            item = request.kind.resource, (request.namespace, refused.place.name)
            self.refused[item, tuple(refused.handlers)] = refused

    def hear(self, change: Change) -> None:
        item = change.resource, change.new.key
        if self._upstream.is_speaking or change.resource[1] in snapshots.IGNORED_RESOURCES:
            return
        self._latest = self.loop.time()
        if staging_var.get():
            self.staged.add(item)
            return
        key = item, tuple(writers_var.get() or ())
        if key in self.refused and not _is_recording(change):  # it is accepted in another way
            del self.refused[key]
        if (writers := writers_var.get()) is not None:
            self.writers.setdefault(item, {}).update(dict.fromkeys(writers))
        for stage in self._rules:
            if stage.is_for(change):
                self.attribution.due = max(self.attribution.due, self._latest + stage.after)
                task = self.loop.create_task(self._advance(item, stage))
                self._staging.add(task)
                task.add_done_callback(self._staging.discard)

    async def _advance(self, item: Item, stage: stages.Stage) -> None:
        staging_var.set(True)
        await asyncio.sleep(stage.after)
        namespace, name = item[1]
        try:
            kind = self.sandbox.cluster.kinds.of_resource(*item[0])[0]
            obj = await self.sandbox.get(stage.resource, name, namespace)
            await self.sandbox.patch(
                stage.resource, name, {'status': stage.make_status(obj)}, namespace,
                subresource='status' if kind.has_status else '')
        except (IndexError, NotFound):
            pass  # it is deleted already
        except APIError as e:
            text = f"The status that the stages have for {stage.resource} is refused: "
            if not any(problem.startswith(text) for problem in self.problems):
                self.problems.append(text + str(e))


def _is_recording(change: Change) -> bool:
    """Whether nothing is changed of the object but what Kopf keeps for itself."""
    return change.type == 'MODIFIED' and change.old is not None and (
        comparing.reduce(change.old.decode()) == comparing.reduce(change.new.decode()))


def make_refused(
        request: requests.Request, error: APIError, writers: Sequence[str],
) -> plans.Refused | None:
    """Describe a write that the API refuses for what it would make of an object, and no others."""
    status = errors.make_status_error({'message': error.message}, status=error.code).status
    if request.verb not in runs.WRITES or request.dry_run or (
            status not in REFUSALS or error.message == application.FAILED_TEST):
        return None
    name, kind = request.name, request.kind
    with contextlib.suppress(ValueError, KeyError, TypeError):
        name = name or json.loads(request.body)['metadata']['name']
    is_secret = kind.resource == ('', 'secrets')  # the message can quote its values
    return plans.Refused(
        plans.locate(kind, request.namespace, name), request.verb,
        error.reason if is_secret else error.message, writers)


def find_unserved(registry: registries.OperatorRegistry, kinds: Kinds) -> Sequence[str]:
    """Say which resources of the handlers are not served, or not unambiguously."""
    return list(registries.resolve(registry, [
        kind.as_resource(preferred=kind is kinds.of_resource(*kind.resource)[0])
        for kind in kinds]).complaints())


async def _do_nothing(client: clients.Client) -> None:
    pass


async def _serve_nothing(fn: reviews.WebhookFn) -> AsyncIterator[reviews.WebhookClientConfig]:
    """Be the webhook server, which conversions need, and which nobody calls."""
    yield {'url': 'https://localhost/plan'}
    await asyncio.Event().wait()


def isolate(settings: configuration.OperatorSettings) -> None:
    """
    Let an operator be alone: it wants nothing of other operators, and tells nobody of itself.

    Its brakes only warn: what it does comes to nothing, and should be seen as a whole.
    """
    settings.peering.standalone = True
    settings.leadership.name = settings.sharding.count = None
    settings.posting.enabled = False
    settings.admission.managed = None
    settings.brakes.stop = False
