"""
Explanations in unit tests: which handlers Kopf would call for an object, and why.
"""
import datetime
import time
from collections.abc import Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.intents import registries
from kopf._kits import explanations
from kopf._kits.testing import invoking, previews


def explain(
        body: Mapping[str, Any],
        *,
        resource: references.Resource | None = None,
        registry: registries.OperatorRegistry | None = None,
        settings: configuration.OperatorSettings | None = None,
) -> explanations.Explanation:
    """
    Explain which handlers Kopf calls for an object in this state, and why not the others.

    No handlers are called, only their filters. ``kopf explain`` does the same for an object in a
    cluster.

    ::

        found = kopf.testing.explain({'kind': 'Website', 'spec': {'title': 'Hello'}})
        assert found.cause == 'create'

    See "Test operators" in the documentation.

    :param body: the object, or a part of it: required fields are added.
    :param resource: the resource of the object. Default: one made of the ``apiVersion`` and the
        ``kind``, without short names.
    :param registry: the registry with the handlers. Default: the default registry.
    :param settings: the settings. Default: new `kopf.OperatorSettings`.
    :returns: the explanation, with ``cause``, ``changes``, ``later``, ``progress``, ``finalizers``,
        ``handlers``, ``next``, ``problems``.
    """
    raw = invoking.complete(body)
    if resource is None:
        group, _, version = raw['apiVersion'].rpartition('/')
        resource = previews.guess_resource(group, raw['kind'], version)
    return explanations.explain(
        raw, resource=resource,
        registry=registry if registry is not None else registries.get_default_registry(),
        settings=settings if settings is not None else configuration.OperatorSettings(),
        now=clocks.Moment(time.monotonic(), datetime.datetime.now(datetime.UTC)))
