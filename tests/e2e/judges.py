"""
What the API makes of objects, depending on the schema of their kind.
"""
import itertools
from collections.abc import Awaitable, Iterator
from typing import Any

from tests.e2e.kubes import CRDS, Kind, Kube, KubeError

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
        await self.kube.set_spec(self.path, definition['spec'])
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
        Find out how objects are harmed by a new schema.

        The objects are made under the old schema; those that do not fit it are left out. Under the
        new one, each object is sent back as it is, and its content is sent as a new object. If that
        is refused, or if a field is lost, then the object is harmed.

        :raises KubeError: if the API refuses one of the schemas.
        """
        await self.set_schema(old)
        objs = []
        try:
            for index, spec in enumerate(specs):
                try:
                    obj = await self.create(f'some{index}', dry=False, spec=spec)
                except KubeError as e:
                    assert e.status == 422, e
                else:
                    assert not [*iter_lost(spec, obj['spec'])]
                    objs.append((spec, obj))
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
