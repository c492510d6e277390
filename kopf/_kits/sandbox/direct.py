"""
The API without HTTP: for tests in the same process. Requests have the same effect as over HTTP.
"""
import functools
import json
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from kopf._cogs.helpers import yamltexts
from kopf._kits.sandbox import encoding
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.patchrequests import APPLY_PATCH, JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import APIError, BadRequest, NotFound, Obj

PATCHES = {'merge': MERGE_PATCH, 'json': JSON_PATCH, 'strategic': STRATEGIC_PATCH,
           'apply': APPLY_PATCH}


class Direct:
    """
    The operations of the API as methods. Objects are dicts, as in JSON.

    A resource is given by any of its names, with its group if needed: ``pods``, ``po``, ``Pod``,
    ``deployments.apps``. The namespace is ``default`` by default; cluster-scoped resources ignore
    it. If the API refuses an operation, the methods raise an error with the attributes ``code``
    (the HTTP status code), ``reason``, and ``message``: for example, 404 if there is no such object
    or resource, 409 for conflicts, 422 for invalid objects.
    """

    def __init__(
            self, cluster: Cluster,
            dispatch: Callable[[Request], Coroutine[Any, Any, tuple[int, bytes]]],
    ) -> None:
        self._cluster = cluster
        self._dispatch = dispatch

    async def get(
            self, resource: str, name: str, namespace: str | None = None, *, subresource: str = '',
    ) -> Obj:
        """
        Get an object.

        :param resource: any name of the resource.
        :param name: the name of the object.
        :param namespace: the namespace. Default: ``default``.
        :param subresource: the subresource, e.g. ``'status'``. Default: the object itself.
        :returns: the object.
        """
        request = self._request('get', self._find(resource), name, namespace, subresource)
        return await self._answer(request)

    async def list(
            self, resource: str, namespace: str | None = None, *,
            labels: str = '', fields: str = '',
    ) -> 'list[Obj]':
        """
        List objects.

        :param resource: any name of the resource.
        :param namespace: the namespace. Default: all namespaces.
        :param labels: a label selector, e.g. ``'app=web'``. Default: all objects.
        :param fields: a field selector, e.g. ``'metadata.name=web'``. Default: all objects.
        :returns: the objects that match, by namespaces and names.
        """
        kind = self._find(resource)
        request = Request(
            verb='list', kind=kind, namespace=namespace or '',
            query={'labelSelector': [labels], 'fieldSelector': [fields]})
        found = await self._answer(request)
        own = {} if kind.custom else {'kind': kind.kind, 'apiVersion': kind.api_version}
        return [{**own, **item} for item in found['items']]

    async def create(self, obj: Mapping[str, Any]) -> Obj:
        """
        Create an object.

        :param obj: the object, with ``apiVersion`` and ``kind``.
        :returns: the object as it is stored.
        """
        kind, namespace, _ = self._place(obj)
        request = self._request('create', kind, '', namespace)
        request.body = encoding.encode(dict(obj))
        return await self._answer(request)

    async def replace(self, obj: Mapping[str, Any], *, subresource: str = '') -> Obj:
        """
        Replace an existing object.

        :param obj: the new object. With a ``resourceVersion``, it must be that of the old one.
        :param subresource: the subresource to replace, e.g. ``'status'``. Default: the object.
        :returns: the object as it is stored.
        """
        kind, namespace, name = self._place(obj)
        request = self._request('update', kind, name, namespace, subresource)
        request.body = encoding.encode(dict(obj))
        return await self._answer(request)

    async def patch(
            self, resource: str, name: str, patch: Any, namespace: str | None = None, *,
            type: str = 'merge', subresource: str = '',
    ) -> Obj:
        """
        Patch an object.

        :param resource: any name of the resource.
        :param name: the name of the object.
        :param patch: the patch, in the format of its type.
        :param namespace: the namespace. Default: ``default``.
        :param type: ``'merge'`` (RFC 7396), ``'json'`` (RFC 6902), ``'strategic'``, or ``'apply'``
            (server-side apply, which also creates objects).
        :param subresource: the subresource to patch, e.g. ``'status'``. Default: the object itself.
        :returns: the object as it is stored.
        :raises KeyError: for other types.
        """
        request = self._request('patch', self._find(resource), name, namespace, subresource)
        return await self._patch(request, patch, type)

    async def _patch(self, request: Request, patch: Any, type: str) -> Obj:
        request.content_type = PATCHES[type]
        request.body = encoding.encode(patch)
        if type == 'apply':
            request.query = {'fieldManager': ['sandbox'], 'force': ['true']}
        return await self._answer(request)

    async def delete(
            self, resource: str, name: str, namespace: str | None = None, **options: Any,
    ) -> Obj:
        """
        Delete an object. With finalizers, the object remains, and is marked as being deleted.

        :param resource: any name of the resource.
        :param name: the name of the object.
        :param namespace: the namespace. Default: ``default``.
        :param options: the fields of ``DeleteOptions``, e.g. ``propagationPolicy='Foreground'``.
        :returns: the object, if it remains; otherwise, a ``Status``.
        """
        request = self._request('delete', self._find(resource), name, namespace)
        request.body = encoding.encode(options) if options else b''
        return await self._answer(request)

    async def load(self, *sources: Mapping[str, Any] | Path | str) -> None:
        """
        Apply objects, and the objects of YAML files. CRDs and namespaces are applied first.

        :param sources: objects as dicts, and paths of files.
        :raises ValueError: if a file is not valid YAML, or contains other things than objects, or
            objects that the API refuses.
        """
        for obj, place in read(*sources):
            try:
                await self._apply(obj)
            except APIError as e:
                if not place:
                    raise
                raise ValueError(f"{place}: {e}{_explain(obj, e)}") from e

    async def _apply(self, obj: Mapping[str, Any]) -> None:
        kind, namespace, name = self._place(obj)
        if name:
            await self._patch(self._request('patch', kind, name, namespace), dict(obj), 'apply')
        else:
            await self.create(obj)

    def _find(self, name: str) -> Kind:
        short, _, group = name.partition('.')
        for kind in self._cluster.kinds:
            if group and group not in (kind.group, f'{kind.version}.{kind.group}'):
                continue
            if short in (kind.plural, kind.kind, kind.singular, *kind.short_names):
                return kind
        raise NotFound

    def _place(self, obj: Mapping[str, Any]) -> tuple[Kind, str | None, str]:
        api_version, name = str(obj.get('apiVersion', '')), str(obj.get('kind', ''))
        kind = self._cluster.kinds.named(api_version, name)
        if kind is None:
            raise BadRequest(f'no matches for kind "{name}" in version "{api_version}"')
        metadata = obj.get('metadata') or {}
        return kind, metadata.get('namespace'), str(metadata.get('name') or '')

    def _request(
            self, verb: str, kind: Kind, name: str, namespace: str | None, subresource: str = '',
    ) -> Request:
        return Request(
            verb=verb, kind=kind, name=name, subresource=subresource,
            namespace=(namespace or 'default') if kind.namespaced else '')

    async def _answer(self, request: Request) -> Obj:
        _, raw = await self._dispatch(request)
        found: Obj = json.loads(raw)  # without a limit of the depth: tests make deep objects
        return found


def _order(obj: Mapping[str, Any]) -> int:
    return {'CustomResourceDefinition': 0, 'Namespace': 1}.get(str(obj.get('kind')), 2)


def _explain(obj: Mapping[str, Any], error: APIError) -> str:
    """Say what the user can do about an object that is refused."""
    missing = [key for key in ('apiVersion', 'kind') if not obj.get(key)]
    if missing:
        return f". It has no {' and no '.join(missing)}."
    if isinstance(error, BadRequest) and 'no matches for kind' in str(error):
        return ". Load its CustomResourceDefinition, too, or check the kind and the apiVersion."
    return ""


@functools.lru_cache(maxsize=64)
def _parse(content: bytes) -> Sequence[Any]:
    """Parse the documents of a file, which must not be changed: many tests load the same file."""
    return yamltexts.load_all(content)


def read(*sources: Mapping[str, Any] | Path | str) -> Sequence[tuple[Obj, str]]:
    """
    Read objects, and where they are: the file and the number of the document. CRDs and namespaces
    are the first ones, as other objects need them.

    :raises ValueError: if a file is not valid YAML, or contains other things than objects.
    """
    found = [pair for source in sources for pair in _read(source)]
    return sorted(found, key=lambda pair: _order(pair[0]))


def _read(source: Mapping[str, Any] | Path | str) -> Iterable[tuple[Obj, str]]:
    if isinstance(source, Mapping):
        yield dict(source), ''
        return
    path = Path(source)
    try:
        documents = _parse(path.read_bytes())
    except yaml.YAMLError as e:
        raise ValueError(f"{path} is not valid YAML: {e}") from None
    for number, document in enumerate(documents, start=1):
        if document is None:
            continue
        if not isinstance(document, dict):
            raise ValueError(f"{path}: document {number} is not a Kubernetes object.")
        place = f"{path}: document {number}"
        yield from ((item, place) for item in yamltexts.flatten(document))
