"""
Conversions of watched resources: nothing is listed before the API server converts.

Without conversion, an API server shows the objects of other versions with the wrong fields, and
what is written then overwrites the right ones.
"""
import asyncio
import datetime
import itertools
import logging
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api, errors, listing, streaks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, references

SETTLING = 5.0
"""
How long (seconds) API servers can take to follow a change of the definition. Nothing tells when
they have done so. They wait as long themselves for each other, when a definition is new.
"""

FRESH = datetime.timedelta(minutes=1)
"""How long a change counts as new: the clocks of API servers can differ from this one."""

PAUSES = (0.1, 0.5, 1.0, 5.0)
"""Pauses (seconds) before the definition is read again; the last pause repeats."""


async def wait(
        converter: bodies.Converter, client: api.Client, *,
        settings: configuration.OperatorSettings, logger: logging.Logger,
) -> None:
    """
    Wait until the API server converts the objects, or until it has nothing to convert.

    Without the permission to read the definition, assume that it does.
    """
    streak = streaks.Streak(
        f"Reading of the definition of {converter.name}", settings=settings, logger=logger)
    pauses = itertools.chain(PAUSES, itertools.repeat(PAUSES[-1]))
    while True:
        try:
            raw = await client.request(
                'GET', references.CRDS.get_url(), parsed=False,
                params={'fieldSelector': f'metadata.name={converter.name}'})
            found = [*listing.parse_list(raw, references.CRDS)[1]]
        except errors.APIForbiddenError:
            logger.warning(f"There is no permission to read the definition of {converter.name}: it "
                           f"is not known whether the API server converts its versions.")
            return
        except errors.APIError as e:
            await asyncio.sleep(streak.fail(e))
            continue
        streak.end()
        if all(map(_is_converted, found)):
            if any(map(_is_fresh, found)):
                await asyncio.sleep(SETTLING)
            return
        pause = next(pauses)
        if pause == PAUSES[2]:  # it is not only written a moment later
            logger.info(f"Waiting until {converter.name} is converted by a webhook: its definition "
                        f"says strategy None. It is written by the operator that works if "
                        f"settings.admission.managed is set.")
        await asyncio.sleep(pause)


def _is_converted(definition: Any) -> bool:
    spec, stored = definition['spec'], definition.get('status', {}).get('storedVersions') or ()
    has_several = len({version['name'] for version in spec['versions']}.union(stored)) > 1
    return not has_several or spec.get('conversion', {}).get('strategy') == 'Webhook'


def _is_fresh(definition: Any) -> bool:
    """Whether the conversion was declared only now, as far as it can be seen."""
    times = [datetime.datetime.fromisoformat(entry['time'])
             for entry in definition['metadata'].get('managedFields') or ()
             if 'time' in entry and 'f:conversion' in entry.get('fieldsV1', {}).get('f:spec', ())]
    return not times or clocks.Clock().now().wall - max(times) < FRESH
