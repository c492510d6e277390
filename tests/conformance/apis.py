"""
A plain client of an API, and what of its answers is compared.
"""
import base64
import contextlib
import http.client
import json
import ssl
import time
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Self

Object = Any
"""An object as it is parsed from JSON."""

JSON = 'application/json'
MERGE = 'application/merge-patch+json'
JSONPATCH = 'application/json-patch+json'
STRATEGIC = 'application/strategic-merge-patch+json'
APPLY = 'application/apply-patch+yaml'
TABLE = 'application/json;as=Table;v=v1;g=meta.k8s.io'
PARTIAL = 'application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io'
PARTIAL_LIST = 'application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io'
AGGREGATED = 'application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList'


class Answer:
    """What the API has answered; the body is parsed if it is JSON."""

    def __init__(self, status: int, headers: http.client.HTTPMessage, raw: bytes) -> None:
        super().__init__()
        self.status = status
        self.headers = headers
        self.raw = raw

    def __repr__(self) -> str:
        return f'<{self.status} {self.raw[:2000]!r}>'

    def __getitem__(self, key: str) -> Any:
        return self.json[key]

    @property
    def json(self) -> Object:
        return json.loads(self.raw)

    @property
    def ok(self) -> Object:
        """The object, if there was no error."""
        assert 200 <= self.status < 300, self
        return self.json

    @property
    def causes(self) -> list[tuple[str, str | None]]:
        """The reasons & fields of the causes of an error."""
        causes = self.json.get('details', {}).get('causes', [])
        return [(cause['reason'], cause.get('field')) for cause in causes]

    @property
    def messages(self) -> list[str]:
        """The messages of the causes of an error."""
        return [cause['message'] for cause in self.json['details']['causes']]

    @property
    def error(self) -> tuple[int, str | None]:
        """The code and the reason of an error, which is a proper Status object."""
        status = self.json
        assert (status['kind'], status['apiVersion'], status['status']) == (
            'Status', 'v1', 'Failure'), self
        assert status['code'] == self.status
        return self.status, status.get('reason')


class Api:
    """A synchronous client by a kubeconfig, in one of its contexts."""

    def __init__(self, config: Object, context: str | None = None) -> None:
        super().__init__()
        self.config = config
        context = context or config['current-context']
        named = {item['name']: item['context'] for item in config['contexts']}[context]
        cluster = {item['name']: item['cluster'] for item in config['clusters']}[named['cluster']]
        user = {item['name']: item['user'] for item in config['users']}[named['user']]
        parts = urllib.parse.urlsplit(cluster['server'])
        self.address = parts.hostname, parts.port
        self.ssl = None
        if parts.scheme == 'https':
            ca = base64.b64decode(cluster['certificate-authority-data']).decode()
            self.ssl = ssl.create_default_context(cadata=ca)
        self.auth = {'Authorization': f"Bearer {user['token']}"} if 'token' in user else {}
        self._connection = self._connect()

    def close(self) -> None:
        self._connection.close()

    def as_user(self, context: str) -> 'Api':
        return Api(self.config, context)

    def request(
            self,
            method: str,
            path: str,
            body: Any = None,
            *,
            content_type: str = JSON,
            accept: str = JSON,
            headers: dict[str, str] | None = None,
            **params: str,
    ) -> Answer:
        sent = {**self.auth, 'Accept': accept, **(headers or {})}
        data = body
        if body is not None:
            sent.setdefault('Content-Type', content_type)
            data = body if isinstance(body, bytes) else json.dumps(body).encode()
        for attempt in (1, 2):
            try:
                self._connection.request(method, make_url(path, params), body=data, headers=sent)
                response = self._connection.getresponse()
                return Answer(response.status, response.headers, response.read())
            except (http.client.HTTPException, OSError) as e:
                self._connection.close()
                self._connection = self._connect()
                if attempt == 2 or isinstance(e, TimeoutError):
                    raise
        raise AssertionError

    def get(self, path: str, **options: Any) -> Answer:
        return self.request('GET', path, **options)

    def post(self, path: str, body: Any, **options: Any) -> Answer:
        return self.request('POST', path, body, **options)

    def put(self, path: str, body: Any, **options: Any) -> Answer:
        return self.request('PUT', path, body, **options)

    def patch(self, path: str, body: Any, content_type: str = MERGE, **options: Any) -> Answer:
        return self.request('PATCH', path, body, content_type=content_type, **options)

    def apply(self, path: str, body: Any, manager: str = 'me', **options: Any) -> Answer:
        return self.patch(path, body, APPLY, fieldManager=manager, **options)

    def delete(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.request('DELETE', path, body, **options)

    @contextlib.contextmanager
    def watch(self, path: str, *, accept: str = JSON, **params: str) -> Iterator['Watch']:
        """Watch until the end of the block; a regular answer is an error."""
        connection = self._connect()
        try:
            connection.request('GET', make_url(path, {'watch': 'true', **params}),
                               headers={**self.auth, 'Accept': accept})
            response = connection.getresponse()
            if response.status != 200:
                answer = Answer(response.status, response.headers, response.read())
                raise AssertionError(f"The watch is refused: {answer}")
            yield Watch(response)
        finally:
            connection.close()

    def wait(
            self, path: str, predicate: Callable[[Answer], Any], timeout: float = 15,
            **options: Any,
    ) -> Answer:
        deadline = time.monotonic() + timeout
        while not predicate(answer := self.get(path, **options)):
            if time.monotonic() > deadline:
                raise AssertionError(f"It has not become so: {answer}")
            time.sleep(0.02)
        return answer

    def wait_gone(self, path: str, timeout: float = 45) -> None:
        self.wait(path, lambda answer: answer.status == 404, timeout)

    def _connect(self) -> http.client.HTTPConnection:
        host, port = self.address
        if self.ssl is not None:
            return http.client.HTTPSConnection(host or '', port, context=self.ssl, timeout=30)
        return http.client.HTTPConnection(host or '', port, timeout=30)


class Watch:
    """Events of a watch as they come."""

    def __init__(self, response: http.client.HTTPResponse) -> None:
        super().__init__()
        self.headers = response.headers
        self._response = response

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Object:
        line = self._response.readline()
        if not line:
            raise StopIteration
        return json.loads(line)

    def take(self, count: int) -> list[Object]:
        return [next(self) for _ in range(count)]

    def names(self, count: int) -> list[tuple[str, str]]:
        """The types and names of the next events."""
        return [(event['type'], event['object']['metadata']['name']) for event in self.take(count)]


def make_url(path: str, params: dict[str, str]) -> str:
    return f'{path}?{urllib.parse.urlencode(params)}' if params else path


def unique(prefix: str = 'x') -> str:
    return f'{prefix}-{uuid.uuid4().hex[:8]}'


def make(name: str | None = None, kind: str = 'ConfigMap', version: str = 'v1',
         **fields: Any) -> Object:
    """An object; by default, a config map."""
    metadata = {**({'name': name} if name else {}), **fields.pop('metadata', {})}
    return {'apiVersion': version, 'kind': kind, 'metadata': metadata, **fields}
