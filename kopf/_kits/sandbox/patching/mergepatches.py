from typing import Any

from kopf._cogs.structs import patches
from kopf._kits.sandbox import statuses, wordings
from kopf._kits.sandbox.schemas.depths import guarded


@guarded
def apply_merge_patch(obj: statuses.Obj, patch: Any) -> statuses.Obj:
    """
    Merge the patch as in RFC 7396: dicts are merged, ``None`` removes, other values replace.
    Unlike there, and as in the API, it also removes from the dicts in lists.

    Raises `statuses.BadRequest` if the patch is not an object.
    """
    if patch is None:
        raise statuses.BadRequest("Invalid JSON Patch")
    if not isinstance(patch, dict):
        text = wordings.not_decoded(patch, "value of type map[string]interface {}")
        raise statuses.BadRequest(f"error decoding patch: {text}")
    return patches.merge(obj, _prune_lists(patch))


def _prune_lists(value: Any, *, is_listed: bool = False) -> Any:
    if isinstance(value, dict):
        return {key: _prune_lists(item, is_listed=is_listed) for key, item in value.items()
                if item is not None or not is_listed}
    if isinstance(value, list):
        return [_prune_lists(item, is_listed=True) for item in value]
    return value
