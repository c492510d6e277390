"""
Sub-handlers: handlers made by handlers, each with its own progress.

The parent is called again in each pass, and makes its sub-handlers anew, until all have finished.
"""
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any

from kopf._cogs.structs import ids
from kopf._core.actions import lifecycles
from kopf._core.intents import callbacks, causes, handlers, registries

Runner = Callable[
    [list[handlers.ChangingHandler], lifecycles.LifeCycleFn | None, causes.Cause | None],
    Awaitable[None]]


class Family(registries.Parent):
    """A call of a handler which can also execute its sub-handlers."""

    def __init__(self, handler: handlers.Handler, run: Runner) -> None:
        super().__init__(handler)
        self.members: set[ids.HandlerId] = set()
        self.executed = False
        self._run = run

    async def execute(
            self,
            children: Iterable[handlers.ChangingHandler],
            *,
            lifecycle: lifecycles.LifeCycleFn | None = None,
            cause: causes.Cause | None = None,
    ) -> None:
        """
        Execute the sub-handlers which are due.

        :raises HandlerChildrenRetry: if some are left for later.
        """
        self.executed = True
        children = list(children)
        self.members.update(child.id for child in children)
        await self._run(children, lifecycle, cause)


async def execute(
        *,
        fns: Iterable[callbacks.ChangingFn] | Mapping[str, callbacks.ChangingFn] | None = None,
        handlers: Iterable[handlers.ChangingHandler] | None = None,
        registry: registries.ChangingRegistry | None = None,
        lifecycle: lifecycles.LifeCycleFn | None = None,
        cause: causes.Cause | None = None,
) -> None:
    """
    Execute sub-handlers of the current handler, here and now, and return when all have finished.

    They are given as functions (a mapping by ids, or any iterable to name them by themselves),
    as handlers, or as a registry; without any of these, they are those which were declared with
    `kopf.subhandler` and `kopf.register`. For these, it is done after the handler if not in it.

    While some of them have to be tried again later, this function raises an error which must get
    out of the handler: it brings the handler back when it is time. So, what goes after the call
    goes after all sub-handlers. See "Sub-handlers" and "Idempotence" in the docs.

    :raises TypeError: if several kinds of sub-handlers are given at once.
    :raises RuntimeError: outside of handlers.
    """
    family = registries.parent_var.get(None)
    if not isinstance(family, Family):
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
        fn: callbacks.ChangingFn, id: str | None, family: Family,
) -> handlers.ChangingHandler:
    return handlers.ChangingHandler(
        fn=fn, id=handlers.generate_id(fn, id, parent=family.handler.id))
