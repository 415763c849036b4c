"""The clients that nobody started, and what they asked for. Pure."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from stream_server.launcher.actions import Decline, Give
from stream_server.launcher.entry import Entry, State

ATTACH_WAIT_S = 10.0


@dataclass(frozen=True, slots=True)
class Request:
    """The client with `token`, and of this name, asked at `since` for this simulation, or for any (None)."""

    token: int
    simulation: int | None
    since: float
    client: str = ""

    def give(self, it: Entry) -> Give:
        return Give(token=self.token, simulation=it.id, attempt=it.attempt, client=self.client)

    def decline(self, text: str, *, busy: bool) -> Decline:
        return Decline(token=self.token, text=text, busy=busy)


class Requests:
    """Answers them in order, at most `max_attached` at once; some wait a little for their answer."""

    def __init__(self, max_attached: int) -> None:
        self.max_attached = max_attached
        self._open: deque[Request] = deque()
        self._tokens: set[int] = set()

    @property
    def deadlines(self) -> list[float]:
        """When those that wait are to be answered at the latest."""
        return [it.since + ATTACH_WAIT_S for it in self._open]

    def add(self, token: int, simulation: int | None, now: float, *, client: str = "") -> None:
        """A client asks.

        The server repeats what it waits for whenever it is asked for its plan: one token gets one answer.
        """
        if token not in self._tokens:
            self._tokens.add(token)
            self._open.append(Request(token, simulation, now, client))

    def clear(self) -> None:
        """The server that would have passed the answers on is gone."""
        self._open.clear()
        self._tokens.clear()

    def decline_all(self, text: str) -> list[Give | Decline]:
        """Nobody gets anything any more."""
        answers: list[Give | Decline] = [it.decline(text, busy=False) for it in self._open]
        self._open.clear()
        return answers

    def answer(
        self,
        simulations: Mapping[int, Entry],
        now: float,
        *,
        attached: Sequence[Entry],
        take: Callable[[int | None, str], Entry | None],
    ) -> list[Give | Decline]:
        """The answers that are due; `attached` are the simulations that clients have already.

        `take` begins an attempt of this simulation, or of any that waits, if one does, for the client of this name.
        """
        of_client = {it.client: it for it in attached if it.client}
        num_attached = len(attached)
        answers: list[Give | Decline] = []
        waiting: deque[Request] = deque()
        for request in self._open:
            answer = self._given_before(request, of_client) or self._named(request, simulations)
            if answer is None:
                it = take(request.simulation, request.client) if num_attached < self.max_attached else None
                answer = request.give(it) if it else self._refuse(request, now, num_attached)
                num_attached += it is not None
            if answer is None:
                waiting.append(request)
            else:
                answers.append(answer)
        self._open = waiting
        return answers

    def _given_before(self, request: Request, of_client: Mapping[str, Entry]) -> Give | None:
        """The simulation that this client has: the answer was lost with a server or a connection."""
        it = None if request.simulation is not None else of_client.get(request.client)
        return request.give(it) if it else None

    def _named(self, request: Request, simulations: Mapping[int, Entry]) -> Give | Decline | None:
        """What the state of the simulation says that was asked for by its name; None when it waits for an attempt."""
        if request.simulation is None:
            return None
        it = simulations.get(request.simulation)
        if it is None or it.state.terminal:
            state = "not in the study" if it is None else it.state
            return request.decline(f"simulation {request.simulation} is {state}", busy=False)
        if it.attached:
            return request.give(it)
        if it.state is not State.WAITING:
            return request.decline(f"simulation {request.simulation} is run by the study itself", busy=True)
        return None

    def _refuse(self, request: Request, now: float, num_attached: int) -> Decline | None:
        # A client that has just finished one simulation may ask for the next before the server says so.
        if num_attached > 0 and now < request.since + ATTACH_WAIT_S:
            return None
        if num_attached >= self.max_attached:
            text = f"{num_attached} simulations are attached, as many as client.max_attached allows"
            return request.decline(text, busy=True)
        return request.decline("every simulation is running or done", busy=False)
