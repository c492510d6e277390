"""
Answers: the responses of admission reviews.
"""
import base64
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kopf._cogs.structs import patches, reviews, texts
from kopf._core.actions import application
from kopf._core.engines.admission import questions
from kopf._core.intents import handlererrors, typedargs

DEFAULT_CODE = 500
MISFIT_CODE = 422
CODES = range(400, 1000)
"""The status codes of errors that API servers accept in a review."""

_PRECEDENCE = (
    handlererrors.AdmissionError, typedargs.MisfitError, handlererrors.PermanentError,
    handlererrors.TemporaryError, BaseException)


def answer(
        question: questions.Question,
        *,
        failures: Iterable[BaseException] = (),
        warnings: Iterable[object] = (),
        changes: patches.JSONPatch | None = None,
) -> reviews.Response:
    """
    Make the response: refuse the operation if there are failures, otherwise allow it with the
    changes.

    :raises application.PatchError: if the changes cannot be encoded as JSON.
    """
    failure = choose(failures)
    payload: reviews.ResponsePayload = {'uid': question.uid, 'allowed': failure is None}
    if lines := [texts.make_line(str(warning)) for warning in warnings]:
        payload['warnings'] = lines
    if failure is not None:
        payload['status'] = describe(failure)
    elif changes:
        payload['patch'] = encode(changes)
        payload['patchType'] = 'JSONPatch'
    return {'apiVersion': question.api_version, 'kind': 'AdmissionReview', 'response': payload}


def choose(failures: Iterable[BaseException]) -> BaseException | None:
    """
    Choose the failure for the response, which has only one: the first of the highest precedence.

    An admission error comes first: its message and code are meant for the user.
    """
    return min(failures, default=None, key=lambda failure: next(
        rank for rank, cls in enumerate(_PRECEDENCE) if isinstance(failure, cls)))


def describe(failure: BaseException) -> reviews.ResponseStatus:
    """Describe the failure to the user of the API. Only some errors have codes of their own."""
    if isinstance(failure, handlererrors.AdmissionError):
        code: object = failure.code
        return {'message': '' if failure.args[:1] == (None,) else str(failure),
                'code': code if isinstance(code, int) and code in CODES else DEFAULT_CODE}
    code = MISFIT_CODE if isinstance(failure, typedargs.MisfitError) else DEFAULT_CODE
    return {'message': str(failure) or repr(failure), 'code': code}


def encode(changes: Sequence[Mapping[str, Any]]) -> str:
    """
    Encode the changes for the response: as JSON in Base64.

    :raises application.PatchError: if the changes cannot be encoded as JSON.
    """
    try:
        text = json.dumps(changes, allow_nan=False, separators=(',', ':'))
    except (TypeError, ValueError, RecursionError) as e:
        raise application.PatchError(f"the patch is not JSON: {e}") from e
    return base64.b64encode(text.encode()).decode()
