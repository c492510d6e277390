"""
Partitions: how all objects are divided into shards, by ``settings.sharding``.
"""
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kopf._cogs.clients import shardselectors
from kopf._cogs.structs import bodies, references
from kopf._core.engines.sharding import hashing

logger = logging.getLogger('kopf._core.engines.sharding')


class Partition:
    """The division of the objects into so many shards."""

    def __init__(self, count: int, by: str | Callable[[bodies.Body], str]) -> None:
        self._count = count
        self._by = by

    @property
    def is_by_metadata(self) -> bool:
        """Whether the shard of an object can be found by its metadata alone."""
        return not callable(self._by)

    def find(self, body: bodies.RawBody) -> int:
        """Find the shard of an object."""
        metadata = body['metadata']
        if callable(self._by):
            key = self._call(self._by, body) or metadata.get('uid') or ''
            return hashing.find_shard_of_key(key, self._count)
        if self._by == 'namespace':
            return hashing.find_shard_of_key(metadata.get('namespace') or '', self._count)
        uid = metadata.get('uid') or '' if self._by == 'own-uid' else _find_uid(metadata)
        return hashing.find_shard_of_uid(uid, self._count)

    def find_only(self, namespace: references.Namespace) -> int | None:
        """Find the shard of all objects of a watch; None if they can be of several shards."""
        if namespace is None or self._by != 'namespace':
            return None
        return hashing.find_shard_of_key(namespace, self._count)

    def select(self, shards: Collection[int]) -> shardselectors.ShardSelector | None:
        """
        Select the objects of these shards, if API servers can do that; None for all objects.

        API servers can select only by the uids of the objects themselves. They know no controllers,
        and their hashes of namespaces would put similar names into one shard.
        """
        return hashing.select(shards, self._count) if self._by == 'own-uid' else None

    def _call(self, by: Callable[[bodies.Body], str], body: bodies.RawBody) -> str | None:
        """Call the author's function; None if it fails, which must not stop the watch."""
        try:
            return str(by(bodies.Body(body)))
        except Exception as e:
            metadata = body['metadata']
            logger.error(
                f"settings.sharding.by has failed for {metadata.get('namespace')}/"
                f"{metadata['name']}, so the shard of this object is found by its uid: {e!r}",
                exc_info=True)
            return None


def _find_uid(metadata: Mapping[str, Any]) -> str:
    """Find the uid of the controller of the object, or else its own one."""
    owners = metadata.get('ownerReferences')
    if isinstance(owners, list):
        for owner in owners:
            if owner.get('controller'):
                return str(owner.get('uid'))
    return str(metadata.get('uid') or '')
