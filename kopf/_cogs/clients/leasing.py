"""
Leasing: the requests for the Leases of one namespace.

A request takes a part of the time after which a Lease that is not renewed is lost, and is not
retried: whoever keeps the Leases decides again first.
"""
import json
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import api, errors, splitting
from kopf._cogs.structs import bodies, leases, nesting, references

MAX_LINE = 16 * 1024 * 1024
"""How long (bytes) an event of a Lease can be: etcd stores objects of up to 1.5 MB by default."""

PATIENCE = 0.5
"""How long one request can take, as a fraction of the renewal deadline."""

_NUMBERS = ('leaseDurationSeconds', 'leaseTransitions')


class LeaseClient:
    """
    Reads and writes Leases. All methods raise `errors.APIError`, and `LoginError`.

    Writes of existing Leases are guarded by their resource version.
    """

    def __init__(self, client: api.Client, *, namespace: str, deadline: float) -> None:
        """The deadline is the one of the renewals, in seconds."""
        self._client = client
        self._namespace = namespace
        self._timeout = deadline * PATIENCE
        self._path = leases.RESOURCE.get_url(namespace=references.NamespaceName(namespace))

    async def get(self, name: str) -> Mapping[str, Any] | None:
        """Get a Lease; None if it is absent."""
        try:
            return _verify(await self._exchange('GET', self._get_path(name)))
        except errors.APINotFoundError:
            return None

    async def find(self, *, label: str, value: str) -> Sequence[Mapping[str, Any]]:
        """List the Leases with this label."""
        selector = urllib.parse.urlencode({'labelSelector': f'{label}={value}'})
        found = await self._exchange('GET', f'{self._path}?{selector}')
        items = found.get('items') or [] if isinstance(found, dict) else None
        if not isinstance(items, list):
            raise errors.APIServerError("The API has answered with no list of Leases.")
        return [_verify(item) for item in items]

    async def put(
            self, known: Mapping[str, Any] | None, body: Mapping[str, Any],
    ) -> Mapping[str, Any]:
        """
        Replace the known Lease, or create it if there is none.

        If the body has the resource version of the known one, no write of others is overwritten.
        """
        if known is None:
            return _verify(await self._exchange('POST', self._path, body))
        path = self._get_path(body['metadata']['name'])
        return _verify(await self._exchange('PUT', path, body))

    async def delete(self, raw: Mapping[str, Any]) -> None:
        """Delete a Lease in this state."""
        metadata = raw['metadata']
        await self._exchange('DELETE', self._get_path(metadata['name']), {
            'preconditions': {'resourceVersion': metadata.get('resourceVersion')}})

    async def follow(self, name: str) -> AsyncIterator[Mapping[str, Any] | None]:
        """
        Watch a Lease: its present state, and then each new one; None when it is deleted.

        It ends when the server closes the stream. A broken stream can be silent for any time.
        """
        splitter = splitting.LineSplitter(MAX_LINE)
        async with self._client.stream(self._path, params={
                'watch': 'true', 'fieldSelector': f'metadata.name={name}'}) as stream:
            while chunk := await stream.readany():
                try:
                    events = [(event['type'], event['object'])
                              for event in map(nesting.parse, splitter.feed(chunk))]
                except (splitting.LineTooLongError, ValueError, TypeError, LookupError) as e:
                    raise errors.APIServerError(f"These are no events: {e}") from e
                for type_, raw in events:
                    if type_ in ('ADDED', 'MODIFIED', 'DELETED'):
                        lease = _verify(raw)
                        yield None if type_ == 'DELETED' else lease

    def explain(self, error: errors.APIForbiddenError, *, verbs: str) -> str:
        """Say what to do if rights are lacking; ``verbs`` are all that are needed."""
        return str(error) + errors.advise(error, (
            f"Add this rule to the Role of the operator in the namespace {self._namespace!r}: "
            f"{{apiGroups: [coordination.k8s.io], resources: [leases], verbs: [{verbs}]}}"))

    async def _exchange(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        return await self._client.request(
            method, path, body=None if body is None else json.dumps(body).encode(), retry=False,
            timeout=self._timeout)

    def _get_path(self, name: str) -> str:
        return f'{self._path}/{references.quote_name(name)}'


def _verify(raw: Any) -> Mapping[str, Any]:
    """
    Check the types of what is read from a Lease, and return it: a wrong one must not end the
    operator.

    :raises errors.APIServerError: if there is a wrong type.
    """
    spec = None if bodies.find_damage(raw) is not None else raw.get('spec') or {}
    if not isinstance(spec, dict) or not (
            isinstance(spec.get('holderIdentity') or '', str)
            and all(_is_int32(spec.get(key) or 0) for key in _NUMBERS)):
        raise errors.APIServerError("The API has answered with a Lease of a wrong form.")
    lease: Mapping[str, Any] = raw
    return lease


def _is_int32(value: object) -> bool:
    return type(value) is int and -2 ** 31 <= value < 2 ** 31
