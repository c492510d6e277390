"""
Patches in requests: decoded once, applied to whatever the object is by then.
"""
from typing import Any

from kopf._kits.sandbox import encoding, managedfields, objects, patching
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.requests import META_GROUP, Request
from kopf._kits.sandbox.schemas import decoding, definitions
from kopf._kits.sandbox.statuses import (
    APIError,
    BadRequest,
    Cause,
    Invalid,
    Obj,
    UnsupportedMediaType,
)

JSON_PATCH = 'application/json-patch+json'
MERGE_PATCH = 'application/merge-patch+json'
STRATEGIC_PATCH = 'application/strategic-merge-patch+json'
APPLY_PATCH = 'application/apply-patch+yaml'


class Patch:
    """The patch of a request. Raises the errors of the API if it is none."""

    def __init__(self, cluster: Cluster, request: Request) -> None:
        self._cluster = cluster
        self._request = request
        self.media_type = request.content_type.partition(';')[0].strip().lower()
        _check_media_type(request, self.media_type)
        self._check_options()
        try:
            self._patch = objects.decode_any(request.body, self.media_type)
        except encoding.DecodingError as e:
            if self.creates:
                raise BadRequest(f"error decoding YAML: {e}") from None
            raise BadRequest(f"error decoding patch: {e}") from None

    @property
    def creates(self) -> bool:
        """Whether it makes an object where there is none."""
        return self.media_type == APPLY_PATCH

    def apply(self, old: Obj | None) -> Obj:
        """The object that it makes of the old one, which it may change in place."""
        kind = self._request.kind
        if self.creates:
            return self._applied(old)
        assert old is not None
        made: Any
        match self.media_type:
            case 'application/json-patch+json':
                made = patching.apply_json_patch(old, self._patch)
            case 'application/strategic-merge-patch+json':
                made = self._strategic(old)
            case _:
                made = patching.apply_merge_patch(old, self._patch)
        if not isinstance(made, dict):
            raise _rejected(kind, made, f"json: cannot unmarshal {objects.json_type(made)} "
                                        f"into Go value of type {kind.kind}")
        self._check_type(made)
        return self._conformed(made)

    def _strategic(self, old: Obj) -> Any:
        return patching.apply_strategic_merge_patch(
            old, self._patch, definitions.schema_of(self._request.kind))

    def _applied(self, old: Obj | None) -> Obj:
        patch, request = self._patch, self._request
        if not isinstance(patch, dict):
            raise BadRequest(f"error decoding YAML: json: cannot unmarshal "
                             f"{objects.json_type(patch)} into Go value of type "
                             "map[string]interface {}")
        made = managedfields.apply(request, old, patch, self._cluster.now())
        self._check_type(made)
        return self._conformed(made)

    def _check_type(self, made: Obj) -> None:
        kind = self._request.kind
        name, api_version = made.get('kind') or '', made.get('apiVersion') or ''
        if kind.custom and api_version != kind.api_version:
            raise BadRequest(f"the API version in the data ({api_version}) does not match "
                             f"the expected API version ({kind.api_version})")
        if not kind.custom and (name, api_version) != (kind.kind, kind.api_version):
            raise _rejected(kind, made, objects.conversion_error(
                kind, name, api_version, self._cluster.kinds))

    def _conformed(self, made: Obj) -> Obj:
        kind = self._request.kind
        try:
            obj, unknown = objects.conform(kind, made)
        except decoding.Undecodable as e:
            raise _rejected(kind, made, str(e)) from None
        if kind.custom and obj['kind'] != kind.kind:
            name = obj['kind']
            raise Invalid.on(kind.group, name, obj['metadata'].get('name', ''), [Cause(
                'FieldValueInvalid', 'kind', f'Invalid value: "{name}": must be {kind.kind}')])
        if unknown and self._request.option('fieldValidation') == 'Strict':
            told = ', '.join(f'unknown field "{path}"' for path in unknown)
            raise _rejected(kind, made, f"strict decoding error: {told}")
        objects.report_fields(self._request, [f'unknown field "{path}"' for path in unknown])
        return obj

    def _check_options(self) -> None:
        self._request.check_options('PatchOptions')
        causes = []
        if self.creates and not self._request.option('fieldManager'):
            causes.append(Cause('FieldValueRequired', 'fieldManager',
                                "Required value: is required for apply patch"))
        if not self.creates and self._request.option('force'):
            causes.append(Cause('FieldValueForbidden', 'force',
                                "Forbidden: may not be specified for non-apply patch"))
        if causes:
            raise Invalid.on(META_GROUP, 'PatchOptions', '', causes)


def _check_media_type(request: Request, media_type: str) -> None:
    accepted = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH) if request.kind.custom else \
        (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
    if media_type not in accepted:
        if request.kind.custom:
            raise UnsupportedMediaType(accepted)
        error = UnsupportedMediaType(accepted)
        error.message, error.details = "415: Unsupported Media Type", {}
        raise error


def _rejected(kind: Kind, made: Any, why: str) -> APIError:
    encode = encoding.encode_sorted if kind.custom else encoding.encode
    text = encode(made).decode().replace('\\', '\\\\').replace('"', '\\"')
    return Invalid.on('', '', '', [Cause(
        'FieldValueInvalid', 'patch', f'Invalid value: "{text}": {why}')])
