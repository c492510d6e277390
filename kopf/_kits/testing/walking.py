"""
Walks over the states of a custom resource: an object gets one spec after another.

Hypothesis makes the specs, and finds the shortest walk that goes wrong. Each walk is a run of its
own, with virtual time and its own sandbox.
"""
import asyncio
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kopf._cogs.clients import errors
from kopf._cogs.structs import references
from kopf._kits.sandbox import crds
from kopf._kits.sandbox.server import Sandbox
from kopf._kits.testing import clients, runs, snapshots

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

Spec = Mapping[str, Any]
Step = Spec | Literal['rest']

NAME = 'example'
"""The name of the object that walks."""

JSON_PATCH = 'application/json-patch+json'

REFUSALS = (400, 403, 422)
"""With these statuses, an API server refuses a spec: by the schema, by rules, or by webhooks."""

INTENDED = re.compile(r"failed (temporarily|permanently): (?!its patch)")
"""The log messages about the errors that handlers raise intentionally."""

MAX_SHRINKING = 50
"""How many shorter or simpler sequences are tried after a sequence has gone wrong."""

MAX_ERRORS = 3
"""How many errors of the log are shown."""


class WalkError(AssertionError):
    """
    An operator does not handle a sequence of specs. The text shows why, and what has led to it.

    :param steps: the specs, and ``'rest'`` where the operator had the time to handle them.
    :param problems: what differs or has failed.
    :param story: what has happened.
    """

    def __init__(
            self, steps: Sequence[Step], problems: Sequence[str], story: Sequence[str],
    ) -> None:
        self.steps: Sequence[Step] = steps
        self.problems: Sequence[str] = problems
        self.story: Sequence[str] = story
        super().__init__('\n'.join([
            "If the spec changes in this way:", *(f"  {step}" for step in steps), *problems,
            "This has happened:", *runs.show(story),
            f"To walk only this: only={list(steps)!r}"]))


def walk(
        resource: str,
        *sources: runs.Source,
        load: Sequence[Mapping[str, Any] | Path | str] = (),
        specs: 'Sequence[Spec] | SearchStrategy[Spec] | None' = None,
        walks: int = 20,
        steps: int = 4,
        only: Sequence[Step] | None = None,
        expected: Collection[str] = (),
        ignore: Collection[str] = (),
        rest: float = 150.0,
        kept: float = 600.0,
        limit: float = 3600.0,
        real_limit: float = 120.0,
        **options: Any,
) -> int:
    """
    Change the spec of an object again and again, and check what the operator makes of it.

    In the end, the cluster must be as if the object was created with the last spec. The operator
    must log no unexpected errors, must come to rest, and must write nothing after that. When the
    object is deleted, nothing of it can be left. The time is virtual. This needs the library
    hypothesis, which comes with the extra ``kopf[testing]``.

    ::

        kopf.testing.walk('websites', 'handlers.py', load=['crd.yaml'])

    See "Test operators" in the documentation.

    :param resource: any name of the custom resource.
    :param sources: the files and modules with the handlers, as in `kopf.testing.Operator`. Files
        are executed again for each start of the operator.
    :param load: YAML files and objects to apply before the operator starts: the CRD of the
        resource, and whatever the handlers need.
    :param specs: the specs to choose from, or a strategy of hypothesis that makes specs. Default:
        any specs that the schema of the resource allows.
    :param walks: how many sequences of specs to try. They are the same each time.
    :param steps: how many specs a sequence has at most.
    :param only: the only sequence, as the errors show it. Default: all.
    :param expected: regular expressions: errors in the log that match are no problem. Temporary and
        permanent errors that handlers raise are always expected.
    :param ignore: the fields that may differ: ``'status.attempts'``, or of one resource only:
        ``'configmaps:data.time'``.
    :param rest: for how long (virtual seconds) nothing must be written until the operator counts as
        being at rest.
    :param kept: for how long (virtual seconds) the operator must write nothing after that.
    :param limit: how long (virtual seconds) a walk can take.
    :param real_limit: how long (real seconds) a walk can take.
    :param options: the other arguments of `kopf.testing.Operator`, except for ``credentials``.
    :returns: the number of sequences that the API server has accepted.
    :raises WalkError: if any sequence ends differently, or if the API server refuses all specs.
        The sequence is as short as possible.
    :raises ValueError: if there is no such resource, or if its schema says nothing about the spec.
    :raises ImportError: if hypothesis is not installed.
    :raises TypeError: if a string is given instead of a collection.
    :raises RuntimeError: in async tests, because each run has its own event loop.
    """
    __tracebackhide__ = True
    runs.check_call('walk', load=load, ignore=ignore, expected=expected)
    setup = runs.Setup(
        sources, options, load=load, ignore=ignore, rest=rest, limit=limit,
        real_limit=real_limit)
    walker = _Walker(setup, resource, kept=kept, expected=expected)
    if only is not None:
        return int(walker.check(only))
    try:
        import hypothesis
        from hypothesis import strategies as st
    except ImportError as e:
        raise ImportError(
            "kopf.testing.walk() needs kopf[testing], or `pip install hypothesis`.") from e

    chosen = _choose_specs(setup, resource, specs)
    count = 0

    @hypothesis.settings(
        max_examples=walks, derandomize=True, database=None, deadline=None,
        phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],  # to explain takes too long
        report_multiple_bugs=False, verbosity=hypothesis.Verbosity.quiet,
        suppress_health_check=list(hypothesis.HealthCheck))
    @hypothesis.given(st.lists(st.tuples(chosen, st.booleans()), min_size=1, max_size=steps))
    def check(pairs: list[tuple[Spec, bool]]) -> None:
        __tracebackhide__ = True
        nonlocal count
        sequence: list[Step] = []
        for spec, is_handled in pairs:
            sequence += [spec, 'rest'] if is_handled else [spec]
        if not walker.check(sequence):
            hypothesis.reject()
        count += 1

    try:
        check()
    except hypothesis.errors.Unsatisfiable:
        walker.check_refusals()
        raise  # the strategy of the author makes no specs
    return count


def _choose_specs(
        setup: runs.Setup, resource: str, chosen: 'Sequence[Spec] | SearchStrategy[Spec] | None',
) -> 'SearchStrategy[Spec]':
    from hypothesis import strategies as st

    from kopf._kits.testing import specs
    if chosen is None:
        definition = asyncio.run(_find_definition(setup, resource))
        return specs.make_strategy(specs.find_schema(definition))
    return st.sampled_from(chosen) if isinstance(chosen, Sequence) else chosen


async def _find_definition(setup: runs.Setup, resource: str) -> Mapping[str, Any]:
    selector = references.Selector(resource)
    async with Sandbox() as sandbox:
        await sandbox.load(*setup.load)
        for definition in await sandbox.list('customresourcedefinitions'):
            if any(selector.check(kind.as_resource()) for kind in crds.kinds_of(definition)):
                return definition
    raise ValueError(f"There is no custom resource {resource!r}. Load its definition: load=[...].")


class _Walker:
    """Checks one sequence of specs after another."""

    def __init__(
            self, setup: runs.Setup, resource: str, *, kept: float, expected: Collection[str],
    ) -> None:
        self._setup = setup
        self._resource = resource
        self._kept = kept
        self._expected = [INTENDED, *map(re.compile, expected)]
        self._walks: dict[str, _Walk] = {}
        """The walks that were walked already, by their steps."""
        self._left = MAX_SHRINKING
        self._has_failed = False

    def check(self, steps: Sequence[Step]) -> bool:
        """
        Check a sequence; return whether the API server has accepted any of the specs.

        After a sequence has gone wrong, a limited number of others is checked, and the rest is
        refused unseen: each of them takes a part of a second, and hypothesis would try hundreds.

        :raises WalkError: if something is wrong.
        """
        __tracebackhide__ = True
        if self._has_failed and _make_key(steps) not in self._walks:
            if not self._left:
                return False
            self._left -= 1
        walk = self._walk(steps)
        problems = [*walk.problems, *self._find_errors(walk)]
        if not problems and walk.last is not None:
            differences = snapshots.compare(self._walk([walk.last]).reached, walk.reached)
            if differences:
                problems = [
                    "The end is not the same as if the object was created with the last spec:",
                    *differences,
                    "What the handlers do must depend on the present spec, not on former ones."]
        if problems:
            self._has_failed = True
            raise WalkError(steps, problems, walk.story)
        return walk.last is not None

    def check_refusals(self) -> None:
        """
        Show the shortest of the sequences, if the API server has refused all of them.

        :raises WalkError: if there were any sequences.
        """
        __tracebackhide__ = True
        if self._walks:
            key = min(self._walks, key=len)
            raise WalkError(
                json.loads(key), ["The API server refuses all specs."], self._walks[key].story)

    def _walk(self, steps: Sequence[Step]) -> '_Walk':
        key = _make_key(steps)
        walk = self._walks.get(key)
        if walk is None:
            walk = self._walks[key] = _Walk(self._setup, self._resource, steps, kept=self._kept)
            walk.play(walk.go)
        if walk.is_abandoned:
            self._has_failed, self._left = True, 0  # others would take as long
            raise WalkError(steps, walk.problems, walk.story)
        return walk

    def _find_errors(self, walk: '_Walk') -> list[str]:
        unexpected = [
            text for text in walk.errors
            if not any(pattern.search(text) for pattern in self._expected)]
        return [f"An unexpected error: {text}" for text in unexpected[:MAX_ERRORS]]


def _make_key(steps: Sequence[Step]) -> str:
    return json.dumps(steps, sort_keys=True)


class _Walk(runs.Run):
    """One walk: the object is created, gets one spec after another, and is deleted."""

    def __init__(
            self, setup: runs.Setup, resource: str, steps: Sequence[Step], *, kept: float,
    ) -> None:
        super().__init__(setup)
        self.last: Spec | None = None
        """The last spec that the API server has accepted."""
        self.reached: snapshots.Snapshot = {}
        """The cluster at rest, before the deletion."""
        self._resource = resource
        self._steps = steps
        self._kept = kept

    async def go(self, client: clients.Client) -> None:
        await self.wait_rest()
        before = self.take_snapshot()
        for step in self._steps:
            if step == 'rest':
                await self.wait_rest()
            else:
                await self._change_spec(client, step)
        if self.last is None:
            return
        await self.wait_rest()
        self.reached = self.take_snapshot()
        count = len(self.writes)
        await asyncio.sleep(self._kept)
        if self.writes[count:]:
            self.problems.append(f"At rest, the operator still writes: {self.writes[count]}")
        self.note("the object is deleted")
        await client.delete(self._resource, NAME)
        await self.wait_rest()
        self.problems += [
            f"After the deletion, {text}" for text in snapshots.compare(
                before, self.take_snapshot())]

    async def _change_spec(self, client: clients.Client, spec: Spec) -> None:
        self.note(f"the spec: {spec}")
        try:
            if self.last is None:
                await client.create(self._resource, NAME, spec=spec)
            else:
                resource = await client.find(self._resource)
                within = references.NamespaceName(client.namespace) if resource.namespaced else None
                await client.request(
                    'PATCH', resource.get_url(namespace=within, name=NAME),
                    [{'op': 'add', 'path': '/spec', 'value': spec}], content_type=JSON_PATCH)
        except errors.APIError as e:
            if e.status not in REFUSALS:
                raise
            self.note(f"the API server refuses it: {e}")
        else:
            self.last = spec
