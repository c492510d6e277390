"""
Sub-handlers: handlers that are declared inside of other handlers, each with its own progress.

The parent handler is called again, and declares its sub-handlers again, until all of them have
finished.
"""
from collections.abc import Awaitable, Callable, Iterable

from kopf._cogs.structs import ids
from kopf._core.actions import lifecycles
from kopf._core.intents import causes, handlers, registries

Runner = Callable[
    [list[handlers.ChangingHandler], lifecycles.LifeCycleFn | None, causes.Cause | None],
    Awaitable[None]]


class Family(registries.Parent):
    """One call of a handler that can have sub-handlers, with these sub-handlers."""
    __slots__ = ('_run', 'executed', 'members')

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
        Execute the due sub-handlers.

        :raises HandlerChildrenRetry: if some sub-handlers have not finished.
        """
        self.executed = True
        children = list(children)
        self.members.update(child.id for child in children)
        await self._run(children, lifecycle, cause)
