"""
The switch of an operator: whether it works, is paused, stands by, or is stopping.
"""
from collections.abc import Callable


class LeadershipLostError(Exception):
    """The operator has lost its Lease, and ``settings.leadership.exit_on_loss`` is on."""


class Switch:
    """
    The state of the operator. All its parts look at it before they begin anything.

    What was decided before a pause must be decided again after it: another operator can have
    changed the objects. Compare `pauses` with its earlier value to find out that there was a pause.

    Only `admits` says whether work may begin. The state can be outdated: e.g. if the process was
    suspended, the timers of the peering are late. So, call `confirm` before a handler is called.
    """

    def __init__(self, confirm: Callable[[], None] = lambda: None) -> None:
        """``confirm`` looks at the clock, and pauses the operator if a pause is overdue."""
        self.confirm = confirm
        self.is_paused = False
        self.is_standby = False
        """
        Whether the operator is paused, but goes on watching: another replica handles the objects.
        """
        self.is_stopping = False
        self.pauses = 0
        """How many times the operator has been paused since its start."""
        self.deadline: float | None = None
        """The time of the event loop when all writes must end, if the operator is exiting."""

    def admits(self, *, is_gone: bool = False, since: int | None = None) -> bool:
        """
        Whether work may begin now; or, with ``since`` (see `pauses`), may continue that began then.

        The end of an object that ``is_gone`` is also reported in a pause, unless another replica
        leads: then, that one reports the end.
        """
        return not self.is_stopping and since in (None, self.pauses) and (
            not self.is_paused or (is_gone and not self.is_standby))

    def check_shared(self, since: int) -> bool:
        """
        Call `confirm`; then say whether other operators can have handled the objects since then
        (see `pauses`).
        """
        self.confirm()
        return self.is_paused or self.pauses != since

    def pause(self, *, standby: bool = False) -> None:
        self.is_paused, self.is_standby = True, standby
        self.pauses += 1

    def resume(self) -> None:
        self.is_paused = self.is_standby = False

    def stop(self, deadline: float) -> None:
        """
        Note that the operator is exiting, and by when all writes must end. It cannot be undone.
        """
        self.is_stopping = True
        self.deadline = deadline
