from typing import Any

from kopf._cogs.structs import patches
from kopf._kits.sandbox import statuses
from kopf._kits.sandbox.patching import decoding
from kopf._kits.sandbox.schemas.depths import guarded


@guarded
def apply_merge_patch(obj: statuses.Obj, patch: Any) -> statuses.Obj:
    """
    Merge the patch as RFC 7386 says: dicts are merged, ``None`` removes, the rest replaces.

    Raises `statuses.BadRequest` if the patch is not an object.
    """
    if patch is None:
        raise statuses.BadRequest("Invalid JSON Patch")
    if not isinstance(patch, dict):
        raise decoding.unmarshalling_error(patch, 'value', 'map[string]interface {}')
    return patches.merge(obj, patch)
