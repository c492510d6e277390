"""
Admission: calls of mutating and validating webhooks before an object is written.

Conditions in CEL (``matchConditions``) need the library of CEL. Without the library, webhooks with
such conditions are always called.
"""
import asyncio
import base64
import dataclasses
from collections.abc import Mapping
from typing import Any

from kopf._kits.sandbox import conversions, encoding, objects, patching, scaling, wordings
from kopf._kits.sandbox.accessreviews import user_info
from kopf._kits.sandbox.cluster import Cluster
from kopf._kits.sandbox.kinds import Kind
from kopf._kits.sandbox.requests import Request
from kopf._kits.sandbox.schemas import decoding, definitions, expressions
from kopf._kits.sandbox.statuses import APIError, BadRequest, InternalError, Invalid, Obj
from kopf._kits.sandbox.webhookcalls import (
    GROUP,
    MUTATING,
    VALIDATING,
    Unreachable,
    Webhook,
    Webhooks,
)

API_VERSION = 'admission.k8s.io/v1'
REVIEW = 'io.k8s.api.admission.v1.AdmissionReview'
_OPTIONS = {'CREATE': 'CreateOptions', 'UPDATE': 'UpdateOptions', 'DELETE': 'DeleteOptions'}


class Admission:
    """Asks the webhooks; raises the errors of the API where they refuse or fail."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._webhooks = Webhooks(cluster)

    def concerns(self, request: Request, operation: str) -> bool:
        """Whether any webhook can be for this request."""
        return bool(self._matching(MUTATING, request, operation)
                    or self._matching(VALIDATING, request, operation))

    async def mutate(
            self, request: Request, operation: str, obj: Obj | None, old: Obj | None,
    ) -> Obj | None:
        """Return the object after all mutating webhooks. The caller must complete it again."""
        called: list[tuple[Webhook, Kind]] = []
        for webhook, kind in self._matching(MUTATING, request, operation):
            changed = await self._mutate(webhook, kind, request, operation, obj, old)
            if changed is not obj:
                obj = changed
                for other, its_kind in called:
                    if other.is_reinvoked:
                        obj = await self._mutate(other, its_kind, request, operation, obj, old)
                called.clear()
            called.append((webhook, kind))
        return obj

    async def validate(
            self, request: Request, operation: str, obj: Obj | None, old: Obj | None,
    ) -> None:
        """Call all validating webhooks at once; of several errors, the earliest is raised."""
        errors: list[APIError] = []

        async def ask(webhook: Webhook, kind: Kind) -> None:
            try:
                await self._ask(webhook, kind, request, operation, obj, old)
            except APIError as e:
                errors.append(e)

        await asyncio.gather(*(
            ask(webhook, kind)
            for webhook, kind in self._matching(VALIDATING, request, operation)))
        if errors:
            raise errors[0]

    def _matching(
            self, resource: tuple[str, str], request: Request, operation: str,
    ) -> list[tuple[Webhook, Kind]]:
        if request.kind.group == GROUP:
            return []
        found = [(webhook, webhook.match(self._cluster, request, operation))
                 for webhook in self._webhooks.of(resource)]
        return [(webhook, kind) for webhook, kind in found if kind is not None]

    async def _mutate(
            self, webhook: Webhook, kind: Kind, request: Request, operation: str,
            obj: Obj | None, old: Obj | None,
    ) -> Obj | None:
        response = await self._ask(webhook, kind, request, operation, obj, old, is_mutating=True)
        patch = response.get('patch')
        if not patch:
            return obj
        if obj is None:
            raise InternalError(f'admission webhook "{webhook.name}" attempted to modify the '
                                "object, which is not supported for this operation")
        shown = objects.converted(kind, obj)
        try:
            ops = encoding.decode(base64.b64decode(patch))
            made = patching.apply_json_patch(shown, ops)
            if not isinstance(made, dict):
                raise BadRequest("the patch makes no object")
            made, _ = objects.conform(kind, made)
        except (encoding.DecodingError, decoding.Undecodable) as e:
            raise InternalError(f'failed calling webhook "{webhook.name}": received undecodable '
                                f'patch in webhook response: {e}') from None
        except APIError as e:
            raise InternalError(e.message) from None
        if kind.custom and made.get('kind') != kind.kind:
            name = str(made.get('kind') or '')
            raise Invalid.on(kind.group, name, made['metadata'].get('name', ''), [
                wordings.invalid('kind', name, f"must be {kind.kind}")])
        if made == shown:
            return obj
        await conversions.prepare(self._cluster, request.kind, made)
        return objects.converted(request.kind, made)

    async def _ask(
            self, webhook: Webhook, kind: Kind, request: Request, operation: str,
            obj: Obj | None, old: Obj | None, *, is_mutating: bool = False,
    ) -> Mapping[str, Any]:
        """
        Get the response of the webhook; empty if it does not want this object, or if it has failed
        with the policy ``Ignore``.
        """
        if not webhook.selects(self._cluster, request, (obj, old)):
            return {}
        if operation != 'CONNECT':
            await conversions.prepare(self._cluster, kind, obj)
            await conversions.prepare(self._cluster, kind, old)
        review = make_review(kind, request, operation, obj, old, uid=self._cluster.new_uid())
        if not _fulfils(webhook, review['request']):
            return {}
        try:
            body = await webhook.call(self._cluster, review)
            response = _parsed(body, review['request']['uid'], is_mutating=is_mutating)
        except Unreachable as e:
            if webhook.is_ignored_when_failing:
                return {}
            raise InternalError(f'failed calling webhook "{webhook.name}": {e}') from None
        request.warnings.extend(response.get('warnings') or ())
        if not response.get('allowed'):
            raise _denied(webhook, response.get('status') or {})
        return response


def make_review(
        kind: Kind, request: Request, operation: str, obj: Obj | None, old: Obj | None, *,
        uid: str,
) -> Obj:
    """What a webhook gets that wants the objects in this version of their kind."""
    def show(shown: Obj | None) -> Obj | None:
        if shown is None or operation == 'CONNECT':
            return shown
        if request.subresource == 'scale':
            return scaling.scale_of(request.kind, shown)
        return objects.converted(kind, shown)

    own = request.kind
    subject, own_subject = ([scaling.SCALE] * 2 if request.subresource == 'scale' else [kind, own])
    if operation == 'CONNECT' and obj is not None:
        subject = own_subject = dataclasses.replace(kind, kind=obj['kind'])
    name = request.name or ((obj or old or {}).get('metadata') or {}).get('name') or ''
    asked: Obj = {
        'uid': uid,
        'kind': subject.gvk,
        'resource': {'group': kind.group, 'version': kind.version, 'resource': kind.plural},
        'requestKind': own_subject.gvk,
        'requestResource': {'group': own.group, 'version': own.version,
                            'resource': own.plural},
        'name': name,
        'namespace': request.namespace,
        'operation': operation,
        'userInfo': user_info(request.user),
        'object': show(obj),
        'oldObject': show(old),
        'dryRun': request.dry_run,
        'options': None if operation == 'CONNECT' else _make_options(request, operation),
    }
    if request.subresource:
        asked['subResource'] = asked['requestSubResource'] = request.subresource
    return {'kind': 'AdmissionReview', 'apiVersion': API_VERSION, 'request': {
        key: value for key, value in asked.items() if value != ''}}


def _make_options(request: Request, operation: str) -> Obj:
    name = 'PatchOptions' if request.verb == 'patch' else _OPTIONS[operation]
    options: Obj = {'kind': name, 'apiVersion': 'meta.k8s.io/v1'}
    for option in ('fieldManager', 'fieldValidation', 'propagationPolicy'):
        if request.option(option):
            options[option] = request.option(option)
    if request.dry_run:
        options['dryRun'] = ['All']
    return options


def _fulfils(webhook: Webhook, asked: Obj) -> bool:
    """Whether the conditions of the webhook hold. Raises an error for those that are none."""
    variables = {'request': asked, 'object': asked.get('object'),
                 'oldObject': asked.get('oldObject')}
    for condition in webhook.config.get('matchConditions') or ():
        try:
            if not expressions.evaluate(str(condition.get('expression') or ''), variables):
                return False
        except expressions.Unavailable:
            return True
        except Exception as e:  # whatever the library makes of it
            if webhook.is_ignored_when_failing:
                return False
            raise InternalError(
                f'failed evaluating match condition "{condition.get("name")}" of webhook '
                f'"{webhook.name}": {e}') from None
    return True


def _parsed(body: bytes, uid: str, *, is_mutating: bool) -> Mapping[str, Any]:
    """Raises `Unreachable` for everything that is no response."""
    try:
        answer, _ = decoding.decode(
            definitions.define(REVIEW), objects.decode_dict(body, 'application/json'))
    except (encoding.DecodingError, decoding.Undecodable) as e:
        raise Unreachable(f"failed to call webhook: {e}") from None
    why = _find_fault(answer, uid, is_mutating)
    if why is not None:
        raise Unreachable(f"received invalid webhook response: {why}")
    response: Mapping[str, Any] = answer['response']
    return response


def _find_fault(answer: Obj, uid: str, is_mutating: bool) -> str | None:
    api_version, kind = answer.get('apiVersion') or '/', answer.get('kind') or ''
    if (api_version, kind) != (API_VERSION, 'AdmissionReview'):
        return ("expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, "
                f"got {api_version}, Kind={kind}")
    response = answer.get('response')
    if response is None:
        return "webhook response was absent"
    if response.get('uid') != uid:
        return f'expected response.uid="{uid}", got "{response.get("uid") or ""}"'
    parts = [f'response.{key}' for key in ('patch', 'patchType') if response.get(key)]
    if parts and not is_mutating:
        return f"validating webhook may not return {parts[0]}"
    if len(parts) == 1:
        (other,) = {'response.patch', 'response.patchType'} - {*parts}
        return f"webhook returned {parts[0]} but not {other}"
    if parts and response['patchType'] != 'JSONPatch':
        return f'unsupported patch type "{response["patchType"]}"'
    return None


def _denied(webhook: Webhook, status: Obj) -> APIError:
    text = f'admission webhook "{webhook.name}" denied the request'
    why = status.get('message') or status.get('reason')
    code = status.get('code', 0)
    return APIError(
        f"{text}: {why}" if why else f"{text} without explanation",
        code=code if 400 <= code <= 599 else 400, reason=status.get('reason') or '',
        details=status.get('details'))
