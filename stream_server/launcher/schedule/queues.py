"""The queues of the schedule: simulations that wait to be started, and clients that ask for one. Pure.

Why: docs/decisions/0056-workers.md
"""

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice

from stream_server.launcher.schedule.simulation import ScheduledAttempt, ScheduledSimulation, ScheduledState
from stream_server.messages.launcher_link import Attached, AttachRequest, NoneLeft

ATTACH_WAIT_S = 10.0

Answer = Attached | NoneLeft


class StartQueue:
    """Ids in the order in which they come next: `untried` ones, and those to be tried again (`again`). Pure.

    The value of each tells whether it may share a job.
    """

    def __init__(self) -> None:
        # A dict is an ordered set from whose middle can be taken.
        self.untried: dict[int, bool] = {}
        self.again: dict[int, bool] = {}

    def __len__(self) -> int:
        return len(self.untried) + len(self.again)

    def __contains__(self, simulation: int) -> bool:
        return simulation in self.untried or simulation in self.again

    def add(self, simulation: int, *, again: bool, may_share: bool = False) -> None:
        """Put a simulation behind all others of its queue."""
        (self.again if again else self.untried)[simulation] = may_share

    def remove(self, simulation: int) -> None:
        """Remove a simulation, if it waits."""
        self.untried.pop(simulation, None)
        self.again.pop(simulation, None)

    def clear(self) -> tuple[int, ...]:
        """Empty both queues; returns the simulations that waited."""
        waited = (*self.untried, *self.again)
        self.untried.clear()
        self.again.clear()
        return waited

    def keep(self, wanted: Container[int]) -> None:
        """All but these wait no more."""
        for queue in (self.untried, self.again):
            for simulation in [waiting for waiting in queue if waiting not in wanted]:
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
    return tuple(islice((simulation for simulation, may_share in queue.items() if may_share), per_job))


class AttachQueue:
    """Answers clients that ask in order, at most `max_attached` at once; some wait a little for their answer."""

    def __init__(self, max_attached: int) -> None:
        self.max_attached = max_attached
        # By token, with the time of the question.
        self._open: dict[int, tuple[AttachRequest, float]] = {}
        self._tokens: set[int] = set()

    @property
    def deadlines(self) -> list[float]:
        """The latest times for the answers to waiting requests."""
        return [since + ATTACH_WAIT_S for _, since in self._open.values()]

    def add(self, request: AttachRequest, now: float) -> None:
        """A client asks.

        The server repeats what it waits for whenever it is asked for its plan: one token gets one answer.
        """
        if request.token not in self._tokens:
            self._tokens.add(request.token)
            self._open[request.token] = request, now

    def clear(self) -> None:
        """The server that would have passed the answers on is gone."""
        self._open.clear()
        self._tokens.clear()

    def decline_all(self, text: str) -> list[Answer]:
        """Decline all requests."""
        answers: list[Answer] = [NoneLeft(token=token, text=text, busy=False) for token in self._open]
        self._open.clear()
        return answers

    def answer(
        self,
        simulations: Mapping[int, ScheduledSimulation],
        now: float,
        *,
        attached: Sequence[ScheduledAttempt],
        take: Callable[[int | None, str], ScheduledAttempt | None],
    ) -> list[Answer]:
        """The answers that are due; `attached` are the attempts that clients run already.

        `take` begins an attempt of this simulation, or of any that waits, if one does, for the client of this name.
        """
        of_client = {attempt.client: attempt for attempt in attached if attempt.client}
        num_attached = len(attached)
        answers: list[Answer] = []
        for request, since in list(self._open.values()):
            answer = self._repeat_answer(request, of_client) or self._answer_named(request, simulations)
            if answer is None:
                attempt = take(request.simulation, request.client) if num_attached < self.max_attached else None
                answer = _give(request, attempt) if attempt else self._refuse(request, since, now, num_attached)
                num_attached += attempt is not None
            if answer is not None:
                del self._open[request.token]
                answers.append(answer)
        return answers

    def _repeat_answer(self, request: AttachRequest, of_client: Mapping[str, ScheduledAttempt]) -> Attached | None:
        """The simulation that this client has: the answer was lost with a server or a connection."""
        attempt = None if request.simulation is not None else of_client.get(request.client)
        return _give(request, attempt) if attempt else None

    def _answer_named(
        self, request: AttachRequest, simulations: Mapping[int, ScheduledSimulation]
    ) -> Attached | NoneLeft | None:
        """The answer to a client that asks for one simulation, from its state; None when that waits for an attempt."""
        if request.simulation is None:
            return None
        entry = simulations.get(request.simulation)
        if entry is None or entry.state.terminal:
            state = "not in the study" if entry is None else entry.state
            return _decline(request, f"simulation {request.simulation} is {state}")
        if attempt := entry.attached:
            return _give(request, attempt)
        if entry.state is not ScheduledState.WAITING:
            return _decline(request, f"simulation {request.simulation} is run by the study itself", busy=True)
        return None

    def _refuse(self, request: AttachRequest, since: float, now: float, num_attached: int) -> NoneLeft | None:
        # A client that has just finished one simulation may ask for the next before the server says so.
        if num_attached > 0 and now < since + ATTACH_WAIT_S:
            return None
        if num_attached >= self.max_attached:
            text = f"as many simulations are attached as client.max_attached allows ({num_attached})"
            return _decline(request, text, busy=True)
        return _decline(request, "every simulation is running or done")


def _give(request: AttachRequest, attempt: ScheduledAttempt) -> Attached:
    return Attached(token=request.token, simulation=attempt.simulation, attempt=attempt.number, client=request.client)


def _decline(request: AttachRequest, text: str, *, busy: bool = False) -> NoneLeft:
    return NoneLeft(token=request.token, text=text, busy=busy)
