"""
Whether a definition is compatible with another one, as the API itself sees it.

An object is made under the one definition. Then comes the other one. The object is sent back as it
is, and its content is sent as a new object. If that is refused, or if a field is lost, then the
object is harmed.
"""
import itertools
import os
import random
from collections.abc import Awaitable, Iterator
from typing import Any

import pytest

from kopf._kits.typed.compatibility import compare
from tests._kits.typed.pairs import PAIRS, define
from tests._kits.typed.randompairs import make_pair
from tests.e2e.kubes import CRDS, Kind, Kube, KubeError

SEEDS = range(int(os.environ.get('KOPF_E2E_PAIRS', '60')))
"""The seeds of random pairs of definitions."""

NUMBERS = itertools.count()


class Judge:
    """A kind whose schema changes, to see what the API makes of its objects meanwhile."""

    def __init__(self, kube: Kube, kind: Kind) -> None:
        self.kube, self.kind = kube, kind
        self.path = f'{CRDS}/{kind.plural}.{kind.group}'

    async def set_schema(self, spec: Any) -> None:
        """Set the schema of ``spec``, and wait until it is in force: by the default of a mark."""
        mark = f'mark{next(NUMBERS)}'
        definition = await self.kube.request('GET', self.path)
        definition['spec']['versions'][0]['schema'] = {'openAPIV3Schema': {
            'type': 'object',
            'properties': {'spec': spec, 'mark': {'type': 'string', 'default': mark}}}}
        await self.kube.request('PUT', self.path, body=definition)
        while await self._get_mark() != mark:
            pass
        await self.kube.wait_served(self.kind)

    async def _get_mark(self) -> str | None:
        try:
            probe = await self.create('probe', dry=True)
        except KubeError as e:
            if e.status not in (429, 503):  # which are for the moment of the change
                raise
            return None
        return probe.get('mark')

    async def create(self, name: str, *, dry: bool, **fields: Any) -> Any:
        params = {'dryRun': 'All'} if dry else {}
        return await self.kube.request(
            'POST', self.kind.get_path(namespace='default'), params=params, body={
                'apiVersion': self.kind.api_version, 'kind': self.kind.kind,
                'metadata': {'name': name}, **fields})

    async def find_harm(self, old: Any, new: Any, *specs: Any) -> dict[str, str]:
        """
        Find out how objects are harmed by a new schema: when they are updated, and as new ones.

        Those that do not fit the old schema are left out.

        :raises KubeError: if the API refuses one of the schemas.
        """
        await self.set_schema(old)
        objs = []
        try:
            for index, spec in enumerate(specs):
                try:
                    objs.append((spec, await self.create(f'some{index}', dry=False, spec=spec)))
                except KubeError as e:
                    assert e.status == 422, e
            await self.set_schema(new)
            harm = {}
            for spec, obj in objs:
                harm |= await find_harm('update', obj['spec'], self.kube.replace(self.kind, obj))
                harm |= await find_harm('creation', spec, self.create('new', dry=True, spec=spec))
            return harm
        finally:
            await self.kube.clear_kind(self.kind)


async def find_harm(request: str, spec: Any, response: Awaitable[Any]) -> dict[str, str]:
    try:
        lost = [*iter_lost(spec, (await response)['spec'])]
    except KubeError as e:
        assert e.status == 422, e
        return {request: str(e)}
    return {request: f"lost: {lost}"} if lost else {}


def iter_lost(before: Any, after: Any, path: str = 'spec') -> Iterator[str]:
    """Find what is not there any more, or is another value. What is new is no loss."""
    match before, after:
        case dict(), dict():
            for key in before:
                if key in after:
                    yield from iter_lost(before[key], after[key], f'{path}.{key}')
                else:
                    yield f'{path}.{key}'
        case list(), list() if len(before) == len(after):
            for index, (was, now) in enumerate(zip(before, after, strict=True)):
                yield from iter_lost(was, now, f'{path}[{index}]')
        case _ if before != after:
            yield path


def find_errors(old: Any, new: Any, *, ratcheting: bool = False) -> list[str]:
    return [str(finding)
            for finding in compare(define(old), define(new), ratcheting=ratcheting)
            if finding.level == 'error']


@pytest.fixture()
async def minor(kube: Kube) -> int:
    """The minor version of Kubernetes."""
    version = await kube.request('GET', '/version')
    return int(version['minor'].rstrip('+'))


@pytest.fixture()
async def judge(kube: Kube, make_kind: Any) -> Judge:
    return Judge(kube, await make_kind())


async def test_the_api_harms_an_object_where_an_error_is_expected_and_nowhere_else(judge, minor):
    for pair in PAIRS:
        if pair.is_new and minor < 25:
            continue
        harm = await judge.find_harm(pair.old, pair.new, pair.spec)
        errors = find_errors(pair.old, pair.new)
        assert bool(harm) == bool(errors and not pair.harmless), (pair.name, harm, errors)


async def test_a_harmed_update_is_an_error_also_with_ratcheting(judge, minor):
    for pair in PAIRS:
        harm = await judge.find_harm(pair.old, pair.new, pair.spec)
        errors = find_errors(pair.old, pair.new, ratcheting=minor >= 30)
        assert 'update' not in harm or errors, (pair.name, harm)


async def test_harm_by_random_changes_is_always_an_error(judge, minor):
    harmed = compatible = 0
    for seed in SEEDS:
        old, new, specs = make_pair(random.Random(seed))
        try:
            harm = await judge.find_harm(old, new, *specs)
        except KubeError as e:
            assert e.status == 422, e
            continue  # it is no definition
        errors = find_errors(old, new)
        assert not harm or errors, f"Seed {seed}: {harm}\n{old}\n{new}"
        harmed += bool(harm)
        compatible += not errors
    print(f"Of {len(SEEDS)} pairs, {harmed} are harmful, and {compatible} are compatible.")
    assert harmed > len(SEEDS) / 5
    assert compatible > len(SEEDS) / 20
