"""The simulations that wait to be started, in two queues."""

from collections.abc import Container


class Waiting:
    """Ids in the order in which they come next: `untried` ones, and those to be tried again (`again`). Pure."""

    def __init__(self) -> None:
        # A dict is an ordered set from whose middle can be taken.
        self.untried: dict[int, None] = {}
        self.again: dict[int, None] = {}

    def __contains__(self, simulation: int) -> bool:
        return simulation in self.untried or simulation in self.again

    def add(self, simulation: int, *, again: bool) -> None:
        """It comes after all others of its queue."""
        (self.again if again else self.untried)[simulation] = None

    def remove(self, simulation: int) -> None:
        """It does not wait any more, if it did."""
        self.untried.pop(simulation, None)
        self.again.pop(simulation, None)

    def keep(self, wanted: Container[int]) -> None:
        """All but these wait no more."""
        self.untried = {simulation: None for simulation in self.untried if simulation in wanted}
        self.again = {simulation: None for simulation in self.again if simulation in wanted}

    def next_to_start(self, *, anything_came: bool, anything_runs: bool) -> int | None:
        """The simulation to start next; it leaves its queue.

        Until something has come, others are tried before one that failed, and that one not beside others: whether the
        study or only this simulation is broken shows by then.
        """
        if anything_came:
            return _pop(self.again or self.untried)
        return _pop(self.untried or ({} if anything_runs else self.again))

    def next_to_give(self) -> int | None:
        """The simulation for a client that takes any; it leaves its queue."""
        return _pop(self.untried or self.again)


def _pop(queue: dict[int, None]) -> int | None:
    first = next(iter(queue), None)
    if first is not None:
        del queue[first]
    return first
