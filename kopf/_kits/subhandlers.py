"""
Sub-handlers that a handler executes itself, in the middle of its code.
"""
from collections.abc import Iterable, Mapping
from typing import Any

from kopf._core.actions import lifecycles, subhandling
from kopf._core.intents import callbacks, causes, handlers, registries


async def execute(
        *,
        fns: Iterable[callbacks.SubFn] | Mapping[str, callbacks.SubFn] | None = None,
        handlers: Iterable[handlers.ChangingHandler] | None = None,
        registry: registries.ChangingRegistry | None = None,
        lifecycle: lifecycles.LifeCycleFn | None = None,
        cause: causes.Cause | None = None,
) -> None:
    """
    Execute the sub-handlers of the current handler, and return when all of them have finished.

    If some sub-handlers must be retried later, this function raises an error. Do not catch the
    error: Kopf calls the handler again when a sub-handler is due. So, the code after this call runs
    only after all sub-handlers have finished. Without this call, Kopf executes the sub-handlers
    after the handler.

    At most one of ``fns``, ``handlers``, and ``registry`` specifies the sub-handlers. Default:
    those that the handler has registered with `kopf.subhandler` and `kopf.register`.

    ::

        @kopf.on.create('websites')
        async def created(**_):
            await kopf.execute(fns=[upload, announce])

    See "Split handlers into sub-handlers" in the documentation.

    :param fns: functions: a mapping by ids, or an iterable; then, the ids are the names of
        functions.
    :param handlers: handlers, as registries contain them.
    :param registry: a registry of sub-handlers.
    :param lifecycle: which of the due sub-handlers Kopf calls, and in which order; see
        `kopf.lifecycles`. Default: the same as for handlers.
    :param cause: the cause that the sub-handlers handle. Default: the cause of the current handler.
    :raises HandlerChildrenRetry: if some sub-handlers have not finished.
    :raises TypeError: if more than one of ``fns``, ``handlers``, and ``registry`` are given.
    :raises RuntimeError: outside of handlers of changes.
    """
    family = registries.parent_var.get(None)
    if not isinstance(family, subhandling.Family):
        raise RuntimeError("kopf.execute() works only in the handlers of creation, updates, etc.")
    if sum(source is not None for source in (fns, handlers, registry)) > 1:
        raise TypeError("Only one of the fns, handlers, or registry can be executed at once.")
    children: Iterable[Any]
    if fns is not None:
        named = fns.items() if isinstance(fns, Mapping) else ((None, fn) for fn in fns)
        children = [_make(fn, id, family) for id, fn in named]
    elif handlers is not None:
        children = handlers
    else:
        children = registry if registry is not None else family.declared
    await family.execute(children, lifecycle=lifecycle, cause=cause)


def _make(
        fn: callbacks.SubFn, id: str | None, family: subhandling.Family,
) -> handlers.ChangingHandler:
    return handlers.ChangingHandler(
        fn=fn, id=handlers.generate_id(fn, id, parent=family.handler.id))
