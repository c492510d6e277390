"""
Sweeps over all objects of a resource: their metadata by pages, and writes of some objects at once.
"""
import contextlib
import dataclasses
import itertools
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, errors, listing, patching, scanning, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.intents import registries
from kopf._kits import commanding

CONCURRENCY = 10
"""How many objects are written at once."""

BACKOFFS = (1, 2, 4)
"""
The pauses (seconds) between the attempts of a request. They are short: if a webhook fails, it fails
for all objects.
"""

Meta = Mapping[str, Any]
"""The metadata that a write of an object needs, see `get_meta`."""


@dataclasses.dataclass(frozen=True)
class Sweep:
    """A command that goes over the objects of a cluster."""

    client: api.Client
    settings: configuration.OperatorSettings
    served: frozenset[references.Resource]
    namespace: str
    """The namespace of the credentials."""
    say: Callable[[str], object]
    """Takes a line for the user."""

    async def find_stored(self, resource: references.Resource) -> references.Resource:
        """
        Find the version in which the objects are stored: to write it, nothing must be converted,
        which only a running operator can do. Without the permission, the version remains.
        """
        if '.' in resource.group:
            with contextlib.suppress(errors.APIClientError):  # it is no custom resource, perhaps
                definition = await self.client.request('GET', references.CRDS.get_url(
                    name=f'{resource.plural}.{resource.group}'))
                return self.get_version(resource, next(
                    each['name'] for each in definition['spec']['versions'] if each['storage']))
        return resource

    def get_version(self, resource: references.Resource, version: str) -> references.Resource:
        """Get the resource in another version; as it is, if the version is not served."""
        other = references.Resource(resource.group, version, resource.plural)
        return next((each for each in self.served if each == other), resource)

    async def list(
            self, resource: references.Resource, namespaces: Sequence[references.Namespace],
            *, labels: str = '', fields: str = '', metadata_only: bool = True,
    ) -> AsyncIterator[bodies.RawBody]:
        """
        List all objects by pages, or those that the selectors select; by default, their metadata.

        An object can be listed twice: if a list has expired, it is begun again.

        :raises errors.APIError: if they cannot be listed.
        """
        odd: list[bodies.RawBody] = []  # of what is nested too deeply, the metadata is enough
        for namespace in namespaces:
            async for page in listing.list_objects(
                    self.client, resource=resource, namespace=namespace,
                    settings=listing.select_only(self.settings, labels, fields=fields),
                    metadata_only=metadata_only,
                    skip=lambda raw, _: odd.append(raw)):
                for raw in [*page.items, *odd]:
                    yield raw
                odd.clear()

    async def write(
            self, resource: references.Resource, meta: Meta, changes: Mapping[str, Any],
    ) -> None:
        """
        Merge changes into the metadata of an object in exactly this state; if it is gone, do
        nothing.

        :raises errors.APIConflictError: if the object has changed.
        :raises errors.APIError: if the API server refuses it for another reason.
        """
        guard = {'uid': meta['uid'], 'resourceVersion': meta['resourceVersion']}
        with contextlib.suppress(errors.APITooDeepError):  # only the response cannot be read
            await patching.patch(
                self.client, resource=resource, namespace=meta.get('namespace'), name=meta['name'],
                payload={'metadata': {**changes, **guard}}, is_verified=True)


@contextlib.asynccontextmanager
async def begin(
        what: str,
        *,
        say: Callable[[str], object],
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        vault: vaults.Vault | None = None,
) -> AsyncIterator[Sweep]:
    """
    Log in, and find what the cluster serves.

    All objects are listed, and failed requests are soon reported, whatever the settings are.

    :raises CommandError: if the API server fails: the objects cannot be ``what``, e.g. released.
    :raises LoginError: if there are no credentials.
    """
    settings = listing.select_only(settings or configuration.OperatorSettings())
    settings = dataclasses.replace(settings, networking=dataclasses.replace(
        settings.networking, error_backoffs=BACKOFFS))
    try:
        async with commanding.connect(
                registry=registry, settings=settings, vault=vault) as (client, origin):
            yield Sweep(
                client, settings, (await scanning.scan(client)).resources,
                origin.default_namespace or 'default', say)
    except errors.APIError as e:
        advice = ("Check your permissions to list and patch them."
                  if isinstance(e, errors.APIForbiddenError) else "Run the command again later.")
        raise commanding.CommandError(f"The objects cannot be {what}: {e} {advice}") from e


async def for_each(
        metas: Collection[Meta], attempt: Callable[[Meta], Awaitable[str | None]], *, title: str,
) -> Mapping[str, str]:
    """
    Attempt to write objects, some at once, and show the progress on a terminal.

    Return why some are not written, by their uids: an attempt returns the reason, or raises an
    error of the API server.

    :raises errors.APIConnectionError: if there is no API server.
    """
    numbers, reasons = itertools.count(1), dict[str, str]()

    async def do(meta: Meta) -> None:
        try:
            reason = await attempt(meta)
        except errors.APIConnectionError:
            raise
        except errors.APIError as e:
            reason = str(e)
        if reason is not None:
            reasons[meta['uid']] = reason
        _show(f"{title}: {next(numbers)} of {len(metas)}")

    try:
        await tasks.for_each(do, metas, limit=CONCURRENCY)
    finally:
        _show('')
    return reasons


def _show(text: str) -> None:
    """Replace the last line of the terminal, if there is one."""
    if sys.stderr.isatty():
        sys.stderr.write(f'\r{text}\x1b[K')
        sys.stderr.flush()


def get_meta(raw: Mapping[str, Any]) -> Meta:
    return {key: raw['metadata'].get(key)
            for key in ('namespace', 'name', 'uid', 'resourceVersion')}


def get_name(meta: Meta) -> str:
    """Get the namespace, if there is one, and the name."""
    return '/'.join(filter(None, (meta.get('namespace'), meta['name'])))


def describe(resource: references.Resource, meta: Meta) -> str:
    return f"{resource.singular or resource.plural} {get_name(meta)}"
