"""
Causes: why handlers are called, and with what.

A cause is all that is known of one occasion. Its kwargs are those of the handlers, of the callbacks
of their filters, of the lifecycles, and so on; execution adds what is specific for one attempt.
"""
import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, diffs, patches, references, reviews


class Activity(enum.StrEnum):
    """What happens to the operator itself, not to the objects."""
    AUTHENTICATION = 'authentication'
    STARTUP = 'startup'
    CLEANUP = 'cleanup'
    PROBE = 'probe'


class Reason(enum.StrEnum):
    """What happened to an object."""
    CREATE = 'create'
    UPDATE = 'update'
    DELETE = 'delete'
    RESUME = 'resume'
    NOOP = 'noop'
    FREE = 'free'
    GONE = 'gone'


HANDLED_REASONS = frozenset({Reason.CREATE, Reason.UPDATE, Reason.DELETE, Reason.RESUME})

TITLES: Mapping[Reason, str] = {
    Reason.CREATE: 'Creation',
    Reason.UPDATE: 'Updating',
    Reason.DELETE: 'Deletion',
    Reason.RESUME: 'Resuming',
}


@dataclasses.dataclass(kw_only=True)
class Cause:
    """The common part of all causes. The indices win over kwargs of the same names."""
    logger: Any
    memo: Any
    indices: Mapping[str, Any]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The kwargs of the handlers; made once, so not to be changed."""
        kwargs: dict[str, Any] | None = self.__dict__.get('_made')
        if kwargs is None:
            kwargs = self.__dict__['_made'] = self._kwargs()
            kwargs.update(self.indices)
        return kwargs

    def _kwargs(self) -> dict[str, Any]:
        return {'logger': self.logger, 'memo': self.memo}


@dataclasses.dataclass(kw_only=True)
class ActivityCause(Cause):
    activity: Activity
    settings: configuration.OperatorSettings

    def _kwargs(self) -> dict[str, Any]:
        return {**super()._kwargs(), 'activity': self.activity, 'settings': self.settings}


@dataclasses.dataclass(kw_only=True)
class ResourceCause(Cause):
    resource: references.Resource
    body: bodies.Body
    patch: patches.Patch

    def _kwargs(self) -> dict[str, Any]:
        body = self.body
        meta = body.metadata
        uid, name, namespace = self._get_identity()
        return {
            'logger': self.logger,
            'memo': self.memo,
            'resource': self.resource,
            'patch': self.patch,
            'body': body,
            'spec': body.spec,
            'meta': meta,
            'status': body.status,
            'uid': uid,
            'name': name,
            'namespace': namespace,
            'labels': meta.labels,
            'annotations': meta.annotations,
        }

    def _get_identity(self) -> tuple[str | None, str | None, str | None]:
        raw = self.body.get('metadata') or {}
        return raw.get('uid'), raw.get('name'), raw.get('namespace')


@dataclasses.dataclass(kw_only=True)
class WatchingCause(ResourceCause):
    """A raw event, as the API tells it."""
    type: bodies.RawEventType
    event: bodies.RawEvent

    def _kwargs(self) -> dict[str, Any]:
        kwargs = super()._kwargs()
        kwargs['type'] = self.type
        kwargs['event'] = self.event
        return kwargs


@dataclasses.dataclass(kw_only=True)
class IndexingCause(ResourceCause):
    """A state of an object to be indexed."""


@dataclasses.dataclass(kw_only=True)
class SpawningCause(ResourceCause):
    """
    An object which daemons and timers can accompany; its body can be a live one, not read yet.
    """
    identity: tuple[str | None, str | None, str | None]
    """The uid, the name, the namespace: those never change."""

    def _get_identity(self) -> tuple[str | None, str | None, str | None]:
        return self.identity


@dataclasses.dataclass(kw_only=True)
class ChangingCause(ResourceCause):
    """
    A change of the object since it was last handled.

    ``initial`` is for the objects that existed before the operator, and are not yet resumed.
    The old and new states are essences; the old one is None if the object was never handled.
    """
    reason: Reason
    initial: bool
    diff: diffs.Diff
    old: bodies.BodyEssence | None
    new: bodies.BodyEssence | None

    def _kwargs(self) -> dict[str, Any]:
        kwargs = super()._kwargs()
        kwargs['reason'] = self.reason
        kwargs['diff'] = self.diff
        kwargs['old'] = self.old
        kwargs['new'] = self.new
        return kwargs


@dataclasses.dataclass(kw_only=True)
class WebhookCause(ResourceCause):
    """
    An operation under review, before it is done. The body is what will be, or, for deletions, what
    has been; it can lack a name, or even the metadata (of subresources), then the request has them.

    The old and new states are whole objects; None if there is no such object before or after.
    """
    operation: reviews.Operation
    subresource: str | None
    dryrun: bool
    warnings: list[str]
    userinfo: Mapping[str, Any]
    headers: Mapping[str, str]
    sslpeer: Mapping[str, Any] | None
    diff: diffs.Diff
    old: bodies.Body | None
    new: bodies.Body | None
    name: str | None = None
    namespace: str | None = None

    def _kwargs(self) -> dict[str, Any]:
        kwargs = super()._kwargs()
        kwargs['name'] = kwargs['name'] or self.name
        kwargs['namespace'] = kwargs['namespace'] or self.namespace
        for name in ('operation', 'subresource', 'dryrun', 'warnings', 'userinfo', 'headers',
                     'sslpeer', 'diff', 'old', 'new'):
            kwargs[name] = getattr(self, name)
        return kwargs
