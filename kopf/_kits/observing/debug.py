"""
Debugging: what an operator does right now, as JSON for people.

It has the names of objects and handlers, but neither contents of objects nor texts of errors: these
can contain secrets. Of many objects, only the first ones are shown.
"""
import asyncio
import datetime
import ipaddress
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.helpers import hostnames, versions
from kopf._cogs.serving import exchanges
from kopf._core.actions import inflight
from kopf._core.path import objects
from kopf._core.reactor.watches import watchsets
from kopf._kits.observing import inspection

MAX_SHOWN = 100
"""How many objects or watches are shown in each list."""

MAX_HANDLERS = 20
"""How many handlers are shown for each object."""

FORWARDING = frozenset({'forwarded', 'via', 'x-real-ip'})
"""The headers that only proxies add, besides all ``X-Forwarded-…``."""

PATIENCE = 5.0
"""How long (seconds) to wait for the operator's event loop."""


class Debugger:
    """The page of one operator. Make it in the operator's event loop."""

    def __init__(self, inspector: inspection.Inspector) -> None:
        self._settings = inspector.operator.settings
        self._described = inspection.share(
            lambda: describe(inspector), name="description of the operator")
        self._loop = asyncio.get_running_loop()

    async def respond(self, request: exchanges.Request) -> exchanges.Response:
        """Make the page. It is called in another thread and event loop than the operator's."""
        is_near = is_local(request.peer) and not is_forwarded(request) and all(
            hostnames.is_own(value) for name, value in request.fields if name.lower() == 'host')
        if not self._settings.debugging.remote and not is_near:
            return _make_response(403, {'error': (
                "Only clients on the same machine or in the same pod get this, e.g. by kubectl "
                "port-forward, but not through HTTP proxies. Or set settings.debugging.remote.")})
        description = asyncio.run_coroutine_threadsafe(self._described.get(), self._loop)
        try:
            found = await asyncio.wait_for(asyncio.wrap_future(description), PATIENCE)
        except TimeoutError:
            return _make_response(503, {'error': "The event loop of the operator is blocked."})
        return _make_response(200, found)

    async def close(self) -> None:
        """End what is under way for the page, when it is not served any more."""
        await self._described.close()


def _make_response(status: int, content: Mapping[str, Any]) -> exchanges.Response:
    return exchanges.Response(status, json.dumps(content, indent=2).encode() + b'\n')


def is_local(address: str) -> bool:
    """Whether the IP address is of the same machine. Link-local suffixes are ignored."""
    try:
        parsed = ipaddress.ip_address(address.partition('%')[0])
    except ValueError:
        return False
    mapped = getattr(parsed, 'ipv4_mapped', None)
    return parsed.is_loopback or (mapped is not None and mapped.is_loopback)


def is_forwarded(request: exchanges.Request) -> bool:
    """
    Whether a proxy has forwarded the request, so that the client can be anywhere.

    The proxy can be on the same machine, e.g. a sidecar. If it adds none of the usual headers, as
    proxies of TCP do not, it looks like a client.
    """
    names = {name.lower() for name, _ in request.fields}
    return not names.isdisjoint(FORWARDING) or any(
        name.startswith('x-forwarded-') for name in names)


async def describe(inspector: inspection.Inspector) -> Mapping[str, Any]:
    """Describe the operator in its event loop."""
    moment = inspector.operator.clock.now()
    running = _group_calls(inspector.operator.underway)
    lists: dict[str, dict[str, Any]] = {
        name: {'total': 0, 'shown': []}
        for name in ('at_work', 'queued', 'waiting', 'throttled', 'watches')}

    def add(name: str, show: Callable[..., Mapping[str, Any]], *args: Any) -> None:
        """Count one more entry of a list, and show it if it is among the first ones."""
        lists[name]['total'] += 1
        if lists[name]['total'] <= MAX_SHOWN:
            lists[name]['shown'].append(show(*args))

    async for item in inspector.tour():
        reason = inspection.find_reason(item)
        if item.phase in objects.AT_WORK:
            add('at_work', _describe_work, item, running.get(item.uid, ()), moment)
        elif item.phase is objects.Phase.QUEUED:
            add('queued', _describe_object, item)
        elif reason is not None:
            name = 'throttled' if reason == 'throttled' else 'waiting'
            add(name, _describe_rest, item, reason, moment)
    for watch in inspector.list_watches():
        add('watches', _describe_watch, watch, moment)
    switch = inspector.operator.switch
    return {
        'version': versions.version,
        'time': moment.wall.isoformat(),
        'state': 'stopping' if switch.is_stopping else 'standby' if switch.is_standby else (
            'paused' if switch.is_paused else 'working'),
        'leadership': inspector.describe_leadership(),
        **lists,
        **({} if inspector.shadow is None else {'shadow': inspector.shadow.describe()}),
    }


def _group_calls(underway: inflight.Calls) -> Mapping[object, list[inflight.Call]]:
    by_uids: dict[object, list[inflight.Call]] = {}
    for call in underway:
        by_uids.setdefault(call.kwargs.get('uid'), []).append(call)
    return by_uids


def _describe_object(item: objects.Item) -> Mapping[str, Any]:
    name = item.name
    if name is None and (raw := item.inbox.peek()) is not None:
        name = objects.get_name(raw)
    namespace, name_ = (None, None) if name is None else name
    return {'resource': str(item.resource), 'namespace': namespace, 'name': name_, 'uid': item.uid}


def _describe_work(
        item: objects.Item, underway: Iterable[inflight.Call], moment: clocks.Moment,
) -> Mapping[str, Any]:
    return {
        **_describe_object(item),
        'phase': item.phase.name.lower(),
        'handlers': [{
            'id': call.handler.id,
            'seconds': round(moment.mono - call.requested, 3),
            'waits_for_thread': call.began is None,
        } for call in list(underway)[:MAX_HANDLERS]],
    }


def _describe_rest(item: objects.Item, reason: str, moment: clocks.Moment) -> Mapping[str, Any]:
    states = {} if item.cycle is None else item.cycle.states
    return {
        **_describe_object(item), 'reason': reason,
        **_describe_due(item.due, moment),
        'handlers': [
            {'id': id, 'attempts': state.attempts, **_describe_due(state.due, moment)}
            for id, state in list(states.items())[:MAX_HANDLERS]
            if not state.finished and state.due > moment.mono],
    }


def _describe_watch(watch: watchsets.WatchState, moment: clocks.Moment) -> Mapping[str, Any]:
    heard = watch.pulse.heard
    return {
        'resource': str(watch.resource), 'namespace': watch.namespace,
        'running': watch.is_running,
        'restarts': watch.pulse.restarts,
        'last_event_seconds_ago': None if heard is None else round(moment.mono - heard, 3),
    }


def _describe_due(due: float | None, moment: clocks.Moment) -> Mapping[str, Any]:
    if due is None:
        return {'until': None, 'seconds': None}
    left = max(0.0, due - moment.mono)
    until = moment.wall + datetime.timedelta(seconds=left)
    return {'until': until.isoformat(), 'seconds': round(left, 3)}
