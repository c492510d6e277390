from typing import Any

from kopf._cogs.structs import patches
from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.patching import unmarshalling
from kopf._kits.sandbox.schemas.depths import guarded


@guarded
def apply_merge_patch(obj: statuses.Obj, patch: Any) -> statuses.Obj:
    """
    Merge the patch as in RFC 7396: dicts are merged, ``None`` removes, other values replace.

    Raises `statuses.BadRequest` if the patch is not an object.
    """
    if patch is None:
        raise statuses.BadRequest("Invalid JSON Patch")
    if not isinstance(patch, dict):
        raise unmarshalling.unmarshalling_error(patch, 'value', 'map[string]interface {}')
    return patches.merge(obj, patch)
