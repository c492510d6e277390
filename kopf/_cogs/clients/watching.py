"""
Watching: all objects of one resource, first as they are, then every change, for ever.

What the sink gets is, in this order and without gaps: the beginning of a list, its objects, its
end; then changes as the API tells them; and again a list when the changes since the last one cannot
be had. So, whatever happens to the API or to the network:

- every object that exists after the end of a list was in that list, or has changed since;
- of every object, states come in the order of their making (but for a restored database, of which
  the list tells), and none of them comes twice but by a list;
- a list that was broken off has no end: another one begins.

Failures are survived, see `streaks` for what is logged; only the credentials' errors and those that
the caller asks for are raised.
"""
import asyncio
import contextlib
import json
import logging
from collections.abc import AsyncIterator, Mapping
from typing import Any, Literal, Protocol

from kopf._cogs.aiokits import pulses
from kopf._cogs.clients import api, errors, listing, splitting, streaks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references

default_logger = logging.getLogger(__name__)

MIN_INTERVAL = 1.0
"""How often connecting may be repeated at most, if the streams are cut at once, in seconds."""

PROVEN_AFTER = 5.0
"""How long a stream has to live to be considered working, in seconds."""

MAX_BLOCKING = 0.010
"""How long the event loop may be kept busy by one stream or list, in seconds."""

ACCEPT_METADATA = 'application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json'
"""What to accept from a stream when nothing but the metadata of the objects is needed."""

INITIAL_END = 'k8s.io/initial-events-end'


class Sink(Protocol):
    """Where the objects go. All methods are synchronous, quick, and never raise."""

    def begin(self, *, restored: bool) -> None:
        """
        A list begins; also after another one that has not ended, which is void then.

        It is `restored` if its version is lower than what was reached before: the API's database
        is an older copy of itself, and versions cannot be compared with those from before.
        """

    def listed(self, body: bodies.RawBody) -> None:
        """There is an object."""

    def end(self) -> None:
        """The list is complete: whatever was not in it since its beginning is gone."""

    def unavailable(self, error: Exception) -> None:
        """The objects cannot be had for now, because of that; trying goes on."""
        return

    def changed(
            self,
            type: Literal['ADDED', 'MODIFIED', 'DELETED'],
            body: bodies.RawBody,
            packed: bytes,
    ) -> None:
        """An object has changed. Packed, it is the whole event as JSON: the line of the stream."""


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
        reached: str | None = None,
) -> None:
    """
    Feed the sink for ever. Raises only `LoginError`, and the errors asked for by ``raising``.

    It begins with a list. If the sink was fed before, ``reached`` is the version up to which.

    With ``metadata_only``, the objects are nothing but their metadata. The ``pulse`` shows if it
    lives.
    """
    pulse = pulses.Pulse() if pulse is None else pulse
    where = 'cluster-wide' if namespace is None else f'in {namespace!r}'
    logger.debug(f"Starting the watch-stream for {resource} {where}.")
    watcher = _Watcher(
        client, settings=settings, resource=resource, namespace=namespace, sink=sink,
        logger=logger, metadata_only=metadata_only, name=f"{resource} {where}", pulse=pulse,
        reached=reached)
    try:
        while True:
            pause = await watcher.turn(raising)
            pulse.expect(pause)
            await asyncio.sleep(pause)
    finally:
        logger.debug(f"Stopping the watch-stream for {resource} {where}.")


class _AsIntended(Exception):
    """The stream has ended because it was meant to, and another one can begin."""


class _Interrupted(Exception):
    """The stream has ended in a way in which it should not."""


class _Watcher:

    def __init__(
            self,
            client: api.Client,
            *,
            settings: configuration.OperatorSettings,
            resource: references.Resource,
            namespace: references.Namespace,
            sink: Sink,
            logger: api.Logger,
            metadata_only: bool,
            pulse: pulses.Pulse,
            name: str,
            reached: str | None,
    ) -> None:
        super().__init__()
        self._client = client
        self._settings = settings
        self._resource = resource
        self._namespace = namespace
        self._path = resource.get_url(namespace=namespace)
        self._sink = sink
        self._logger = logger
        self._metadata_only = metadata_only
        self._pulse = pulse
        self._name = name
        self._streak = streaks.Streak(
            f"Watching of {name}", settings=settings, logger=logger)
        self._reached = reached  # the newest version that the sink knows of
        self._relisting = True  # whether the stream cannot be continued from there
        self._streaming = False  # whether the first state is coming by the stream
        self._doubtful = False  # whether the database could have been restored
        self._proven = False  # whether the latest stream was a working one

    async def turn(self, raising: tuple[type[errors.APIError], ...]) -> float:
        """Do one list if needed, and one stream till its end; return the pause before the next."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        backoff = self._settings.watching.reconnect_backoff
        resumed = not self._relisting
        self._proven = False
        self._pulse.expect(self._settings.networking.request_timeout)
        failure: Exception | None = None
        try:
            await self._prepare()
            await self._stream()
        except _AsIntended:
            return backoff
        except raising:
            raise
        except errors.APIGoneError as e:
            self._relisting = True
            self._logger.debug(f"The watch-stream for {self._name} is too far behind: {e}")
            if resumed:
                return max(backoff, MIN_INTERVAL - (loop.time() - started) if self._proven else 0)
            failure = e
        except (_Interrupted, errors.APIConnectionError) as e:
            self._doubtful = True
            failure = e
        except errors.APIError as e:
            self._doubtful = True
            self._relisting |= e.status in (400, 404, 422)
            self._sink.unavailable(e)
            return self._streak.fail(e)
        if failure is not None and not self._proven:
            self._sink.unavailable(failure)
            return self._streak.fail(failure)
        if failure is not None:
            self._logger.debug(f"The watch-stream for {self._name} was interrupted: {failure}")
        return max(backoff, MIN_INTERVAL - (loop.time() - started))

    async def _prepare(self) -> None:
        """Know from where to stream: list the objects unless the stream can be continued."""
        if self._doubtful and self._reached is not None:
            version = await self._get_version()
            self._relisting |= _is_lower(version, self._reached)
            if self._relisting and self._can_stream_state():
                self._begin(version)
                self._doubtful = False
                return
        self._doubtful = False
        if self._relisting:
            if not self._can_stream_state():
                await self._list()
            elif self._reached is None:
                self._begin(None)
            else:
                self._begin(await self._get_version())

    def _can_stream_state(self) -> bool:
        return (self._settings.watching.initial_streaming
                and self._path not in self._client.unstreamable)

    def _begin(self, version: str | None) -> None:
        self._sink.begin(restored=(
            version is not None and self._reached is not None
            and _is_lower(version, self._reached)))
        self._streaming = True

    async def _get_version(self) -> str:
        """The version of the list as of now, without the list itself."""
        self._pulse.expect(self._settings.networking.request_timeout)
        params = {**listing.get_selectors(self._settings, self._resource), 'limit': '1'}
        raw = await self._client.fetch(
            'GET', self._path, params=params, accept=listing.ACCEPT_METADATA_LIST, retry=False)
        metadata, _ = listing.parse_list(raw, self._resource)
        return str(metadata['resourceVersion'])

    async def _list(self) -> None:
        begun = False
        version = ''
        breather = _Breather()
        async for page in listing.list_objects(
            self._client, resource=self._resource, namespace=self._namespace,
            settings=self._settings, metadata_only=self._metadata_only, retry=False,
        ):
            self._pulse.expect(self._settings.networking.request_timeout)
            if not begun or page.restarted:
                begun = True
                version = page.resource_version
                restored = self._reached is not None and _is_lower(version, self._reached)
                self._sink.begin(restored=restored)
            for body in page.items:
                self._sink.listed(body)
                if breather.is_needed():
                    await breather.take()
        self._sink.end()
        self._reached = version
        self._relisting = False

    async def _stream(self) -> None:
        """Stream till the end; return only if that is a proper one."""
        watching = self._settings.watching
        loop = asyncio.get_running_loop()
        started = loop.time()
        proving: asyncio.TimerHandle | None = None
        lifetime = asyncio.timeout(watching.client_timeout)
        silence = asyncio.timeout(watching.inactivity_timeout)
        heard = started
        self._pulse.expect(watching.inactivity_timeout)
        splitter = splitting.LineSplitter()
        breather = _Breather()
        try:
            async with lifetime, silence, self._open() as content:
                proving = loop.call_later(PROVEN_AFTER, self._prove)
                while chunk := await content.readany():
                    complete = splitter.feed(chunk)
                    if complete:
                        now = loop.time()
                        if now - heard > watching.inactivity_timeout / 100:  # timers are costly
                            silence.reschedule(now + watching.inactivity_timeout)
                            self._pulse.expect(watching.inactivity_timeout)
                            heard = now
                    for line in complete:
                        self._handle(line)
                        if breather.is_needed():
                            await breather.take()
        except TimeoutError:
            if lifetime.expired():
                raise _AsIntended() from None
            raise _Interrupted(f"nothing has come for {watching.inactivity_timeout:g}s") from None
        except splitting.LineTooLongError as e:
            self._relisting = True
            raise errors.APIServerError(str(e)) from None
        except errors.APIClientError as e:
            if self._streaming and e.status in (400, 422):
                self._client.unstreamable.add(self._path)
                self._logger.debug(f"The first state of {self._name} cannot be streamed: {e}")
                raise _AsIntended() from None
            raise
        finally:
            self._streaming = False
            if proving is not None:
                proving.cancel()
        if not self._proven and loop.time() - started < MIN_INTERVAL * 0.9:
            raise _Interrupted("the stream ends as soon as it begins")

    @contextlib.asynccontextmanager
    async def _open(self) -> AsyncIterator[Any]:
        params = {
            **listing.get_selectors(self._settings, self._resource),
            'watch': 'true',
            'allowWatchBookmarks': 'true',
        }
        if self._settings.watching.server_timeout is not None:
            params['timeoutSeconds'] = str(max(1, round(self._settings.watching.server_timeout)))
        if self._streaming:
            params.update(sendInitialEvents='true', resourceVersionMatch='NotOlderThan')
        elif self._reached is not None:
            params.update(resourceVersion=self._reached)
        with api.wrap_network_errors():
            accept = ACCEPT_METADATA if self._metadata_only else api.JSON
            async with self._client.stream(self._path, params=params, accept=accept) as content:
                yield content

    def _handle(self, line: bytes) -> None:
        """Pass the event on. Raises an error if it tells of one, or makes no sense."""
        try:
            event = json.loads(line.decode())
            type, body = event['type'], event['object']
            metadata = body.get('metadata')
        except (ValueError, TypeError, LookupError, AttributeError):
            raise self._make_garbage_error() from None
        if type == 'ERROR':
            error = errors.make_status_error(body)
            self._relisting |= not isinstance(error, errors.APITooManyRequestsError)
            raise error
        if not isinstance(metadata, Mapping):
            raise self._make_garbage_error()
        version = metadata.get('resourceVersion')
        if type == 'BOOKMARK':
            self._handle_bookmark(version, metadata)
        elif 'name' not in metadata:
            raise self._make_garbage_error()
        elif type in ('ADDED', 'MODIFIED') and self._streaming:
            self._sink.listed(body)
        elif type in ('ADDED', 'MODIFIED', 'DELETED'):
            self._sink.changed(type, body, line)
            if not self._streaming:
                self._reached = version or self._reached
        if not self._proven:
            self._proven = True
            self._streak.ease()

    def _handle_bookmark(self, version: str | None, metadata: Mapping[str, Any]) -> None:
        annotations = metadata.get('annotations') or {}
        if self._streaming:
            if annotations.get(INITIAL_END) == 'true':
                self._sink.end()
                self._reached = version
                self._streaming = self._relisting = False
        elif version is not None and self._reached and _is_lower(version, self._reached):
            raise errors.APIGoneError("the versions have gone back", status=410)
        elif version is not None:
            self._reached = version

    def _make_garbage_error(self) -> errors.APIServerError:
        self._relisting |= self._streak.failures > 0  # maybe the next version makes sense
        return errors.APIServerError("there is garbage in the stream")

    def _prove(self) -> None:
        self._proven = True
        self._streak.end()


class _Breather:
    """Tells when the event loop was kept busy for too long, and lets it breathe."""

    def __init__(self) -> None:
        super().__init__()
        self._now = asyncio.get_running_loop().time
        self._until = self._now() + MAX_BLOCKING

    def is_needed(self) -> bool:
        return self._now() > self._until

    async def take(self) -> None:
        await asyncio.sleep(0)
        self._until = self._now() + MAX_BLOCKING


def _is_lower(version: str, than: str) -> bool:
    """Compare versions, if they are those of Kubernetes; others are only equal or not."""
    return version.isdecimal() and than.isdecimal() and int(version) < int(than)
