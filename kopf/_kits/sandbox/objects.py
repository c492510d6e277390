"""
Objects in requests and answers: decoded from bodies, encoded for the store and the wire.
"""
import contextlib
import copy
import json
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from typing import Any

import yaml

from kopf._cogs.helpers import yamltexts
from kopf._kits.sandbox import builtins, encoding, protobuf, schemas, wordings
from kopf._kits.sandbox.kinds import Kind, Kinds
from kopf._kits.sandbox.requests import MEDIA_TYPES, Request
from kopf._kits.sandbox.schemas import decoding, definitions, pruning
from kopf._kits.sandbox.statuses import (
    APIError,
    BadRequest,
    Invalid,
    Obj,
    UnsupportedMediaType,
    omit,
)

METADATA_ORDER = (
    'name', 'generateName', 'namespace', 'selfLink', 'uid', 'resourceVersion', 'generation',
    'creationTimestamp', 'deletionTimestamp', 'deletionGracePeriodSeconds', 'labels',
    'annotations', 'ownerReferences', 'finalizers', 'managedFields',
)
_SHOWN = 30
_MAX_NODES = 1_000_000
_TYPE_META = ('struct { APIVersion string "json:\\"apiVersion,omitempty\\""; '
              'Kind string "json:\\"kind,omitempty\\"" }')
_SCHEME = 'in scheme "pkg/runtime/scheme.go:111"'


def encode_object(kind: Kind, obj: Obj) -> bytes:
    """
    The JSON of an object of the kind: with its ``prefix``, and keys in the API's order.
    """
    if kind.custom:
        return encoding.encode_sorted(obj)
    metadata = obj['metadata']
    ordered = {key: metadata[key] for key in METADATA_ORDER if key in metadata}
    return encoding.encode({
        'kind': kind.kind, 'apiVersion': kind.api_version, 'metadata': ordered,
        **omit(obj, 'kind', 'apiVersion', 'metadata'),
    })


def decode_any(body: bytes, media_type: str) -> Any:
    """JSON, YAML, or protobuf. Raises `DecodingError` with the API's words, or `BadRequest`."""
    decode = _DECODERS.get(media_type, encoding.decode)
    value = decode(body)
    schemas.verify_depth(value)
    return value


def decode_dict(body: bytes, media_type: str) -> Obj:
    """The same, but only for a dict. Raises `DecodingError` also for anything else."""
    try:
        obj = decode_any(body, media_type)
    except encoding.DecodingError as e:
        prefix = '' if media_type == 'application/yaml' else \
            "couldn't get version/kind; json parse error: "
        raise encoding.DecodingError(f"{prefix}{e}") from None
    if not isinstance(obj, dict):
        raise encoding.DecodingError(
            "couldn't get version/kind; json parse error: "
            f"{wordings.not_decoded(obj, f'value of type {_TYPE_META}')}")
    return obj


def decode_object(request: Request, kinds: Kinds) -> Obj:
    """
    The object in a request's body, of the request's kind; nothing else of it is checked.

    Raises the errors of the API for anything that is not such an object.
    """
    kind, body = request.kind, request.body
    media_type = request.media_type or MEDIA_TYPES[0]
    if media_type not in MEDIA_TYPES and (kind.custom or media_type != protobuf.MEDIA_TYPE):
        raise UnsupportedMediaType([*MEDIA_TYPES, protobuf.MEDIA_TYPE])

    def unrecognized(why: str) -> BadRequest:
        return BadRequest(
            f"the object provided is unrecognized (must be of type {kind.kind}): "
            f"{why} ({_summary(body)})")

    def unhandled(why: str) -> BadRequest:
        version = (obj.get('apiVersion') or kind.version).rpartition('/')[2]
        return BadRequest(f'{obj.get("kind") or kind.kind} in version "{version}" '
                          f'cannot be handled as a {kind.kind}: {why}')

    try:
        obj = decode_dict(body, media_type)
    except encoding.DecodingError as e:
        raise unrecognized(str(e)) from None
    are_told = request.option('fieldValidation') != 'Ignore' and media_type == MEDIA_TYPES[0]
    doubled = encoding.duplicates(body) if are_told else []
    return accept(request, kinds, obj, unrecognized, unhandled, body=body,
                  problems=[f'duplicate field "{path}"' for path in doubled])


def accept(
        request: Request, kinds: Kinds, obj: Obj, unrecognized: Callable[[str], APIError],
        unhandled: Callable[[str], APIError], *, body: bytes = b'', problems: Iterable[str] = (),
) -> Obj:
    """
    Make a decoded object what the kind of the request knows of it.

    Raises what the functions make of the causes: of objects of no type, and of those that do not
    fit the type. Tells of unknown fields, and of other ``problems`` of the body, as the request's
    ``fieldValidation`` wants.
    """
    kind = request.kind
    for key in ('apiVersion', 'kind'):
        if not isinstance(obj.get(key, ''), (str, type(None))):
            raise unrecognized(
                "couldn't get version/kind; json parse error: "
                f"{wordings.not_decoded(obj[key], f'struct field .{key} of type string')}")
    name, api_version = obj.get('kind') or '', obj.get('apiVersion') or ''
    if not kind.custom:
        name, api_version = name or kind.kind, api_version or kind.api_version
        if (name, api_version) != (kind.kind, kind.api_version):
            raise unhandled(conversion_error(kind, name, api_version, kinds))
        obj = {**obj, 'kind': name, 'apiVersion': api_version}
    elif not name:
        text = (body or encoding.encode_sorted(obj)).decode('utf-8', 'replace').strip()
        raise unrecognized(f"Object 'Kind' is missing in '{text}'")
    elif api_version != kind.api_version:
        raise BadRequest(f"the API version in the data ({api_version}) does not match "
                         f"the expected API version ({kind.api_version})")
    try:
        obj, unknown = conform(kind, obj)
    except decoding.Undecodable as e:
        raise unhandled(str(e)) from None
    if name != kind.kind:
        raise Invalid.on(kind.group, name, obj['metadata'].get('name', ''), [
            wordings.invalid('kind', name, f"must be {kind.kind}")])
    validation = request.option('fieldValidation')
    problems = [*problems, *(f'unknown field "{path}"' for path in unknown)]
    if problems and validation == 'Strict':
        raise unhandled(f"strict decoding error: {', '.join(problems)}")
    if validation != 'Ignore':
        request.warnings.extend(text for text in problems if text not in request.warnings)
    return obj


def conversion_error(kind: Kind, name: str, api_version: str, kinds: Kinds) -> str:
    found = kinds.named(api_version, name)
    if found is None or found.custom:
        return f'no kind "{name}" is registered for version "{api_version}" {_SCHEME}'
    package = kind.group.partition('.')[0] or 'core'
    return (f"converting ({found.version}.{name}) to ({package}.{kind.kind}): "
            "unknown conversion")


def conform(kind: Kind, obj: Obj) -> tuple[Obj, list[str]]:
    """
    The object as its schema knows it, with a metadata of its own, and what it does not know.

    Raises `Undecodable` for values of wrong types where these matter before any validation.
    """
    schema = definitions.schema_of(kind)
    if not kind.custom:
        obj, unknown = decoding.decode(schema, obj)
        return {**obj, 'metadata': dict(obj.get('metadata') or {})}, unknown
    metadata, unknown = decoding.decode_metadata(obj.get('metadata'))
    made, more = pruning.prune(schema, {**obj, 'metadata': metadata}, decoding=True)
    return {**made, 'metadata': dict(made['metadata'])}, [*unknown, *more]


def _summary(body: bytes) -> str:
    if not body:
        return '<empty>'
    start = body[:_SHOWN]
    text = start.decode('utf-8', 'replace') if body[:1] == b'{' else start.hex()
    return f'{text} ...' if len(body) > _SHOWN else text


def _decode_yaml(body: bytes) -> Any:
    if body.lstrip()[:1] == b'{':
        with contextlib.suppress(encoding.DecodingError):
            return encoding.decode(body)
    try:
        value = yaml.load(body, yamltexts.Loader)
        return _as_json(value, [0])
    except yaml.YAMLError as e:
        problem = getattr(e, 'problem', None) or str(e).replace('\n', ' ')
        raise encoding.DecodingError(f"yaml: {problem}") from None
    except RecursionError:
        raise encoding.DecodingError("yaml: exceeded max depth") from None
    except (ValueError, TypeError) as e:
        raise encoding.DecodingError(f"yaml: {e}") from None


_DECODERS: Mapping[str, Callable[[bytes], Any]] = {
    protobuf.MEDIA_TYPE: protobuf.decode, 'application/yaml': _decode_yaml,
    'application/apply-patch+yaml': _decode_yaml}
"""Of bodies that are not JSON."""


def _as_json(value: Any, seen: list[int]) -> Any:
    seen[0] += 1
    if seen[0] > _MAX_NODES:
        raise encoding.DecodingError("yaml: document contains excessive aliasing")
    match value:
        case dict():
            return {
                key if isinstance(key, str) else json.dumps(key): _as_json(nested, seen)
                for key, nested in value.items()
            }
        case list():
            return [_as_json(nested, seen) for nested in value]
        case float() if value != value or value in (float('inf'), float('-inf')):
            raise encoding.DecodingError(f"json: unsupported value: {value}")
        case float() if value.is_integer():
            return int(value)
        case None | bool() | int() | float() | str():
            return value
    raise encoding.DecodingError(f"yaml: unsupported value of type {type(value).__name__}")


def view(kind: Kind, raw: bytes) -> bytes:
    """A stored object as an object of this version of its kind."""
    if raw.startswith(kind.prefix):
        return raw
    return encode_object(kind, converted(kind, encoding.decode_own(raw)))


class Pending(Exception):
    """The webhook of their kind must first convert these objects to this version."""

    def __init__(self, kind: Kind, *objs: Obj) -> None:
        super().__init__()
        self.kind, self.objs = kind, objs


known_var: ContextVar[dict[tuple[str, str], Obj] | None] = ContextVar('known_var', default=None)
"""What is converted for the current request, by the version and the identity (`identify`)."""


def identify(obj: Obj) -> str:
    """What a conversion depends on, as a text: all but the metadata that it cannot change."""
    meta = obj.get('metadata') or {}
    kept = {key: meta.get(key) for key in ('name', 'namespace', 'uid', 'labels', 'annotations')}
    return encoding.encode_sorted({**obj, 'metadata': kept}).decode()


def demand(kind: Kind, raws: Iterable[bytes]) -> None:
    """Raise `Pending` with all of these that are not converted yet, for one call of the webhook."""
    if kind.conversion is None:
        return
    known = known_var.get() or {}
    objs = [encoding.decode_own(raw) for raw in raws if not raw.startswith(kind.prefix)]
    missing = [obj for obj in objs if (kind.api_version, identify(obj)) not in known]
    if missing:
        raise Pending(kind, *missing)


def converted(kind: Kind, obj: Obj) -> Obj:
    """
    The object in this version of its kind; where nothing else is known, renamed only.

    Raises `Pending` if the caller must call a webhook first.
    """
    if kind.conversion is None or obj.get('apiVersion') == kind.api_version:
        return {**builtins.convert(obj, kind.api_version),
                'apiVersion': kind.api_version, 'kind': kind.kind}
    made = (known_var.get() or {}).get((kind.api_version, identify(obj)))
    if made is None:
        raise Pending(kind, obj)
    meta = omit(obj['metadata'], 'labels', 'annotations')
    meta |= {key: made['metadata'][key] for key in ('labels', 'annotations')
             if made['metadata'].get(key)}
    content, _ = conform(kind, copy.deepcopy({**made, 'metadata': meta}))
    return {**content, 'metadata': meta}


def item(kind: Kind, raw: bytes) -> bytes:
    """The same as an item of a list: the built-in kinds do not repeat their kind there."""
    raw = view(kind, raw)
    return raw if kind.custom else b'{' + raw[len(kind.prefix):]
