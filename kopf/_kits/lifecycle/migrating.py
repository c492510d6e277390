"""
The command ``kopf migrate``: store all objects of a custom resource in its present storage version.

An object is stored in the storage version of the moment when it was written the last time. So, each
object is written again, unchanged. Then, no object is stored in the other versions, and they can be
removed from the definition. It can be killed at any moment: the next run writes all objects again.
"""
import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import tasks
from kopf._cogs.clients import api, errors, patching, scanning, vaults
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references
from kopf._core.intents import registries
from kopf._kits import commanding
from kopf._kits.lifecycle import sweeping

SETTLING = 5.0
"""
How long (seconds) to wait before the first write: API servers store objects in a former version for
a moment after the definition has changed. They wait as long themselves for other API servers.
"""

STARTING, RUNNING, POLLING = 30.0, 600.0, 1.0
"""
How long (seconds) the cluster has to begin a migration, and to end it; and how often to look.
"""

ATTEMPTS = 5
"""How often to write the status of the definition, if others write it, too."""


async def migrate(
        kind: str,
        *,
        say: sweeping.Say,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
        vault: vaults.Vault | None = None,
) -> bool:
    """
    Migrate all objects of a custom resource, and forget the other stored versions.

    If the cluster migrates objects itself, it is asked to do so. Whether all objects are migrated
    is returned. ``say`` gets what is done, and what could not be written and why.

    :raises CommandError: if there is no such custom resource; if its definition changes meanwhile;
        if the API server refuses to list the objects, or to change the definition.
    :raises LoginError: if there are no credentials.
    """
    settings = sweeping.adjust(settings)
    try:
        async with commanding.connect(
                registry=registry, settings=settings, vault=vault) as (client, _):
            served = (await scanning.scan(client)).resources
            resource = commanding.find_resource(kind, served)
            return await _Migration(client, settings, resource, say).run(served)
    except errors.APIError as e:
        raise commanding.CommandError(
            f"The objects cannot be migrated: {e} Run the command again later.") from e


class _Migration:

    def __init__(
            self,
            client: api.Client,
            settings: configuration.OperatorSettings,
            resource: references.Resource,
            say: sweeping.Say,
    ) -> None:
        super().__init__()
        self._client = client
        self._settings = settings
        self._resource = resource
        self._say = say
        self._name = f'{resource.plural}.{resource.group}'
        self._migration = f'kopf-{self._name}'

    async def run(self, served: frozenset[references.Resource]) -> bool:
        definition = await self._get_definition()
        storage: str = next(
            each['name'] for each in definition['spec']['versions'] if each['storage'])
        stored: Sequence[str] = definition['status']['storedVersions']
        migrations = next((each for each in served if each.preferred and (
            (each.group, each.plural) == ('storagemigration.k8s.io', 'storageversionmigrations')
        )), None)
        was_killed = migrations is not None and await self._delete(migrations)
        if stored == [storage] and not was_killed:
            self._say(f"{self._name}: all objects are stored in {storage} already.")
            return True
        self._say(f"{self._name}: objects are stored in {', '.join(stored)}. All are written in "
                  f"{storage} now.")
        await asyncio.sleep(SETTLING)
        if migrations is None or not await self._delegate(migrations):
            # Kubernetes 1.36 forgets the other versions itself, even if its migration has failed.
            await self._record(definition, stored)
            failures = await self._rewrite(storage, served)
            for failure in failures:
                self._say(failure)
            if failures:
                await self._record(definition, stored)
                self._say(f"{self._name}: {len(failures)} not written. Correct or delete these "
                          f"objects, and run the command again.")
                return False
        await self._record(definition, [storage])
        self._say(f"{self._name}: all objects are stored in {storage} now.")
        return True

    async def _get_definition(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = await self._client.request(
                'GET', references.CRDS.get_url(name=self._name))
        except errors.APINotFoundError:
            raise commanding.CommandError(
                f"{self._resource} is not defined by a CustomResourceDefinition, so its objects "
                f"cannot be migrated. Name a custom resource.") from None
        return found

    async def _delegate(self, migrations: references.Resource) -> bool:
        """Let the cluster migrate the objects, and return whether it has done so."""
        target = {'group': self._resource.group, 'resource': self._resource.plural}
        if migrations.version == 'v1alpha1':
            target['version'] = self._resource.version
        try:
            await self._client.request('POST', migrations.get_url(), body=json.dumps({
                'apiVersion': migrations.api_version, 'kind': migrations.kind,
                'metadata': {'name': self._migration}, 'spec': {'resource': target}}).encode())
            if await self._wait(migrations):
                return True
        except errors.APIClientError as e:
            self._say(f"{self._name}: the cluster does not migrate the objects: {e}")
        finally:
            await self._delete(migrations)
        self._say(f"{self._name}: the objects are written one by one instead.")
        return False

    async def _wait(self, migrations: references.Resource) -> bool:
        waited, limit = 0.0, STARTING
        while waited < limit:
            raw = await self._client.request('GET', migrations.get_url(name=self._migration))
            conditions = {each['type'] for each in (raw.get('status') or {}).get('conditions') or ()
                          if each['status'] == 'True'}
            if conditions & {'Succeeded', 'Failed'}:
                return 'Succeeded' in conditions
            limit = RUNNING if conditions else limit
            await asyncio.sleep(POLLING)
            waited += POLLING
        return False

    async def _delete(self, migrations: references.Resource) -> bool:
        """Delete the migration, and return whether there was one."""
        try:
            await self._client.request('DELETE', migrations.get_url(name=self._migration))
        except errors.APIClientError:
            return False  # there are no rights, perhaps, and so it was not created
        return True

    async def _rewrite(
            self, storage: str, served: frozenset[references.Resource],
    ) -> list[str]:
        """Write all objects unchanged, and return which ones are refused and why."""
        stored = next((each for each in served if each == references.Resource(
            self._resource.group, storage, self._resource.plural)), self._resource)
        progress, done = sweeping.Progress(f"{self._name}: written"), 0
        failures: dict[str, str] = {}

        async def attempt(raw: bodies.RawBody) -> None:
            reason = await self._rewrite_one(stored, raw['metadata'])
            if reason is not None:
                failures[raw['metadata']['uid']] = reason
            progress.advance()

        try:
            async for page, remaining in sweeping.list_pages(
                    self._client, resource=stored, namespaces=[None], settings=self._settings):
                done += len(page)
                progress.total = None if remaining is None else done + remaining
                await tasks.for_each(attempt, page, limit=sweeping.CONCURRENCY)
        finally:
            progress.end()
        return list(failures.values())

    async def _rewrite_one(
            self, resource: references.Resource, meta: Mapping[str, Any],
    ) -> str | None:
        try:
            await sweeping.write(self._client, resource=resource, meta=meta, changes={})
        except errors.APIConflictError:
            pass  # somebody else has written it, and so it is stored in the storage version
        except errors.APIConnectionError:
            raise
        except errors.APIError as e:
            name = '/'.join(filter(None, (meta.get('namespace'), meta['name'])))
            return f"{resource.singular or resource.plural} {name}: {e}"
        return None

    async def _record(self, former: Mapping[str, Any], versions: Sequence[str]) -> None:
        """Record the versions as the stored ones, if no other version was for storage meanwhile."""
        for _ in range(ATTEMPTS):
            definition = await self._get_definition()
            if any(definition['metadata'][key] != former['metadata'][key]
                   for key in ('uid', 'generation')):
                raise commanding.CommandError(
                    f"The definition {self._name} has changed meanwhile. Run the command again.")
            if definition['status']['storedVersions'] == versions:
                return
            version = definition['metadata']['resourceVersion']
            try:
                await patching.patch(
                    self._client, resource=references.CRDS, namespace=None, name=self._name,
                    payload={'metadata': {'resourceVersion': version},
                             'status': {'storedVersions': versions}}, subresource='status')
                return
            except errors.APIConflictError:
                continue
        raise commanding.CommandError(
            f"Others change the definition {self._name} all the time. Run the command again.")
