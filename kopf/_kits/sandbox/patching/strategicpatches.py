"""
Strategic merge patches: merge patches that know by the kind's schema which lists are merged.
"""
import json
from collections.abc import Iterable
from typing import Any

from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.schemas import nodes
from kopf._kits.sandbox.schemas.depths import guarded
from kopf._kits.sandbox.wordings import printed

PATCH = '$patch'
RETAIN = '$retainKeys'
ORDER = '$setElementOrder/'
DELETE = '$deleteFromPrimitiveList/'


@guarded
def apply_strategic_merge_patch(
        obj: statuses.Obj, patch: Any, schema: nodes.Schema,
) -> statuses.Obj:
    """
    Merge the patch into the object of a built-in kind.

    Lists are merged by their merge keys, or as sets if of scalars, where the schema tells so; they
    are replaced elsewhere. Directives (``$patch``, ``$retainKeys``, ``$setElementOrder/...``,
    ``$deleteFromPrimitiveList/...``) are followed. Elements that the patch brings go in its order,
    those of the server only in theirs, and the former before the latter where nothing tells.

    Raises the errors of the API for a patch that is none or contradicts itself.
    """
    if patch is None:
        return obj
    if not isinstance(patch, dict):
        raise statuses.BadRequest(
            wordings.not_decoded(patch, "value of type map[string]interface {}"))
    return _merge_dicts(obj, patch, schema)


def _merge_dicts(
        original: dict[str, Any], patch: dict[str, Any], schema: nodes.Schema | None,
) -> dict[str, Any]:
    directive = patch.get(PATCH)
    if directive is not None:
        if directive == 'replace':
            return statuses.omit(patch, PATCH)
        if directive == 'delete':
            return {}
        raise _unknown_directive(directive, patch)
    result = dict(original)
    if RETAIN in patch:
        retained = patch[RETAIN]
        if not isinstance(retained, list) or any(
                key not in retained for key in patch if not key.startswith('$')):
            raise statuses.BadRequest("invalid patch format of retainKeys")
        result = {key: value for key, value in result.items() if key in retained}

    for key, value in patch.items():
        if key.startswith(DELETE):
            name = key.removeprefix(DELETE)
            if isinstance(result.get(name), list) and isinstance(value, list):
                result[name] = [item for item in result[name] if item not in value]
        elif key.startswith(ORDER):
            name = key.removeprefix(ORDER)
            if not isinstance(value, list):
                raise _failure(f"expected a []interface {{}}, but received a "
                               f"{wordings.json_type(value)}")
            _merge_ordered(result, patch, name, value, _of(schema, name))
    for key, value in patch.items():
        if key.startswith('$') or f'{ORDER}{key}' in patch:
            continue
        if value is None:
            result.pop(key, None)
        elif key not in result:
            if not (isinstance(value, dict) and PATCH in value):
                result[key] = _without_directives(value)
        else:
            result[key] = _merge(result[key], value, _of(schema, key))
    return result


def _of(schema: nodes.Schema | None, key: str) -> nodes.Schema | None:
    return schema.of(key) if schema is not None else None


def _merge(original: Any, patch: Any, schema: nodes.Schema | None) -> Any:
    strategies = schema.strategies if schema is not None else ()
    if isinstance(original, dict) and isinstance(patch, dict):
        if 'replace' in strategies:
            return _without_directives(patch)
        return _merge_dicts(original, patch, schema)
    if isinstance(original, list) and isinstance(patch, list) and 'merge' in strategies:
        assert schema is not None
        merged = _merge_lists(original, patch, schema)
        rest = [item for item in patch if not isinstance(item, dict) or PATCH not in item]
        return _arrange(merged, rest, original, schema.merge_key)
    return _without_directives(patch)


def _merge_ordered(
        result: dict[str, Any], patch: dict[str, Any], key: str, order: list[Any],
        schema: nodes.Schema | None,
) -> None:
    """Merge a list of which the patch tells the order of elements, whether it changes it or not."""
    before, items = result.get(key), patch.get(key)
    merge_key = schema.merge_key if schema is not None else ''
    if key in patch and items is None:
        result.pop(key, None)
        return
    if not isinstance(before, list):
        if items is None:
            return
        before = []
    if items is not None and not isinstance(items, list):
        raise statuses.BadRequest("invalid patch format of setElementOrder list")
    named = [_identity(item, merge_key) for item in order]
    for item in items or ():
        if not (isinstance(item, dict) and PATCH in item):
            identity = _identity(item, merge_key)
            if identity not in named:
                raise _failure(
                    f"The order in patch list:\n{printed(items)}\n doesn't match "
                    f"$setElementOrder list:\n{printed(order)}\n")
    merged = before if items is None or schema is None else _merge_lists(before, items, schema)
    result[key] = _arrange(merged, order, before, merge_key)


def _merge_lists(original: list[Any], patch: list[Any], schema: nodes.Schema) -> list[Any]:
    if any(isinstance(item, list) for item in patch):
        raise _failure(f"list element types are not identical: {printed([original, patch])}")
    if not any(isinstance(item, dict) for item in (*original, *patch)):
        return list(dict.fromkeys([*original, *patch]))
    merge_key = schema.merge_key
    if not merge_key:
        raise _failure("cannot merge lists without merge key for schema")
    result = list(original)
    replaced = False
    additions = []
    for item in patch:
        if not isinstance(item, dict):
            raise _failure("list element types are not identical")
        directive = item.get(PATCH)
        if directive is None:
            additions.append(item)
        elif directive == 'delete':
            identity = _identity(item, merge_key)
            result = [other for other in result if _identity(other, merge_key) != identity]
        elif directive == 'replace':
            replaced = True
        elif directive == 'merge':
            raise _failure("merging lists cannot yet be specified in the patch")
        else:
            raise _unknown_directive(directive, item)
    if replaced:
        return additions
    for item in additions:
        identity = _identity(item, merge_key)
        for index, other in enumerate(result):
            if _identity(other, merge_key) == identity:
                result[index] = _merge_dicts(other, item, schema.items)
                break
        else:
            result.append(_without_directives(item))
    return result


def _arrange(
        merged: list[Any], patch_order: list[Any], server_order: list[Any], merge_key: str,
) -> list[Any]:
    """
    Put the elements in order: those of the patch in its, those of the server only in its own.
    """
    patch_places = _places(patch_order, merge_key)
    server_places = _places(server_order, merge_key)
    identities = [(_identity(item, merge_key, strict=False), item) for item in merged]
    patched = sorted((pair for pair in identities if pair[0] in patch_places),
                     key=lambda pair: patch_places[pair[0]])
    own = sorted((pair for pair in identities if pair[0] not in patch_places),
                 key=lambda pair: server_places.get(pair[0], -1))
    result = []
    while patched and own:
        left, right = server_places.get(own[0][0], -1), server_places.get(patched[0][0], -1)
        result.append((own if 0 <= left < right else patched).pop(0)[1])
    return [*result, *(item for _, item in patched or own)]


def _places(items: Iterable[Any], merge_key: str) -> dict[str, int]:
    places: dict[str, int] = {}
    for index, item in enumerate(items):
        places.setdefault(_identity(item, merge_key, strict=False), index)
    return places


def _identity(item: Any, merge_key: str, *, strict: bool = True) -> str:
    if isinstance(item, dict):
        if merge_key not in item:
            if strict:
                raise _failure(f"map: {printed(item)} does not contain declared merge key: "
                               f"{merge_key}")
            return ''
        item = item[merge_key]
    return json.dumps(item, sort_keys=True)


def _without_directives(value: Any) -> Any:
    """What a patch puts where nothing is: its own content, but not its directives and nulls."""
    if isinstance(value, dict):
        return {
            key: _without_directives(item) for key, item in value.items()
            if item is not None and not key.startswith((RETAIN, ORDER, DELETE))
            and not (isinstance(item, dict) and PATCH in item)
        }
    if isinstance(value, list):
        return [_without_directives(item) for item in value
                if not (isinstance(item, dict) and PATCH in item)]
    return value


def _unknown_directive(directive: Any, patch: dict[str, Any]) -> statuses.APIError:
    return _failure(f"unknown patch type: {printed(directive)} in map: {printed(patch)}")


def _failure(text: str) -> statuses.APIError:
    return statuses.APIError(text, code=500, reason='')
