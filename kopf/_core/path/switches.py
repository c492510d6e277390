"""
The switch of an operator: whether it works, is paused, stands by, or is stopping.
"""
from collections.abc import Callable


class LeadershipLostError(Exception):
    """The operator has lost its Lease, and ``settings.leadership.exit_on_loss`` is on."""


class Switch:
    """
    The state of the operator, which all its parts look at before they begin anything.

    What was decided before a pause must be decided again after it: another operator has changed the
    objects. Compare `pauses` with its earlier value to find out that there was a pause.

    `is_paused` can be outdated: e.g. if the process was suspended, the timers of the peering are
    late. Before a handler is called, use `check_paused`, which lets the peering look at the clock.
    """

    def __init__(self, confirm: Callable[[], None] = lambda: None) -> None:
        """``confirm`` is called by `check_paused`; it pauses the operator if that is overdue."""
        super().__init__()
        self._confirm = confirm
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

    def check_paused(self) -> bool:
        """
        Whether the operator is paused, by the clock and not by the timers; pauses it if needed.
        """
        self._confirm()
        return self.is_paused

    def admits(self, *, is_gone: bool) -> bool:
        """
        Whether an object can be processed now, as far as the timers know: see `check_paused`.

        The end of an object that ``is_gone`` is also reported in a pause, unless another replica
        leads: then, that one reports the end.
        """
        return not self.is_paused or (is_gone and not self.is_standby)

    def check_paused_since(self, pauses: int) -> bool:
        """Whether there was a pause since then (see `pauses`), or is now; by the clock."""
        self._confirm()
        return self.pauses != pauses

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
