"""
Watching: lists the objects of one resource, and then follows all their changes, endlessly.

It corresponds to the Reflector of client-go. See "Efficient detection of changes" in the Kubernetes
documentation for the protocol.

The sink gets, in this order and without gaps: the beginning of a list, the objects of the list, the
end of the list; then, the changes. When the changes cannot be followed any further (e.g. HTTP 410),
the sink gets a new list. So, whatever happens to the API server or to the network:

- Every object that exists after the end of a list was in that list or has changed since.
- The states of an object come in the order in which they were stored. (Except for when etcd was
  restored from a backup; then, the sink is notified at the beginning of a list.)
- No state of an object comes twice, except for in a list.
- A list that was interrupted has no end. Another list begins.

Failures are retried endlessly, and logged as described in `streaks`. Only errors of the credentials
are raised, and those errors that the caller asks for.
"""
import asyncio
import dataclasses
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from kopf._cogs.aiokits import pulses, timeouts
from kopf._cogs.clients import api, errors, listing, screening, shardselectors, splitting, streaks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, dicts, nesting, references

default_logger = logging.getLogger(__name__)

MIN_INTERVAL = 1.0
"""The minimal time (seconds) between two connections, if the server closes them at once."""

PROVEN_AFTER = 5.0
"""How long (seconds) a stream has to last before it counts as working."""

PRECISION = 1.0
"""How much later (seconds) it can be noted that something has come by a stream, at most."""

MAX_BLOCKING = 0.010
"""How long (seconds) one stream or list may block the event loop at once."""

ACCEPT_METADATA = 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json'
"""The ``Accept`` header for streams of the objects' metadata only."""

INITIAL_END = 'k8s.io/initial-events-end'
"""The annotation of the bookmark at the end of a streaming list (KEP-3157)."""

MAX_SKIPPED_REMEMBERED = 10_000
"""How many skipped objects are remembered, so that each of them is logged once."""


class Sink(Protocol):
    """
    Takes the objects of a watch.

    The methods must be quick, and must not raise: they are called for every event of the watch.
    """

    def select(self, *, anew: bool) -> shardselectors.ShardSelector | None:
        """
        Say which objects are enough; None if all are needed.

        It is called before each list (``anew``), and before each stream that continues the list or
        the previous stream. For these, nothing can be added to what was selected for the list. More
        objects can come than are selected.
        """
        return None

    def list_started(self, *, restored: bool) -> None:
        """
        Begin a list. If the previous list has not ended, forget it.

        ``restored`` means that etcd was restored from a backup: the resource version of the list is
        lower than a previous one. Resource versions must not be compared with those from before.
        """

    def expect(self, remaining: int | None) -> None:
        """Note about how many objects of the list are still to come; None if it is not known."""
        return

    def listed(self, body: bodies.RawBody, packed: bytes | None = None) -> None:
        """
        Take an object of the list. If the list is streamed, ``packed`` is the same as in `changed`.
        """

    def list_ended(self) -> None:
        """End the list. All objects that were not in the list do not exist any more."""

    def unavailable(self, error: Exception) -> None:
        """Note that the objects cannot be listed or watched for now; the next attempt follows."""
        return

    def changed(self, type: screening.EventType, body: bodies.RawBody, packed: bytes) -> None:
        """
        Take a changed object. ``packed`` is the JSON of the whole event, to be parsed again later.
        """

    def skipped(self, type: screening.EventType | None, body: bodies.RawBody) -> None:
        """
        Note a listed (None) or changed object that cannot be processed.

        If the object is nested too deeply, the body is reduced to its upper levels, which have the
        metadata; see `nesting.skim`. If the metadata is damaged, see `bodies.identify`.
        """
        return

    @property
    def screen(self) -> screening.Screen | None:
        """What recognises objects of no use before they are parsed; None if all are of use."""
        return None


async def watch(
        client: api.Client,
        *,
        settings: configuration.OperatorSettings,
        resource: references.Resource,
        namespace: references.Namespace,
        sink: Sink,
        logger: api.Logger = default_logger,
        metadata_only: bool = False,
        raising: tuple[type[errors.APIError], ...] = (),
        pulse: pulses.Pulse | None = None,
) -> None:
    """
    Pass the objects and their changes to the sink, until cancelled. It begins with a list.

    * ``metadata_only``: whether to request only the metadata of the objects.
    * ``raising``: the errors of the API to raise; all others are retried.
    * ``pulse``: the heartbeat of this watch, for health checks. If it is that of a previous watch
      with the same sink, its ``reached`` is the newest resource version that the sink has got.

    :raises LoginError: if there are no usable credentials.
    """
    watcher = _Watcher(
        client, settings, resource, namespace, sink, logger=logger, metadata_only=metadata_only,
        raising=raising, pulse=pulses.Pulse() if pulse is None else pulse)
    logger.debug(f"Starting the watch-stream for {watcher.name}.")
    try:
        while True:
            pause = await watcher.list_and_watch()
            watcher.pulse.expect(pause)
            await asyncio.sleep(pause)
    finally:
        logger.debug(f"Stopping the watch-stream for {watcher.name}.")


class _NotSelected(Exception):
    """The API server has not selected the objects as requested."""


@dataclasses.dataclass(eq=False)
class _Watcher:
    client: api.Client
    settings: configuration.OperatorSettings
    resource: references.Resource
    namespace: references.Namespace
    sink: Sink
    logger: api.Logger
    metadata_only: bool
    raising: tuple[type[errors.APIError], ...]
    pulse: pulses.Pulse
    """The heartbeat, with the newest resource version that the sink has got."""

    def __post_init__(self) -> None:
        where = 'cluster-wide' if self.namespace is None else f'in {self.namespace!r}'
        self.name = f"{self.resource} {where}"
        self._path = self.resource.get_url(namespace=self.namespace)
        self._screen = self.sink.screen
        self._shard_selector: shardselectors.ShardSelector | None = None
        """What is requested of the API server now; None if all objects are."""
        self._streak = streaks.Streak(
            f"Watching of {self.name}", settings=self.settings, logger=self.logger)
        self._relisting = True
        """Whether a new list is needed, as the stream cannot be continued from there."""
        self._streaming = False
        """Whether the stream brings a streaming list now."""
        self._doubtful = False
        """Whether etcd could have been restored from a backup, i.e. after an interruption."""
        self._proven = False
        """Whether the latest stream has worked."""
        self._skipped: dict[tuple[Any, ...], None] = {}
        """The skipped objects that have been logged; the latest ones are last."""

    @property
    def _patience(self) -> float | None:
        """How long (seconds) a request for a list can take."""
        return timeouts.read(self.settings.networking.request_timeout)

    async def list_and_watch(self) -> float:
        """List the objects if needed; then, stream until the stream ends; return the next pause."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        backoff = self.settings.watching.reconnect_backoff
        resumed = not self._relisting
        self._proven = False
        self.pulse.begin()
        self.pulse.expect(self._patience)
        failure: errors.APIError | None = None
        try:
            await self._prepare()
            if await self._stream():
                return backoff
        except _NotSelected as e:
            return self._stop_selecting(e)
        except self.raising:
            raise
        except errors.APIGoneError as e:
            self._relisting = True
            self.logger.debug(f"The watch-stream for {self.name} is too far behind: {e}")
            if resumed:
                return max(backoff, MIN_INTERVAL - (loop.time() - started) if self._proven else 0)
            failure = e
        except errors.APIConnectionError as e:
            self._doubtful = True
            failure = e
        except errors.APIError as e:
            if self._shard_selector is not None and shardselectors.is_refusal(e):
                return self._stop_selecting(e)
            self._doubtful = True
            self._relisting |= e.status in (400, 404, 422)
            self.sink.unavailable(e)
            return self._streak.fail(e)
        if failure is not None and not self._proven:
            self.sink.unavailable(failure)
            return self._streak.fail(failure)
        if failure is not None:
            self.logger.debug(f"The watch-stream for {self.name} was interrupted: {failure}")
        return max(backoff, MIN_INTERVAL - (loop.time() - started))

    def _select(self, *, anew: bool) -> None:
        selector = self.sink.select(anew=anew)
        is_possible = (
            self._path not in self.client.unselectable
            and not self.settings.watching.shard_selectors.collect(self.resource))
        self._shard_selector = selector if is_possible else None

    def _stop_selecting(self, reason: Exception) -> float:
        """Request all objects from now on; return the next pause."""
        self.client.unselectable.add(self._path)
        self._relisting = True
        self.logger.info(
            f"The API server does not select the objects of {self.name} by shards, so all of them "
            f"are watched: {reason}")
        return 0

    def _check_selected(self, body: bodies.RawBody) -> None:
        """
        Check that the server selects by the same hashes: otherwise, needed objects can be missing.
        """
        if self._shard_selector is not None and not self._shard_selector.covers(body):
            raise _NotSelected("objects of other shards come, too")

    async def _prepare(self) -> None:
        """
        Prepare the next stream: list the objects, unless the previous stream can be continued.

        If etcd could have been restored, the present resource version is requested first. If it is
        lower than before, the stream cannot be continued. If the list can come by the stream
        (KEP-3157), then nothing is listed here.
        """
        is_streamable = (
            self.settings.watching.initial_streaming
            and self._path not in self.client.unstreamable)
        version: str | None = None
        is_doubtful = self._doubtful or (self._relisting and is_streamable)
        if is_doubtful and self.pulse.reached is not None:
            version = await self._get_version()
            self._relisting |= _is_lower(version, self.pulse.reached)
        self._doubtful = False
        if self._relisting:
            self._select(anew=True)
            if not is_streamable:
                await self._list()
            else:
                self._begin(version)
                self._streaming = True

    def _begin(self, version: str | None) -> None:
        self.sink.list_started(restored=_is_lower(version, self.pulse.reached))

    async def _get_version(self) -> str:
        """Get the present resource version of the list, by requesting one object of it."""
        self.pulse.expect(self._patience)
        params = {**listing.get_selectors(self.settings, self.resource), 'limit': '1'}
        raw = await self.client.request(
            'GET', self._path, params=params, accept=listing.ACCEPT_METADATA_LIST, retry=False,
            parsed=False)
        metadata, _ = listing.parse_list(raw, self.resource)
        return str(metadata['resourceVersion'])

    async def _list(self) -> None:
        version: str | None = None
        loop = asyncio.get_running_loop()
        until = loop.time() + MAX_BLOCKING
        async for page in listing.list_objects(
            self.client, resource=self.resource, namespace=self.namespace,
            settings=self.settings, shard_selector=self._shard_selector,
            metadata_only=self.metadata_only, retry=False,
            skip=lambda body, reason: self._skip(None, body, reason),
        ):
            self.pulse.hear(self._patience)
            if version is None or page.restarted:
                version = page.resource_version
                self._begin(version)
            for body in page.items:
                self._check_selected(body)
                self.sink.listed(body)
                if loop.time() > until:
                    until = await _breathe()
            self.sink.expect(page.remaining)
        self.sink.list_ended()
        self.pulse.reached = version
        self._relisting = False

    async def _stream(self) -> bool:
        """
        Stream until the server ends the stream properly; other ends are raised as errors.

        Returns whether the stream has ended as expected, so that the next one can begin.
        """
        watching = self.settings.watching
        patience = timeouts.read(watching.inactivity_timeout)
        loop = asyncio.get_running_loop()
        started = loop.time()
        proving: asyncio.TimerHandle | None = None
        lifetime = timeouts.timeout(timeouts.read(watching.client_timeout))
        silence = timeouts.timeout(patience)
        precision = PRECISION if patience is None else min(PRECISION, patience / 100)
        heard = started
        self.pulse.expect(patience)
        splitter = splitting.LineSplitter()
        stream = self.client.stream(
            self._path, params=self._get_params(),
            accept=ACCEPT_METADATA if self.metadata_only else api.JSON)
        try:
            async with lifetime, silence, stream as content:
                proving = loop.call_later(PROVEN_AFTER, self._prove)
                while chunk := await content.readany():
                    complete = splitter.feed(chunk)
                    now = loop.time()
                    until = now + MAX_BLOCKING  # what comes next is always waited for
                    if complete and now - heard > precision:  # timers are costly
                        silence.reschedule(None if patience is None else now + patience)
                        self.pulse.hear(patience)
                        heard = now
                    for line in complete:
                        if self._screen is None or not self._is_screened(self._screen, line):
                            self._handle(line)
                        if loop.time() > until:
                            until = await _breathe()
        except TimeoutError:
            if lifetime.expired():
                return True
            raise errors.APIConnectionError(f"nothing has come for {patience:g}s") from None
        except splitting.LineTooLongError as e:
            self._relisting = True
            raise errors.APIServerError(str(e)) from None
        except errors.APIClientError as e:
            if self._streaming and e.status in (400, 422):
                self.client.unstreamable.add(self._path)
                self.logger.debug(f"The first state of {self.name} cannot be streamed: {e}")
                return True
            raise
        finally:
            self._streaming = False
            if proving is not None:
                proving.cancel()
        if not self._proven and loop.time() - started < MIN_INTERVAL * 0.9:
            raise errors.APIConnectionError("the stream ends as soon as it begins")
        return False

    def _get_params(self) -> Mapping[str, str]:
        if not self._streaming:
            self._select(anew=False)
        params = {
            **listing.get_selectors(
                self.settings, self.resource, shard_selector=self._shard_selector),
            'watch': 'true',
            'allowWatchBookmarks': 'true',
        }
        limit = timeouts.read(self.settings.watching.server_timeout)
        if limit is not None:
            params['timeoutSeconds'] = str(max(1, round(limit)))
        if self._streaming:
            params.update(sendInitialEvents='true', resourceVersionMatch='NotOlderThan')
        elif self.pulse.reached is not None:
            params.update(resourceVersion=self.pulse.reached)
        return params

    def _is_screened(self, screen: screening.Screen, line: bytes) -> bool:
        """
        Whether the event is done, as its object is of no use.

        All that is unusual is left to `_handle`.
        """
        head = screening.read_head(line)
        if head is None:
            return False
        type, body = head
        if not screen(self._get_shown(type), body):
            return False
        self._check_selected(body)
        self._note(body['metadata'].get('resourceVersion'))
        if not self._proven:
            self._note_success()
        return True

    def _handle(self, line: bytes) -> None:
        """
        Pass an event of the stream to the sink.

        :raises errors.APIError: if it is an ERROR event, or no proper event.
        """
        reason: str | None = None
        try:
            try:
                event = nesting.parse(line)
            except nesting.TooDeepError as e:
                event, reason = nesting.skim(line), str(e)
            type, body = event['type'], event['object']
            metadata = body.get('metadata')
            if type != 'ERROR' and not isinstance(metadata, dict):
                raise TypeError("There is no metadata.")
        except (ValueError, TypeError, LookupError, AttributeError):
            self._relisting |= self._streak.failures > 0  # maybe the next version makes sense
            raise errors.APIServerError("there is garbage in the stream") from None
        if type == 'ERROR':
            error = errors.make_status_error(body)
            self._relisting |= not isinstance(error, errors.APITooManyRequestsError)
            raise error
        version = metadata.get('resourceVersion')
        version = version if isinstance(version, str) else None
        if type == 'BOOKMARK':
            self._handle_bookmark(version, metadata)
        elif type in ('ADDED', 'MODIFIED', 'DELETED'):
            damage = bodies.find_damage(body)
            if damage is not None:
                body, reason = bodies.identify(body), damage
            self._check_selected(body)
            shown = self._get_shown(type)
            if reason is not None:
                self._skip(shown, body, reason)
            elif shown is None:
                self.sink.listed(body, line)
            else:
                self.sink.changed(shown, body, line)
            self._note(version)
        if not self._proven:
            self._note_success()

    def _get_shown(self, type: screening.EventType) -> screening.EventType | None:
        """Get the type to pass to the sink: None for the objects of a streaming list."""
        return None if self._streaming and type != 'DELETED' else type

    def _note(self, version: str | None) -> None:
        """Note the version of an object that the sink has got."""
        if not self._streaming:
            self.pulse.reached = version or self.pulse.reached

    def _note_success(self) -> None:
        self._proven = True
        self._streak.ease()

    def _skip(self, type: screening.EventType | None, body: bodies.RawBody, reason: str) -> None:
        """Skip an object that cannot be processed; log that once per object."""
        self.sink.skipped(type, body)
        metadata = body['metadata']
        key = metadata.get('namespace'), metadata['name'], metadata.get('uid')
        if type != 'DELETED' and key not in self._skipped:
            if len(self._skipped) >= MAX_SKIPPED_REMEMBERED:
                del self._skipped[next(iter(self._skipped))]
            self._skipped[key] = None
            name = '/'.join(part for part in key[:2] if part) or "without a name"
            self.logger.error(
                f"The object {name} of {self.resource} is skipped: {reason}. It is handled again "
                f"when that is mended.")

    def _handle_bookmark(self, version: str | None, metadata: Mapping[str, Any]) -> None:
        if self._streaming:
            if dicts.resolve(metadata, ('annotations', INITIAL_END), None) == 'true':
                self.sink.list_ended()
                self.pulse.reached = version
                self._streaming = self._relisting = False
        elif _is_lower(version, self.pulse.reached):
            raise errors.APIGoneError("the versions have gone back", status=410)
        elif version is not None:
            self.pulse.reached = version

    def _prove(self) -> None:
        self._proven = True
        self._streak.end()


async def _breathe() -> float:
    """Give the control back to the event loop; return the time by which to do it again."""
    await asyncio.sleep(0)
    return asyncio.get_running_loop().time() + MAX_BLOCKING


def _is_lower(version: str | None, than: str | None) -> bool:
    """
    Compare resource versions, if they are known decimal integers; others cannot be compared.

    Kubernetes guarantees the comparison since 1.35 (KEP-5504), and etcd has always allowed it.
    """
    return (version is not None and than is not None
            and bodies.is_number(version) and bodies.is_number(than) and int(version) < int(than))
