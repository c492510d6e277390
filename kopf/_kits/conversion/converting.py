"""
Converting: the objects of one kind from any of its versions to any other.

The versions are a tree: each conversion joins two neighbours, so there is one way between any two.
"""
import copy
import functools
import json
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, cast

from kopf._cogs.configs import capacity
from kopf._cogs.helpers import ratelimits
from kopf._cogs.structs import bodies, dicts
from kopf._core.intents import callbacks
from kopf._kits.conversion import lossless, moves
from kopf._kits.conversion.moves import ConversionError, Object
from kopf._kits.sandbox import schemas, statuses
from kopf._kits.typed.vocabulary import IMPLIED, DeclarationError

logger = logging.getLogger(__name__)

Function = Callable[[Object], Object | None]
"""Converts an object, which is its own copy: in place, or by returning another one."""

ANNOTATION = 'kopf.dev/only-in-'
"""The annotation of what only that version can express, in objects of other versions."""

WARNING_PERIOD = 60.0
"""How often (seconds) a warning of a definition is logged: each LIST converts all objects again."""


class Step(NamedTuple):
    """The way from one version to a neighbour."""
    moves: Iterable[moves.Move]
    up: bool
    function: Function | None
    lossless: bool
    lacks: Callable[[str], bool] | None = None
    """Whether objects cannot have the field before the step; None if that is not known."""


class Converter(bodies.Converter):
    """
    Converts the objects of one kind.

    The definition's name is that of the resource, e.g. ``databases.example.com``. ``load_schemas``
    returns the schemas of the versions, as far as they are declared.
    """

    def __init__(
            self, name: str, *, load_schemas: Callable[[], Mapping[str, Mapping[str, Any]]],
    ) -> None:
        super().__init__()
        self.name = name
        self.group = name.partition('.')[2]
        self._load = load_schemas
        self._steps: dict[str, dict[str, Step]] = {}
        self._warnings = ratelimits.KeyedBuckets(burst=1, period=WARNING_PERIOD)

    @property
    def versions(self) -> frozenset[str]:
        return frozenset(self._steps) | {target for steps in self._steps.values()
                                         for target in steps}

    def add(self, old: str, new: str, step: Step) -> None:
        """
        Add the way from one version to another.

        :raises DeclarationError: if there is one already, or if a function of it is async.
        """
        for fn in (step.function, *(fn for move in step.moves for fn in (move.up, move.down))):
            if fn is not None and callbacks.is_async(fn):
                raise DeclarationError(f"{_name(fn)} is async, but nothing waits for it in "
                                       f"conversions. Make it a synchronous function.")
        if new in self._steps.setdefault(old, {}):
            raise DeclarationError(f"{self.name} has two conversions of {old} to {new}.")
        self._steps[old][new] = step

    def find_fault(self) -> str | None:
        """Say why not all versions can be converted to all others as declared; None if so."""
        edges = {(old, new) for old, steps in self._steps.items() for new in steps}
        for old, new in sorted(edges):
            if (new, old) not in edges:
                return (f"{self.name} has no conversion of {new} to {old}, only back. Declare "
                        f"both: @kopf.on.convert('{self.name}', '{new}', '{old}')")
        first, *others = sorted(self.versions)
        if apart := [version for version in others if version not in self._find_ways(first)]:
            return f"{self.name} has no conversion between {first} and {', '.join(apart)}."
        if len(edges) > 2 * len(others):
            return (f"{self.name} has several ways between the same versions. Let each version "
                    f"name only one neighbour.")
        for version, steps in self._steps.items():
            for step in steps.values():
                for move in step.moves:
                    path = move.old if step.up else move.new
                    if step.lacks is not None and step.lacks(path):
                        return (f"{self.name} has no field {path!r} in {version}, which kopf.Move "
                                f"names. Write the names in the API, such as '.spec.maxSize'.")
        return None

    def _find_ways(self, source: str) -> dict[str, list[tuple[str, Step]]]:
        """Find the ways to all versions that can be reached, from neighbour to neighbour."""
        ways: dict[str, list[tuple[str, Step]]] = {source: []}
        for version in (found := [source]):
            for neighbour, step in self._steps.get(version, {}).items():
                if neighbour not in ways:
                    ways[neighbour] = [*ways[version], (neighbour, step)]
                    found.append(neighbour)
        return ways

    def _find_way(self, source: str, target: str) -> list[tuple[str, Step]]:
        """:raises ConversionError: if there is none."""
        try:
            return self._find_ways(source)[target]
        except KeyError:
            raise ConversionError(f"there is no conversion of {source} to {target}") from None

    # Converting.

    def convert(self, obj: Mapping[str, Any], version: str) -> Object:
        """
        Convert an object to another version. The object itself is not changed.

        Parts of objects are also converted: server-side apply sends what some managers own. So no
        defaults are set: they would look like what somebody owns.

        :raises ConversionError: if it cannot be converted.
        """
        source, made = self._get_version(obj), dict(obj)
        if source == version:
            return made
        try:
            for neighbour, step in self._find_way(source, version):
                # Each version on the way restores and keeps its own: people can also edit it there.
                former, made = made, self._prune(self._go(made, [(neighbour, step)]))
                if step.lossless:
                    made = self._keep(former, made, source, neighbour)
                source = neighbour
        except (RecursionError, statuses.BadRequest):
            raise ConversionError("it is nested too deeply") from None
        return made

    def convert_essence(
            self, old: bodies.BodyEssence, version: str, *,
            current: bodies.BodyEssence, to: str,
    ) -> bodies.BodyEssence:
        way, back = self._find_way(to, version), self._find_way(version, to)
        versioned = {'apiVersion': f'{self.group}/{to}', **cast(dict[str, Any], current)}
        there = self._go(versioned, way)
        leaves = self._find_lost(versioned, there, back)
        before = {**cast(dict[str, Any], old), 'apiVersion': f'{self.group}/{version}'}
        made = self._prune(self._go(before, back))
        restored = self.complete({
            'apiVersion': made['apiVersion'], **lossless.restore(_get_content(made), leaves)})
        return cast(bodies.BodyEssence, {
            **_get_content(restored),
            **({'metadata': made['metadata']} if made.get('metadata') else {})})

    def _get_version(self, obj: Mapping[str, Any]) -> str:
        group, _, version = str(obj.get('apiVersion') or '').rpartition('/')
        if group != self.group or version not in self.versions:
            raise ConversionError(f"{obj.get('apiVersion')!r} is no version of {self.name}")
        return version

    def _go(self, obj: Mapping[str, Any], way: Iterable[tuple[str, Step]]) -> Object:
        """Convert step by step; of the metadata, only labels and annotations can change."""
        meta = _check_metadata(obj.get('metadata'))
        # Server-side apply leaves nulls of the fields of which nothing is left, e.g. of the spec.
        content = copy.deepcopy({
            key: value for key, value in dicts.without(obj, ('metadata', 'managedFields')).items()
            if value is not None})
        for version, step in way:
            content = self._step(content, step)
            content['apiVersion'] = f'{self.group}/{version}'
        made = _check_metadata(content.get('metadata')) or {}
        if meta is not None:
            content['metadata'] = _merge_metadata(meta, made)
        return {**{key: None for key, value in obj.items() if value is None}, **content}

    def _step(self, content: Object, step: Step) -> Object:
        if step.up:
            moves.apply(step.moves, content, up=True)
        if step.function is not None:
            name = _name(step.function)
            returned = moves.call(step.function, content, f"{name} has failed")
            if not isinstance(returned, Mapping | None):
                raise ConversionError(f"{name} has returned {type(returned).__name__}, not a dict")
            if returned is not None:
                content = {**_get_identity(content), **returned}
        if not step.up:
            moves.apply(step.moves, content, up=False)
        _check_json(content, '')
        return content

    def _prune(self, obj: Mapping[str, Any]) -> Object:
        schema = self._find_schema(obj)
        return dict(obj) if schema is None else schemas.prune(schema, dict(obj))[0]

    def complete(self, obj: Mapping[str, Any]) -> Object:
        """
        Do as the API server does with what is written: drop unknown fields, set defaults.

        After a conversion, it sets none before the next write.
        """
        schema = self._find_schema(obj)
        return dict(obj) if schema is None else schemas.default(schema, self._prune(obj))

    def _find_schema(self, obj: Mapping[str, Any]) -> schemas.Schema | None:
        return self._schemas.get(str(obj.get('apiVersion') or '').rpartition('/')[2])

    @functools.cached_property
    def _schemas(self) -> Mapping[str, schemas.Schema]:
        return {version: schemas.Schema(raw) for version, raw in self._load().items()}

    # What is lost.

    def _keep(self, obj: Mapping[str, Any], made: Object, source: str, version: str) -> Object:
        """Restore what only the new version can express; keep what only the former one can."""
        meta = made.get('metadata') or {}
        annotations = dict(meta.get('annotations') or {})
        kept, back = annotations.pop(ANNOTATION + version, None), self._find_way(version, source)
        if kept is None:
            leaves = self._find_lost(obj, made, back)
        else:
            made, leaves = self._restore(obj, made, kept, version, back)
        annotations.pop(ANNOTATION + source, None)
        if leaves:
            annotations[ANNOTATION + source] = lossless.dump(leaves)
            if capacity.count_annotations(annotations) > capacity.MAX_ANNOTATIONS:
                raise ConversionError(
                    f"{version} cannot express so much of it that the annotations would be larger "
                    f"than {capacity.MAX_ANNOTATIONS // 1024} KiB")
        if annotations != (meta.get('annotations') or {}):
            meta = {key: value for key, value in meta.items() if key != 'annotations'}
            made['metadata'] = {**meta, 'annotations': annotations} if annotations else meta
        return made

    def _restore(
            self, obj: Mapping[str, Any], made: Object, kept: str, version: str,
            back: Iterable[tuple[str, Step]],
    ) -> tuple[Object, list[lossless.Leaf]]:
        """
        Restore what is kept, and find what is lost then. Anybody can write the annotation, so it
        must break nothing: if there is no way back, the list of all objects would fail.
        """
        try:
            leaves = lossless.load(kept)
            restored = self._prune({
                **_get_identity(made),
                **_get_content(lossless.restore(_get_content(made), leaves))})
            schema = self._find_schema(made)
            if schema is not None and (found := schemas.find_mistyped(schema, restored, made)):
                raise ValueError(f"{found[0]!r:.200} has a wrong type")
            return restored, self._find_lost(obj, restored, back)
        except (ValueError, RecursionError, statuses.BadRequest) as e:
            skipped = self._warnings.take(version, time.monotonic())
            if skipped is not None:
                name = '/'.join(str(made['metadata'].get(key)) for key in ('namespace', 'name'))
                logger.warning(
                    f"The annotation {ANNOTATION + version} of {self.name} {name!r:.400} is "
                    f"ignored: {str(e) or repr(e)} ({skipped} more since the last warning.)")
            return made, self._find_lost(obj, made, back)

    def _find_lost(
            self, obj: Mapping[str, Any], made: Object, back: Iterable[tuple[str, Step]],
    ) -> list[lossless.Leaf]:
        """Find what the way back does not return of an object, once the other version is stored."""
        try:
            returned = self._go(self.complete(made), back)
        except ConversionError:  # the defaults can have no way back, such as an empty quantity
            returned = self._go(made, back)
        returned = self._prune(returned)
        return lossless.find(
            _get_content(self._prune(obj)), _get_content(returned),
            self._find_schema(obj))


def _name(fn: Callable[..., Any]) -> str:
    return str(getattr(fn, '__qualname__', fn))


def _get_identity(obj: Mapping[str, Any]) -> Object:
    return {key: value for key, value in obj.items() if key in IMPLIED}


def _get_content(obj: Mapping[str, Any]) -> Object:
    return {key: value for key, value in obj.items() if key not in IMPLIED}


def _merge_metadata(meta: Mapping[str, Any], made: Mapping[str, Any]) -> Object:
    """Take the labels and annotations of what is made, and all the rest as it was."""
    merged = {key: value for key, value in meta.items() if key not in ('labels', 'annotations')}
    return {**merged, **{key: made[key] for key in ('labels', 'annotations') if made.get(key)}}


def _check_metadata(meta: Any) -> Mapping[str, Any] | None:
    """:raises ConversionError: if these are not metadata as API servers accept them."""
    if not isinstance(meta, Mapping | None):
        raise ConversionError(f"metadata is {type(meta).__name__}, not a dict")
    for key in ('labels', 'annotations'):
        found = (meta or {}).get(key)
        if not isinstance(found, Mapping | None) or not all(
                isinstance(text, str) for text in (found or {}).values()):
            raise ConversionError(f"metadata.{key} is not a dict of strings")
    return meta


def _check_json(value: Any, field: str) -> None:
    """:raises ConversionError: if the value is not one of JSON; it names the innermost field."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as e:
        if isinstance(value, dict):
            for key, item in value.items():
                _check_json(item, f'{field}.{key}')
        raise ConversionError(f"{field[1:] or 'it'} is no JSON: {e}") from e
