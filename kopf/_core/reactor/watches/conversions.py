"""
Conversions of watched resources: nothing is listed before the API server converts.

Without conversion, an API server shows the objects of other versions with the wrong fields, and
what is written then overwrites the right ones.
"""
import asyncio
import datetime
import logging
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api, errors, streaks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import references
from kopf._core.intents import conversions

SETTLING = 5.0
"""
How long (seconds) API servers can take to follow a change of the definition. Nothing tells when
they have done so. They wait as long themselves for each other, when a definition is new.
"""

FRESH = 60.0
"""How long (seconds) a change counts as new: the clocks of API servers can differ from this one."""

PAUSES = (0.1, 0.5, 1.0, 5.0)
"""Pauses (seconds) before the definition is read again; the last pause repeats."""


async def wait(
        converter: conversions.Converter, client: api.Client, *,
        settings: configuration.OperatorSettings, logger: logging.Logger,
) -> None:
    """
    Wait until the API server converts the objects, or until it has nothing to convert.

    Without the permission to read the definition, it is assumed that it does.
    """
    streak = streaks.Streak(
        f"Reading of the definition of {converter.name}", settings=settings, logger=logger)
    attempt = 0
    while True:
        try:
            listed = await client.request(
                'GET', references.CRDS.get_url(),
                params={'fieldSelector': f'metadata.name={converter.name}'})
        except errors.APIForbiddenError:
            logger.warning(f"There are no rights to read the definition of {converter.name}: it "
                           f"is not known whether the API server converts its versions.")
            return
        except errors.APIError as e:
            await asyncio.sleep(streak.fail(e))
            continue
        streak.end()
        if all(_is_converted(definition) for definition in listed['items']):
            now = clocks.Clock().now().wall
            if any(_is_fresh(definition, now) for definition in listed['items']):
                await asyncio.sleep(SETTLING)
            return
        if attempt == 2:
            logger.info(f"Waiting until {converter.name} is converted by a webhook: its definition "
                        f"says strategy None. It is written by the operator that works if "
                        f"settings.admission.managed is set.")
        await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        attempt += 1


def _is_fresh(definition: Any, now: datetime.datetime) -> bool:
    """Whether the conversion was declared only now, as far as it can be seen."""
    times = [entry.get('time') for entry in definition['metadata'].get('managedFields') or ()
             if 'f:conversion' in (entry.get('fieldsV1') or {}).get('f:spec', ())]
    return not times or any(
        time is None or (now - datetime.datetime.fromisoformat(time)).total_seconds() < FRESH
        for time in times)


def _is_converted(definition: Any) -> bool:
    spec = definition['spec']
    stored = definition.get('status', {}).get('storedVersions') or ()
    known = {version['name'] for version in spec['versions']} | {*stored}
    return len(known) < 2 or spec.get('conversion', {}).get('strategy') == 'Webhook'
