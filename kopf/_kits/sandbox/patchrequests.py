"""
Patches in requests: decoded once, applied to whatever the object is by then.
"""
from typing import Any

from kopf._kits.sandbox import encoding, managedfields, objects, patching, wordings
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.requests import META_GROUP, Request
from kopf._kits.sandbox.schemas import definitions
from kopf._kits.sandbox.statuses import APIError, BadRequest, Invalid, Obj, UnsupportedMediaType

JSON_PATCH = 'application/json-patch+json'
MERGE_PATCH = 'application/merge-patch+json'
STRATEGIC_PATCH = 'application/strategic-merge-patch+json'
APPLY_PATCH = 'application/apply-patch+yaml'


class Patch:
    """The patch of a request. Raises the errors of the API if it is none."""

    def __init__(self, cluster: Cluster, request: Request) -> None:
        self._cluster = cluster
        self._request = request
        _check_media_type(request)
        self._check_options()
        try:
            self._patch = objects.decode_any(request.body, request.media_type)
        except encoding.DecodingError as e:
            what = 'YAML' if request.applies else 'patch'
            raise BadRequest(f"error decoding {what}: {e}") from None

    def apply(self, old: Obj | None) -> Obj:
        """
        The object that it makes of the old one, which it may change in place.

        Only what is applied makes an object where there is none.
        """
        request, kind = self._request, self._request.kind
        made: Any
        problems: list[str] = []
        if old is None or request.applies:
            made = self._applied(old)
        elif request.media_type == JSON_PATCH:
            made = patching.apply_json_patch(old, self._patch)
            problems = [f'json patch unknown field "{member}"'
                        for member in patching.find_unknown_members(self._patch)]
        elif request.media_type == MERGE_PATCH:
            made = patching.apply_merge_patch(old, self._patch)
        else:
            made = patching.apply_strategic_merge_patch(
                old, self._patch, definitions.schema_of(kind))

        def rejected(why: str) -> APIError:
            text = encoding.encode(made, sort_keys=kind.custom).decode()
            return Invalid.on('', '', '', [wordings.invalid('patch', text, why)])

        if not isinstance(made, dict):
            raise rejected(wordings.not_decoded(made, f"value of type {kind.kind}"))
        return objects.accept(
            request, self._cluster.kinds, made, rejected, rejected, problems=problems)

    def _applied(self, old: Obj | None) -> Obj:
        patch, kind = self._patch, self._request.kind
        if not isinstance(patch, dict):
            text = wordings.not_decoded(patch, "value of type map[string]interface {}")
            raise BadRequest(f"error decoding YAML: {text}")
        name, api_version = patch.get('kind') or '', patch.get('apiVersion') or ''
        if (name, api_version) != (kind.kind, kind.api_version):
            group, _, version = str(api_version).rpartition('/')
            raise BadRequest(f"invalid object type: {group}/{version}, Kind={name}")
        return managedfields.apply(self._request, old, patch, self._cluster.now())

    def _check_options(self) -> None:
        self._request.check_options('PatchOptions')
        causes = []
        if self._request.applies and not self._request.option('fieldManager'):
            causes.append(wordings.required('fieldManager', "is required for apply patch"))
        if not self._request.applies and self._request.option('force'):
            causes.append(wordings.forbidden('force', "may not be specified for non-apply patch"))
        if causes:
            raise Invalid.on(META_GROUP, 'PatchOptions', '', causes)


def _check_media_type(request: Request) -> None:
    accepted = (JSON_PATCH, MERGE_PATCH, APPLY_PATCH) if request.kind.custom else \
        (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH)
    if request.media_type not in accepted:
        error = UnsupportedMediaType(accepted)
        if not request.kind.custom:
            error.message, error.details = "415: Unsupported Media Type", {}
        raise error
