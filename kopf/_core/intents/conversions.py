"""
Conversions: objects of one version of a kind as those of another version.

How they are converted is not known here: it is what authors declare.
"""
from collections.abc import Collection, Mapping
from typing import Any

from kopf._cogs.structs import bodies


class Converter:
    """Converts the objects of one kind."""
    name: str
    """The name of the definition, e.g. ``databases.example.com``."""
    group: str
    plural: str

    @property
    def versions(self) -> Collection[str]:
        """The versions that can be converted."""
        raise NotImplementedError

    def convert(self, obj: Mapping[str, Any], version: str) -> dict[str, Any]:
        """
        Convert an object to another version.

        :raises ValueError: if it cannot be converted; the message is for users of the API.
        """
        raise NotImplementedError

    def complete(self, obj: Mapping[str, Any]) -> dict[str, Any]:
        """Set the defaults of its version, as the API server does at the next write."""
        raise NotImplementedError

    def convert_essence(
            self, old: bodies.BodyEssence, version: str, *,
            current: bodies.BodyEssence, to: str,
    ) -> bodies.BodyEssence:
        """
        Convert an essence of another version, for a comparison with the ``current`` one.

        What the other version cannot express counts as not changed.

        :raises ValueError: if it cannot be converted.
        """
        raise NotImplementedError

    def find_fault(self) -> str | None:
        """Say why not all versions can be converted to all others; None if they can."""
        raise NotImplementedError
