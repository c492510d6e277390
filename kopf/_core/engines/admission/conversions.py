"""
Conversions: the requests of API servers for objects in other versions, and their responses.

The protocol is that of "Webhook conversion" in the documentation of Kubernetes: the order and the
number of the objects stay as they are, and so do their metadata apart from labels and annotations.
If one object fails, all do.
"""
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any, cast

from kopf._cogs.structs import reviews
from kopf._core.engines.admission import questions

if TYPE_CHECKING:
    from kopf._core.intents import conversions

API_VERSION = 'apiextensions.k8s.io/v1'
KIND = 'ConversionReview'

PATH = 'convert'
"""The beginning of the paths of conversions, before the name of the definition."""


def convert(
        review: Mapping[str, Any],
        converters: 'Collection[conversions.Converter]',
        *,
        path: str | None,
) -> reviews.Response:
    """
    Convert the objects of a review.

    The path says which definition they are of; without it, their group has to be unambiguous.

    :raises questions.MalformedRequestError: if the request is not a proper ConversionReview.
    :raises questions.UnknownResourceError: if there are no conversions for these objects.
    """
    request: Any = review.get('request')
    if review.get('apiVersion') != API_VERSION or not isinstance(request, Mapping):
        raise questions.MalformedRequestError("It is no ConversionReview of a known version.")
    match request:
        case {'uid': str(uid), 'desiredAPIVersion': str(desired), 'objects': list(objects)} if all(
                isinstance(obj, Mapping) for obj in objects):
            group, _, version = desired.rpartition('/')
        case _:
            raise questions.MalformedRequestError("The request of the review is incomplete.")
    found = [each for each in converters
             if each.group == group and path in (None, '', PATH, f'{PATH}/{each.name}')]
    if len(found) != 1:
        raise questions.UnknownResourceError(
            f"There are no conversions for this path: {path}, of objects of {group}.")
    response: dict[str, Any] = {'uid': uid}
    try:
        response['convertedObjects'] = [
            _convert(found[0], obj, version, desired) for obj in objects]
        response['result'] = {'status': 'Success'}
    except ValueError as e:
        response['result'] = {'status': 'Failure', 'message': str(e)}
        response['convertedObjects'] = []
    return cast(reviews.Response, {
        'apiVersion': API_VERSION, 'kind': KIND, 'response': response})


def _convert(
        converter: 'conversions.Converter', obj: Mapping[str, Any], version: str, desired: str,
) -> dict[str, Any]:
    if obj.get('apiVersion') == desired:
        return dict(obj)
    try:
        return converter.convert(obj, version)
    except ValueError as e:
        meta = obj.get('metadata')
        name = meta.get('name') if isinstance(meta, Mapping) else None
        raise ValueError(f"{converter.name} {name!r} cannot be converted from "
                         f"{obj.get('apiVersion')} to {desired}: {e}") from e
