"""
Conditions that handlers set in the status of their objects.
"""
import re
from typing import Literal

from kopf._cogs.structs import patches
from kopf._core.actions import invocation
from kopf._core.engines.reconciling import conditions

ConditionStatus = Literal['True', 'False', 'Unknown']


def set_condition(
        patch: patches.Patch,
        type: str,
        status: ConditionStatus | bool | None,
        reason: str,
        message: str = '',
) -> None:
    """
    Set a condition in ``status.conditions``, by the conventions of the Kubernetes API.

    ``lastTransitionTime`` changes only with the status. ``observedGeneration`` is the generation of
    the object that the handler sees, if its resource has the status as a subresource: otherwise,
    each write of the status is a new generation. Without a change, nothing is written. Other
    conditions stay as they are.

    ::

        @kopf.on.create('websites')
        def created(patch, **_):
            kopf.set_condition(patch, 'Ready', True, 'Uploaded', "The pages are uploaded.")

    See "Return results" in the documentation.

    :param patch: the patch of the handler.
    :param type: the type of the condition, e.g. ``Ready``.
    :param status: ``'True'``, ``'False'``, ``'Unknown'``; or `True`, `False`, `None`.
    :param reason: the reason in CamelCase, for programs.
    :param message: the details, for people.
    :raises TypeError: if the other parts are no strings.
    :raises ValueError: if the status is none of these, or if the type is empty, or if the reason is
        no such word.
    """
    text = str(status) if isinstance(status, bool) else 'Unknown' if status is None else status
    if not all(isinstance(part, str) for part in (type, reason, message)):
        raise TypeError(f"The type, the reason, and the message of a condition are strings, not "
                        f"{type!r}, {reason!r}, {message!r}.")
    if not type or not re.fullmatch(conditions.REASON, reason):
        raise ValueError(f"A condition has a type, and a reason of one word in CamelCase, such as "
                         f"'NotReady', not {type!r} and {reason!r}.")
    if not isinstance(text, str) or text not in ('True', 'False', 'Unknown'):
        raise ValueError(f"The status of a condition is True, False, or Unknown, not {status!r}.")
    kwargs = invocation.kwargs_var.get({})
    observed = conditions.observe(kwargs['resource'], kwargs['body']) if 'body' in kwargs else None
    conditions.add(patch, observed=observed, type=type, status=text, reason=reason, message=message)
