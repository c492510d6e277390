"""
Declarations of conversions: `kopf.convert` and `kopf.on.convert`.
"""
import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from kopf._core.intents import registries
from kopf._kits.conversion import moves
from kopf._kits.conversion.converting import Converter, Function, Step
from kopf._kits.typed import kinds
from kopf._kits.typed.vocabulary import DeclarationError

FunctionT = TypeVar('FunctionT', bound=Callable[[dict[str, Any]], dict[str, Any] | None])


def convert(
        old: type,
        new: type,
        *fields: moves.Move,
        up: Function | None = None,
        down: Function | None = None,
        lossless: bool = True,
        registry: registries.OperatorRegistry | None = None,
) -> None:
    """
    Declare how objects of an older version of a kind become those of a newer one, and back.

    Fields that are not named here have the same place in both versions. The functions get the
    object as a dict, whose fields are moved: they change it in place, or return another one. They
    also get parts of objects, as server-side apply sends them, so any field can be absent.

    ::

        kopf.convert(OldWebsite, Website, kopf.Move('.spec.title', '.spec.heading'))

    See "Serve several versions of a kind" in the documentation.

    :param old: the class of the older version.
    :param new: the class of the newer version: each version but one names one such neighbour.
    :param fields: the fields that have other places or notations.
    :param up: makes of an object in the older version what the moves cannot; called after them.
    :param down: the same for an object in the newer version; called before the moves.
    :param lossless: whether to keep what the other version cannot express, in an annotation, and to
        restore it on the way back.
    :param registry: the `kopf.OperatorRegistry` for the conversion. Default: the default registry.
    :raises DeclarationError: if the classes are not two versions of one kind, if the conversion is
        declared already, or if a function is async.
    """
    one, two = kinds.get_declaration(old), kinds.get_declaration(new)
    if one.name != two.name or one.version == two.version:
        raise DeclarationError(
            f"{old.__name__} and {new.__name__} are not two versions of one kind: they are "
            f"{one.name}/{one.version} and {two.name}/{two.version}.")
    converter = _get(one.name, registry)
    converter.add(one.version, two.version, Step(fields, True, up, lossless, one.lacks))
    converter.add(two.version, one.version, Step(
        fields, False, down, lossless,
        # The functions take what the moves make of the older version, and make it for them.
        two.lacks if up is None and down is None else None))


def declare(
        resource: str,
        old: str,
        new: str,
        *,
        lossless: bool,
        registry: registries.OperatorRegistry | None,
) -> Callable[[FunctionT], FunctionT]:
    """Make the decorator of `kopf.on.convert`, which describes it."""
    plural, _, group = resource.partition('.')
    if not plural or '.' not in group:
        raise DeclarationError(f"{resource!r} is no name of a definition, such as "
                               f"'databases.example.com'.")
    for version in (old, new):
        kinds.check_names(group, version, plural)
    if old == new:
        raise DeclarationError(f"A conversion of {resource} to the same version is none.")

    def decorate(fn: FunctionT) -> FunctionT:
        _get(resource, registry).add(old, new, Step((), True, fn, lossless))
        return fn
    return decorate


def _get(name: str, registry: registries.OperatorRegistry | None) -> Converter:
    registry = registry if registry is not None else registries.get_default_registry()
    converter = registry._converters.get(name)
    if not isinstance(converter, Converter):
        converter = Converter(name, load_schemas=functools.partial(_load_schemas, name))
        registry._converters[name] = converter
    return converter


def _load_schemas(name: str) -> Mapping[str, Mapping[str, Any]]:
    classes = [cls for cls in kinds.get_declared() if kinds.get_declaration(cls).name == name]
    return {version['name']: version['schema']['openAPIV3Schema']
            for definition in kinds.define(classes) for version in definition['spec']['versions']}
