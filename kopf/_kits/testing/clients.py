"""
A small client of the API, for tests: objects are dicts, kinds are named as in decorators.
"""
import json
import pathlib
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Self

import yaml

from kopf._cogs.clients import api, errors, scanning
from kopf._cogs.configs import configuration
from kopf._cogs.structs import credentials, references
from kopf._kits.testing import waiting

Obj = dict[str, Any]
Objs = list[Obj]

Kind = str | tuple[str, ...] | references.Resource | Mapping[str, Any]
"""A kind: by a name of any sort; as in decorators; as it is served; or an object of it."""

BACKOFFS = (0.1, 0.2, 0.5, 1, 2)
"""Pauses (seconds) between tries: the API is not always ready for a kind that is new."""

MERGE_PATCH = 'application/merge-patch+json'


class Client:
    """
    A client of the API for the running loop.

    Objects of namespaced kinds are in the namespace of the credentials, if no other is given.
    Instead of a kind and a name, an object can be given that is of that kind, name, and namespace.
    What the API refuses is raised as `kopf.testing.APIError`, which has a ``status``.
    """

    def __init__(self, origin: credentials.ConnectionInfo) -> None:
        super().__init__()
        settings = configuration.OperatorSettings()
        settings.networking.error_backoffs = BACKOFFS
        self.namespace: str = origin.default_namespace or 'default'
        self.created: list[tuple[references.Resource, Obj]] = []
        """Everything that was created by this client, in that order."""
        self._api = api.Client(credentials=origin, settings=settings)
        self._resources: frozenset[references.Resource] = frozenset()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
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
        """Make any request; the bodies are JSON."""
        return await self._api.request(
            method, path, body=None if body is None else json.dumps(body).encode(),
            content_type=None if body is None else content_type, params=params)

    async def get(
            self, kind: Kind, name: str | None = None, *, namespace: str | None = None) -> Obj:
        obj: Obj = await self.request('GET', await self._locate(kind, name, namespace))
        return obj

    async def list(
            self,
            kind: Kind,
            *,
            namespace: str | None = None,
            labels: Mapping[str, str] | None = None,
    ) -> Objs:
        """All objects of a kind, also of all namespaces if there is none given."""
        resource = await self.find(kind)
        selector = ','.join(f'{key}={val}' for key, val in (labels or {}).items())
        answer = await self.request(
            'GET', _make_url(resource, namespace),
            params={'labelSelector': selector} if selector else None)
        head = {'apiVersion': _get_api_version(resource), 'kind': resource.kind}
        return [{**head, **item} for item in answer['items']]

    async def create(self, kind: Kind, obj: Mapping[str, Any] | str | None = None, /,
                     *, namespace: str | None = None, **fields: Any) -> Obj:
        """
        Create an object: the one given; or one of the kind and of the name, with the fields.

        .. code-block:: python

            await client.create({'apiVersion': 'kopf.dev/v1', 'kind': 'KopfExample', ...})
            await client.create('kopfexamples', 'obj', spec={'duration': '1m'})
        """
        resource = await self.find(kind)
        body: Obj = {'apiVersion': _get_api_version(resource), 'kind': resource.kind}
        body |= kind if isinstance(kind, Mapping) else {}
        body |= obj if isinstance(obj, Mapping) else {}
        body |= fields
        if isinstance(obj, str):
            body['metadata'] = {'name': obj, **body.get('metadata', {})}
        if namespace is None:
            namespace = (body.get('metadata') or {}).get('namespace')
        created: Obj = await self.request(
            'POST', _make_url(resource, self._choose(resource, namespace)), body)
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
        """Merge a patch into the object: ``patch('pods', 'one', {})`` or ``patch(pod, {})``."""
        if isinstance(name, Mapping):
            name, patch = None, name
        path = await self._locate(kind, name, namespace, subresource)
        obj: Obj = await self.request('PATCH', path, patch or {}, content_type=MERGE_PATCH)
        return obj

    async def delete(
            self, kind: Kind, name: str | None = None, *, namespace: str | None = None) -> None:
        """Delete the object. It can still be there when this returns: it can have finalizers."""
        await self.request('DELETE', await self._locate(kind, name, namespace))

    async def wait(
            self,
            kind: Kind,
            name: str | None = None,
            condition: Callable[[Obj], Any] = lambda _: True,
            *,
            namespace: str | None = None,
            timeout: float = waiting.TIMEOUT,
    ) -> Obj:
        """
        Wait until the object is there, and is as the condition wants it, and return it then.

        The condition is a function that returns something true or fails an assertion. What is not
        there yet (keys, items, attributes) is waited for.

        :raises AssertionError: after so many seconds, with the object as it was then.
        """
        __tracebackhide__ = True
        seen: list[Any] = []

        async def check() -> Any:
            seen[:] = []
            obj = await self.get(kind, name, namespace=namespace)
            seen[:] = [obj]
            value = condition(obj)
            return obj if value is None or value else False

        def explain(error: Any) -> str:
            shown = '\n' + yaml.safe_dump(seen[0], sort_keys=False) if seen else "there is none"
            why = f"{waiting.show(error)}\n" if seen and isinstance(error, Exception) else ""
            return (f"{_name(kind, name)} has not become so in {timeout:g} seconds: "
                    f"{waiting.describe(condition)}\n{why}It was at last: {shown}")

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
        """Wait until there is no such object."""
        async def check() -> bool:
            try:
                obj = await self.get(kind, name, namespace=namespace)
            except errors.APINotFoundError:
                return True
            raise AssertionError('\n' + yaml.safe_dump(obj, sort_keys=False))

        await waiting.wait_for(check, timeout=timeout)

    async def load(self, *sources: Mapping[str, Any] | str | pathlib.Path) -> Objs:
        """
        Create all the objects given, or of the files of YAML: the kinds first, which are served
        when this returns. Those which exist already are left as they are.
        """
        objs = [obj for source in sources for obj in _read(source)]
        objs.sort(key=lambda obj: bool(obj['kind'] != 'CustomResourceDefinition'))
        loaded: Objs = []
        for obj in objs:
            try:
                loaded.append(await self.create(obj))
            except errors.APIConflictError:
                loaded.append(await self.get(obj))
            if obj['kind'] == 'CustomResourceDefinition':
                await self._wait_served(obj)
        return loaded

    async def clean_up(self) -> None:
        """Delete everything that was created by this client, the newest first."""
        for resource, obj in reversed(self.created):
            try:
                await self.request('DELETE', _get_path(resource, obj))
            except errors.APINotFoundError:
                continue
        self.created.clear()

    async def find(self, kind: Kind) -> references.Resource:
        """The kind as it is served."""
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
            f"The API serves no {selector}." if not fitting else
            f"The API serves several of {selector}: {', '.join(map(str, fitting))}.")

    async def _locate(
            self, kind: Kind, name: str | None, namespace: str | None,
            subresource: str | None = None,
    ) -> str:
        if isinstance(kind, Mapping):
            name = name or kind['metadata']['name']
            namespace = namespace or kind['metadata'].get('namespace')
        resource = await self.find(kind)
        return _make_url(resource, self._choose(resource, namespace), name, subresource)

    def _choose(self, resource: references.Resource, namespace: str | None) -> str | None:
        return (namespace or self.namespace) if resource.namespaced else None

    async def _wait_served(self, crd: Obj) -> None:
        spec = crd['spec']
        version = next(item['name'] for item in spec['versions'] if item['served'])
        await self.wait(crd, None, lambda obj: any(
            item['type'] == 'Established' and item['status'] == 'True'
            for item in obj['status']['conditions']))
        path = f"/apis/{spec['group']}/{version}/{spec['names']['plural']}"
        await waiting.wait_for(lambda: self.request('GET', path))


class SyncClient:
    """The same client for sync tests: every call returns when it is done."""

    def __init__(
            self, client: Client, run: Callable[[Coroutine[Any, Any, Any]], Any]) -> None:
        super().__init__()
        self._client = client
        self._run = run

    def request(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._client.request(*args, **kwargs))

    def get(self, *args: Any, **kwargs: Any) -> Obj:
        return self._run(self._client.get(*args, **kwargs))  # type: ignore[no-any-return]

    def list(self, *args: Any, **kwargs: Any) -> Objs:
        return self._run(self._client.list(*args, **kwargs))  # type: ignore[no-any-return]

    def create(self, *args: Any, **kwargs: Any) -> Obj:
        return self._run(self._client.create(*args, **kwargs))  # type: ignore[no-any-return]

    def patch(self, *args: Any, **kwargs: Any) -> Obj:
        return self._run(self._client.patch(*args, **kwargs))  # type: ignore[no-any-return]

    def delete(self, *args: Any, **kwargs: Any) -> None:
        self._run(self._client.delete(*args, **kwargs))

    def wait(self, *args: Any, **kwargs: Any) -> Obj:
        return self._run(self._client.wait(*args, **kwargs))  # type: ignore[no-any-return]

    def wait_gone(self, *args: Any, **kwargs: Any) -> None:
        self._run(self._client.wait_gone(*args, **kwargs))

    def load(self, *args: Any, **kwargs: Any) -> Any:
        return self._run(self._client.load(*args, **kwargs))


def _make_url(
        resource: references.Resource,
        namespace: str | None,
        name: str | None = None,
        subresource: str | None = None,
) -> str:
    within = None if namespace is None else references.NamespaceName(namespace)
    return resource.get_url(namespace=within, name=name, subresource=subresource)


def _make_selector(kind: str | tuple[str, ...] | Mapping[str, Any]) -> references.Selector:
    if isinstance(kind, Mapping):
        group, _, version = kind['apiVersion'].rpartition('/')
        return references.Selector(group=group, version=version, kind=kind['kind'])
    return references.Selector(*([kind] if isinstance(kind, str) else kind))


def _get_api_version(resource: references.Resource) -> str:
    return f'{resource.group}/{resource.version}' if resource.group else resource.version


def _get_path(resource: references.Resource, obj: Obj) -> str:
    meta = obj['metadata']
    return _make_url(resource, meta.get('namespace'), meta['name'])


def _name(kind: Kind, name: str | None) -> str:
    if isinstance(kind, Mapping):
        return f"{kind['kind']} {kind['metadata']['name']!r}"
    return f"{kind} {name!r}"


def _read(source: Mapping[str, Any] | str | pathlib.Path) -> Objs:
    if isinstance(source, Mapping):
        return [dict(source)]
    text = pathlib.Path(source).read_text(encoding='utf-8')
    return [obj for obj in yaml.safe_load_all(text) if obj]
