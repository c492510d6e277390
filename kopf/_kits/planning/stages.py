"""
Stages: what would become of objects in a cluster, whose controllers do not run in a sandbox.

A rule says which status an object gets some time after it was created, or its spec was changed.
"""
import dataclasses
import pathlib
import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml

from kopf._cogs.structs import dicts
from kopf._kits.sandbox.statuses import qualified
from kopf._kits.sandbox.storage import Change

DEFAULT = pathlib.Path(__file__).parent / 'stages.yaml'

REFERENCE = re.compile(r'\{([\w.]+)(?:\|(.*))?\}')
"""A value of a rule that is that of a field, or else this one: ``{spec.replicas|1}``."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stage:
    """
    A rule: after so many seconds, the objects of the ``resource`` get the ``status``. ``when`` are
    the values that the fields must have.
    """
    resource: str
    status: Mapping[str, Any]
    when: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    after: float = 5.0

    def __post_init__(self) -> None:
        """:raises ValueError: if it cannot be used."""
        for name, type_ in {
                'resource': str, 'status': Mapping, 'when': Mapping, 'after': int | float}.items():
            value = getattr(self, name)
            if not isinstance(value, type_) or isinstance(value, bool):
                raise ValueError(f"{name}: {value!r} in the rule for {self.resource!r}")
        _fill(self.status, {})  # with the values after bars

    def is_for(self, change: Change) -> bool:
        """Whether the object was created, or has another spec now."""
        if self.resource != qualified(*change.resource) or change.type == 'DELETED':
            return False
        obj = change.new.decode()
        old = None if change.old is None else change.old.decode().get('spec')
        return (change.old is None or old != obj.get('spec')) and all(
            dicts.resolve(obj, field, None) == value
            for field, value in self.when.items())

    def make_status(self, obj: Mapping[str, Any]) -> Any:
        return _fill(self.status, obj)


def load(path: pathlib.Path | None) -> Sequence[Stage]:
    """
    Load the rules of the file, and those of Kopf for other resources.

    :raises ValueError: if there are no such rules in the file.
    """
    own = [] if path is None else _read(path)
    named = {stage.resource for stage in own}
    return [*own, *(stage for stage in _read(DEFAULT) if stage.resource not in named)]


def _read(path: pathlib.Path) -> list[Stage]:
    try:
        return [Stage(**rule) for rule in yaml.safe_load(path.read_text('utf-8'))]
    except (OSError, TypeError, ValueError, yaml.YAMLError) as e:
        raise ValueError(
            f"{path} has no stages: {e}. It must be a list of rules with resource: and status:, "
            f"and maybe when: and after:") from e


def _fill(value: Any, obj: Mapping[str, Any]) -> Any:
    if isinstance(value, Mapping):
        return {key: _fill(item, obj) for key, item in value.items()}
    if isinstance(value, list):
        return [_fill(item, obj) for item in value]
    match = REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return value
    default = None if match[2] is None else yaml.safe_load(match[2])
    return dicts.resolve(obj, match[1], default)
