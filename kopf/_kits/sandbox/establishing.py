"""
Establishing of custom resource definitions: their resources are served once they are accepted.
"""
import dataclasses
import logging

from kopf._kits.sandbox import crds, managedfields
from kopf._kits.sandbox.cluster import CRDS, Cluster
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.statuses import Obj
from kopf._kits.sandbox.storage import Change, Entry
from kopf._kits.sandbox.watches import Watches

logger = logging.getLogger(__name__)


class Definitions:
    """Follows the stored definitions; changes what is served, and their status."""

    def __init__(self, cluster: Cluster, watches: Watches) -> None:
        self._cluster = cluster
        self._watches = watches

    def restore(self) -> None:
        """Serve what is stored already."""
        for entry in self._cluster.store.select(CRDS):
            self._serve(entry.decode())

    def hear(self, change: Change) -> None:
        """Follow a change of the store, at once."""
        if change.resource != CRDS:
            return
        crd = change.new.decode()
        if change.type == 'DELETED':
            spec = crd['spec']
            self._cluster.kinds.remove(spec['group'], spec['names']['plural'])
            self._end_watches(crd)
            return
        entry = self._cluster.store.get(CRDS, change.new.key)
        if entry is not change.new:
            return
        if self._cluster.origin.is_speaking:  # the status is known there
            self._follow(crd, change.old)
            return
        others = [other.decode() for other in self._cluster.store.select(CRDS)]
        status = crds.status_of(crd, others, self._cluster.now())
        if status != crd.get('status'):
            self._put({**crd, 'status': status}, crd)
            return
        self._follow(crd, change.old)

    def _follow(self, crd: Obj, former: Entry | None) -> None:
        old = {} if former is None else former.decode()
        if old.get('spec') != crd['spec'] or not crds.is_established(old):
            self._serve(crd)
            self._end_watches(crd)
        elif crds.is_terminating(crd) and not crds.is_terminating(old):
            self._serve(crd)

    def _put(self, crd: Obj, old: Obj) -> None:
        """Store it with another status; the change comes back to `hear`."""
        kind = self._cluster.kind(CRDS)
        request = Request(verb='update', kind=kind, name=crd['metadata']['name'],
                          subresource='status', agent='kube-apiserver')
        crd = {**crd, 'metadata': dict(crd['metadata'])}
        managedfields.track(request, old, crd, self._cluster.now())
        self._cluster.put(kind, crd)

    def _end_watches(self, crd: Obj) -> None:
        """End the watches, because the rules of the objects have changed; clients watch again."""
        resource = (crd['spec']['group'], crd['spec']['names']['plural'])
        self._watches.end(lambda kind: kind.resource == resource)

    def _serve(self, crd: Obj) -> None:
        if not crds.is_established(crd):
            return
        spec = crd['spec']
        kinds = crds.kinds_of(crd)
        if kinds and kinds[0].resource in self._cluster.converters:
            kinds = [dataclasses.replace(kind, conversion=kind.conversion or {}) for kind in kinds]
        elif self._has_foreign_webhook(crd) and len(kinds) > 1:
            stored = min(kinds, key=lambda kind: kind.version != kind.storage_version)
            if self._cluster.origin.needs(*stored.resource):
                logger.warning(
                    f"{stored.plural}.{stored.group} are served in {stored.version} only: the "
                    f"webhook that converts them is not called from here.")
            kinds = [dataclasses.replace(stored, conversion=None)]
        self._cluster.kinds.remove(spec['group'], spec['names']['plural'])
        for kind in kinds:
            self._cluster.kinds.add(kind)
        self._cluster.redefine((spec['group'], spec['names']['plural']))

    def _has_foreign_webhook(self, crd: Obj) -> bool:
        """Whether the objects are converted by a webhook of the cluster that they come from."""
        base = self._cluster.origin.get(CRDS, ('', crd['metadata']['name']))
        conversion = crd['spec'].get('conversion') or {}
        return base is not None and conversion.get('strategy') == 'Webhook' and (
            base['spec'].get('conversion') == conversion)
