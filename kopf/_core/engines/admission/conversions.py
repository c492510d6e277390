"""
Conversions: the requests of API servers for objects in other versions, and their responses.

The protocol is that of "Webhook conversion" in the documentation of Kubernetes. The order and the
number of the objects stay as they are; so does the metadata, except for labels and annotations. If
the conversion of one object fails, the whole review fails.
"""
import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, cast

from kopf._cogs.structs import bodies, reviews
from kopf._core.engines.admission import questions

API_VERSION = 'apiextensions.k8s.io/v1'
KIND = 'ConversionReview'

PATH = 'convert'
"""The beginning of the paths of conversions, before the name of the definition."""


async def convert(
        review: Mapping[str, Any], converters: Iterable[bodies.Converter], *, path: str | None,
) -> reviews.Response:
    """
    Convert the objects of a review.

    The path names their definition; without it, their group must belong to only one definition.

    :raises questions.MalformedRequestError: if the request is not a proper ConversionReview.
    :raises questions.UnknownResourceError: if there are no conversions for these objects.
    """
    match review:
        case {'apiVersion': str(api_version), 'request': {
                'uid': str(uid), 'desiredAPIVersion': str(desired), 'objects': list(objects),
        }} if api_version == API_VERSION and all(isinstance(obj, Mapping) for obj in objects):
            group, _, version = desired.rpartition('/')
        case _:
            raise questions.MalformedRequestError("It is no ConversionReview of a known version.")
    found = [each for each in converters
             if each.group == group and path in (None, '', PATH, f'{PATH}/{each.name}')]
    if len(found) != 1:
        raise questions.UnknownResourceError(
            f"There are no conversions for this path: {path}, of objects of {group}.")
    response: dict[str, Any]
    converted = []
    try:
        for obj in objects:
            converted.append(found[0].convert(obj, version))
            await asyncio.sleep(0)  # a review can have so many objects that they take seconds
        response = {'convertedObjects': converted, 'result': {'status': 'Success'}}
    except ValueError as e:
        meta = obj.get('metadata')
        name = meta.get('name') if isinstance(meta, Mapping) else None
        response = {'convertedObjects': [], 'result': {'status': 'Failure', 'message': (
            f"{found[0].name} {name!r} cannot be converted from {obj.get('apiVersion')} to "
            f"{group}/{version}: {e}")}}
    return cast(reviews.Response, {
        'apiVersion': API_VERSION, 'kind': KIND, 'response': {'uid': uid, **response}})
