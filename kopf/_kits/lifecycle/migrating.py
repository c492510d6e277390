"""
The command ``kopf migrate``: store all objects of a custom resource in its present storage version.

An object is stored in the storage version of the moment when it was written the last time. So, each
object is written again, unchanged. Then, no object is stored in the other versions, and they can be
removed from the definition. It can be killed at any moment: the next run writes all objects again.
"""
import asyncio
import contextlib
import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import errors, patching
from kopf._cogs.structs import references
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


async def migrate(sweep: sweeping.Sweep, kind: str) -> bool:
    """
    Migrate all objects of a custom resource, and forget the other stored versions.

    If the cluster migrates objects itself, it is asked to do so. Whether all objects are migrated
    is returned. It is said what is done, and what could not be written and why.

    :raises CommandError: if there is no such custom resource; if its definition changes meanwhile.
    :raises errors.APIError: if the API server refuses to list the objects, or to change the
        definition.
    """
    return await _Migration(sweep, commanding.find_resource(kind, sweep.served)).run()


@dataclasses.dataclass(frozen=True)
class _Migration:
    sweep: sweeping.Sweep
    resource: references.Resource

    @property
    def name(self) -> str:
        """The name of the definition."""
        return f'{self.resource.plural}.{self.resource.group}'

    def say(self, text: str) -> None:
        self.sweep.say(f"{self.name}: {text}")

    async def run(self) -> bool:
        definition = await self._get_definition()
        storage: str = next(
            each['name'] for each in definition['spec']['versions'] if each['storage'])
        stored: Sequence[str] = definition['status']['storedVersions']
        migrations = next((each for each in self.sweep.served if each.preferred and (
            (each.group, each.plural) == ('storagemigration.k8s.io', 'storageversionmigrations')
        )), None)
        was_killed = migrations is not None and await self._delete(migrations)
        if stored == [storage] and not was_killed:
            self.say(f"all objects are stored in {storage} already.")
            return True
        self.say(f"objects are stored in {', '.join(stored)}. All are written in {storage} now.")
        await asyncio.sleep(SETTLING)
        if migrations is None or not await self._delegate(migrations):
            # Kubernetes 1.36 forgets the other versions itself, even if its migration has failed.
            await self._record(definition, stored)
            if failures := await self._rewrite(storage):
                await self._record(definition, stored)
                self.say(f"{len(failures)} not written. Correct or delete these objects, and run "
                         f"the command again.")
                return False
        await self._record(definition, [storage])
        self.say(f"all objects are stored in {storage} now.")
        return True

    async def _get_definition(self) -> Mapping[str, Any]:
        try:
            found: Mapping[str, Any] = await self.sweep.client.request(
                'GET', references.CRDS.get_url(name=self.name))
        except errors.APINotFoundError:
            raise commanding.CommandError(
                f"{self.resource} is not defined by a CustomResourceDefinition, so its objects "
                f"cannot be migrated. Name a custom resource.") from None
        return found

    async def _delegate(self, migrations: references.Resource) -> bool:
        """Let the cluster migrate the objects, and return whether it has done so."""
        target = {'group': self.resource.group, 'resource': self.resource.plural}
        if migrations.version == 'v1alpha1':
            target['version'] = self.resource.version
        try:
            await self.sweep.client.request('POST', migrations.get_url(), body=json.dumps({
                'apiVersion': migrations.api_version, 'kind': migrations.kind,
                'metadata': {'name': f'kopf-{self.name}'}, 'spec': {'resource': target}}).encode())
            if await self._wait(migrations):
                return True
        except errors.APIClientError as e:
            self.say(f"the cluster does not migrate the objects: {e}")
        finally:
            await self._delete(migrations)
        self.say("the objects are written one by one instead.")
        return False

    async def _wait(self, migrations: references.Resource) -> bool:
        waited, limit = 0.0, STARTING
        while waited < limit:
            raw = await self.sweep.client.request('GET', self._get_url(migrations))
            conditions = {each['type'] for each in (raw.get('status') or {}).get('conditions') or ()
                          if each['status'] == 'True'}
            if conditions & {'Succeeded', 'Failed'}:
                return 'Succeeded' in conditions
            limit = RUNNING if conditions else limit
            await asyncio.sleep(POLLING)
            waited += POLLING
        return False

    def _get_url(self, migrations: references.Resource) -> str:
        return migrations.get_url(name=f'kopf-{self.name}')

    async def _delete(self, migrations: references.Resource) -> bool:
        """Delete the migration, and return whether there was one."""
        try:
            await self.sweep.client.request('DELETE', self._get_url(migrations))
        except errors.APIClientError:
            return False  # there are no rights, perhaps, and so it was not created
        return True

    async def _rewrite(self, storage: str) -> Collection[str]:
        """Write all objects unchanged; say and return why some of them are refused."""
        stored = self.sweep.get_version(self.resource, storage)
        metas = {raw['metadata']['uid']: sweeping.get_meta(raw)
                 async for raw in self.sweep.list(stored, [None])}

        async def attempt(meta: sweeping.Meta) -> None:
            # On a conflict, somebody else has written it, so it is stored in the storage version.
            with contextlib.suppress(errors.APIConflictError):
                await self.sweep.write(stored, meta, {})

        refused = await sweeping.for_each(metas.values(), attempt, title=f"{self.name}: written")
        for uid, reason in refused.items():
            self.sweep.say(f"{sweeping.describe(stored, metas[uid])}: {reason}")
        return refused

    async def _record(self, former: Mapping[str, Any], versions: Sequence[str]) -> None:
        """Record the versions as the stored ones, if no other version was for storage meanwhile."""
        while True:
            definition = await self._get_definition()
            if any(definition['metadata'][key] != former['metadata'][key]
                   for key in ('uid', 'generation')):
                raise commanding.CommandError(
                    f"The definition {self.name} has changed meanwhile. Run the command again.")
            if definition['status']['storedVersions'] == versions:
                return
            version = definition['metadata']['resourceVersion']
            with contextlib.suppress(errors.APIConflictError):  # others also write its status
                await patching.patch(
                    self.sweep.client, resource=references.CRDS, namespace=None, name=self.name,
                    payload={'metadata': {'resourceVersion': version},
                             'status': {'storedVersions': versions}}, subresource='status')
                return
