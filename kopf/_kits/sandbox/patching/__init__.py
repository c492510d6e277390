"""
Patches: merge patches (RFC 7396), JSON patches (RFC 6902), and strategic merge patches.

Server-side apply is in the package `applying`.

All functions are pure: neither the object nor the patch is changed. The result shares values with
both, so it must not be changed in place. If a patch cannot be applied, the functions raise the
error of the API.
"""
from kopf._kits.sandbox.patching.jsonpatches import apply_json_patch, find_unknown_members
from kopf._kits.sandbox.patching.mergepatches import apply_merge_patch
from kopf._kits.sandbox.patching.strategicpatches import apply_strategic_merge_patch

__all__ = [
    'apply_json_patch', 'apply_merge_patch', 'apply_strategic_merge_patch', 'find_unknown_members',
]
