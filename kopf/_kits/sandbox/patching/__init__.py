"""
Patches of the three kinds that the API takes as they are: merge patches (RFC 7386), JSON patches
(RFC 6902), and strategic merge patches. The fourth one, by applying, is in the room next door.

All functions are pure: neither the object nor the patch is changed; the result shares with both
whatever is equal, so it is not to be changed in place either. What cannot be applied raises
the error that the API answers.
"""
from kopf._kits.sandbox.patching.jsonpatches import apply_json_patch, find_unknown_members
from kopf._kits.sandbox.patching.mergepatches import apply_merge_patch
from kopf._kits.sandbox.patching.strategicpatches import apply_strategic_merge_patch

__all__ = [
    'apply_json_patch', 'apply_merge_patch', 'apply_strategic_merge_patch', 'find_unknown_members',
]
