"""
A small client of the API for tests. Objects are dicts. Resources are named as in decorators.
"""
import contextlib
import inspect
import json
import pathlib
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, Protocol, Self, TypeVar

import yaml

from kopf._cogs.clients import api, errors, scanning
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, references
from kopf._kits.sandbox import crds, direct
from kopf._kits.testing import capturing, waiting

__tracebackhide__ = True  # in the tracebacks of pytest

T = TypeVar('T')

Obj = dict[str, Any]
Objs = list[Obj]

Kind = str | tuple[str, ...] | references.Resource | Mapping[str, Any]
"""
A resource: by any of its names, by the arguments of decorators, as found, or by one of its objects.
"""

BACKOFFS = (0.1, 0.2, 0.5, 1, 2)
"""The delays (seconds) between attempts: the API can be not ready yet for a new resource."""

MERGE_PATCH = 'application/merge-patch+json'


def exists(_: Obj) -> bool:
    """The condition of waiting if there is no other one."""
    return True


class Client:
    """
    A client of the API, for async tests. Objects are dicts.

    A ``kind`` is a name of the resource of any sort, a tuple as in the arguments of decorators, or
    `kopf.Resource`. Instead of a kind and a name, you can pass an object with its kind, name, and
    namespace. Objects of namespaced resources are in the ``namespace`` of the client, unless you
    pass a namespace. If the API server refuses a request, `kopf.testing.APIError` is raised.

    ::

        async with kopf.testing.open_api() as api:
            await api.client.load('crd.yaml')
            await api.client.create('websites', 'hello', spec={'title': 'Hello'})

    See "Test operators" in the documentation.

    :param origin: the credentials. Their default namespace is the namespace of the client; without
        it, ``'default'``.
    """

    def __init__(self, origin: credentials.ConnectionInfo) -> None:
        settings = configuration.OperatorSettings()
        settings.networking.error_backoffs = BACKOFFS
        self.namespace: str = origin.default_namespace or 'default'
        self.created: list[tuple[references.Resource, Obj]] = []
        """The resources and the objects that this client has created, in this order."""
        self.logs: list[Sequence[str]] = []
        """The logs of the operators on this API: they can say why a condition is not met."""
        self._api = api.Client(credentials=origin, settings=settings)
        self._resources: frozenset[references.Resource] = frozenset()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        await self._api.close()

    async def request(
            self,
            method: str,
            path: str,
            body: Any = None,
            *,
            content_type: str = 'application/json',
            params: Mapping[str, str] | None = None,
    ) -> Any:
        """
        Send any request, and return the response. The bodies are JSON.

        :param method: the HTTP method.
        :param path: the path, with a leading slash.
        :param body: the body, to be converted to JSON. Default: none.
        :param content_type: the type of the body.
        :param params: the parameters of the query. Default: none.
        :raises APIError: if the API server refuses the request.
        """
        return await self._api.request(
            method, path, body=None if body is None else json.dumps(body).encode(),
            content_type=None if body is None else content_type, params=params)

    async def get(
            self, kind: Kind, name: str | None = None, *, namespace: str | None = None) -> Obj:
        """
        Get an object.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param namespace: the namespace. Default: that of the client.
        :raises APIError: if there is no such object (with the ``status`` 404).
        """
        obj: Obj = await self.request('GET', await self._locate(kind, name, namespace))
        return obj

    async def list(
            self,
            kind: Kind,
            *,
            namespace: str | None = None,
            labels: Mapping[str, str] | None = None,
    ) -> Objs:
        """
        Get all objects of a resource.

        :param kind: the resource.
        :param namespace: the namespace. Default: all namespaces.
        :param labels: the labels that the objects must have. Default: any.
        """
        resource = await self.find(kind)
        within = None if namespace is None else references.NamespaceName(namespace)
        selector = ','.join(f'{key}={val}' for key, val in (labels or {}).items())
        answer = await self.request(
            'GET', resource.get_url(namespace=within),
            params={'labelSelector': selector} if selector else None)
        head = {'apiVersion': resource.api_version, 'kind': resource.kind}
        return [{**head, **item} for item in answer['items']]

    async def create(self, kind: Kind, obj: Mapping[str, Any] | str | None = None, /,
                     *, namespace: str | None = None, **fields: Any) -> Obj:
        """
        Create an object, either as it is given, or made of a kind, a name, and fields.

        ::

            await client.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', **fields})
            await client.create('kopfexamples', 'obj', spec={'duration': '1m'})

        :param kind: the resource; or the object.
        :param obj: the name; or the object, without the kind. Default: none.
        :param namespace: the namespace. Default: that of the object, or else that of the client.
        :param fields: more fields of the object, such as ``spec``.
        :returns: the object as the API server has stored it.
        :raises APIError: if there is already such an object (with the ``status`` 409).
        """
        resource = await self.find(kind)
        body: Obj = {'apiVersion': resource.api_version, 'kind': resource.kind}
        body |= kind if isinstance(kind, Mapping) else {}
        body |= obj if isinstance(obj, Mapping) else {}
        body |= fields
        if isinstance(obj, str):
            body['metadata'] = {'name': obj, **body.get('metadata', {})}
        if namespace is None:
            namespace = (body.get('metadata') or {}).get('namespace')
        created: Obj = await self.request(
            'POST', resource.get_url(namespace=self._choose(resource, namespace)), body)
        self.created.append((resource, created))
        return created

    async def patch(
            self,
            kind: Kind,
            name: str | Mapping[str, Any] | None = None,
            patch: Mapping[str, Any] | None = None,
            /,
            *,
            namespace: str | None = None,
            subresource: str | None = None,
    ) -> Obj:
        """
        Change an object by a merge patch: ``patch('pods', 'one', {...})`` or ``patch(pod, {...})``.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name; or the patch, after an object.
        :param patch: the patch.
        :param namespace: the namespace. Default: that of the client.
        :param subresource: the subresource to change, e.g. ``'status'``. Default: the object
            itself.
        :returns: the object as the API server has stored it.
        """
        if isinstance(name, Mapping):
            name, patch = None, name
        path = await self._locate(kind, name, namespace, subresource)
        obj: Obj = await self.request('PATCH', path, patch or {}, content_type=MERGE_PATCH)
        return obj

    async def delete(
            self, kind: Kind, name: str | None = None, *, namespace: str | None = None) -> None:
        """
        Request the deletion of an object. Finalizers can keep the object after that.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param namespace: the namespace. Default: that of the client.
        """
        await self.request('DELETE', await self._locate(kind, name, namespace))

    async def wait(
            self,
            kind: Kind,
            name: str | None = None,
            condition: Callable[[Obj], Any] = exists,
            *,
            namespace: str | None = None,
            timeout: float = waiting.TIMEOUT,
    ) -> Obj:
        """
        Wait until an object exists and satisfies a condition, and return the object.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param condition: a function, sync or async, that gets the object, and returns something
            true, or `None` after its assertions, other than a lambda. Missing keys, items, and
            attributes mean: not yet. Default: the object exists.
        :param namespace: the namespace. Default: that of the client.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :returns: the object.
        :raises AssertionError: if the condition is not satisfied in time; the text shows the
            errors of handlers, and the object.
        """
        seen: list[Any] = []

        async def check() -> Any:
            seen[:] = []
            obj = await self.get(kind, name, namespace=namespace)
            seen[:] = [obj]
            value = condition(obj)
            value = await value if inspect.isawaitable(value) else value
            return obj if waiting.is_met(condition, value) else False

        def explain(error: Any) -> str:
            shown = '\n' + _show(seen[0]) if seen else _explain_absence(error)
            why = f"{waiting.show(error)}\n" if seen and isinstance(error, Exception) else ""
            failures = capturing.describe_failures(*self.logs)
            return (f"{failures}{_name(kind, name)} has not met the condition in {timeout:g} "
                    f"seconds: {waiting.describe(condition)}\n{why}Last seen: {shown}")

        obj: Obj = await waiting.wait_for(check, timeout=timeout, explain=explain)
        return obj

    async def wait_gone(
            self,
            kind: Kind,
            name: str | None = None,
            *,
            namespace: str | None = None,
            timeout: float = waiting.TIMEOUT,
    ) -> None:
        """
        Wait until an object does not exist.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param namespace: the namespace. Default: that of the client.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :raises AssertionError: if the object still exists after that; the text shows the errors of
            handlers, and the object.
        """
        seen: list[Any] = []

        async def check() -> bool:
            try:
                seen[:] = [await self.get(kind, name, namespace=namespace)]
            except errors.APINotFoundError:
                return True
            return False

        await waiting.wait_for(check, timeout=timeout, explain=lambda error: (
            f"{capturing.describe_failures(*self.logs)}{_name(kind, name)} still exists after "
            f"{timeout:g} seconds.\n"
            f"Last seen:\n{_show(seen[0]) if seen else _explain_absence(error)}"))

    async def load(self, *sources: Mapping[str, Any] | str | pathlib.Path) -> Objs:
        """
        Create objects, custom resource definitions first, then namespaces, and wait until the API
        serves these definitions.

        Existing objects remain as they are.

        :param sources: objects, or paths of YAML files with objects.
        :returns: the objects.
        :raises ValueError: if a file contains other things than objects, or a definition serves no
            version.
        """
        loaded: Objs = []
        for obj, place in direct.read(*sources):
            if not obj.get('apiVersion') or not obj.get('kind'):
                raise ValueError(f"{place or obj} is not a Kubernetes object: there is no "
                                 f"apiVersion or no kind.")
            try:
                loaded.append(await self.create(obj))
            except errors.APIConflictError:
                loaded.append(await self.get(obj))
            if obj['kind'] == 'CustomResourceDefinition':
                await self._wait_served(obj)
        return loaded

    async def clean_up(self, finalizers: Collection[str] = ()) -> None:
        """
        Delete everything that this client has created, the newest objects first.

        :param finalizers: the finalizers to remove, as those of operators that have stopped:
            objects with them, and so the definitions of these objects, would stay forever, and the
            next test could not create any. Default: none.
        :raises ExceptionGroup: after all others are deleted, if some objects cannot be.
        """
        failures: list[Exception] = []
        while self.created:
            resource, obj = self.created.pop()
            try:
                await self._remove(resource, obj, finalizers)
            except errors.APINotFoundError:
                pass
            except Exception as e:
                failures.append(e)
        if failures:
            raise ExceptionGroup("Some of the created objects remain", failures)

    async def _remove(
            self, resource: references.Resource, obj: Obj, finalizers: Collection[str]) -> None:
        await self.request('DELETE', _get_url(resource, obj))
        if resource != references.CRDS:
            left = await self.request('GET', _get_url(resource, obj))
            await self._release(resource, left, finalizers)
            return
        if any(item['served'] for item in obj['spec']['versions']):
            defined = _get_defined(obj)
            for each in await self.list(defined):
                await self._release(defined, each, finalizers)
        await self.wait_gone(obj)

    async def _release(
            self, resource: references.Resource, obj: Obj, finalizers: Collection[str]) -> None:
        present = obj['metadata'].get('finalizers') or []
        foreign = [name for name in present if name not in finalizers]
        if foreign != present:
            with contextlib.suppress(errors.APINotFoundError):
                await self.request(
                    'PATCH', _get_url(resource, obj), {'metadata': {'finalizers': foreign}},
                    content_type=MERGE_PATCH)

    async def find(self, kind: Kind) -> references.Resource:
        """
        Get the resource of a kind, as the API serves it.

        :param kind: the resource.
        :raises LookupError: if the API serves no such resource, or several.
        """
        if isinstance(kind, references.Resource):
            return kind
        selector = _make_selector(kind)
        for _ in range(2):
            fitting = selector.select(self._resources)
            if len(fitting) == 1:
                return next(iter(fitting))
            found = await scanning.scan(self._api)
            self._resources = found.resources
        raise LookupError(
            f"The API serves no {selector}. Load its CustomResourceDefinition first, or check the "
            f"name." if not fitting else
            f"The API serves several of {selector}: {', '.join(map(str, fitting))}.")

    async def _locate(
            self, kind: Kind, name: str | None, namespace: str | None,
            subresource: str | None = None,
    ) -> str:
        if isinstance(kind, Mapping):
            name = name or kind['metadata']['name']
            namespace = namespace or kind['metadata'].get('namespace')
        resource = await self.find(kind)
        return resource.get_url(
            namespace=self._choose(resource, namespace), name=name, subresource=subresource)

    def _choose(self, resource: references.Resource, namespace: str | None) -> references.Namespace:
        return references.NamespaceName(
            namespace or self.namespace) if resource.namespaced else None

    async def _wait_served(self, crd: Obj) -> None:
        await self.wait(crd, None, lambda obj: any(
            item['type'] == 'Established' and item['status'] == 'True'
            for item in obj['status']['conditions']))
        resource = _get_defined(crd)
        # Where nothing is: to list objects, the API server can need an operator to convert them.
        await waiting.wait_for(lambda: self.request(
            'GET', resource.get_url(namespace=self._choose(resource, '-')),
            params={'fieldSelector': 'metadata.name=-'}))


class Run(Protocol):
    """What runs a coroutine for sync code."""

    def __call__(self, coro: Coroutine[Any, Any, T]) -> T: ...


class SyncClient:
    """
    A client of the API, for sync tests. Objects are dicts.

    Each method returns when it has finished. Operators work meanwhile, and only then. A ``kind`` is
    a name of the resource of any sort, a tuple as in the arguments of decorators, or
    `kopf.Resource`. Instead of a kind and a name, you can pass an object with its kind, name, and
    namespace. Objects of namespaced resources are in the namespace of the session, unless you pass
    a namespace. If the API server refuses a request, `kopf.testing.APIError` is raised.

    ::

        def test_title(kopf_client, kopf_operator):
            kopf_client.load('crd.yaml')
            kopf_operator('handlers.py')
            kopf_client.create('websites', 'hello', spec={'title': 'Hello'})
            kopf_client.wait('configmaps', 'hello')

    See "Test operators" in the documentation.
    """

    def __init__(self, client: Client, run: Run) -> None:
        self._client = client
        self._run = run

    def request(
            self,
            method: str,
            path: str,
            body: Any = None,
            *,
            content_type: str = 'application/json',
            params: Mapping[str, str] | None = None,
    ) -> Any:
        """
        Send any request, and return the response. The bodies are JSON.

        :param method: the HTTP method.
        :param path: the path, with a leading slash.
        :param body: the body, to be converted to JSON. Default: none.
        :param content_type: the type of the body.
        :param params: the parameters of the query. Default: none.
        :raises APIError: if the API server refuses the request.
        """
        return self._run(self._client.request(
            method, path, body, content_type=content_type, params=params))

    def get(self, kind: Kind, name: str | None = None, *, namespace: str | None = None) -> Obj:
        """
        Get an object, as it is now.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param namespace: the namespace. Default: that of the client.
        :raises APIError: if there is no such object (with the ``status`` 404).
        """
        return self._run(self._client.get(kind, name, namespace=namespace))

    def list(
            self,
            kind: Kind,
            *,
            namespace: str | None = None,
            labels: Mapping[str, str] | None = None,
    ) -> Objs:
        """
        Get all objects of a resource, as they are now.

        :param kind: the resource.
        :param namespace: the namespace. Default: all namespaces.
        :param labels: the labels that the objects must have. Default: any.
        """
        return self._run(self._client.list(kind, namespace=namespace, labels=labels))

    def create(
            self, kind: Kind, obj: Mapping[str, Any] | str | None = None, /,
            *, namespace: str | None = None, **fields: Any) -> Obj:
        """
        Create an object, either as it is given, or made of a kind, a name, and fields.

        ::

            kopf_client.create({'apiVersion': 'example.com/v1', 'kind': 'Website', **fields})
            kopf_client.create('websites', 'hello', spec={'title': 'Hello'})

        :param kind: the resource; or the object.
        :param obj: the name; or the object, without the kind. Default: none.
        :param namespace: the namespace. Default: that of the object, or else that of the client.
        :param fields: more fields of the object, such as ``spec``.
        :returns: the object as the API server has stored it.
        :raises APIError: if there is already such an object (with the ``status`` 409).
        """
        return self._run(self._client.create(kind, obj, namespace=namespace, **fields))

    def patch(
            self,
            kind: Kind,
            name: str | Mapping[str, Any] | None = None,
            patch: Mapping[str, Any] | None = None,
            /,
            *,
            namespace: str | None = None,
            subresource: str | None = None,
    ) -> Obj:
        """
        Change an object by a merge patch: ``patch('pods', 'one', {...})`` or ``patch(pod, {...})``.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name; or the patch, after an object.
        :param patch: the patch.
        :param namespace: the namespace. Default: that of the client.
        :param subresource: the subresource to change, e.g. ``'status'``. Default: the object
            itself.
        :returns: the object as the API server has stored it.
        """
        return self._run(self._client.patch(
            kind, name, patch, namespace=namespace, subresource=subresource))

    def delete(self, kind: Kind, name: str | None = None, *, namespace: str | None = None) -> None:
        """
        Request the deletion of an object. Finalizers can keep the object after that.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param namespace: the namespace. Default: that of the client.
        """
        self._run(self._client.delete(kind, name, namespace=namespace))

    def wait(
            self,
            kind: Kind,
            name: str | None = None,
            condition: Callable[[Obj], Any] = exists,
            *,
            namespace: str | None = None,
            timeout: float = waiting.TIMEOUT,
    ) -> Obj:
        """
        Wait until an object exists and satisfies a condition, and return the object.

        ::

            kopf_client.wait('websites', 'hello', lambda obj: obj['status']['ready'])

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param condition: a function, sync or async, that gets the object, and returns something
            true, or `None` after its assertions, other than a lambda. Missing keys, items, and
            attributes mean: not yet. Default: the object exists.
        :param namespace: the namespace. Default: that of the client.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :returns: the object.
        :raises AssertionError: if the condition is not satisfied in time; the text shows the errors
            of handlers, and the object.
        """
        return self._run(self._client.wait(
            kind, name, condition, namespace=namespace, timeout=timeout))

    def wait_gone(
            self,
            kind: Kind,
            name: str | None = None,
            *,
            namespace: str | None = None,
            timeout: float = waiting.TIMEOUT,
    ) -> None:
        """
        Wait until an object does not exist.

        :param kind: the resource; or an object, instead of a kind and a name.
        :param name: the name.
        :param namespace: the namespace. Default: that of the client.
        :param timeout: how long to wait, in seconds; in virtual time, virtual seconds. Default: 10.
        :raises AssertionError: if the object still exists after that; the text shows the errors of
            handlers, and the object.
        """
        self._run(self._client.wait_gone(kind, name, namespace=namespace, timeout=timeout))

    def load(self, *sources: Mapping[str, Any] | str | pathlib.Path) -> Objs:
        """
        Create objects, custom resource definitions first, then namespaces, and wait until the API
        serves these definitions.

        Existing objects remain as they are.

        :param sources: objects, or paths of YAML files with objects.
        :returns: the objects.
        :raises ValueError: if a file contains other things than objects, or a definition serves no
            version.
        """
        return self._run(self._client.load(*sources))


def _get_url(resource: references.Resource, obj: Obj) -> str:
    return resource.get_url(
        namespace=obj['metadata'].get('namespace'), name=obj['metadata']['name'])


def _get_defined(crd: Obj) -> references.Resource:
    """Get the resource that a definition defines, in any served version."""
    served = crds.kinds_of(crd)
    if not served:
        raise ValueError(f"{crd['metadata']['name']} serves no version: set served: true for one.")
    return served[0].as_resource()


def _make_selector(kind: str | tuple[str, ...] | Mapping[str, Any]) -> references.Selector:
    if isinstance(kind, Mapping):
        group, _, version = kind['apiVersion'].rpartition('/')
        return references.Selector(group=group, version=version, kind=kind['kind'])
    return references.Selector(*([kind] if isinstance(kind, str) else kind))


def _show(obj: Mapping[str, Any]) -> str:
    meta = {key: value for key, value in obj['metadata'].items() if key != 'managedFields'}
    return yaml.safe_dump({**obj, 'metadata': meta}, sort_keys=False)


def _explain_absence(error: object) -> str:
    return str(error) if isinstance(error, LookupError) else "no such object"


def _name(kind: Kind, name: str | None) -> str:
    if isinstance(kind, Mapping):
        return f"{kind['kind']} {kind['metadata']['name']!r}"
    return f"{kind} {name!r}"
