"""The simulations that wait to be started, in two queues."""

from collections.abc import Container
from itertools import islice


class Waiting:
    """Ids in the order in which they come next: `untried` ones, and those to be tried again (`again`). Pure.

    The value of each tells whether it may share a job.
    """

    def __init__(self) -> None:
        # A dict is an ordered set from whose middle can be taken.
        self.untried: dict[int, bool] = {}
        self.again: dict[int, bool] = {}

    def __contains__(self, simulation: int) -> bool:
        return simulation in self.untried or simulation in self.again

    def add(self, simulation: int, *, again: bool, may_share: bool = False) -> None:
        """It comes after all others of its queue."""
        (self.again if again else self.untried)[simulation] = may_share

    def remove(self, simulation: int) -> None:
        """It does not wait any more, if it did."""
        self.untried.pop(simulation, None)
        self.again.pop(simulation, None)

    def keep(self, wanted: Container[int]) -> None:
        """All but these wait no more."""
        for queue in (self.untried, self.again):
            for simulation in [it for it in queue if it not in wanted]:
                del queue[simulation]

    def next_job(self, *, per_job: int, num_free: int, anything_came: bool, anything_runs: bool) -> tuple[int, ...]:
        """The simulations to start next, in one job, which leave their queue; none if there is no room for the job.

        Until something has come, others are tried before one that failed, and that one not beside others: whether the
        study or only this simulation is broken shows by then.
        """
        before_anything_came = self.untried or ({} if anything_runs else self.again)
        job = _first_job(self.again or self.untried if anything_came else before_anything_came, per_job)
        if len(job) > num_free:
            return ()
        for simulation in job:
            self.remove(simulation)
        return job

    def next_to_give(self) -> int | None:
        """The simulation for a client that takes any; it leaves its queue."""
        queue = self.untried or self.again
        first = next(iter(queue), None)
        if first is not None:
            del queue[first]
        return first


def _first_job(queue: dict[int, bool], per_job: int) -> tuple[int, ...]:
    first = next(iter(queue), None)
    if first is None:
        return ()
    if not queue[first]:
        return (first,)
    return tuple(islice((it for it, may_share in queue.items() if may_share), per_job))
