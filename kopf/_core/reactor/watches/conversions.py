"""
Conversions of watched resources: nothing is listed before the API server converts.

Without conversion, an API server shows the objects of other versions with the wrong fields, and
what is written then overwrites the right ones.
"""
import asyncio
import logging
from typing import Any

from kopf._cogs.clients import api, errors, streaks
from kopf._cogs.configs import configuration
from kopf._core.intents import conversions
from kopf._core.reactor.watches import discovery

SETTLING = 2.0
"""
How long (seconds) API servers can take to follow a change of the definition.

Nothing tells when they have done so, or when the definition was changed.
"""

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
                'GET', discovery.CRDS.get_url(),
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
            await asyncio.sleep(SETTLING)
            return
        if attempt == 2:
            logger.info(f"Waiting until {converter.name} is converted by a webhook: its definition "
                        f"says strategy None. It is written by the operator that works if "
                        f"settings.admission.managed is set.")
        await asyncio.sleep(PAUSES[min(attempt, len(PAUSES) - 1)])
        attempt += 1


def _is_converted(definition: Any) -> bool:
    spec = definition['spec']
    stored = definition.get('status', {}).get('storedVersions') or ()
    known = {version['name'] for version in spec['versions']} | {*stored}
    return len(known) < 2 or spec.get('conversion', {}).get('strategy') == 'Webhook'
