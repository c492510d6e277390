"""
Carrying changes to the objects.

A write goes to the object it was decided on, or nowhere: merge-patches carry the uid, JSON patches
and those of the status test the resourceVersion. The result is always the newest known state.
"""
import dataclasses
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._cogs.clients import api, errors, listing, patching
from kopf._cogs.structs import bodies, diffs, patches, references

MAX_CONFLICTS = 10
"""How many times in a row a write is made anew on a newer state before the others are too many."""


REFUSALS = (400, 413, 422)
"""The statuses which mean that the same patch will never be accepted."""


class PatchError(Exception):
    """The patch cannot be made at all: its function fails, or there is no JSON for its values."""


def is_refusal(e: Exception) -> bool:
    """Whether it makes no sense to try the same patch again."""
    return isinstance(e, PatchError) or (isinstance(e, errors.APIError) and e.status in REFUSALS)


@dataclasses.dataclass(frozen=True, slots=True)
class Target:
    """An object to be written to, with all that is needed for that."""
    client: api.Client
    resource: references.Resource
    logger: Any

    async def send(
            self,
            raw: bodies.RawBody,
            payload: Mapping[str, Any] | Sequence[Mapping[str, Any]],
            *,
            subresource: str | None = None,
    ) -> bodies.RawBody | None:
        meta = raw['metadata']
        try:
            return await patching.patch(
                self.client,
                resource=self.resource,
                namespace=_namespace_of(raw),
                name=meta['name'],
                payload=payload,
                content_type='merge' if isinstance(payload, Mapping) else 'json',
                subresource=subresource,
                logger=self.logger,
            )
        except (TypeError, ValueError, RecursionError) as e:
            raise PatchError(f"it is not JSON: {e}") from e

    async def read_again(self, raw: bodies.RawBody) -> bodies.RawBody | None:
        """The newest state of this very object; None if it is gone, even if there is a namesake."""
        meta = raw['metadata']
        async for page in listing.list_objects(
                self.client, settings=self.client.settings, resource=self.resource,
                namespace=_namespace_of(raw), field_selector=f"metadata.name={meta['name']}"):
            for item in page.items:
                if item['metadata'].get('uid') == meta.get('uid'):
                    return item
        return None


async def apply(
        target: Target,
        raw: bodies.RawBody,
        patch: patches.Patch,
        *,
        commit_in_status: bool = False,
) -> bodies.RawBody | None:
    """
    Apply a patch, with its functions, and return the newest state; None if the object is gone.

    With functions, all of it goes as a JSON patch at once, so that there is nothing in between.
    The status goes separately where it is a subresource, and first, unless it has the commit: what
    makes the rest count must come last.

    :raises errors.APIError: if the API refuses the patch or cannot be reached.
    :raises PatchError: if there is nothing that could be sent.
    """
    if patch.fns:
        return await _transform(target, raw, patch, commit_in_status=commit_in_status)
    newest: bodies.RawBody | None = raw
    parts: list[Mapping[str, Any]] = [patch] if len(patch) else []
    if parts and 'status' in patch and 'status' in target.resource.subresources:
        status = {'status': patch['status']}
        rest = {key: val for key, val in patch.items() if key != 'status'}
        parts = [status, rest] if rest else [status]
        if commit_in_status:
            parts.reverse()
    for part in parts:
        if newest is None:
            return None
        newest = await _merge(target, newest, part)
    return newest


async def _merge(
        target: Target, raw: bodies.RawBody, part: Mapping[str, Any],
) -> bodies.RawBody | None:
    alone = list(part) == ['status'] and 'status' in target.resource.subresources
    if target.logger.isEnabledFor(logging.DEBUG):
        target.logger.debug(f"Patching with: {dict(part)!r}")
    newest: bodies.RawBody | None = raw
    for _ in range(MAX_CONFLICTS):
        assert newest is not None
        meta = newest['metadata']
        key = 'resourceVersion' if alone else 'uid'
        guard = {key: meta[key]} if key in meta else {}  # type: ignore[literal-required]
        payload = {**part, 'metadata': {**part.get('metadata', {}), **guard}}
        try:
            result = await target.send(newest, payload, subresource='status' if alone else None)
        except (errors.APIConflictError, errors.APIUnprocessableError) as e:
            newest = await target.read_again(newest)
            if newest is None:  # a namesake makes the uid a conflict or a wrong value
                return None
            if isinstance(e, errors.APIUnprocessableError):
                raise
            continue
        if result is not None:
            _report_inconsistencies(part, result, target.logger)
        return result
    raise errors.APIConflictError(
        f"The object changes too often to be patched: {MAX_CONFLICTS} conflicts in a row.")


async def _transform(
        target: Target, raw: bodies.RawBody, patch: patches.Patch, *, commit_in_status: bool,
) -> bodies.RawBody | None:
    separate = 'status' in target.resource.subresources
    newest: bodies.RawBody | None = raw
    for _ in range(MAX_CONFLICTS):
        if newest is None:
            return None
        try:
            ops = patch.as_json_patch(newest)
        except Exception as e:
            raise PatchError(f"its function fails: {e!r}") from e
        status = [op for op in ops if separate and _is_in_status(op)]
        rest = [op for op in ops if not (separate and _is_in_status(op))]
        applied = True
        parts = [(status, 'status'), (rest, None)]
        for part, subresource in reversed(parts) if commit_in_status else parts:
            if part and applied and newest is not None:
                newest, applied = await exchange(target, newest, part, subresource=subresource)
        if applied:
            if newest is not None:
                _report_inconsistencies(patch, newest, target.logger)
            return newest
    raise errors.APIConflictError(
        f"The object changes too often to be transformed: {MAX_CONFLICTS} conflicts in a row.")


async def exchange(
        target: Target,
        raw: bodies.RawBody,
        ops: patches.JSONPatch,
        *,
        subresource: str | None = None,
) -> tuple[bodies.RawBody | None, bool]:
    """
    Apply a JSON patch if the object is still as it was. Return the newest state, and whether.

    The state is None if the object is gone. Not applied means: someone else was faster, so decide
    anew.

    :raises errors.APIError: if the API refuses the patch for other reasons.
    """
    version = raw['metadata'].get('resourceVersion')
    test = {'op': 'test', 'path': '/metadata/resourceVersion', 'value': version}
    if target.logger.isEnabledFor(logging.DEBUG):
        target.logger.debug(f"Patching with: {ops!r}")
    try:
        return await target.send(raw, [test, *ops], subresource=subresource), True
    except (errors.APIConflictError, errors.APIUnprocessableError):
        newest = await target.read_again(raw)
        if newest is not None and newest['metadata'].get('resourceVersion') == version:
            raise
        return newest, False


def _namespace_of(raw: bodies.RawBody) -> references.Namespace:
    namespace = raw['metadata'].get('namespace')
    return None if namespace is None else references.NamespaceName(namespace)


def _is_in_status(op: Mapping[str, Any]) -> bool:
    path: str = op['path']
    return path == '/status' or path.startswith('/status/')


def _report_inconsistencies(
        patch: Mapping[str, Any], result: Mapping[str, Any], logger: Any,
) -> None:
    """Tell what the server has dropped or changed of our own: usually, pruned by the schema."""
    if not _is_reflected(patch, result):
        wanted = patches.merge({}, patch)
        actual = {key: _restrict(val, result.get(key)) for key, val in wanted.items()}
        remaining = diffs.diff(wanted, actual)
        if remaining:
            logger.warning(f"Patching failed with inconsistencies: {remaining}")


def _is_reflected(patch: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    for key, val in patch.items():
        actual = result.get(key)
        if isinstance(val, dict):
            if not (_is_reflected(val, actual) if isinstance(actual, dict) else not val):
                return False
        elif val != actual:
            return False
    return True


def _restrict(wanted: Any, actual: Any) -> Any:
    """What the result has of the fields that are wanted."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        return {key: _restrict(val, actual.get(key)) for key, val in wanted.items()}
    return actual
