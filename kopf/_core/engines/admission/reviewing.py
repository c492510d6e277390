"""
Reviewing: calls the handlers that match a request, and makes the response of their outcomes.
"""
import dataclasses
from collections.abc import Callable, Collection, Mapping
from typing import Any

from kopf._cogs.structs import bodies, diffs, patches, references, reviews
from kopf._core.actions import execution, loggers
from kopf._core.engines.admission import answers, questions, webhooks
from kopf._core.intents import causes, filters, handlers

Served = tuple[references.Resource, Collection[handlers.WebhookHandler]]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Reviewer:
    """Answers reviews: webhook servers call it, see `kopf.WebhookFn`."""
    directory: webhooks.Directory
    context: execution.Context

    find: Callable[[references.Resource], Served | None]
    """Finds the resource with all its details, and its handlers; None if it has no handlers."""

    get_memo: Callable[[references.Resource, str | None], Any]
    """Gets the memo of an object by its uid; a temporary memo if the object is not known (yet)."""

    async def __call__(
            self,
            request: reviews.Request,
            *,
            webhook: str | None = None,
            headers: Mapping[str, str] | None = None,
            sslpeer: Mapping[str, Any] | None = None,
    ) -> reviews.Response:
        """
        Call the matching handlers in the order of their declaration, and make the response.

        ``webhook`` is the end of the URL: only the handlers of this webhook are called; without it,
        all are. ``headers`` and ``sslpeer`` are of the HTTP request; handlers get them as kwargs.

        :raises questions.MalformedRequestError: if the request is not a proper AdmissionReview.
        :raises questions.UnknownResourceError: if the resource or the webhook has no handlers.
        """
        question = questions.parse(request)
        found = self.find(question.resource)
        if found is None:
            raise questions.UnknownResourceError(
                f"There are no handlers for the resource: {question.resource}")
        resource, candidates = found
        if webhook:
            own = self.directory.find(webhook)
            if not own:
                raise questions.UnknownResourceError(f"There is no webhook {webhook!r}.")
            candidates = [handler for handler in candidates if handler in own]
        concerned = [handler for handler in candidates if concerns(handler, question)]
        if not concerned:
            return answers.answer(question)
        try:
            cause = self._make_cause(question, resource, headers or {}, sslpeer or None)
            return await self._review(question, cause, concerned)
        except RecursionError as e:
            raise questions.MalformedRequestError("The objects are nested too deeply.") from e

    async def _review(
            self,
            question: questions.Question,
            cause: causes.WebhookCause,
            concerned: Collection[handlers.WebhookHandler],
    ) -> reviews.Response:
        unchanging = dataclasses.replace(cause, patch=patches.Patch(body=cause.body))
        failures: list[BaseException] = []
        called: set[object] = set()
        for handler in concerned:
            own = cause if handler.reason == 'mutating' else unchanging
            try:
                if (handler.reason, handler.key) in called or not filters.matches(handler, own):
                    continue
            except filters.FilterError as e:
                execution.fail(handler, e.error, cause.logger)
                failures.append(e.error)
                continue
            called.add((handler.reason, handler.key))
            outcome = await execution.execute(handler, own, context=self.context)
            if outcome.exception is not None:
                failures.append(outcome.exception)
            elif outcome.result is False:
                cause.logger.warning(
                    f"{handler!r} has returned False, which does not refuse the request. To refuse "
                    f"it, raise kopf.AdmissionError.")
            if outcome.exception is None and own is not cause and own.patch:
                own.patch.clear()
                cause.logger.warning(
                    f"{handler!r} only validates; what it wants to be changed, is ignored.")
        if not failures and cause.patch:
            try:
                return answers.answer(
                    question, warnings=cause.warnings, changes=make_changes(question, cause.patch))
            except Exception as e:
                cause.logger.error(f"The patch of the webhooks cannot be made: {e}")
                failures.append(e)
        return answers.answer(question, failures=failures, warnings=cause.warnings)

    def _make_cause(
            self,
            question: questions.Question,
            resource: references.Resource,
            headers: Mapping[str, str],
            sslpeer: Mapping[str, Any] | None,
    ) -> causes.WebhookCause:
        body = bodies.Body(question.raw)
        meta = question.raw.get('metadata') or {}
        uid = None if question.operation == 'CREATE' else meta.get('uid')
        return causes.WebhookCause(
            logger=loggers.LocalObjectLogger(body=body, settings=self.context.settings),
            memo=self.get_memo(resource, uid),
            indices=self.context.indices,
            resource=resource,
            body=bodies.OwnBody(question.raw),
            patch=patches.Patch(body=body),
            operation=question.operation,
            subresource=question.subresource,
            dryrun=question.dryrun,
            warnings=[],
            userinfo=question.userinfo,
            headers=headers,
            sslpeer=sslpeer,
            diff=diffs.diff(question.old, question.new),
            old=None if question.old is None else bodies.Body(question.old),
            new=None if question.new is None else bodies.Body(question.new),
            name=question.name,
            namespace=question.namespace,
        )


def concerns(handler: handlers.WebhookHandler, question: questions.Question) -> bool:
    """
    Whether the handler is for this operation and subresource, regardless of its filters.

    By default, a mutating handler is not for deletions: there is nothing to change, and if it
    refused, nobody could delete the object.
    """
    is_for_operation = (
        handler.reason == 'validating' or question.operation != 'DELETE'
        if handler.operations is None else question.operation in handler.operations)
    return is_for_operation and handler.subresource in ('*', question.subresource)


def make_changes(question: questions.Question, patch: patches.Patch) -> patches.JSONPatch | None:
    """
    Make the JSON patch for the new object of the request; None if the operation is a deletion.

    The patch applies to exactly that object, so it cannot fail: e.g. an absent field is never
    removed.

    :raises Exception: the error of a transformation function of the patch.
    """
    if question.new is None:
        return None
    if patch.fns:
        return patch.as_json_patch(question.new)
    touched = {key: val for key, val in question.new.items() if key in patch}
    return patches.make_json_patch(touched, patches.merge(touched, patch))
