"""
Causes: why Kopf calls handlers, and with which arguments.

A cause has the kwargs of the handlers, of their filters, of lifecycles, and of other callbacks. The
execution adds the kwargs of one attempt, e.g. ``retry``.
"""
import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, diffs, offspring, patches, references, reviews
from kopf._core.intents import typedargs


class Activity(enum.StrEnum):
    """What happens to the operator as a whole."""
    AUTHENTICATION = 'authentication'
    STARTUP = 'startup'
    CLEANUP = 'cleanup'
    PROBE = 'probe'


class Reason(enum.StrEnum):
    """
    What happened to an object, and why Kopf calls the handlers.

    ``CREATE``, ``UPDATE``, ``DELETE``, and ``RESUME`` have handlers of their own. ``RECONCILE`` is
    the reason of all calls of `kopf.reconcile` handlers: they do not depend on what has changed.
    ``NOOP`` means that nothing essential has changed. ``FREE`` and ``GONE`` are kept for
    compatibility: Kopf never uses them.
    """
    CREATE = 'create'
    UPDATE = 'update'
    DELETE = 'delete'
    RESUME = 'resume'
    RECONCILE = 'reconcile'
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


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class Cause:
    """The common part of all causes. Indices replace other kwargs of the same names."""
    logger: Any
    memo: Any
    indices: Mapping[str, Any]

    passed: ClassVar[tuple[str, ...]] = ()
    """The attributes that become kwargs unchanged, besides the kwargs that `_kwargs` makes."""

    @property
    def kwargs(self) -> dict[str, Any]:
        """The kwargs of the handlers. The dict is shared by all callers: do not change it."""
        kwargs: dict[str, Any] | None = self.__dict__.get('_made')
        if kwargs is None:
            kwargs = self.__dict__['_made'] = self._kwargs()
            kwargs['logger'], kwargs['memo'] = self.logger, self.memo
            for name in self.passed:
                kwargs[name] = getattr(self, name)
            kwargs.update(self.indices)
        return kwargs

    def _kwargs(self) -> dict[str, Any]:
        """Make those kwargs that are not simply attributes."""
        return {}

    @functools.cached_property
    def decoded(self) -> typedargs.Known:
        """The typed arguments that were made for any handler."""
        return {}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ActivityCause(Cause):
    activity: Activity
    settings: configuration.OperatorSettings

    passed = ('activity', 'settings')


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ResourceCause(Cause):
    resource: references.Resource
    body: bodies.Body
    patch: patches.Patch

    def _kwargs(self) -> dict[str, Any]:
        body = self.body
        meta = body.metadata
        uid, name, namespace = self.get_identity()
        return {
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

    def get_identity(self) -> tuple[str | None, str | None, str | None]:
        """Get the uid, the name, and the namespace of the object."""
        meta = bodies.get_raw(self.body).get('metadata') or {}
        return meta.get('uid'), meta.get('name'), meta.get('namespace')


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WatchingCause(ResourceCause):
    """A raw event from the watch."""
    type: bodies.RawEventType
    event: bodies.RawEvent

    passed = ('type', 'event')


class IndexingCause(ResourceCause):
    """A state of an object to be indexed."""


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class SpawningCause(ResourceCause):
    """
    An object with daemons or timers. The body can be a live one: it is read only when needed.
    """
    identity: tuple[str | None, str | None, str | None]
    """The uid, the name, and the namespace. They never change, so a live body is not read."""

    def get_identity(self) -> tuple[str | None, str | None, str | None]:
        return self.identity


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ReconcilingCause(ResourceCause):
    """The present state of an object, with its owned resources."""
    children: offspring.Children

    reason: ClassVar[Reason] = Reason.RECONCILE
    passed = ('reason', 'children')


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class ChangingCause(ResourceCause):
    """
    The changes of an object since its last-handled state.

    ``initial`` is true for the objects that existed before the operator and are not resumed yet.
    ``old`` and ``new`` are essences; ``old`` is None if the object was never handled. With
    ``field``, the kwargs describe only the change of this field: e.g. for the sub-handlers of
    a handler of this field. With ``get_memo``, the memo is made together with the kwargs: objects
    for which no callback is called need no memos.
    """
    memo: Any = None
    get_memo: Callable[[], Any] | None = None
    reason: Reason
    initial: bool
    diff: diffs.Diff
    old: bodies.BodyEssence | None
    new: bodies.BodyEssence | None
    field: dicts.FieldPath | None = None

    passed = ('reason',)

    def narrow(self, field: dicts.FieldPath | None) -> 'ChangingCause':
        """Make the cause for the handlers of one field, or, if None, of the whole object."""
        return self if field == self.field else dataclasses.replace(self, field=field)

    def describe_change(self, field: dicts.FieldPath | None) -> dict[str, Any]:
        """Make the kwargs for the change of the field, or of the whole object."""
        if not field:
            return {'old': self.old, 'new': self.new, 'diff': self.diff}
        return {
            'old': dicts.resolve(self.old, field, None),
            'new': dicts.resolve(self.new, field, None),
            'diff': diffs.reduce(self.diff, field),
        }

    def _kwargs(self) -> dict[str, Any]:
        if self.get_memo is not None:
            self.memo = self.get_memo()
        return {**super()._kwargs(), **self.describe_change(self.field)}


@dataclasses.dataclass(kw_only=True, eq=False, repr=False)
class WebhookCause(ResourceCause):
    """
    An operation under an admission review.

    The body is the object after the operation, or, for deletions, before it. The body can lack
    a name, e.g. with ``generateName``, or even the metadata, for some subresources. ``name`` and
    ``namespace`` are those of the request. ``old`` and ``new`` are whole objects; None if the
    object does not exist before or after the operation.
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

    passed = ('operation', 'subresource', 'dryrun', 'warnings', 'userinfo', 'headers', 'sslpeer',
              'diff', 'old', 'new')

    def get_identity(self) -> tuple[str | None, str | None, str | None]:
        uid, name, namespace = super().get_identity()
        return uid, name or self.name, namespace or self.namespace
