"""
A plain client of the Kubernetes API for the tests: nothing of the framework is in it.
"""

import asyncio
import base64
import contextlib
import dataclasses
import io
import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Self

import aiohttp
import yaml

from kopf._cogs.structs import credentials

Object = Any
"""An object as it is parsed from JSON."""

ANYTHING: Object = {'type': 'object', 'x-kubernetes-preserve-unknown-fields': True}
MANY = 300
"""
From how many objects on they are deleted as a collection. Kubernetes 1.20 deletes a collection one
object after another, and has once needed more than the 34 seconds that it allows itself.
"""

CRDS = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions'


class KubeError(Exception):
    """The API has refused; ``status`` is the code of HTTP."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"HTTP {status}: {message}")
        self.status = status


@dataclasses.dataclass(frozen=True)
class Kind:
    """A kind of objects."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @classmethod
    def make_unique(cls, *, namespaced: bool = True) -> Self:
        suffix = uuid.uuid4().hex[:8]
        return cls(f'g{suffix}.test', 'v1', f'things{suffix}', f'Thing{suffix}', namespaced)

    @property
    def selector(self) -> tuple[str, ...]:
        """The kind as decorators take it: ``@kopf.on.event(*kind.selector)``."""
        return self.group, self.version, self.plural

    @property
    def api_version(self) -> str:
        return f'{self.group}/{self.version}' if self.group else self.version

    def get_path(
            self,
            name: str | None = None,
            namespace: str | None = None,
            subresource: str | None = None,
    ) -> str:
        parts = ['/apis' if self.group else '/api', self.api_version]
        if self.namespaced and namespace:
            parts += ['namespaces', namespace]
        return '/'.join([*parts, self.plural, *filter(None, [name, subresource])])


EVENTS = Kind('', 'v1', 'events', 'Event')
PODS = Kind('', 'v1', 'pods', 'Pod')
CONFIGMAPS = Kind('', 'v1', 'configmaps', 'ConfigMap')
NAMESPACES = Kind('', 'v1', 'namespaces', 'Namespace', namespaced=False)


class Patience:
    """
    A timeout in the seconds of an API that answers at once: a look at it counts as 0.1 s at most.

    No operator is faster than the API, and no test should fail because both wait for a processor.
    """

    def __init__(self, timeout: float) -> None:
        self._left = timeout
        self._last = time.monotonic()

    def is_over(self) -> bool:
        """Whether the time is over; asked once after each look."""
        now = time.monotonic()
        self._left -= min(now - self._last, 0.1)
        self._last = now
        return self._left < 0


class Kube:
    """
    A client by a kubeconfig with a token. To be used as an async context manager.

    The namespace is ``default`` where none is given, and ignored for kinds that are not namespaced.
    All methods raise `KubeError` when refused.
    """

    def __init__(self, kubeconfig: str, *, user: str = 'admin') -> None:
        with open(kubeconfig, encoding='utf-8') as file:
            config = yaml.safe_load(file)
        cluster = config['clusters'][0]['cluster']
        token = next(item['user']['token'] for item in config['users'] if item['name'] == user)
        self._server = cluster['server']
        self._headers = {'Authorization': f'Bearer {token}'}
        authority = base64.b64decode(cluster.get('certificate-authority-data', '')).decode()
        self._ssl = credentials.make_client_context(cadata=authority or None)
        self._session: aiohttp.ClientSession | None = None
        self.warnings: list[str] = []
        """What the API has warned of in its responses."""

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(ssl=self._ssl, limit=50)
        self._session = aiohttp.ClientSession(
            base_url=self._server, headers=self._headers, connector=connector)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()

    async def request(
            self,
            method: str,
            path: str,
            *,
            body: Any = None,
            content_type: str = 'application/json',
            params: dict[str, str] | None = None,
    ) -> Any:
        assert self._session is not None
        data = None if body is None else json.dumps(body)
        headers = {} if body is None else {'Content-Type': content_type}
        async with self._session.request(
                method, path, data=data, headers=headers, params=params) as response:
            self.warnings += response.headers.getall('Warning', ())
            text = await response.text()
            if response.status >= 400:
                raise KubeError(response.status, text)
            return json.loads(text)

    async def send(
            self, method: str, path: str, text: str, *, content_type: str = 'application/json',
    ) -> int:
        """Send whatever it is, and return the status; what is answered is not parsed."""
        assert self._session is not None
        headers = {'Content-Type': content_type}
        async with self._session.request(
                method, path, data=io.BytesIO(text.encode()), headers=headers) as response:
            await response.read()
            return response.status

    async def request_text(self, path: str) -> str:
        assert self._session is not None
        async with self._session.get(path) as response:
            return await response.text()

    @contextlib.asynccontextmanager
    async def stream(
            self,
            path: str,
            params: dict[str, str],
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Have the response open while it comes, however long it takes."""
        assert self._session is not None
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(path, params=params, timeout=timeout) as response:
            yield response

    async def create(
            self,
            kind: Kind,
            name: str,
            *,
            namespace: str = 'default',
            labels: dict[str, str] | None = None,
            annotations: dict[str, str] | None = None,
            finalizers: list[str] | None = None,
            **fields: Any,
    ) -> Object:
        """Create an object: ``await kube.create(kind, 'name', spec={'field': 'value'})``."""
        metadata = {
            'name': name, 'labels': labels, 'annotations': annotations, 'finalizers': finalizers}
        obj = {
            'apiVersion': kind.api_version,
            'kind': kind.kind,
            'metadata': {key: val for key, val in metadata.items() if val},
            **fields,
        }
        return await self.request('POST', kind.get_path(namespace=namespace), body=obj)

    async def get(self, kind: Kind, name: str, *, namespace: str = 'default') -> Object:
        return await self.request('GET', kind.get_path(name, namespace))

    async def patch(
            self,
            kind: Kind,
            name: str,
            patch: Any,
            *,
            namespace: str = 'default',
            subresource: str | None = None,
    ) -> Object:
        """Patch an object: with a merge patch if it is a dict, or a JSON patch if it is a list."""
        format = 'json-patch' if isinstance(patch, list) else 'merge-patch'
        return await self.request(
            'PATCH', kind.get_path(name, namespace, subresource),
            body=patch, content_type=f'application/{format}+json')

    async def replace(
            self,
            kind: Kind,
            obj: Object,
            *,
            subresource: str | None = None,
    ) -> Object:
        metadata = obj['metadata']
        path = kind.get_path(metadata['name'], metadata.get('namespace', 'default'), subresource)
        return await self.request('PUT', path, body=obj)

    async def set_spec(self, path: str, spec: Any, *, dry: bool = False) -> Object:
        """
        Replace the whole spec of the object at ``path``, whatever its version is by now.

        A definition, for instance, is written to by the API's own controllers at any time, so that
        a PUT of what was read a moment ago can be refused as a conflict.
        """
        patch = [{'op': 'replace', 'path': '/spec', 'value': spec}]
        return await self.request(
            'PATCH', path, body=patch, content_type='application/json-patch+json',
            params={'dryRun': 'All'} if dry else {})

    async def delete(self, kind: Kind, name: str, *, namespace: str = 'default') -> Object:
        return await self.request('DELETE', kind.get_path(name, namespace))

    async def list_objects(
            self,
            kind: Kind,
            *,
            namespace: str | None = None,
            selector: str | None = None,
            field_selector: str | None = None,
    ) -> list[Object]:
        given = {'labelSelector': selector, 'fieldSelector': field_selector}
        params = {key: val for key, val in given.items() if val}
        response = await self.request('GET', kind.get_path(namespace=namespace), params=params)
        items: list[Object] = response['items']
        return items

    async def list_events(self, obj: Object) -> list[Object]:
        """The events about the object, the oldest first."""
        uid = obj['metadata']['uid']
        events = await self.list_objects(EVENTS, field_selector=f'involvedObject.uid={uid}')
        return sorted(events, key=lambda event: event['eventTime'] or '')

    async def wait_events(self, obj: Object, count: int, *, timeout: float = 30) -> list[Object]:
        """Wait until there are so many events about the object, or more; the oldest go first."""
        patience = Patience(timeout)
        while len(events := await self.list_events(obj)) < count:
            if patience.is_over():
                raise TimeoutError(f"There are only {len(events)} events: {events}")
            await asyncio.sleep(0.05)
        return events

    async def wait_cached(self, kind: Kind, name: str, *, namespace: str = 'default') -> None:
        """
        Wait until the API's own cache has the newest state of the object.

        The API begins an update or a deletion with the state in its cache. If that state is
        outdated, the API does the whole again with the newest one, and asks the admission webhooks
        twice (``GuaranteedUpdate`` of k8s.io/apiserver). Tests that count such calls wait here.
        """
        path = kind.get_path(name, namespace)
        deadline = time.monotonic() + 30
        while True:
            newest = await self.request('GET', path)
            try:
                cached = await self.request('GET', path, params={'resourceVersion': '0'})
            except KubeError as e:
                if e.status != 404:
                    raise
            else:
                if cached['metadata']['resourceVersion'] == newest['metadata']['resourceVersion']:
                    return
            assert time.monotonic() < deadline, f"The API's cache is behind for {path}."
            await asyncio.sleep(0.01)

    async def wait_for(
            self,
            kind: Kind,
            name: str,
            predicate: Callable[[Object], Any],
            *,
            namespace: str = 'default',
            timeout: float = 30,
    ) -> Object:
        """Wait until the object exists, and is as the predicate wants it (any truth is good)."""
        patience = Patience(timeout)
        obj: Object | None = None
        while True:
            try:
                obj = await self.get(kind, name, namespace=namespace)
                if predicate(obj):
                    return obj
            except KubeError as e:
                if e.status != 404:
                    raise
            except (KeyError, TypeError):  # the predicate has looked for what is not there yet
                pass
            if patience.is_over():
                raise TimeoutError(f"{kind.plural}/{name} has not become as expected: {obj}")
            await asyncio.sleep(0.05)

    async def wait_gone(
            self,
            kind: Kind,
            name: str,
            *,
            namespace: str = 'default',
            timeout: float = 30,
    ) -> None:
        """Wait until the object does not exist."""
        await self._wait_not_found(kind.get_path(name, namespace), timeout)

    async def _wait_not_found(self, path: str, timeout: float) -> None:
        patience = Patience(timeout)
        while True:
            try:
                found = await self.request('GET', path)
            except KubeError as e:
                if e.status == 404:
                    return
                raise
            if patience.is_over():
                raise TimeoutError(f"{path} is still there: {found}")
            await asyncio.sleep(0.05)

    async def wait_collected(
            self,
            kind: Kind,
            name: str,
            *,
            namespace: str = 'default',
    ) -> None:
        """
        Wait until the garbage collector of the cluster has deleted an owned object.

        The collector of a real cluster learns of new kinds once in 30 seconds, waits for up to 30
        more while others' kinds come and go, and backs off for as long again from owners of kinds
        that it does not know yet.
        """
        await self.wait_gone(kind, name, namespace=namespace, timeout=180)

    async def create_kind(
            self,
            kind: Kind,
            *,
            status: bool = False,
            schema: Object | None = None,
            more_versions: Sequence[str] = (),
            short_names: Sequence[str] = (),
            categories: Sequence[str] = (),
    ) -> None:
        """
        Create a kind by its CRD, and wait until it is served. ``status`` makes it a subresource.
        """
        names = {
            'kind': kind.kind, 'plural': kind.plural, 'singular': kind.kind.lower(),
            'shortNames': [*short_names], 'categories': [*categories],
        }
        versions = [{
            'name': version, 'served': True, 'storage': version == kind.version,
            'schema': {'openAPIV3Schema': schema or ANYTHING},
            'subresources': {'status': {}} if status else {},
        } for version in (kind.version, *more_versions)]
        await self.request('POST', CRDS, body={
            'apiVersion': 'apiextensions.k8s.io/v1',
            'kind': 'CustomResourceDefinition',
            'metadata': {'name': f'{kind.plural}.{kind.group}'},
            'spec': {
                'group': kind.group,
                'names': names,
                'scope': 'Namespaced' if kind.namespaced else 'Cluster',
                'versions': versions,
            },
        })
        await self.wait_served(kind)

    async def wait_served(self, kind: Kind, *, timeout: float = 30) -> None:
        """Wait until objects of the kind can be worked with."""
        patience = Patience(timeout)
        while True:
            try:
                await self.list_objects(kind)
                return
            except KubeError as e:
                if e.status not in (404, 429) or patience.is_over():
                    raise
            await asyncio.sleep(0.05)

    async def wait_known_as_owners(self, kind: Kind, *, timeout: float = 60) -> None:
        """
        Wait until the API knows the kind as that of owners, for those who can create config maps.

        With OwnerReferencesPermissionEnforcement, new kinds are unknown for up to ten seconds; for
        up to 30 seconds in Kubernetes 1.20.
        """
        patience = Patience(timeout)
        body = {'metadata': {'generateName': 'probe-', 'ownerReferences': [{
            'apiVersion': kind.api_version, 'kind': kind.kind, 'name': 'any', 'uid': 'any',
            'blockOwnerDeletion': True}]}}
        while True:
            try:
                await self.request(
                    'POST', '/api/v1/namespaces/default/configmaps', body=body,
                    params={'dryRun': 'All'})
                return
            except KubeError as e:
                if 'cannot find RESTMapping' not in str(e) or patience.is_over():
                    raise
            await asyncio.sleep(0.5)

    async def wait_unserved(self, kind: Kind, *, timeout: float = 60) -> None:
        """
        Wait until the group is not served, whose last kind is deleted.

        The API server forgets the group some time after the kind. If the kind is created again
        before that, it is served, then not served (HTTP 404), and then served again.
        """
        await self._wait_not_found(f'/apis/{kind.group}', timeout)

    async def clear_kind(self, kind: Kind) -> None:
        """Delete all objects of a kind, their finalizers notwithstanding."""
        objs = await self.list_objects(kind)
        if kind.namespaced and len(objs) > MANY:
            held = [obj for obj in objs if obj['metadata'].get('finalizers')]
            await asyncio.gather(*(self._delete_by_force(kind, obj) for obj in held))
            for namespace in {obj['metadata']['namespace'] for obj in objs}:
                await self.request('DELETE', kind.get_path(namespace=namespace))
        else:
            await asyncio.gather(*(self._delete_by_force(kind, obj) for obj in objs))

    async def _delete_by_force(self, kind: Kind, obj: Object) -> None:
        name, namespace = obj['metadata']['name'], obj['metadata'].get('namespace', 'default')
        try:
            if obj['metadata'].get('finalizers'):
                await self.patch(
                    kind, name, {'metadata': {'finalizers': None}}, namespace=namespace)
            await self.delete(kind, name, namespace=namespace)
        except KubeError as e:
            if e.status != 404:
                raise

    async def delete_kind(self, kind: Kind) -> None:
        """
        Begin the deletion of a kind with all of its objects, their finalizers notwithstanding.
        """
        try:
            held = [obj for obj in await self.list_objects(kind)
                    if obj['metadata'].get('finalizers')]
            await asyncio.gather(*(self._delete_by_force(kind, obj) for obj in held))
            await self.request('DELETE', f'{CRDS}/{kind.plural}.{kind.group}')
        except KubeError as e:
            if e.status != 404:
                raise
