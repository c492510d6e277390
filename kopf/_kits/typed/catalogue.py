"""
The catalogue of resources that are known without a cluster: built-in ones, those of definitions.
"""
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from kopf._cogs.helpers import yamltexts
from kopf._cogs.structs import dicts, references
from kopf._kits import commanding
from kopf._kits.sandbox import crds, kinds


class DefinitionError(commanding.CommandError):
    """A file is no YAML, or has a definition that the API would refuse. The message names it."""


def list_resources(
        definitions: Iterable[Any] = (), *, builtin: bool = True,
) -> list[references.Resource]:
    """
    List the built-in resources of the current Kubernetes, and those of the definitions.

    Without ``builtin``, the former are left out. Objects that are no definitions are ignored.

    :raises DefinitionError: if a definition is incomplete.
    """
    known = kinds.Kinds(kinds.builtin_kinds() if builtin else ())
    for definition in definitions:
        for kind in _read(definition):
            known.add(kind)
    return [
        kind.as_resource(preferred=kind is min(
            known.of_resource(*kind.resource), key=lambda each: crds.priority_of(each.version)))
        for kind in known]


def read_files(paths: Iterable[pathlib.Path]) -> Iterator[Any]:
    """
    Read the objects of YAML files, also those in lists: ``kubectl get`` prints several as one.

    :raises DefinitionError: if a file cannot be read, or is no YAML.
    """
    for path in paths:
        try:
            documents = yamltexts.load_all(path.read_text(encoding='utf-8'))
        except (OSError, ValueError, yaml.YAMLError) as e:
            raise DefinitionError(f"{path} cannot be read as YAML: {e}") from e
        for document in documents:
            yield from yamltexts.flatten(document)


def _read(definition: Any) -> Iterable[kinds.Kind]:
    """Read the kinds of a definition; there are none in objects of other kinds."""
    if not isinstance(definition, Mapping) or (
            definition.get('kind') != 'CustomResourceDefinition'):
        return []
    try:
        return crds.kinds_of(crds.complete(dict(definition)))
    except (AttributeError, LookupError, StopIteration, TypeError, ValueError) as e:
        name = dicts.resolve(definition, ('metadata', 'name'), None)
        raise DefinitionError(
            f"The CustomResourceDefinition {name!r} is incomplete or of another API than "
            f"{crds.API_VERSION}: {e!r}") from e
