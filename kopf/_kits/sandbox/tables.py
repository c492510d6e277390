"""
Tables: objects as rows of cells, as in ``kubectl get``; and objects reduced to their metadata.
"""
import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kopf._kits.sandbox import cells, crds
from kopf._kits.sandbox.kinds import Column
from kopf._kits.sandbox.requests import META_GROUP, Request
from kopf._kits.sandbox.statuses import BadRequest, Obj

_STEP = re.compile(
    r"\.?([^.\[\]]+)|\[(\d+|\*)\]|\['([^']+)'\]"
    r"|\[\?\(@\.([\w.]+)\s*==\s*[\"']([^\"']*)[\"']\)\]")
#: Columns of the built-in kinds that are numbers, whatever their type says.
_COUNTS = frozenset({'Desired', 'Current', 'Ready', 'Up-to-date', 'Available'})


def partial(obj: Mapping[str, Any], version: str = 'v1') -> Obj:
    """The metadata of an object, as an object of its own."""
    return {'kind': 'PartialObjectMetadata', 'apiVersion': f'{META_GROUP}/{version}',
            'metadata': obj.get('metadata', {})}


class Maker:
    """Makes tables for one request, at one moment."""

    def __init__(self, request: Request, now: datetime.datetime) -> None:
        self.kind = request.kind
        self.version = request.accepted.version
        self.now = now
        self.include = request.option('includeObject') or 'Metadata'
        if self.include not in ('Metadata', 'Object', 'None'):
            raise BadRequest(
                "Unable to convert to Table as requested: includeObject: Invalid value: "
                f"\"{self.include}\": must be 'Metadata', 'Object', 'None', or empty")
        self.columns = self.kind.columns or (crds.NAME_COLUMN, crds.AGE_COLUMN)
        computed = cells.get_computed(self.kind.resource)
        self.cells = [computed.get(column.name) or self._reader(column) for column in self.columns]

    def table(self, objs: Sequence[Obj], metadata: Obj, *, headed: bool = True) -> Obj:
        """A table of the objects; in a watch, only its first is ``headed`` by the columns."""
        return {
            'kind': 'Table', 'apiVersion': f'{META_GROUP}/{self.version}', 'metadata': metadata,
            'columnDefinitions': [
                {'name': column.name, 'type': column.type, 'format': column.format,
                 'description': column.description, 'priority': column.priority}
                for column in self.columns
            ] if headed else None,
            'rows': [self.row(obj) for obj in objs],
        }

    def row(self, obj: Obj) -> Obj:
        included = {'Metadata': partial(obj, self.version), 'Object': obj, 'None': None}
        return {'cells': [cell(obj, self.now) for cell in self.cells],
                'object': included[self.include]}

    def _reader(self, column: Column) -> Callable[[Obj, datetime.datetime], Any]:
        steps = parse_path(column.path) if column.path else None
        custom = self.kind.custom
        aged = column.name == 'Age' or (custom and column.type == 'date')

        def read(obj: Obj, now: datetime.datetime) -> Any:
            found = [] if steps is None else follow(obj, steps)
            if not found or found[0] is None:
                if custom and not aged:
                    return None
                return 0 if column.name in _COUNTS else cells.empty(column.type, aged)
            if aged:
                return cells.age(found[0], now)
            return cells.typed(found, column.type)

        return read


def parse_path(path: str) -> list[tuple[str, str, str]]:
    """Steps of a JSON path as printer columns have it: keys, indices, ``[*]`` and equalities."""
    steps: list[tuple[str, str, str]] = []
    path = path.strip('{}')
    path = path.replace('\\.', '\0')
    for key, index, quoted, field, value in _STEP.findall(path):
        if field:
            steps.append(('where', field, value))
        elif index:
            steps.append(('index', index, ''))
        else:
            steps.append(('key', (key or quoted).replace('\0', '.'), ''))
    return steps


def follow(value: Any, steps: Sequence[tuple[str, str, str]]) -> list[Any]:
    """All values at the end of the path; none if it leads nowhere."""
    values = [value]
    for step, name, wanted in steps:
        found: list[Any] = []
        for current in values:
            if step == 'key' and isinstance(current, dict) and name in current:
                found.append(current[name])
            elif step == 'index' and isinstance(current, list):
                if name == '*':
                    found.extend(current)
                elif int(name) < len(current):
                    found.append(current[int(name)])
            elif step == 'where' and isinstance(current, list):
                found.extend(item for item in current if isinstance(item, dict)
                             and str(item.get(name)) == wanted)
        values = found
    return values
