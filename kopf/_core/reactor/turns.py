"""
Turns: one look at one state of one object, and what is known in it.

How the handlers are called in a turn is in `executing`; what is done with them, in `handling`.
"""
import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from kopf._cogs.aiokits import clocks
from kopf._cogs.clients import api
from kopf._cogs.configs import configuration
from kopf._cogs.structs import bodies, diffs, memos, patches
from kopf._core.actions import decisions, lifecycles
from kopf._core.intents import causes, handlers
from kopf._core.reactor import lines, saving

PRECISION = 0.001
"""How much earlier than planned is early enough, in seconds: timers are not more precise."""


@dataclasses.dataclass(kw_only=True)
class Environment:
    """What all the objects of an operator have in common."""
    client: api.Client
    settings: configuration.OperatorSettings
    clock: clocks.Clock
    memo: Any
    indices: Mapping[str, Any]
    lifecycle: lifecycles.LifeCycleFn | None = None


class Turn:
    """
    A state of an object, its cause, and what of it has been changed and written since.

    The handlers see the newest state, with the results of the previous ones laid over.
    """

    def __init__(
            self, env: Environment, line: lines.Line, raw: bodies.RawBody, logger: Any,
            *, accompanied: bool = False,
    ) -> None:
        super().__init__()
        self.env = env
        self.line = line
        self.logger = logger
        self.handlers = line.stream.handlers
        self._pauses = line.stream.lines.pauses
        self.accompanied = accompanied
        """Whether daemons & timers keep the object from being deleted."""
        self.view = decisions.look(
            raw, settings=env.settings, extra_fields=self.handlers.extra_fields)
        self.shown = raw
        """The state as handlers see it: with the results of the previous ones laid over."""
        self.saver = saving.Saver(line, raw, client=env.client, settings=env.settings,
                                  clock=env.clock, logger=logger)
        self._failing: dict[handlers.ChangingHandler, Exception] = {}
        self._cause: causes.ChangingCause | None = None
        self._reason = causes.Reason.NOOP
        self._diff = diffs.EMPTY
        self._announced = False

    def _get_cause(self) -> causes.ChangingCause:
        if self._cause is None:
            line = self.line
            self._cause = causes.ChangingCause(
                logger=self.logger,
                memo=get_memo(self.env, line),
                indices=self.env.indices,
                resource=line.stream.resource,
                body=bodies.Body(self.shown),
                patch=patches.Patch(),
                reason=self._reason,
                initial=line.initial,
                diff=self._diff,
                old=self.view.old,
                new=self.view.essence,
            )
        return self._cause

    def _load(self, selected: Sequence[handlers.ChangingHandler]) -> None:
        assert self.line.cycle is not None
        now = self.env.clock.now()
        for handler in selected:
            self.line.cycle.load(
                handler.id, body=self.view.body, settings=self.env.settings, now=now,
                any_purpose=bool(handler.initial))

    def _choose(
            self, lifecycle: lifecycles.LifeCycleFn, due: Sequence[handlers.ChangingHandler],
            cause: causes.Cause | None = None,
    ) -> Sequence[handlers.ChangingHandler]:
        assert self.line.cycle is not None
        if lifecycle is lifecycles.asap:
            return lifecycles.asap(due, state=self.line.cycle.states)  # type: ignore[return-value]
        kwargs = (cause if cause is not None else self._get_cause()).kwargs
        chosen: Any = lifecycle(due, **{**kwargs, 'state': self.line.cycle.states})
        if not chosen:
            raise RuntimeError(f"The lifecycle has chosen none of the due handlers: {due}.")
        return list(chosen)

    @property
    def is_stopped(self) -> bool:
        """Whether the operator exits, or was frozen meanwhile: nothing more is to be done."""
        return self.line.stream.lines.stopping or self.line.stream.lines.pauses != self._pauses

    def _is_interrupted(self) -> bool:
        """Between handlers: whether there is something that makes the cause be detected anew."""
        line = self.line
        line.stream.lines.check_paused()
        if line.gone or self.is_stopped or self.saver.overtaken:
            return True
        pending = line.pending
        if pending is None:
            return False
        essence = self._build_essence(pending)
        if essence != self.view.essence or decisions.is_deleting(pending) != self.view.deleting:
            return True
        self.saver.raw = pending
        line.pending = None
        self._refresh()
        return False

    def _refresh(self) -> None:
        """Show the newest state to the next handlers, with what is not written yet."""
        assert self.line.cycle is not None
        self.shown = self.saver.raw
        for contribution in self.line.cycle.contributions:
            if 'status' in contribution.patch:
                status = {'status': contribution.patch['status']}
                self.shown = patches.merge(self.shown, status)  # type: ignore[assignment]
        self._cause = None

    def _is_changed(self, raw: bodies.RawBody, essence: bodies.BodyEssence) -> bool:
        """Whether someone else, or the server, has changed more than we did."""
        if raw is self.view.raw:
            return essence != self.view.essence
        return decisions.is_deleting(raw) != self.view.deleting or (
            essence != self._build_essence(raw))

    def _build_essence(self, raw: Any) -> bodies.BodyEssence:
        return decisions.build_essence(
            bodies.Body(raw), settings=self.env.settings, extra_fields=self.handlers.extra_fields)

    def _announce(self) -> None:
        if not self._announced and self._reason in causes.TITLES:
            self._announced = True
            if self.logger.isEnabledFor(10):
                title = causes.TITLES[self._reason]
                self.logger.debug(f"{title} is in progress: {self.view.body!r}")
                if self._diff and self._reason == causes.Reason.UPDATE:
                    self.logger.debug(f"{title} diff: {self._diff!r}")

    def _log(self, message: str) -> None:
        self.logger.debug(message)


def get_memo(env: Environment, line: lines.Line) -> Any:
    """The object's own memo: made of the operator's when it is asked for first."""
    if line.memo is None:
        line.memo = memos.make_own(env.memo)
    return line.memo
