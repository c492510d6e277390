"""
Leases of ``coordination.k8s.io``: their resource, and the form of what is in them.
"""
import datetime

from kopf._cogs.structs import references

API_VERSION, KIND = 'coordination.k8s.io/v1', 'Lease'

RESOURCE = references.Resource(
    'coordination.k8s.io', 'v1', 'leases', kind=KIND, namespaced=True)


def format_time(when: datetime.datetime) -> str:
    """Format a time in UTC as ``MicroTime`` of Kubernetes."""
    return f"{when.replace(tzinfo=None).isoformat(timespec='microseconds')}Z"
