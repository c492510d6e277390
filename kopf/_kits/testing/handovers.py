"""
Handovers between two replicas of an operator, by a peering: the replica with the higher priority
works, and the other one is paused.
"""
import copy
from collections.abc import Mapping
from typing import Any

from kopf._cogs.configs import configuration


def make_peering(options: Mapping[str, Any], namespace: str | None) -> dict[str, Any]:
    """Make the peering object of a namespace, or of the cluster, for an operator with options."""
    meta = {'name': _get_settings(options).name}
    return {
        'apiVersion': 'kopf.dev/v1',
        'kind': 'ClusterKopfPeering' if namespace is None else 'KopfPeering',
        'metadata': meta if namespace is None else {**meta, 'namespace': namespace}}


def make_options(options: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Make the options of a replica from those of the operator: the last replica works."""
    peering = _get_settings(options)
    changed = {
        'standalone': False, 'peering_name': peering.name, 'priority': peering.priority + number,
        'identity': f'replica-{number + 1}'}
    if options.get('settings') is None:
        return changed
    settings = copy.copy(options['settings'])  # or the replicas would share one priority
    settings.peering = peering
    return {**changed, 'settings': settings}


def _get_settings(options: Mapping[str, Any]) -> configuration.PeeringSettings:
    settings = options.get('settings') or configuration.OperatorSettings()
    peering: configuration.PeeringSettings = copy.copy(settings.peering)
    if options.get('peering_name') is not None:
        peering.name = options['peering_name']
    if options.get('priority') is not None:
        peering.priority = options['priority']
    return peering
