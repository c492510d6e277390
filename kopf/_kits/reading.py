"""
Reading of other objects in handlers, on the connections of the operator.
"""
import functools
from collections.abc import Mapping
from typing import Any, TypeVar, overload

from kopf._cogs.clients import listing
from kopf._cogs.structs import references
from kopf._cogs.structs.bodies import Body, OwnBody, RawBody
from kopf._core.actions import invocation
from kopf._core.engines.reconciling.serversideapply import Applier, PendingRequest, get_applier
from kopf._core.intents import typedargs

T = TypeVar('T')

Named = str | tuple[str, ...]
"""A resource by its names, as in decorators: ``'pods'``, ``('apps', 'v1', 'deployments')``."""

Where = str | references.Marker | None
"""A namespace; or all of them; or that of the object that is being handled."""


@overload
def get(kind: Named, name: str, *, namespace: str | None = None) -> PendingRequest[Body | None]: ...


@overload
def get(kind: type[T], name: str, *, namespace: str | None = None) -> PendingRequest[T | None]: ...


def get(kind: Any, name: str, *, namespace: str | None = None) -> PendingRequest[Any]:
    """
    Read an object, over the connections of the operator.

    In async handlers: ``obj = await kopf.get('secrets', 'name')``. In sync handlers:
    ``obj = kopf.get('secrets', 'name').result()``. If the operator keeps the objects of this kind,
    e.g. for daemons and timers, the result is what the operator knows, without a request.

    ::

        @kopf.on.create('websites')
        async def created(spec, **_):
            theme = await kopf.get('configmaps', spec['theme'])

    See "Read other objects" in the documentation.

    :param kind: a resource, as in decorators, in one string or as a tuple: ``'pods'``,
        ``('apps', 'v1', 'deployments')``; or a class of `kopf.crd`.
    :param name: the name of the object.
    :param namespace: the namespace. Default: that of the object that is being handled.
    :returns: what to await, or to ask for the `result`: a `kopf.Body`, or an instance of the class;
        or None if there is no such object.
    :raises LookupError: outside of the handlers of a running operator.
    :raises TypeError: if the name or the namespace is no string, such as that of an absent field.

    The request can raise what `kopf.apply` raises; also `ValueError` if there is no namespace, and
    `kopf.MisfitError` if the object does not fit the class.
    """
    applier = get_applier('get')
    if not isinstance(name, str):
        raise TypeError(f"kopf.get() needs the name of an object, not {name!r}.")
    _verify_namespace(namespace)
    request = functools.partial(_get, applier, kind, name, namespace or _get_namespace())
    return applier.ask(request, "kopf.get()")


@overload
def list_(
        kind: Named, *, namespace: Where = None, labels: Mapping[str, str] | None = None,
) -> PendingRequest[list[Body]]: ...


@overload
def list_(
        kind: type[T], *, namespace: Where = None, labels: Mapping[str, str] | None = None,
) -> PendingRequest[list[T]]: ...


def list_(
        kind: Any, *, namespace: Any = None, labels: Mapping[str, str] | None = None,
) -> PendingRequest[list[Any]]:
    """
    Read all objects of a kind, in the same way as `kopf.get`.

    ::

        @kopf.timer('websites', interval=60)
        async def count(name, patch, **_):
            patch.status['pods'] = len(await kopf.list_('pods', labels={'app': name}))

    See "Read other objects" in the documentation.

    :param kind: a resource, or a class of `kopf.crd`, as in `kopf.get`.
    :param namespace: the namespace; or `kopf.EVERYTHING`: all namespaces. Default: that of the
        object that is being handled, or all if it has none.
    :param labels: the labels that the objects must have, with their values. Default: any.
    :returns: what to await, or to ask for the `result`: the list of the objects.
    :raises LookupError: outside of the handlers of a running operator.
    :raises TypeError: if the namespace or a value of a label is no string.
    """
    applier = get_applier('list_')
    for label, value in (labels or {}).items():
        if not isinstance(value, str):
            raise TypeError(f"labels= has strings as exact values, but {label!r} is {value!r}.")
    where = None
    if namespace is not references.EVERYTHING:
        _verify_namespace(namespace)
        where = namespace or _get_namespace()
    return applier.ask(functools.partial(_list, applier, kind, where, labels or {}), "kopf.list_()")


def _verify_namespace(namespace: Any) -> None:
    if not isinstance(namespace, str | None):
        raise TypeError(f"namespace= must be the name of one namespace, not {namespace!r}.")


def _get_namespace() -> str | None:
    body = invocation.kwargs_var.get({}).get('body')
    return None if body is None else body.metadata.namespace


async def _get(applier: Applier, kind: Any, name: str, namespace: str | None) -> Any:
    resource = await applier.find(references.make_selector(kind), f"{kind!r}")
    if resource.namespaced and namespace is None:
        raise ValueError(f"{resource} {name!r} needs a namespace. Pass it as namespace=.")
    where = references.NamespaceName(namespace) if resource.namespaced and namespace else None
    known = applier.recall(resource, where, name)
    raw = known[0] if known else await listing.find_object(
        applier.client, settings=listing.select_only(applier.client.settings), resource=resource,
        namespace=where, name=name)
    return None if raw is None else _decode(kind, raw)


async def _list(
        applier: Applier, kind: Any, namespace: str | None, labels: Mapping[str, str],
) -> list[Any]:
    resource = await applier.find(references.make_selector(kind), f"{kind!r}")
    where = references.NamespaceName(namespace) if resource.namespaced and namespace else None
    found = applier.recall(resource, where, None)
    if found is None:
        found = []
        selector = ','.join(f'{key}={value}' for key, value in labels.items())
        async for page in listing.list_objects(
                applier.client, resource=resource, namespace=where,
                settings=listing.select_only(applier.client.settings, selector)):
            found = [*(() if page.restarted else found), *page.items]
    return [_decode(kind, raw) for raw in found if labels.items() <= (
        raw['metadata'].get('labels') or {}).items()]


def _decode(kind: Any, raw: RawBody) -> Any:
    body = OwnBody(raw)  # the operator itself can keep the object
    if not isinstance(kind, type):
        return body
    from kopf._kits.typed import binding  # only for typed kinds
    decoded = binding.make_decoder(kind, ())(body)
    if isinstance(decoded, typedargs.Misfit):
        raise typedargs.MisfitError(*decoded.reasons)
    return decoded
