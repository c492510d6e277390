"""
Applying patches to objects.

A patch is applied to exactly the object that it was made for, never to another object of the same
name. For this, merge patches contain the ``uid``. JSON patches and patches of the status
subresource check the ``resourceVersion`` instead. Merge patches check it as well while the `Fence`
is up: while other operators can handle the object, and until the API has shown its newest state to
this process, e.g. in a response to such a patch. Only the finalizer is added to any newer state
with the same finalizers: otherwise, this would never succeed for an object that others change more
often than a request takes.
"""
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kopf._cogs.clients import api, errors, listing, patching
from kopf._cogs.structs import bodies, dicts, diffs, nesting, patches, references
from kopf._core.actions import claims, observers

VERSION: Sequence[dicts.FieldPath] = [('metadata', 'resourceVersion')]
"""The field that tells whether anything in the object has changed."""

UNRESTRICTED = [('metadata', 'annotations'), ('metadata', 'labels')]
"""The fields that are stored with any key: no schema drops it."""

MAX_NAMED = 5
"""How many fields are named in a message."""

MAX_CONFLICTS = 10
"""How many conflicts (HTTP 409) in a row are tolerated; each is retried on a newer state."""


FAILED_TEST = "the server rejected our request due to an error in our request"
"""
The message of HTTP 422 if a JSON patch tests in vain; invalid objects have messages of their own.
"""


class PatchError(Exception):
    """The patch cannot be made: a transformation function fails, or the values are not JSON."""


REFUSALS = (
    PatchError, errors.APIBadRequestError, errors.APITooLargeError, errors.APIUnprocessableError)
"""The errors which mean that the same patch must not be tried again."""


def describe_refusal(e: Exception) -> str:
    """Describe the error of a patch that must not be tried again, beginning with "patch"."""
    how = "cannot be made" if isinstance(e, PatchError) else "is refused by the API"
    return f"patch {how}: {e}"


class OvertakenError(Exception):
    """Another operator has handled the object: what this operator has decided is outdated."""

    def __init__(self, newest: bodies.RawBody) -> None:
        super().__init__("Another operator has handled the object meanwhile.")
        self.newest = newest
        """The state in which the other operator has left the object."""


class FenceRaisedError(Exception):
    """The fence was raised before a patch was sent that does not check the version."""


class Fence(NamedTuple):
    """
    Protects what another operator or the previous process has written to the object.

    While the fence is up, a patch is applied only to a state that nobody else has handled since.
    """
    is_up: Callable[[], bool]
    """Whether others could have handled the object since the known state."""
    judge: Callable[[bodies.RawBody, bodies.RawBody], claims.Verdict]
    """Say what the second, newer state means for what this operator knows of the first one."""
    ledger: claims.Ledger
    confirm: Callable[[], None]
    """Note that nobody else has handled the object up to the newest state, which was just read."""


class Target(NamedTuple):
    """What is needed to patch objects of one resource."""
    client: api.Client
    resource: references.Resource
    logger: Any
    observer: observers.Notifier
    fence: Fence | None = None

    @property
    def is_fenced(self) -> bool:
        return self.fence is not None and self.fence.is_up()

    def pass_unfenced(self) -> None:
        """
        Check, right before a patch without the version is sent, that this is still allowed.

        :raises FenceRaisedError: if it is not.
        """
        if self.is_fenced:
            raise FenceRaisedError

    def verify(self, expected: bodies.RawBody, actual: bodies.RawBody) -> None:
        """
        Before a patch is applied to a newer state than expected, check that this is allowed.

        :raises OvertakenError: if another operator has handled the object meanwhile.
        """
        if self.fence is None or not self.fence.is_up():
            return
        if self.fence.judge(expected, actual) is claims.Verdict.OVERTAKEN:
            raise OvertakenError(actual)
        if _is_newer(actual, expected):
            self.fence.confirm()

    def is_recorded(
            self, patch: Mapping[str, Any], expected: bodies.RawBody, actual: bodies.RawBody,
    ) -> bool:
        """Whether the newest state contains the patch, as the records of this operator prove."""
        patched: Any = patches.merge(expected, patch)
        return _is_reflected(patch, actual) and self.fence is not None and (
            self.fence.ledger.is_written(expected, patched, actual))

    def announce(self, patch: Mapping[str, Any] | patches.JSONPatch) -> None:
        """Log the patch, without the values of Secrets."""
        if self.logger.isEnabledFor(logging.DEBUG):
            from kopf._cogs.structs import concealing  # only for this level
            self.logger.debug(f"Patching with: {concealing.conceal(patch, self.resource)!r}")

    def report(self, inconsistencies: Sequence[diffs.DiffItem]) -> None:
        """Warn of what the API server has not stored."""
        if inconsistencies:
            text = describe_inconsistencies(inconsistencies, self.resource)
            self.logger.warning(f"Patching failed with inconsistencies: {text}")

    async def send(
            self,
            raw: bodies.RawBody,
            payload: Mapping[str, Any] | list[dict[str, Any]],
            *,
            subresource: str | None = None,
            permit: Callable[[], None] | None = None,
    ) -> bodies.RawBody | None:
        """
        Send a patch as it is, and return the newest state; None if the object is gone.

        ``permit`` is as in `api.Client.request`; its errors are raised.

        HTTP 404 alone does not mean that the object is gone: while a CRD is changing, the API
        server also responds so for existing objects. So, the list decides whether it is gone.

        :raises PatchError: if the patch cannot be encoded as JSON, or is nested too deeply.
        :raises errors.APINotFoundError: if the object is in the list, or the list is also HTTP 404.
        :raises errors.APIError: for all other errors of the API.
        """
        content_type: patching.ContentType = 'json' if isinstance(payload, list) else 'merge'
        work = patching.patch(
            self.client,
            resource=self.resource,
            namespace=_namespace_of(raw),
            name=raw['metadata']['name'],
            payload=payload,
            content_type=content_type,
            subresource=subresource,
            is_verified=True,
            permit=permit,
            logger=self.logger,
        )
        try:
            newest = await self.observer.follow(
                observers.Observer.write, work, self.resource, raw,
                content_type=content_type, subresource=subresource)
        except nesting.TooDeepError as e:
            raise PatchError(str(e)) from e
        except (TypeError, ValueError, RecursionError) as e:
            raise PatchError(f"it is not JSON: {e}") from e
        if newest is None and await self.read_again(raw) is not None:
            raise errors.APINotFoundError(
                "The API denies that the object is there, though it lists the object.", status=404)
        return newest

    async def read_again(
            self, raw: bodies.RawBody, *, after: errors.APIError | None = None,
    ) -> bodies.RawBody | None:
        """
        Get the newest state of the object; None if it is gone.

        An object of the same name but of another uid is another object. ``after`` is the error of
        a write. If the reading fails, its error also names the earlier attempts of that write.
        """
        meta = raw['metadata']
        try:
            found = await listing.find_object(
                self.client, settings=self.client.settings, resource=self.resource,
                namespace=_namespace_of(raw), name=meta['name'])
        except errors.APIError as e:
            e.follow(None if after is None else after.earlier)
            raise
        is_same = found is not None and found['metadata'].get('uid') == meta.get('uid')
        return found if is_same else None


def is_in_place(raw: bodies.RawBody, patch: patches.Patch) -> bool:
    """
    Whether the object is already as the patch makes it, so that there is nothing to send.

    :raises PatchError: if the patch is nested too deeply.
    """
    try:
        return not patch or (not patch.fns and patches.merge(raw, patch) == raw)
    except RecursionError as e:
        raise PatchError(f"it is not JSON: {e}") from e


async def apply(
        target: Target,
        raw: bodies.RawBody,
        patch: patches.Patch,
        *,
        commit_in_status: bool = False,
) -> bodies.RawBody | None:
    """
    Apply a patch with its transformation functions; return the newest state, None if it is gone.

    A patch with functions is sent as a JSON patch, which tests that the object has not changed
    since the functions were called. Other patches are sent as merge patches.

    If the resource has the status as a subresource, the status is sent separately. The part that
    closes the handling cycle is sent last: if the other part fails, the cycle must not be closed.
    With ``commit_in_status``, the last part is the status; otherwise, the status is sent first.

    :raises errors.APIError: if the API server refuses the patch, or cannot be reached.
    :raises PatchError: if the patch cannot be made.
    :raises OvertakenError: if the fence of the target is up, and another operator has taken over.
    """
    if not isinstance(patch.get('metadata', {}), Mapping):
        raise PatchError(f"it replaces the metadata with {patch['metadata']!r}")
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
    earlier: errors.APIError | None = None
    own = {**part.get('metadata', {})}
    own.pop('resourceVersion', None)  # that of a copied body is outdated as soon as Kopf writes
    target.announce(part)
    for _ in range(MAX_CONFLICTS):
        meta = raw['metadata']
        key = 'resourceVersion' if alone or target.is_fenced else 'uid'
        guard = {key: meta[key]} if key in meta else {}  # type: ignore[literal-required]
        payload = {**part, 'metadata': {**own, **guard}}
        try:
            result = await target.send(
                raw, payload, subresource='status' if alone else None,
                permit=None if key == 'resourceVersion' else target.pass_unfenced)
        except (errors.APIConflictError, errors.APIUnprocessableError) as e:
            e.follow(earlier)
            earlier = e.earlier
            newest = await target.read_again(raw, after=e)
            if newest is None:  # another uid, of a new object of the same name, also causes this
                return None
            if isinstance(e, errors.APIUnprocessableError):
                raise
            if not _is_newer(newest, raw):
                raise  # the server is behind: the same patch would fail at once again
            target.verify(raw, newest)
            raw = newest
            continue
        except FenceRaisedError:
            continue
        if result is not None:
            target.report(find_inconsistencies(part, result))
        return result
    raise errors.APIConflictError(
        f"The object changes too often to be patched: {MAX_CONFLICTS} conflicts in a row.",
        earlier=earlier)


async def _transform(
        target: Target, raw: bodies.RawBody, patch: patches.Patch, *, commit_in_status: bool,
) -> bodies.RawBody | None:
    separate = 'status' in target.resource.subresources
    newest: bodies.RawBody | None = raw
    for _ in range(MAX_CONFLICTS):
        if newest is None:
            return None
        try:
            result = patch.apply(newest)
        except Exception as e:
            raise PatchError(f"its function fails: {e!r}") from e
        ops = patches.make_json_patch(newest, result)
        status = [op for op in ops if separate and _is_in_status(op)]
        rest = [op for op in ops if not (separate and _is_in_status(op))]
        original, applied = newest, True
        parts = [(status, 'status'), (rest, None)]
        for part, subresource in reversed(parts) if commit_in_status else parts:
            if part and applied and newest is not None:
                expected = newest
                newest, applied = await exchange(target, newest, part, subresource=subresource)
                if newest is not None and not applied:
                    effect = get_effect(original, result)
                    if separate:
                        effect = {key: val for key, val in effect.items()
                                  if (key == 'status') == (subresource == 'status')}
                    applied = target.is_recorded(effect, expected, newest)
                    if not applied:
                        target.verify(expected, newest)
        if applied:
            if newest is not None:
                target.report([
                    *find_inconsistencies(patch, newest),
                    *(item for item in find_inconsistencies(_get_additions(ops), newest)
                      if item.operation == diffs.DiffOperation.REMOVE)])
            return newest
    raise errors.APIConflictError(
        f"The object changes too often to be transformed: {MAX_CONFLICTS} conflicts in a row.")


async def exchange(
        target: Target,
        raw: bodies.RawBody,
        ops: patches.JSONPatch,
        *,
        subresource: str | None = None,
        guards: Sequence[dicts.FieldPath] = VERSION,
        permit: Callable[[], None] | None = None,
) -> tuple[bodies.RawBody | None, bool]:
    """
    Apply a JSON patch if the fields ``guards`` of the object are as in the given state.

    ``permit`` is as in `api.Client.request`; its errors are raised.

    Returns the newest state (None if the object is gone), and whether the patch was applied. If it
    was not, the object has changed: decide again on the newest state.

    A field that is absent is tested as null: it must still be absent.

    :raises errors.APIConflictError: if the API server says that the object has changed, but still
        shows the given state, or an older one: e.g. a replica of the API server is behind. Try
        again later.
    :raises errors.APIError: if the API server refuses the patch for other reasons.
    """
    tests = [{'op': 'test', 'path': ''.join(f'/{patches.escape(key)}' for key in field),
              'value': dicts.resolve(raw, field, None)} for field in guards]
    target.announce(ops)
    try:
        return await target.send(raw, [*tests, *ops], subresource=subresource, permit=permit), True
    except (errors.APIConflictError, errors.APIUnprocessableError) as e:
        newest = await target.read_again(raw, after=e)
        if newest is None or _is_newer(newest, raw):
            target.logger.debug("Not patched: the object has changed meanwhile.")
            return newest, False
        if e.message == FAILED_TEST:
            raise errors.APIConflictError(
                f"the object has changed since the version "
                f"{raw['metadata'].get('resourceVersion')}, but the API server shows no "
                f"newer one", status=409, earlier=e.earlier) from e
        raise


def verify_finalizers(raw: bodies.RawBody, wanted: bodies.RawBody, stored: bodies.RawBody) -> None:
    """
    Check that the finalizers which a patch has added or removed are stored so.

    :raises errors.APIError: if not. Only an admission webhook or policy can undo them in the same
        request: without an error, the same patch would follow at once.
    """
    before, after, actual = (
        set(body['metadata'].get('finalizers') or ()) for body in (raw, wanted, stored))
    if undone := (before ^ after) & (after ^ actual):
        raise errors.APIError(
            f"The change of the finalizer {', '.join(sorted(undone))} was accepted, but is undone "
            f"in the response. Usually, a mutating admission webhook or policy does this: exclude "
            f"the finalizer or the resource there.")


def _namespace_of(raw: bodies.RawBody) -> references.Namespace:
    namespace = raw['metadata'].get('namespace')
    return None if namespace is None else references.NamespaceName(namespace)


def _is_newer(a: bodies.RawBody, b: bodies.RawBody) -> bool:
    return bodies.is_newer(bodies.parse_version(a), bodies.parse_version(b))


def get_effect(raw: Mapping[str, Any], result: Mapping[str, Any]) -> dict[str, Any]:
    """Make the merge patch of the fields in which the result differs."""
    effect: dict[str, Any] = {}
    for item in diffs.diff(raw, result):
        dicts.ensure(effect, item.field, item.new)
    return effect


def _is_in_status(op: Mapping[str, Any]) -> bool:
    path: str = op['path']
    return path == '/status' or path.startswith('/status/')


def find_inconsistencies(
        patch: Mapping[str, Any], result: Mapping[str, Any],
) -> Sequence[diffs.DiffItem]:
    """Find what the result lacks of the patch: the differences from the wanted to the actual."""
    if _is_reflected(patch, result):
        return ()
    wanted = patches.merge({}, json.loads(json.dumps(patch)))  # tuples are lists, keys are strings
    return diffs.diff(wanted, _restrict(wanted, result))


def describe_inconsistencies(
        remaining: Iterable[diffs.DiffItem], resource: references.Resource,
) -> str:
    """
    Describe what the API server has not stored of a patch: the fields.

    The values can be large, or secret. Those that were sent are in the log on the level DEBUG,
    except for those of Secrets.
    """
    fields = {item.field: item.operation == diffs.DiffOperation.REMOVE for item in remaining}
    dropped = [field for field, is_dropped in fields.items() if is_dropped]
    changed = [field for field, is_dropped in fields.items() if not is_dropped]
    parts: list[str] = []
    if dropped:
        why = "an admission webhook removes this." if all(
            field[:2] in UNRESTRICTED for field in dropped) else (
            f"the schema of {resource.plural} in {resource.api_version} lacks this: add it there, "
            f"or set x-kubernetes-preserve-unknown-fields.")
        parts.append(f"not stored: {_name(dropped)}. Usually, {why}")
    if changed:
        parts.append(
            f"stored with another value: {_name(changed)}. Usually, others have changed this at "
            f"the same time, or an admission webhook has.")
    return ' '.join(parts)


def _name(fields: Sequence[dicts.FieldPath]) -> str:
    named = ', '.join('.'.join(field) for field in fields[:MAX_NAMED])
    more = len(fields) - MAX_NAMED
    return f"{named}, and {more} more" if more > 0 else named


def _get_additions(ops: patches.JSONPatch) -> Mapping[str, Any]:
    """
    Make a merge patch of the fields that a JSON patch adds.

    The fields that it replaces are left out: e.g. to the items of lists, the server adds defaults.
    """
    additions: dict[str, Any] = {}
    for op in ops:
        if op['op'] == 'add' and not isinstance(op['value'], list):
            dicts.ensure(additions, patches.parse_pointer(op['path']), op['value'])
    return additions


def _is_reflected(patch: Mapping[str, Any], result: Mapping[str, Any]) -> bool:
    for key, val in patch.items():
        actual = result.get(key)
        if val == actual:
            continue
        if not isinstance(val, dict) or not (
                _is_reflected(val, actual) if isinstance(actual, dict) else not val):
            return False
    return True


def _restrict(wanted: Any, actual: Any) -> Any:
    """Reduce the actual value to the wanted fields."""
    if isinstance(wanted, Mapping) and isinstance(actual, Mapping):
        return {key: _restrict(val, actual.get(key)) for key, val in wanted.items()}
    return actual
