"""
Answers: what an API server is told in a review.
"""
import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.structs import patches, reviews
from kopf._core.engines.admission import questions
from kopf._core.intents import errors

DEFAULT_CODE = 500
CODES = range(400, 1000)
"""What can be an error in HTTP, and does not break API servers."""

_PRECEDENCE = (errors.AdmissionError, errors.PermanentError, errors.TemporaryError, BaseException)


class PatchError(Exception):
    """What a handler wants to be changed, cannot be said in JSON."""


def answer(
        question: questions.Question,
        *,
        failures: Iterable[BaseException] = (),
        warnings: Iterable[object] = (),
        changes: patches.JSONPatch | None = None,
) -> reviews.Response:
    """
    Allow it with these changes; or refuse it if there are failures, for the gravest of them.

    :raises PatchError: if the changes are not JSON.
    """
    failure = choose(failures)
    payload: reviews.ResponsePayload = {'uid': question.uid, 'allowed': failure is None}
    texts = [str(warning) for warning in warnings]
    if texts:
        payload['warnings'] = texts
    if failure is not None:
        payload['status'] = describe(failure)
    elif changes:
        payload['patch'] = encode(changes)
        payload['patchType'] = 'JSONPatch'
    return {
        'apiVersion': question.api_version, 'kind': 'AdmissionReview', 'response': payload}


def choose(failures: Iterable[BaseException]) -> BaseException | None:
    """The one to be told of; of equally grave ones, the first one."""
    return min(failures, key=_rank, default=None)


def _rank(failure: BaseException) -> int:
    return next(rank for rank, cls in enumerate(_PRECEDENCE) if isinstance(failure, cls))


def describe(failure: BaseException) -> reviews.ResponseStatus:
    """What the user who makes the change is told; only admission errors choose their codes."""
    if isinstance(failure, errors.AdmissionError):
        code = failure.code
        message = '' if failure.args[:1] == (None,) else str(failure)
        is_good = isinstance(code, int) and not isinstance(code, bool) and code in CODES
        return {'message': message, 'code': code if is_good and code else DEFAULT_CODE}
    return {'message': str(failure) or repr(failure), 'code': DEFAULT_CODE}


def encode(changes: Sequence[Mapping[str, Any]]) -> str:
    """
    Make it what goes to the API.

    :raises PatchError: if it is not JSON.
    """
    try:
        text = json.dumps(changes, allow_nan=False, separators=(',', ':'))
    except (TypeError, ValueError, RecursionError) as e:
        raise PatchError(f"the patch is not JSON: {e}") from e
    return base64.b64encode(text.encode()).decode()
