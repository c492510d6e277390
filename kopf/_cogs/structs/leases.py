"""
Leases of ``coordination.k8s.io``: their resource, their form, and how long they are valid.

The clocks of machines differ, so the times in a Lease are only written for people, and never read.
A Lease is valid for its duration since its record was seen to change, by the own monotonic clock.
"""
import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from kopf._cogs.structs import references

API_VERSION, KIND = 'coordination.k8s.io/v1', 'Lease'

RESOURCE = references.Resource('coordination.k8s.io', 'v1', 'leases', kind=KIND, namespaced=True)


@dataclasses.dataclass(frozen=True)
class Sighting:
    """A Lease as this replica has seen it."""
    raw: Mapping[str, Any] | None
    """The object; None if there is none."""
    since: float
    """The monotonic time when it was first seen with this record."""

    @property
    def spec(self) -> Mapping[str, Any]:
        return (self.raw or {}).get('spec') or {}

    @property
    def labels(self) -> Mapping[str, str]:
        return (self.raw or {}).get('metadata', {}).get('labels') or {}

    @property
    def holder(self) -> str:
        """The identity of the replica that holds the Lease; empty if the Lease is free."""
        return self.spec.get('holderIdentity') or ''

    @property
    def until(self) -> float:
        """The monotonic time until which the Lease is valid, unless it changes."""
        return self.since + float(self.spec.get('leaseDurationSeconds') or 0)

    @property
    def transitions(self) -> int:
        """How many times the Lease has got another holder."""
        return self.spec.get('leaseTransitions') or 0


def see(known: Sighting | None, raw: Mapping[str, Any] | None, *, now: float) -> Sighting:
    """Take the present state of a Lease. Only changes of its record count."""
    seen = Sighting(raw, now)
    if known is not None and known.raw is not None and raw is not None and known.spec == seen.spec:
        return dataclasses.replace(seen, since=known.since)
    return seen


def make(
        raw: Mapping[str, Any] | None,
        *,
        namespace: str,
        name: str,
        holder: str,
        duration: int,
        now: datetime.datetime,
        acquired: str | None = None,
        transitions: int | None = None,
        labels: Mapping[str, str] | None = None,
) -> Mapping[str, Any]:
    """
    Make a Lease with this record, with the labels, and with all metadata that others have set.

    ``acquired`` is the time of the acquisition as it was written before. Default: now.
    """
    metadata = (raw or {}).get('metadata') or {'namespace': namespace, 'name': name}
    if labels:
        metadata = {**metadata, 'labels': {**(metadata.get('labels') or {}), **labels}}
    when = format_time(now)
    record = {
        'holderIdentity': holder, 'leaseDurationSeconds': duration,
        'acquireTime': acquired or when, 'renewTime': when}
    if transitions is not None:
        record['leaseTransitions'] = transitions
    return {'apiVersion': API_VERSION, 'kind': KIND, 'metadata': metadata, 'spec': record}


def format_time(when: datetime.datetime) -> str:
    """Format a time in UTC as ``MicroTime`` of Kubernetes."""
    return f"{when.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
