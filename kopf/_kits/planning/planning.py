"""
Planning: runs an operator on a sandbox over a cluster, and makes the plan.
"""
import asyncio
import contextlib
import dataclasses
import datetime
import pathlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, references
from kopf._core.intents import registries
from kopf._kits import commanding, redirecting
from kopf._kits.planning import dryruns, imports, plans
from kopf._kits.planning import stages as _stages
from kopf._kits.sandbox import selecting
from kopf._kits.sandbox.cluster import CRDS, NAMESPACES
from kopf._kits.sandbox.kinds import Resource
from kopf._kits.sandbox.statuses import APIError, qualified
from kopf._kits.sandbox.upstreams import Upstream
from kopf._kits.testing import operators, runs, sandboxthreads
from kopf._kits.typed import kinds


class PlanError(Exception):
    """There is no plan. The message says why."""


REST = 150.0
"""For how long (virtual seconds) nothing must be written, besides the intervals of handlers."""


def plan(
        *sources: runs.Source,
        origin: credentials.Credentials | vaults.Vault | None = None,
        context: str | None = None,
        against: Sequence[runs.Source] = (),
        labels: str = '',
        horizon: float = 3600.0,
        allow: Sequence[str] = (),
        stages: pathlib.Path | None = None,
        real_limit: float = 600.0,
        **options: Any,
) -> plans.Plan:
    """
    Find out what an operator would do in a cluster, or on another sandbox, without doing it.

    The operator runs in virtual time on a sandbox over the cluster, to which only GET requests are
    sent.

    ::

        made = kopf.testing.plan('handlers.py', context='staging')
        assert not made.items

    See "Preview an upgrade" in the documentation.

    :param sources: the files and modules with the handlers, as in `kopf.testing.Operator`.
    :param origin: the credentials of the cluster. Default: those of the kubeconfig.
    :param context: the context of the kubeconfig. Default: the current one.
    :param against: the files and modules of another version, usually of the present one: the plan
        has only what differs from what that version would do. Default: none.
    :param labels: a label selector: the handlers are called only for the objects that match.
        Default: for all.
    :param horizon: how many virtual seconds are planned at most. The plan ends earlier when the
        operator is at rest.
    :param allow: the hosts, Unix sockets, and programs that handlers may use, besides the API.
        Default: none.
    :param stages: a YAML file with the statuses that objects get from other controllers. Default:
        those of Kopf.
    :param real_limit: how long (real seconds) it can take.
    :param options: the other arguments of `kopf.testing.Operator`, except for ``credentials``.
    :returns: the plan.
    :raises LoginError: if there are no credentials.
    :raises PlanError: if the cluster does not answer, there are no handlers, the labels or the
        stages are wrong, or there are modules whose connections cannot be refused.
    :raises RuntimeError: in async tests, because it makes its event loop.
    """
    runs.check_call('plan')
    if isinstance(options.get('namespaces'), str):
        options['namespaces'] = [options['namespaces']]
    try:
        rules, selector = _stages.load(stages), selecting.parse_labels(labels)
    except (ValueError, APIError) as e:
        raise PlanError(str(e)) from e
    now = datetime.datetime.now(datetime.UTC)

    def load(sources: Sequence[runs.Source], others: Sequence[runs.Source]) -> _Version:
        place = stack.enter_context(redirecting.reserve(path))
        own = imports.Imports(*map(imports.find_folders, (sources, others)))
        with redirecting.expect(place), own.active():
            return _Version(*_load(sources), place, own)

    def rehearse(version: _Version, upstream: Upstream) -> dryruns.DryRun:
        setup = runs.Setup(
            (), {**options, 'registry': version.registry}, load=(), ignore=(), rest=REST,
            limit=2 * horizon + REST, real_limit=real_limit, origin=now)
        run = dryruns.DryRun(
            setup, upstream, version.place, definitions=version.definitions, horizon=horizon,
            selector=selector, allowed=allow, rules=rules)
        if unseen := run.guard.describe_unseen():
            raise PlanError(unseen)
        with redirecting.redirect(path), version.imports.active():
            run.go()
        return run

    with contextlib.ExitStack() as stack:
        path = pathlib.Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix='kopf-plan-')), 'kubeconfig')
        try:
            new = load(sources, against)
            others = [load(against, sources)] if against else []
            if origin is None and context is None:
                origin = asyncio.run(_log_in(new.registry))
            patterns = options.get('namespaces', ())
            upstream = Upstream(
                origin, context=context, follow=False,
                namespaces=references.select_specific_namespaces(patterns), selectors=[
                    selector for each in (new, *others)
                    for selector in each.registry.get_selectors()])
            if others:
                with sandboxthreads.run_sandbox(upstream=upstream) as frozen:  # of the same state
                    before, run = (rehearse(each, Upstream(
                        frozen.credentials, follow=False, selectors=[])) for each in (*others, new))
                made = _describe(run, upstream).without(_describe(before, upstream))
            else:
                run = rehearse(new, upstream)
                made = _describe(run, upstream)
            return dataclasses.replace(made, unknown=[*_find_unread(run, upstream), *made.unknown])
        except APIError as e:
            raise PlanError(str(e)) from e
        except SystemExit as e:
            raise PlanError(
                f"The operator has ended the process by sys.exit({e.code!r}), so nothing is known "
                f"of what it would do. Let handlers raise errors instead.") from e


@dataclasses.dataclass(frozen=True)
class _Version:
    """A version of an operator: its handlers, its kinds, and where its clients are led to."""
    registry: registries.OperatorRegistry
    definitions: Sequence[Mapping[str, Any]]
    place: redirecting.Place
    imports: imports.Imports


def _load(
        sources: Sequence[runs.Source],
) -> tuple[registries.OperatorRegistry, Sequence[Mapping[str, Any]]]:
    """Load the handlers, and make the definitions of the kinds that they use."""
    with kinds.separated():
        registry = operators.load(sources, is_fresh=True)
        for converter in registry._converters.values():
            converter.complete({})  # it keeps the schemas of now
    if registry.is_empty:
        where = f" in {', '.join(map(str, sources))}" if sources else ": name the files with them"
        raise PlanError(f"There are no handlers{where}.")
    try:
        return registry, kinds.define(kinds.find(registry.get_selectors()))
    except TypeError as e:
        raise PlanError(str(e)) from e


async def _log_in(registry: registries.OperatorRegistry) -> credentials.Credentials:
    """Log in by the login handlers, or else by default."""
    async with commanding.connect(
            registry=registry, settings=configuration.OperatorSettings(), vault=None,
    ) as (_, found):
        return found


def _describe(run: dryruns.DryRun, upstream: Upstream) -> plans.Plan:
    return plans.Plan(
        run.items, calls=sorted(run.withheld.values(), key=lambda call: (
            call.verb != 'delete', call.external, call.place)),
        refused=list(run.refused.values()),
        failures=sorted(
            run.attribution.failures.values(), key=lambda each: (each.handler, each.place)),
        problems=[*run.problems, *(
            f"{qualified(*resource)} cannot be read: {reason}"
            for resource, reason in upstream.unread.items() if _is_needed(run, resource))],
        unknown=list(_find_unknown(run)), requests=dict(run.requests),
        upstream=dict(upstream.requests))


def _is_needed(run: dryruns.DryRun, resource: Resource) -> bool:
    """Whether nothing is planned without the resource: the handlers want it, or what it defines."""
    return resource in run.requested and resource != NAMESPACES and (
        resource != CRDS or bool(run.unserved))


def _find_unread(run: dryruns.DryRun, upstream: Upstream) -> Iterator[str]:
    """Find what is not known of the cluster, though something is planned without it."""
    patterns = set(run.setup.options.get('namespaces', ()))
    is_named = patterns and references.select_specific_namespaces(patterns) == patterns
    for resource, reason in upstream.unread.items():
        if not _is_needed(run, resource) and not (is_named and resource == NAMESPACES):
            yield f"{qualified(*resource)} cannot be read: {reason}"
    for resource, namespaces in upstream.list_partly_read().items():
        if not (is_named and patterns.issubset(namespaces)):
            yield f"{qualified(*resource)} can be read only in {', '.join(namespaces)}."


def _find_unknown(run: dryruns.DryRun) -> Iterator[str]:
    for (what, name), handlers in run.guard.attempts.items():
        yield (f"What {what} would have answered: the connection is refused. If handlers change "
               f"nothing there: --allow {name}. By {plans.name_some(sorted(handlers))}")
    yield from run.unserved
    if run.absent:
        yield f"What happens in namespaces that are not there: {', '.join(sorted(run.absent))}"
    if run.left_out:
        yield f"The admission handlers are not called: {', '.join(run.left_out)}"
    if run.unended:
        yield f"What is done next by what has not ended in time: {plans.name_some(run.unended)}"
    if run.attribution.paused:
        paused = plans.name_some(sorted(run.attribution.paused))
        yield f"What happens after their pauses to {paused}"
    if not run.is_resting:
        yield f"It is not at rest in the end, after {run.loop.time():.0f} seconds of virtual time."
