"""
Conversions: the objects of one version as those of another, by the webhook of their definition, or
by the converters of the cluster.

What is read and written is synchronous, so it cannot wait for a webhook. Where a conversion is not
known, `convert` raises `Pending`; then the webhook is called, and the operation is repeated.
"""
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from kopf._kits.sandbox import encoding, objects
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.objects import Pending
from kopf._kits.sandbox.statuses import InternalError, Obj, dig
from kopf._kits.sandbox.webhookcalls import Unreachable, Webhook

T = TypeVar('T')
API_VERSION = 'apiextensions.k8s.io/v1'
TIMEOUT = 30
"""How long (seconds) the API waits for the webhooks of conversions."""


async def run(cluster: Cluster, operate: Callable[[], Awaitable[T]]) -> T:
    """
    Carry out an operation; repeat it after the conversions that it needs.

    What is converted is known for this operation only, as in the API.

    :raises InternalError: if a webhook fails.
    """
    token = objects.known_var.set({})
    try:
        while True:
            try:
                return await operate()
            except Pending as e:
                await _convert(cluster, e)
    finally:
        objects.known_var.reset(token)


async def prepare(cluster: Cluster, kind: Kind, obj: Obj | None) -> None:
    """Convert in advance, so that the operation need not be repeated."""
    while obj is not None:
        try:
            objects.converted(kind, obj)
            return
        except Pending as e:
            await _convert(cluster, e)


async def prepare_write(cluster: Cluster, kind: Kind, obj: Obj) -> None:
    """Convert in advance to what is stored, and back: writing itself cannot be repeated."""
    stored = cluster.stored_kind(kind)
    if stored is not kind:
        await prepare(cluster, stored, obj)
        await prepare(cluster, kind, objects.converted(stored, obj))


async def _convert(cluster: Cluster, pending: Pending) -> None:
    kind = pending.kind
    whose = f"conversion webhook for {pending.objs[0]['apiVersion']}, Kind={kind.kind}"
    convert = cluster.converters.get(kind.resource)
    if convert is None:
        made = await _ask(cluster, kind, pending.objs, whose)
    else:
        try:
            made = [convert(obj, kind.version) for obj in pending.objs]
        except ValueError as e:
            raise InternalError(f"{whose} failed: {e}") from None
    known = objects.known_var.get()
    assert known is not None
    for obj, converted in zip(pending.objs, made, strict=True):
        if why := _find_fault(obj, converted, kind):
            raise InternalError(f"{whose} returned invalid {why}")
        known[kind.api_version, objects.identify(obj)] = converted


async def _ask(cluster: Cluster, kind: Kind, objs: Sequence[Obj], whose: str) -> list[Any]:
    """Call the webhook of the definition."""
    failed = f"{whose} failed: "
    uid = cluster.new_uid()
    webhook = Webhook({**(kind.conversion or {}), 'timeoutSeconds': TIMEOUT})
    try:
        answer = encoding.decode(await webhook.call(cluster, {
            'kind': 'ConversionReview', 'apiVersion': API_VERSION, 'request': {
                'uid': uid, 'desiredAPIVersion': kind.api_version, 'objects': [*objs]}}))
    except (Unreachable, encoding.DecodingError) as e:
        raise InternalError(f"{failed}{e}") from None
    response = dig(answer, 'response')
    if not isinstance(response, dict):
        raise InternalError(f"{failed}no proper ConversionReview is in the response")
    if response.get('uid') != uid:
        raise InternalError(f'{failed}expected response.uid="{uid}"')
    if dig(response, 'result.status') != 'Success':
        raise InternalError(f"{failed}{dig(response, 'result.message') or 'no message'}")
    made = response.get('convertedObjects')
    made = made if isinstance(made, list) else []
    if len(made) != len(objs):
        raise InternalError(f"{whose} returned {len(made)} objects, expected {len(objs)}")
    return made


def _find_fault(obj: Obj, converted: Any, kind: Kind) -> str | None:
    if not isinstance(converted, dict) or not isinstance(converted.get('metadata'), dict):
        return "converted object: it is none, or has no metadata"
    if converted.get('apiVersion') != kind.api_version or converted.get('kind') != kind.kind:
        return (f"converted object: invalid groupVersion, expected {kind.api_version}, got "
                f"{converted.get('apiVersion')}")
    old, new = obj['metadata'], converted['metadata']
    changed = [key for key in ('name', 'namespace', 'uid') if old.get(key) != new.get(key)]
    return f"metadata: {', '.join(changed)} must not be changed" if changed else None
