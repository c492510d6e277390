"""
Declarations of externals: `kopf.external`, and what can be asked of them from outside.
"""
import contextlib
import dataclasses
import functools
import math
import re
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, TypeVar

from kopf._cogs.configs import sections
from kopf._cogs.structs import dicts, ids, references
from kopf._core.intents import callbacks, handlers, registries
from kopf._kits.external import driving, gates, machine, records

FunctionT = TypeVar('FunctionT', bound=Callable[..., Any])

_drivers: weakref.WeakSet[driving.Driver] = weakref.WeakSet()
"""What works in this process."""

DEFAULT_RATE = gates.Rate(10, per=1.0)


@dataclasses.dataclass(eq=False, kw_only=True, repr=False)
class External(driving.Declaration):
    """
    An external system: its functions are declared with the decorators of this object.

    All functions get the arguments of all handlers of objects, and ``key``, ``token``,
    ``observed``, ``desired``, ``diff``; those that are not known yet are `None`. They can be sync
    or async. See "Keep things in external systems" in the documentation.
    """
    _options: Mapping[str, Any]
    """What the handlers of all functions have in common."""

    def __repr__(self) -> str:
        return f'<External {self.id!r}>'

    def observe(self, fn: FunctionT) -> FunctionT:
        """
        Declare the function that looks at a thing by its ``key``: it returns what is there, as a
        dict; or `None` if the system says that there is no such thing.
        """
        return self._declare('observe', fn)

    def find(self, fn: FunctionT) -> FunctionT:
        """
        Declare the function that finds a thing by the ``token`` that it was created with: it
        returns the key; or `None` if there is no such thing.
        """
        return self._declare('find', fn, finds=True)

    def create(self, fn: FunctionT | None = None, *, idempotent: bool = False) -> Any:
        """
        Declare the function that creates a thing and returns its key, a string or a number. It
        gives the system the ``token``, which is the same in all attempts for the same thing.

        :param idempotent: whether another call with the same token returns the first thing, and
            does not create a second one. Default: no.
        """
        declare = functools.partial(self._declare, 'create', is_idempotent=idempotent)
        return declare if fn is None else declare(fn)

    def update(self, fn: FunctionT) -> FunctionT:
        """
        Declare the function that changes a thing: from ``observed`` to ``desired``, whose
        difference is the ``diff``. It is called only if there is any.
        """
        return self._declare('update', fn, updates=True)

    def delete(self, fn: FunctionT) -> FunctionT:
        """
        Declare the function that deletes a thing by its ``key``. It is called until ``observe``
        returns `None`, so it is also called for things that are gone.
        """
        return self._declare('delete', fn)

    def desired(self, fn: FunctionT) -> FunctionT:
        """
        Declare the function that returns what should be, in the form of what ``observe`` returns.
        Only its fields are compared. Default: the spec of the object.
        """
        return self._declare('desired', fn)

    def trigger(self, key: records.Key) -> None:
        """
        Observe the thing with this key now, or as soon as its limit allows it. It can be
        called in all threads, and often. Nothing happens if no operator here knows the key.

        :param key: the key, as ``create`` or ``find`` has returned it.
        """
        for driver in list(_drivers):
            if driver.external is self:
                _tell(driver, driver.trigger_key, key)

    def get_key(self, body: Mapping[str, Any], /) -> records.Key | None:
        """
        Get the key of what an object has in the system; `None` if there is nothing, or if it is not
        known.

        :param body: the object, as handlers get it.
        """
        with contextlib.suppress(ValueError):  # the external complains
            record = records.read(body, self.id)
            if record is not None and record.phase is not records.Phase.UNKNOWN:
                return record.key
        return None

    def find_fault(self, others: Iterable[handlers.ExternalDeclaration]) -> str | None:
        """Say which functions are missing, or why it can never be created."""
        known, before = {other.id: other.dependencies for other in others}, list(self.dependencies)
        for id in before:
            if id not in known:
                return f"The external {self.id!r} comes after {id!r}, which is no external."
            before += [leader for leader in known[id] if leader not in before]
        if self.id in before:
            return f"The external {self.id!r} comes after itself, by after= of {', '.join(before)}."
        can = self.abilities
        needed = ['observe', 'create', *([] if can.orphans and not can.replaces else ['delete'])]
        missing = [f'@{self.id}.{verb}' for verb in needed if verb not in self.calls]
        return (f"The external {self.id!r} needs these functions, too: {', '.join(missing)}."
                ) if missing else None

    def make_driver(self, hub: Any) -> Any:  # the types of the core are not public
        """Make what works with the system for an operator."""
        driver = driving.Driver(self, hub)
        _drivers.add(driver)
        return driver

    def _declare(self, verb: str, fn: FunctionT, **abilities: Any) -> FunctionT:
        self.abilities: machine.Abilities = dataclasses.replace(self.abilities, **abilities)
        declared: Any = self._options['declared']
        self.calls[verb] = handlers.CallHandler(
            id=ids.HandlerId(f'{self.id}/{verb}'), fn=fn, success_level=10, failure_level=10,
            timeout=None if verb == 'desired' else self.abilities.timeout,
            arguments=None if declared is None or (verb not in self.calls and verb == 'desired')
            else declared.bind(fn, None, is_lasting=False), **self._options)
        return fn


def external(
        arg1: references.SelectorKey = None,
        arg2: references.Marker | str | None = None,
        arg3: references.Marker | str | None = None,
        /,
        *,
        id: str,
        group: str | None = None,
        version: str | None = None,
        kind: str | None = None,
        plural: str | None = None,
        singular: str | None = None,
        shortcut: str | None = None,
        category: str | None = None,
        interval: float | None = 300.0,
        max_interval: float | None = None,
        limit: gates.Rate | None = DEFAULT_RATE,
        limit_key: Callable[..., Any] | None = None,
        after: Iterable[External | str] = (),
        deletion: Literal['delete', 'orphan'] = 'delete',
        on_drift: Literal['correct', 'report'] = 'correct',
        replace: bool = False,
        immutable: Iterable[dicts.FieldSpec] = (),
        consistency: float = 30.0,
        timeout: float = 60.0,
        conditions: bool = False,
        shown: Iterable[str] = (),
        param: Any | None = None,
        backoff: float | None = None,
        labels: Mapping[str, Any] | None = None,
        annotations: Mapping[str, Any] | None = None,
        when: callbacks.WhenFilterFn | None = None,
        registry: registries.OperatorRegistry | None = None,
) -> External:
    """
    Declare what the operator keeps in an external system for each object: an account, a database.

    The result has the decorators for the functions that observe, create, update, and delete it. All
    times are in seconds.

    ::

        billing = kopf.external('tenants', id='billing')

        @billing.create
        def open_account(name, token, **_):
            return api.open_account(name, idempotency_key=token)

    See "Keep things in external systems" in the documentation.

    :param id: what identifies the external in the records on the objects: keep it. Up to 50
        letters, digits, ``-``, and ``_``.
    :param interval: how often to observe a thing if nothing has changed. It varies by a tenth.
        `None` means only when the object changes, or when `trigger` is called. Default: 300.
    :param max_interval: the interval doubles up to this with each observation that finds nothing
        new, until something changes. Default: it does not.
    :param limit: how many calls the system gets from all replicas together. `None` means any.
        Default: 10 per second.
    :param limit_key: a function that gets the arguments of handlers, and returns whose limit
        counts, such as the name of the credentials. Default: all objects have one limit.
    :param after: other externals of the same objects, which must be there before this one is
        created, and which are deleted after this one. Default: none.
    :param deletion: ``'delete'``; or ``'orphan'`` to leave the thing when the object is deleted.
    :param on_drift: whether to ``'correct'`` what others have changed, or only to ``'report'`` it.
    :param replace: whether a thing is replaced by a new one if an immutable field differs; twice at
        most, if the new ones also differ. Default: no, that is an error.
    :param immutable: the fields that cannot be changed, as in `desired`. Default: none.
    :param consistency: for how long the system can deny what it has just done. Default: 30.
    :param timeout: the time limit of one call. Sync functions cannot be interrupted. Default: 60.
    :param conditions: whether to keep the conditions ``Synced``, ``Ready``, ``Reconciling``, and
        ``Stalled`` in the status of the object. Default: no.
    :param shown: the fields of what was observed to show in the status of the object, not
        ``phase`` and ``key``. Default: none.
    :param backoff: the delay before the next attempt after an error. Default: it doubles from
        ``settings.reconciling.error_delay`` to ``settings.reconciling.max_error_delay``.
    :param arg1: a name (plural, singular, short, or the kind), such as ``'pods'`` or
        ``'deployments.apps'``; or `kopf.EVERYTHING`; or a class of `kopf.crd`; or a function that
        gets a `kopf.Resource` and returns whether the resource is selected. If more arguments
        follow: the group, or the group and the version, as in ``'apps', 'v1', 'deployments'`` and
        ``'apps/v1', 'deployments'``.
    :param arg2: the version or the name, after the group.
    :param arg3: the name, after the group and the version.
    :param group: the API group; ``''`` is the core API. Default: any group.
    :param version: the version of the group. Default: the preferred version.
    :param kind: the kind of the resource, such as ``'Pod'``.
    :param plural: the plural name of the resource, such as ``'pods'``.
    :param singular: the singular name of the resource, such as ``'pod'``.
    :param shortcut: a short name of the resource, such as ``'po'``.
    :param category: a category: all its resources are selected, e.g. those of ``'all'``.
    :param param: any value. The handler gets it as the argument ``param``. Default: `None`.
    :param labels: a dict of names of labels to criteria: a value, `kopf.PRESENT`, `kopf.ABSENT`, or
        a function of the value. Default: no filter.
    :param annotations: a dict of names of annotations to such criteria. Default: no filter.
    :param when: a function that gets the arguments of the handler as keyword arguments, and returns
        whether to call the handler. Default: no filter.
    :param registry: the `kopf.OperatorRegistry` that gets the handler. Default: the default
        registry.
    :raises TypeError: if there is no resource, if ``immutable``, ``after``, or ``shown`` is a
        string, if ``limit`` is no `kopf.Rate`, or if ``limit_key`` is async or no function.
    :raises ValueError: if ``id``, ``deletion``, ``on_drift``, ``shown``, or a time is wrong, or if
        ``max_interval`` is less than ``interval``.
    """
    if not re.fullmatch('[A-Za-z0-9]([A-Za-z0-9_-]{0,48}[A-Za-z0-9])?', id):
        raise ValueError(f"id= must be up to 50 letters, digits, - and _, not {id!r}.")
    if id == 'conditions' or records.make_name(id) == records.MARK:
        raise ValueError(f"id= must not be {id!r}: this name has another meaning on the objects.")
    if on_drift not in ('correct', 'report') or deletion not in ('delete', 'orphan'):
        raise ValueError("on_drift= is 'correct' or 'report'; deletion= is 'delete' or 'orphan'.")
    pause = math.inf if interval is None else interval
    longest = pause if max_interval is None else max_interval
    for name, seconds in (('interval', pause), ('max_interval', longest)):
        if not sections.is_number(seconds) or seconds < 0:
            raise ValueError(f"{name}= must be a number of seconds, not {seconds!r}.")
    for name, seconds in (('consistency', consistency), ('timeout', timeout)):
        if not sections.is_number(seconds) or not 0 <= seconds < math.inf:
            raise ValueError(f"{name}= must be a finite number of seconds, not {seconds!r}.")
    if not timeout:  # for HTTP clients, it is none
        raise ValueError("timeout= must not be 0: lost calls could never be told from slow ones.")
    if longest < pause:
        raise ValueError(f"max_interval= must not be less than interval=, which is {interval!r}.")
    if limit is not None and not isinstance(limit, gates.Rate):
        raise TypeError(f"limit= must be a kopf.Rate, not {limit!r}.")
    for name, collection in (('immutable', immutable), ('after', after), ('shown', shown)):
        if isinstance(collection, str):
            raise TypeError(f"{name}= must be a collection, e.g. [{collection!r}].")
    shown = tuple(shown)
    if own := {'phase', 'key'}.intersection(shown):
        raise ValueError(f"shown= must not have {sorted(own)}: the status shows fields of Kopf by "
                         f"these names. Return it by another name from observe.")
    if limit_key is not None:
        callbacks.verify_filter('limit_key=', limit_key)
        if callbacks.is_async(limit_key):
            raise TypeError("limit_key= must be a synchronous function.")
    options: Any = {
        'declared': references.get_declaration(arg1),
        'selector': references.Selector(
            arg1, arg2, arg3, group=group, version=version, kind=kind, plural=plural,
            singular=singular, shortcut=shortcut, category=category),
        'param': param, 'backoff': backoff}
    made = External(
        id=id, interval=pause, max_interval=longest, limit=limit, limit_key=limit_key,
        dependencies=[other.id if isinstance(other, External) else other for other in after],
        shown=shown, abilities=machine.Abilities(
            updates=False, corrects=on_drift == 'correct', orphans=deletion == 'orphan',
            replaces=replace, immutable=tuple(map(dicts.parse_field, immutable)),
            consistency=consistency, timeout=timeout), _options=options)
    made.desired(lambda spec, **_: dict(spec))
    target = registries.get_default_registry() if registry is None else registry
    target.append(handlers.ExternalHandler(
        id=ids.HandlerId(id), fn=_never_called, declaration=made, conditions=conditions,
        labels=labels, annotations=annotations, when=when, **options))
    return made


def _never_called(**_: Any) -> None:
    """Stand for the functions of an external, of which each is called by itself."""


def trigger(kind: str, name: str, *, namespace: str | None = None) -> None:
    """
    Observe now what an object has in external systems, or as soon as their limits allow it.

    It can be called in all threads, and often. Nothing happens if no operator of this process
    handles the object.

    ::

        kopf.trigger('websites', 'hello', namespace='default')

    See "Keep things in external systems" in the documentation.

    :param kind: the resource of the object, as in the decorators, e.g. ``'kopfexamples'``.
    :param name: the name of the object.
    :param namespace: the namespace of the object; none for cluster-scoped ones.
    """
    selector = references.Selector(kind)
    for driver in list(_drivers):
        _tell(driver, driver.trigger_object, selector, (namespace, name))


def _tell(driver: driving.Driver, fn: Callable[..., None], *args: Any) -> None:
    with contextlib.suppress(RuntimeError):  # the event loop of its operator is closed
        driver.loop.call_soon_threadsafe(fn, *args)
