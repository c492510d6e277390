"""
Exposition: the text of the metrics, in the format that the client prefers.
"""
from collections.abc import Collection

from prometheus_client import exposition

from kopf._core.engines.metrics import families, meters


def render(
        meter: meters.Meter, readings: Collection[meters.Reading], *, accept: str,
) -> tuple[bytes, str]:
    """Make the text and its content type, by the ``Accept`` header: OpenMetrics or plain text."""
    encode, content_type = exposition.choose_encoder(accept)
    return encode(families.OperatorCollector(meter, readings)), content_type
