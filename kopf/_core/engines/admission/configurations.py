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
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import timeouts
from kopf._cogs.clients import api, errors, patching, streaks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import dicts, references

logger = logging.getLogger(__name__)

GROUP, VERSION = 'admissionregistration.k8s.io', 'v1'

WRITER_ANNOTATION = 'kopf.dev/webhooks-of'
"""The annotation of a configuration that says which run of which operator has written it last."""

_WRITER_PATH = f'/metadata/annotations/{WRITER_ANNOTATION.replace("/", "~1")}'

Record = Mapping[str, Any]
"""A webhook, as an item of the field ``webhooks`` of a configuration."""

Records = Mapping[str, Sequence[Record]]
"""
The webhooks of both configurations, by ``validate`` and ``mutate``; and the addresses of
conversions, by the names of the definitions.
"""

NOTHING = json.dumps([])
"""The content of a configuration without webhooks."""

CONFIGURATIONS = {
    'validate': ('validating', references.Resource(
        GROUP, VERSION, 'validatingwebhookconfigurations',
        kind='ValidatingWebhookConfiguration', namespaced=False)),
    'mutate': ('mutating', references.Resource(
        GROUP, VERSION, 'mutatingwebhookconfigurations',
        kind='MutatingWebhookConfiguration', namespaced=False)),
}

class Manager:
    """Writes the validating and the mutating configuration of one name, if they have changed."""

    def __init__(
            self, *, client: api.Client, settings: configuration.OperatorSettings, name: str,
    ) -> None:
        self._client = client
        self._settings = settings
        self._name = name
        self._mark = ''.join(random.choices(string.ascii_lowercase + string.digits, k=16))
        self._written: dict[str, str | None] = {}
        self._announced: dict[str, str] = {}
        self._filled: set[str] = set()
        self._is_helping = False

    def set_helping(self, is_helping: bool) -> None:
        """Write in place of the operator that should: without creating, and without a mark."""
        self._is_helping = is_helping

    def distrust(self, *, is_routine: bool = False) -> None:
        """
        Write everything anew when needed: others can have overwritten it. If that ``is_routine``,
        only changes are logged.
        """
        self._written = dict.fromkeys(self._written)
        if not is_routine:
            self._announced.clear()

    @property
    def _writing(self) -> api.Client:
        return self._client.without_limits() if self._is_helping else self._client

    async def run(
            self, woken: asyncio.Event, describe: Callable[[], Records | None],
            note: Callable[[], None] = lambda: None,
            get_refresh: Callable[[], float | None] = lambda: None,
    ) -> None:
        """
        Write what ``describe`` returns, and again each time when ``woken`` is set; until cancelled.

        Nothing is written while ``describe`` returns None. When all is written, ``note`` is called.
        After ``get_refresh`` (seconds; None for never), all is written anew. Errors of the API are
        retried, with pauses.
        """
        streak = streaks.Streak(
            f"Managing of the webhook configurations {self._name}",
            settings=self._settings, logger=logger)
        while True:
            woken.clear()
            records = describe()
            pause: float | None = None
            if records is not None:
                try:
                    await self.write(records)
                except errors.NotLeadingError:
                    pass  # the new leader writes instead
                except errors.APIError as e:
                    pause = streak.fail(e)
                else:
                    streak.end()
                    note()
            await timeouts.wait(woken, get_refresh() if pause is None else pause)
            if pause is None and not woken.is_set():
                self.distrust(is_routine=True)

    async def clean(self, records: Records) -> None:
        """
        Replace the webhooks by these ones, in all configurations that this operator has written.

        The configurations that others have written since then are left as they are.

        :raises errors.APIError: if the API server refuses that.
        """
        await self._write_all(
            {reason: records.get(reason, ()) for reason in CONFIGURATIONS
             if reason in self._written},
            "Cleaning up the {} webhook {}.", self._replace)

    async def write(self, records: Records) -> None:
        """
        Write the configurations that have changed.

        A configuration without webhooks is written, too, as an earlier run can have left webhooks
        there. But this needs no permission: an operator with validating handlers only can do
        without the permissions for the mutating configuration.

        :raises errors.APIError: if the API server refuses that.
        """
        await self._write_all(records, "Reconfiguring the {} webhook {}.", self._put)

    async def _write_all(
            self, records: Records, message: str,
            write: Callable[[references.Resource, Sequence[Record]], Awaitable[None]],
    ) -> None:
        failure: errors.APIError | None = None
        for reason, webhooks in records.items():
            content = json.dumps(webhooks)
            if self._written.get(reason) != content:
                title, resource = CONFIGURATIONS.get(reason, ('', references.CRDS))
                is_news = self._announced.get(reason, NOTHING) != content
                logger.log(logging.INFO if is_news else logging.DEBUG,
                           message.format(title, self._name) if title else
                           f"Reconfiguring the conversion of {reason}.")
                self._announced[reason] = content
                self._written[reason] = None  # unknown until there is a response
                if webhooks:
                    self._filled.add(reason)
                try:
                    if title:
                        await write(resource, webhooks)
                    elif not await self._put_conversion(reason, webhooks[0]):
                        continue  # there is no such definition yet
                except errors.APIForbiddenError as e:
                    if reason in self._filled:
                        failure = e
                    else:
                        self._written[reason] = content
                except errors.APIError as e:
                    failure = e
                else:
                    self._written[reason] = content
        if failure is not None:
            raise failure

    async def _put(self, resource: references.Resource, webhooks: Sequence[Record]) -> None:
        if await self._patch(resource, webhooks) or not webhooks or self._is_helping:
            return
        body = {
            'apiVersion': f'{GROUP}/{VERSION}', 'kind': resource.kind,
            'metadata': {'name': self._name, 'annotations': {WRITER_ANNOTATION: self._mark}},
            'webhooks': webhooks}
        try:
            await self._client.request(
                'POST', f'{resource.get_url()}?fieldManager={patching.FIELD_MANAGER}',
                body=json.dumps(body).encode())
        except errors.APIConflictError:
            await self._patch(resource, webhooks)

    async def _put_conversion(self, name: str, client_config: Record) -> bool:
        """Let the API server convert by this operator; return whether there is the definition."""
        body: Any = await patching.patch(
            self._writing, resource=references.CRDS, namespace=None, name=name,
            payload={'spec': {'conversion': {'strategy': 'Webhook', 'webhook': {
                # The absent one of both is removed: the API server wants exactly one.
                'clientConfig': {'url': None, 'service': None, 'caBundle': None, **client_config},
                'conversionReviewVersions': ['v1']}}}})
        if body is None:
            return False
        path = ('spec', 'conversion', 'webhook', 'clientConfig')
        _verify([dicts.resolve(body, path, {})], [client_config])
        return True

    async def _patch(self, resource: references.Resource, webhooks: Sequence[Record]) -> bool:
        mark = {} if self._is_helping else {
            'metadata': {'annotations': {WRITER_ANNOTATION: self._mark}}}
        body: Any = await patching.patch(
            self._writing, resource=resource, namespace=None, name=self._name,
            payload={**mark, 'webhooks': webhooks})
        if body is None:
            return False
        found = [each.get('clientConfig', {}) for each in body.get('webhooks') or ()]
        _verify(found, [each.get('clientConfig', {}) for each in webhooks])
        return True

    async def _replace(self, resource: references.Resource, webhooks: Sequence[Record]) -> None:
        """Replace the webhooks only if this operator is the last that has written them."""
        try:
            await patching.patch(
                self._client.without_limits(), resource=resource, namespace=None, name=self._name,
                content_type='json', payload=[
                    {'op': 'test', 'path': _WRITER_PATH, 'value': self._mark},
                    {'op': 'add', 'path': '/webhooks', 'value': webhooks}])
        except errors.APIUnprocessableError:
            logger.info(f"The webhooks in {resource.kind} {self._name} are left in the cluster: "
                        f"another operator has written them.")


def _verify(found: Sequence[Record], written: Sequence[Record]) -> None:
    """Check that the API server has stored the certificates by which it knows the operator."""
    bundles, expected = (
        [base64.b64decode(each.get('caBundle') or '') for each in items]
        for items in (found, written))
    if bundles != expected:
        raise errors.APIServerError("The API server has stored another caBundle than was written.")
