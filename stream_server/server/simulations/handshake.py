"""The handshake: clients wait between `Hello` and `Welcome` until their simulation may begin.

Rank 0 only; pure: events in, actions out.

Why: docs/decisions/0018-contradicting-client-ranks.md
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgspec

from stream_server.messages import launcher_link, notices
from stream_server.messages.client import (
    ATTACHING,
    Hello,
    Message,
    Reason,
    Refusal,
    Stop,
    Welcome,
)
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.attempts import why_stale
from stream_server.server.intake.mailbox import SimulationsFailed, SimulationWarning
from stream_server.server.simulations.simulation_table import SimulationState


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Answer the client that sits behind `peer` on the control socket."""

    peer: bytes
    message: Message


# What the roster and the handshake decide, for the coordinator to carry out: notices are for every rank, this one too.
Action = Reply | notices.Notice | launcher_link.ToLauncher | SimulationsFailed | SimulationWarning


@dataclass(kw_only=True, slots=True)
class RankClaims:
    """The clients that have said Hello for an attempt, by client rank."""

    attempt: int
    peers: dict[int, bytes]


class Handshake:
    """The client ranks between their `Hello` and their `Welcome`.

    One that belongs to an attempt waits until every server rank knows of it; one that came by itself, until the
    launcher has given it a simulation. `facts` are what every `Welcome` has, but for the simulation. `entries` are the
    roster's, by id. While it is not `open`, the study has ended.
    """

    def __init__(self, facts: Welcome, entries: Mapping[int, SimulationState], parameter_names: Sequence[str]) -> None:
        self.facts = facts
        self.entries = entries
        self.parameter_names = parameter_names
        self.open = True
        self._why_closed = ""
        self._waiting: defaultdict[int, dict[bytes, Hello]] = defaultdict(dict)
        self._requests: dict[int, tuple[bytes, Hello]] = {}
        self._guests: dict[bytes, int] = {}
        self._claims: dict[int, RankClaims] = {}
        self._next_token = 0

    def hello(self, peer: bytes, hello: Hello) -> list[Action]:
        """A client rank says who it is; the answer may have to wait until every server rank knows the attempt."""
        if hello.study != self.facts.study:
            text = f"this is study {self.facts.study}, but the message is for study {hello.study}"
            return [refuse(peer, Reason.WRONG_STUDY, text)]
        if not self.open:
            return [Reply(peer=peer, message=Stop(text=self._why_closed))]
        problem = self._parameters_problem(hello)
        if problem:
            return [refuse(peer, Reason.WRONG_FIELDS, problem)]
        if hello.simulation is None:
            return self._ask_for_any(peer, hello)
        entry = self.entries.get(hello.simulation)
        if entry is None:
            text = f"simulation {hello.simulation} is not in the study, whose ids are 0 to {max(self.entries)}"
            return [refuse(peer, Reason.UNKNOWN_SIMULATION, text)]
        if entry.parameters is None and entry.phase is SimulationPhase.WAITING:
            if hello.attempt != ATTACHING:
                # It takes the place of one of this round, which the server has lost.
                text = f"the server goes on before the round of simulation {hello.simulation}, which begins anew then"
                return [refuse(peer, Reason.STALE_ATTEMPT, text)]
            return [
                refuse(peer, Reason.BUSY, f"the parameters of simulation {hello.simulation} are yet to be suggested")
            ]
        if hello.attempt == ATTACHING and entry.phase is SimulationPhase.WAITING:
            return self._ask_for(hello.simulation, peer, hello)
        if entry.phase is SimulationPhase.STOPPED_EARLY:
            return [Reply(peer=peer, message=Stop(text=entry.reason))]
        if _has_finished(hello, entry):
            return [Reply(peer=peer, message=Stop(text=f"simulation {hello.simulation} is finished"))]
        problem = _problem(hello, hello.simulation, entry)
        if problem:
            return [refuse(peer, Reason.STALE_ATTEMPT, problem)]
        entry.waits_for = None
        actions = self.take_up(hello.simulation, hello) if hello.attempt == ATTACHING else []
        self._claim(hello.simulation, peer, hello)
        self._waiting[hello.simulation][peer] = hello
        return actions + self.welcome(hello.simulation)

    def conflict(self, peer: bytes, hello: Hello) -> str:
        """Say that another process has said Hello for the same rank of the same attempt; "" if none has.

        A client keeps its name while it asks one server, also over another connection. Those that ZeroMQ names have
        none, and where nothing is wanted any more all are let go.
        """
        if hello.study != self.facts.study or hello.simulation is None:
            return ""
        entry = self.entries.get(hello.simulation)
        if entry is None or entry.phase in (SimulationPhase.STOPPED, SimulationPhase.STOPPED_EARLY):
            return ""
        if hello.attempt == ATTACHING:
            claims = self._claims.get(hello.simulation)
            if entry.phase.terminal or claims is None or claims.attempt != ATTACHING:
                return ""
            if peer.startswith(b"\0") or claims.peers.get(hello.rank, peer) == peer:
                return ""
            return (
                f"another process has attached for simulation {hello.simulation} as rank {hello.rank} of "
                f"{hello.num_ranks}: name another simulation_id, or none; in each process of a parallel simulation "
                "pass rank and num_ranks to connect, in C stream_connect(&simulation, rank, num_ranks). If that "
                "process has died, attach once it has sent nothing for simulation.timeout_s"
            )
        if hello.attempt < entry.attempt or self._claim(hello.simulation, peer, hello) == peer:
            return ""
        return (
            f"two processes of simulation {hello.simulation} connect as rank {hello.rank} of {hello.num_ranks}: "
            "pass rank and num_ranks to connect, in C stream_connect(&simulation, rank, num_ranks), in each process of "
            "a parallel simulation, or connect in one of them only; and let simulation.command start the solver once"
        )

    def release(self, simulation: int) -> None:
        """Forget who has attached for a simulation: others may."""
        if (claims := self._claims.get(simulation)) is not None and claims.attempt == ATTACHING:
            del self._claims[simulation]

    def take_up(self, simulation: int, hello: Hello) -> list[Action]:
        """The client of an attempt that is older than this server, and unknown to it, says what it simulates."""
        entry = self.entries[simulation]
        if entry.begun or entry.phase is not SimulationPhase.RUNNING:
            return []
        entry.begun = True
        parameters = brought(hello, entry)
        if parameters == entry.parameters:
            return []
        entry.parameters, entry.ready = parameters, False
        again = notices.AttemptNotice(
            simulation=simulation, attempt=entry.attempt, parameters=parameters, key=None, goes_on=entry.goes_on
        )
        return [again]

    def take_request(self, token: int) -> tuple[bytes, Hello] | None:
        """The launcher has answered the request of a client that came by itself; None if it was answered before."""
        return self._requests.pop(token, None)

    def seat(self, peer: bytes, hello: Hello, simulation: int) -> list[Action]:
        """A client that came by itself gets a simulation."""
        self._guests[peer] = simulation
        self._claim(simulation, peer, hello)
        self._waiting[simulation][peer] = hello
        return self.welcome(simulation)

    def requests(self) -> list[Action]:
        """The requests that the launcher has not answered yet."""
        return [_attach_request(token, peer, hello) for token, (peer, hello) in self._requests.items()]

    def none_left(self, message: launcher_link.NoneLeft) -> list[Action]:
        """The launcher has no simulation for a client that came by itself."""
        request = self.take_request(message.token)
        if request is None:
            return []
        peer, hello = request
        more_come = any(entry.parameters is None and not entry.phase.terminal for entry in self.entries.values())
        reason = Reason.BUSY if message.busy or more_come else Reason.NO_SIMULATION_LEFT
        actions: list[Action] = [refuse(peer, reason, message.text)]
        if hello.simulation is not None:
            self.release(hello.simulation)
            # The other ranks of the same parallel simulation wait for this answer too.
            actions += self.turn_away(hello.simulation, reason, message.text)
        return actions

    def welcome(self, simulation: int) -> list[Action]:
        """Let in the clients that wait for this simulation, if every rank knows of its attempt."""
        entry = self.entries[simulation]
        if not entry.ready:
            return []
        welcome = msgspec.structs.replace(
            self.facts, simulation=simulation, attempt=entry.attempt, parameters=entry.known_parameters
        )
        actions: list[Action] = []
        for peer, hello in self._waiting.pop(simulation, {}).items():
            if hello.attempt == entry.wanted:
                actions.append(Reply(peer=peer, message=welcome))
            elif _is_ahead(hello, entry):
                self._waiting[simulation][peer] = hello
            else:
                actions.append(refuse(peer, Reason.STALE_ATTEMPT, _problem(hello, simulation, entry)))
        return actions

    def ended(self, simulation: int) -> None:
        """Keep of a simulation that has ended only who was rank 0: it is the rank of whoever names none."""
        if (claims := self._claims.get(simulation)) is not None:
            claims.peers = {rank: peer for rank, peer in claims.peers.items() if rank == 0}

    def turn_away(self, simulation: int, reason: Reason, text: str) -> list[Action]:
        """Refuse all clients that wait for this simulation."""
        return [refuse(peer, reason, text) for peer in self._waiting.pop(simulation, {})]

    def stop(self, simulation: int, text: str) -> list[Action]:
        """Stop all clients that wait for this simulation."""
        return [Reply(peer=peer, message=Stop(text=text)) for peer in self._waiting.pop(simulation, {})]

    def close(self, text: str) -> list[Action]:
        """Stop all waiting clients and admit no others: the study ends."""
        self.open = False
        self._why_closed = text
        peers = [peer for waiting in self._waiting.values() for peer in waiting]
        self._waiting.clear()
        return [Reply(peer=peer, message=Stop(text=text)) for peer in peers]

    def _ask_for_any(self, peer: bytes, hello: Hello) -> list[Action]:
        if hello.num_ranks > 1:
            text = "a parallel simulation that attaches by itself needs simulation_id=… on each of its ranks"
            return [refuse(peer, Reason.UNKNOWN_SIMULATION, text)]
        if peer in self._guests:
            # Its request crossed our answer: the same client must not get a second simulation.
            return self.seat(peer, hello, self._guests[peer])
        return self._request(peer, hello)

    def _claim(self, simulation: int, peer: bytes, hello: Hello) -> bytes:
        """Note who has said Hello first for a rank, and return it; one without a name claims nothing."""
        if peer.startswith(b"\0"):
            return peer
        claims = self._claims.get(simulation)
        if claims is None or claims.attempt != hello.attempt:
            claims = self._claims[simulation] = RankClaims(attempt=hello.attempt, peers={})
        return claims.peers.setdefault(hello.rank, peer)

    def _ask_for(self, simulation: int, peer: bytes, hello: Hello) -> list[Action]:
        self._claim(simulation, peer, hello)
        if any(other.simulation == simulation for _, other in self._requests.values()):
            self._waiting[simulation][peer] = hello
            return []
        return self._request(peer, hello)

    def _request(self, peer: bytes, hello: Hello) -> list[Action]:
        if any(peer == other for other, _ in self._requests.values()):
            return []
        token, self._next_token = self._next_token, self._next_token + 1
        self._requests[token] = (peer, hello)
        return [_attach_request(token, peer, hello)]

    def _parameters_problem(self, hello: Hello) -> str:
        """The error message for the parameters that a client brings along; "" if they are fine."""
        if hello.parameters is None or hello.attempt != ATTACHING:
            return ""
        if set(hello.parameters) != set(self.parameter_names):
            names, brought = ", ".join(self.parameter_names), ", ".join(hello.parameters)
            return f"the study has the parameters {names}, but these are {brought}"
        entry = None if hello.simulation is None else self.entries.get(hello.simulation)
        if entry is not None and entry.begun and hello.parameters != entry.parameters:
            return f"simulation {hello.simulation} was begun with other parameters, {entry.parameters}"
        return ""


def brought(hello: Hello, entry: SimulationState) -> dict[str, float]:
    """The parameters that a client brings along, or else those of the study."""
    own = entry.known_parameters
    given = own if hello.parameters is None else hello.parameters
    return {name: given[name] for name in own}


def refuse(peer: bytes, reason: Reason, text: str) -> Reply:
    return Reply(peer=peer, message=Refusal(reason=reason, text=text))


def _attach_request(token: int, peer: bytes, hello: Hello) -> launcher_link.AttachRequest:
    # The name that ZeroMQ gives to a client without one begins with a zero, and is reused for other clients.
    client = "" if peer.startswith(b"\0") else peer.hex()
    return launcher_link.AttachRequest(token=token, simulation=hello.simulation, client=client)


def _is_ahead(hello: Hello, entry: SimulationState) -> bool:
    """The client of a new attempt was faster than the launcher's announcement of it on another socket."""
    return hello.attempt != ATTACHING and hello.attempt > entry.attempt


def _has_finished(hello: Hello, entry: SimulationState) -> bool:
    """Whether the client's simulation finished with a server that died before it could confirm the `End`."""
    return entry.phase is SimulationPhase.FINISHED and hello.attempt != ATTACHING and hello.attempt >= entry.attempt


def _problem(hello: Hello, simulation: int, entry: SimulationState) -> str:
    """Why a client rank can speak neither for the current attempt nor for the next one; "" if it can."""
    is_current = entry.phase is SimulationPhase.RUNNING and hello.attempt == entry.wanted
    if entry.phase is SimulationPhase.WAITING or is_current:
        return ""
    if not entry.phase.terminal and _is_ahead(hello, entry):
        return ""
    if hello.attempt == ATTACHING and not entry.phase.terminal:
        return f"simulation {simulation} is run by the study itself"
    state = entry.phase.value if entry.phase.terminal else ""
    return why_stale(simulation, hello.attempt, current=entry.attempt, end_state=state)
