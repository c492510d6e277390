"""
Reviewing: calling those handlers whom a review concerns, and answering with what they say.
"""
import dataclasses
import datetime
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, diffs, patches, references, reviews
from kopf._core.actions import execution, invocation, loggers, progression
from kopf._core.engines.admission import answers, questions, webhooks
from kopf._core.intents import causes, errors, filters, handlers

Served = tuple[references.Resource, Iterable[handlers.WebhookHandler]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a review takes from the operator around it."""
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    indices: Mapping[str, Any]

    find: Callable[[references.Resource], Served | None]
    """The resource with all that is known of it, and its handlers; None if it has none."""

    get_memo: Callable[[references.Resource, str | None], Any]
    """The memo of the object by its uid; without one, or if it is not known, a passing one."""


class Reviewer:
    """Answers reviews: this is the function that webhook servers call."""

    def __init__(self, directory: webhooks.Directory, surroundings: Surroundings) -> None:
        super().__init__()
        self._directory = directory
        self._surroundings = surroundings

    async def __call__(
            self,
            request: reviews.Request,
            *,
            webhook: str | None = None,
            headers: Mapping[str, str] | None = None,
            sslpeer: Mapping[str, Any] | None = None,
    ) -> reviews.Response:
        """
        Call the handlers of the webhook (without one: all) that the request concerns, in order.

        :raises questions.MalformedRequestError: if it is not a review.
        :raises questions.UnknownResourceError: if there are no handlers for the resource.
        """
        question = questions.parse(request)
        found = self._surroundings.find(question.resource)
        if found is None:
            raise questions.UnknownResourceError(
                f"There are no handlers for the resource: {question.resource}")
        resource, candidates = found
        if webhook:
            own = self._directory.find(webhook)
            candidates = [handler for handler in candidates if handler in own]
        concerned = [handler for handler in candidates if concerns(handler, question)]
        if not concerned:
            return answers.answer(question)
        try:
            return await self._review(question, resource, concerned, headers, sslpeer)
        except RecursionError as e:
            raise questions.MalformedRequestError("The objects are nested too deeply.") from e

    async def _review(
            self,
            question: questions.Question,
            resource: references.Resource,
            concerned: Collection[handlers.WebhookHandler],
            headers: Mapping[str, str] | None,
            sslpeer: Mapping[str, Any] | None,
    ) -> reviews.Response:
        cause = self._make_cause(question, resource, headers, sslpeer)
        unchanging = cause if all(handler.reason == 'mutate' for handler in concerned) else (
            dataclasses.replace(cause, patch=patches.Patch(body=cause.body)))
        failures: list[BaseException] = []
        called: set[object] = set()
        for handler in concerned:
            own = cause if handler.reason == 'mutate' else unchanging
            try:
                if (handler.reason, handler.key) in called or not filters.matches(handler, own):
                    continue
            except filters.FilterError as e:
                execution.fail(handler, e.error, cause.logger, title='Webhook')
                failures.append(e.error)
                continue
            called.add((handler.reason, handler.key))
            outcome = await self._call(handler, own)
            if outcome.exception is not None:
                failures.append(outcome.exception)
            elif own is not cause and own.patch:
                own.patch.clear()
                cause.logger.warning(
                    f"{handler!r} only validates; what it wants to be changed, is ignored.")
        changes: patches.JSONPatch | None = None
        if not failures and cause.patch:
            try:
                changes = make_changes(question, cause.patch)
                return answers.answer(question, warnings=cause.warnings, changes=changes)
            except Exception as e:
                cause.logger.error(f"The patch of the webhooks cannot be made: {e}")
                failures.append(e)
        return answers.answer(question, failures=failures, warnings=cause.warnings)

    def _make_cause(
            self,
            question: questions.Question,
            resource: references.Resource,
            headers: Mapping[str, str] | None,
            sslpeer: Mapping[str, Any] | None,
    ) -> causes.WebhookCause:
        around = self._surroundings
        body = bodies.Body(question.raw)
        meta = question.raw.get('metadata') or {}
        uid = None if question.operation == 'CREATE' else meta.get('uid')
        return causes.WebhookCause(
            logger=loggers.LocalObjectLogger(body=body, settings=around.settings),
            memo=around.get_memo(resource, uid),
            indices=around.indices,
            resource=resource,
            body=body,
            patch=patches.Patch(body=body),
            operation=question.operation,
            subresource=question.subresource,
            dryrun=question.dryrun,
            warnings=[],
            userinfo=question.userinfo,
            headers={} if headers is None else headers,
            sslpeer=sslpeer or None,
            diff=diffs.diff(question.old, question.new),
            old=None if question.old is None else bodies.Body(question.old),
            new=None if question.new is None else bodies.Body(question.new),
            name=question.name,
            namespace=question.namespace,
        )

    async def _call(
            self, handler: handlers.WebhookHandler, cause: causes.WebhookCause,
    ) -> progression.Outcome:
        around = self._surroundings
        state = progression.HandlerState.new(now=around.clock.now())
        kwargs = {
            **cause.kwargs, 'param': handler.param, 'retry': 0, 'started': state.started,
            'runtime': datetime.timedelta(0), **cause.indices}
        return await execution.attempt(
            handler,
            call=lambda: invocation.invoke(handler, kwargs, around.settings.execution.executor),
            state=state,
            settings=around.settings,
            clock=around.clock,
            logger=cause.logger,
            default_errors=errors.ErrorsMode.PERMANENT,
            title='Webhook',
            any_result=True,
        )


def concerns(handler: handlers.WebhookHandler, question: questions.Question) -> bool:
    """Whether the handler is for this operation and subresource; the filters aside."""
    return (
        (handler.operations is None or question.operation in handler.operations) and
        (handler.subresource == '*' or handler.subresource == question.subresource)
    )


def make_changes(question: questions.Question, patch: patches.Patch) -> patches.JSONPatch | None:
    """
    The changes to the very object that is in the request; None if there is none to be changed.

    They can always be applied to it: nothing that is absent is removed, replaced, or gone into.

    :raises Exception: if the patch has functions, and they fail.
    """
    if question.new is None:
        return None
    if patch.fns:
        return patch.as_json_patch(question.new)
    touched = {key: val for key, val in question.new.items() if key in patch}
    return patches.make_json_patch(touched, patches.merge(touched, patch))
