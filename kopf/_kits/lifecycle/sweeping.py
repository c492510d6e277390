"""
Sweeps over all objects of a resource: their metadata by pages, and writes of some objects at once.
"""
import dataclasses
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from kopf._cogs.clients import api, errors, listing, patching
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references

CONCURRENCY = 10
"""How many objects are written at once."""

BACKOFFS = (1, 2, 4)
"""
The pauses (seconds) between the attempts of a request. They are short: if a webhook fails, it fails
for all objects.
"""

Say = Callable[[str], object]
"""Takes a line for the user."""


def adjust(settings: configuration.OperatorSettings | None) -> configuration.OperatorSettings:
    """Copy the settings, so that all objects are listed, and failed requests are soon reported."""
    settings = listing.select_only(settings or configuration.OperatorSettings())
    return dataclasses.replace(settings, networking=dataclasses.replace(
        settings.networking, error_backoffs=BACKOFFS))


class Progress:
    """Shows on a terminal how many objects are done, of how many; None if that is unknown."""

    def __init__(self, title: str, total: int | None = None) -> None:
        super().__init__()
        self.total = total
        self._title = title
        self._done = 0

    def advance(self) -> None:
        """Count one more object as done."""
        self._done += 1
        self._write(f"{self._title}: {self._done}" + (f" of {self.total}" if self.total else ''))

    def end(self) -> None:
        """Clear the line."""
        self._write('')

    def _write(self, text: str) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f'\r{text}\x1b[K')
            sys.stderr.flush()


async def list_pages(
        client: api.Client,
        *,
        resource: references.Resource,
        namespaces: Sequence[references.Namespace],
        settings: configuration.OperatorSettings,
) -> AsyncIterator[tuple[Sequence[bodies.RawBody], int | None]]:
    """
    List the metadata of all objects: each page, and about how many objects follow in the namespace.

    An object can be listed twice: if a list has expired, it is begun again.

    :raises errors.APIError: if they cannot be listed.
    """
    odd: list[bodies.RawBody] = []  # of what is nested too deeply, the metadata is enough
    for namespace in namespaces:
        async for page in listing.list_objects(
                client, resource=resource, namespace=namespace, settings=settings,
                metadata_only=True, skip=lambda raw, _: odd.append(raw)):
            items = [*page.items, *odd]
            odd.clear()
            yield items, page.remaining


async def write(
        client: api.Client,
        *,
        resource: references.Resource,
        meta: Mapping[str, Any],
        changes: Mapping[str, Any],
) -> None:
    """
    Merge changes into the metadata of an object in exactly this state; if it is gone, do nothing.

    :raises errors.APIConflictError: if the object has changed.
    :raises errors.APIError: if the API server refuses it for another reason.
    """
    guard = {'uid': meta['uid'], 'resourceVersion': meta['resourceVersion']}
    try:
        await patching.patch(
            client, resource=resource, namespace=meta.get('namespace'), name=meta['name'],
            payload={'metadata': {**changes, **guard}}, is_verified=True)
    except errors.APITooDeepError:
        pass  # it is written; only the response cannot be read
