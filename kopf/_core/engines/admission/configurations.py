"""
Webhook configurations, and the conversions of definitions: they are kept up to date in the cluster.

The operator needs only the permissions to ``create`` and ``patch`` the configurations, and to
``patch`` the definitions. It never reads the configurations, so it overwrites whatever others have
written under the same name. But it does not remove the webhooks that others have written after it:
each writer leaves its mark. Conversions are not removed: objects that are stored in other versions
could not be read without them.
"""
import asyncio
import base64
import json
import logging
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import timeouts
from kopf._cogs.clients import api, errors, patching, streaks
from kopf._cogs.structs import dicts, references
from kopf._core.engines.admission import sites

logger = logging.getLogger(__name__)

GROUP, VERSION = 'admissionregistration.k8s.io', 'v1'

WRITER_ANNOTATION = 'kopf.dev/webhooks-of'
"""The annotation of a configuration that says which run of which operator has written it last."""

_WRITER_PATH = f'/metadata/annotations/{WRITER_ANNOTATION.replace("/", "~1")}'

Record = Mapping[str, Any]
"""A webhook, as an item of the field ``webhooks`` of a configuration."""

Records = Mapping[str, Sequence[Record]]
"""
The webhooks of both configurations, by ``validating`` and ``mutating``; and the addresses of
conversions, by the names of the definitions.
"""

NOTHING = json.dumps([])
"""The content of a configuration without webhooks."""

CONFIGURATIONS = {
    'validating': references.Resource(
        GROUP, VERSION, 'validatingwebhookconfigurations',
        kind='ValidatingWebhookConfiguration', namespaced=False),
    'mutating': references.Resource(
        GROUP, VERSION, 'mutatingwebhookconfigurations',
        kind='MutatingWebhookConfiguration', namespaced=False),
}


class Manager:
    """Writes the validating and the mutating configuration of one name, if they have changed."""

    def __init__(self, *, client: api.Client, site: sites.Site, name: str) -> None:
        """The client is that of the writer; when this replica only helps, that of the site."""
        self._client = client
        self._site = site
        self._name = name
        self._mark = f'{random.getrandbits(64):016x}'
        self._written: dict[str, str | None] = {}
        self._unsure: set[str] = set()
        """The configurations whose last write has no response yet: it can be stored or not."""
        self._filled: set[str] = set()

    def distrust(self) -> None:
        """Forget what was written, so that it is written again: others can have overwritten it."""
        self._written = dict.fromkeys(self._written)

    async def run(self, woken: asyncio.Event, describe: Callable[[], Records | None]) -> None:
        """
        Write what ``describe`` returns, and again each time when ``woken`` is set; until cancelled.

        Nothing is written while ``describe`` returns None, and while this replica neither is the
        writer nor helps. Errors of the API are retried, with pauses.
        """
        site = self._site
        streak = streaks.Streak(
            f"Managing of the webhook configurations {self._name}",
            settings=site.settings, logger=logger)
        is_due = False
        while True:
            woken.clear()
            config, pause = site.config, None
            records = describe() if site.is_writer or site.is_helping else None
            if records is not None:
                try:
                    await self.write(records, anew=is_due)
                except errors.NotLeadingError:
                    pass  # the new leader writes instead
                except errors.APIError as e:
                    pause = streak.fail(e)
                else:
                    streak.end()
                    site.note(config)
            await timeouts.wait(woken, site.refresh if pause is None else pause)
            is_due = pause is None and not woken.is_set()

    async def clean(self, records: Records) -> None:
        """
        Replace the webhooks with these ones, in all configurations that this operator has written.

        The configurations that others have written since then are left as they are.

        :raises errors.APIError: if the API server refuses that.
        """
        await self._write_all(
            {reason: records.get(reason, ()) for reason in CONFIGURATIONS
             if reason in self._written},
            "Cleaning up", self._replace)

    async def write(self, records: Records, *, anew: bool = False) -> None:
        """
        Write the configurations that have changed, or all ``anew``.

        This also writes a configuration without webhooks, as an earlier run can have left webhooks
        there. But it is no error if the operator may not do that: an operator with only validating
        handlers needs no permissions for the mutating configuration.

        :raises errors.APIError: if the API server refuses that.
        """
        await self._write_all(records, "Reconfiguring", self._put, anew=anew)

    async def _write_all(
            self, records: Records, message: str,
            write: Callable[[str, Sequence[Record]], Awaitable[bool]], *, anew: bool = False,
    ) -> None:
        failure: errors.APIError | None = None
        for reason, webhooks in records.items():
            content = json.dumps(webhooks)
            # A definition that is created again has no conversion, and nothing else tells that.
            if anew or reason not in CONFIGURATIONS or reason in self._unsure or (
                    self._written.get(reason) != content):
                is_news = (self._written.get(reason) or NOTHING) != content
                what = (f"{reason} webhook {self._name}" if reason in CONFIGURATIONS else
                        f"conversion of {reason}")
                logger.log(logging.INFO if is_news else logging.DEBUG, f"{message} the {what}.")
                self._written[reason] = content
                self._unsure.add(reason)
                if webhooks:
                    self._filled.add(reason)
                try:
                    is_done = await write(reason, webhooks)
                except errors.APIError as e:
                    is_done = isinstance(e, errors.APIForbiddenError) and (
                        reason not in self._filled)
                    failure = failure if is_done else e
                if is_done:
                    self._unsure.discard(reason)
        if failure is not None:
            raise failure

    async def _put(self, reason: str, webhooks: Sequence[Record]) -> bool:
        """Write a configuration or a conversion; return false if there is no such definition."""
        if reason not in CONFIGURATIONS:
            return await self._patch(references.CRDS, reason, {'spec': {'conversion': {
                'strategy': 'Webhook', 'webhook': {
                    # The absent one of both is removed: the API server wants exactly one.
                    'clientConfig': {'url': None, 'service': None, 'caBundle': None, **webhooks[0]},
                    'conversionReviewVersions': ['v1']}}}})
        resource = CONFIGURATIONS[reason]
        mark = {'annotations': {WRITER_ANNOTATION: self._mark}}
        payload = {'webhooks': webhooks, **({} if self._site.helps else {'metadata': mark})}
        if await self._patch(resource, self._name, payload) or not webhooks or self._site.helps:
            return True
        try:
            await self._client.request(
                'POST', f'{resource.get_url()}?fieldManager={patching.FIELD_MANAGER}',
                body=json.dumps({
                    'apiVersion': resource.api_version, 'kind': resource.kind,
                    'metadata': {'name': self._name, **mark}, 'webhooks': webhooks}).encode())
        except errors.APIConflictError:
            if not await self._patch(resource, self._name, payload):
                raise  # it was deleted meanwhile
        return True

    async def _patch(
            self, resource: references.Resource, name: str, payload: Mapping[str, Any],
    ) -> bool:
        """
        Change an object, and return whether it exists.

        :raises errors.APIServerError: if the API server has stored other certificates than it was
            given to recognise the operator.
        """
        body = await patching.patch(
            self._site.client if self._site.helps else self._client,
            resource=resource, namespace=None, name=name, payload=payload)
        if body is not None and _find_bundles(body) != _find_bundles(payload):
            raise errors.APIServerError(
                "The API server has stored another caBundle than was written.")
        return body is not None

    async def _replace(self, reason: str, webhooks: Sequence[Record]) -> bool:
        """Replace the webhooks only if this operator is the last that has written them."""
        resource = CONFIGURATIONS[reason]
        try:
            await patching.patch(
                self._site.client, resource=resource, namespace=None, name=self._name,
                content_type='json', payload=[
                    {'op': 'test', 'path': _WRITER_PATH, 'value': self._mark},
                    {'op': 'add', 'path': '/webhooks', 'value': webhooks}])
        except errors.APIUnprocessableError:
            logger.info(f"The webhooks in {resource.kind} {self._name} are left in the cluster: "
                        f"another operator has written them.")
        return True


def _find_bundles(obj: Mapping[str, Any]) -> list[bytes]:
    """Find the certificates in a configuration, or in the conversion of a definition."""
    webhooks = obj.get('webhooks') or [dicts.resolve(obj, ('spec', 'conversion', 'webhook'), {})]
    return [base64.b64decode(webhook.get('clientConfig', {}).get('caBundle') or '')
            for webhook in webhooks]
