"""Which simulations the study has, and how far each has come. Rank 0 only; pure: events in, actions out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from stream_server.client_api.messages import (
    ATTACHING,
    FieldSpec,
    Hello,
    Invalidate,
    Invalidated,
    Message,
    Reason,
    Refusal,
    Routing,
    Stop,
    TimeSteps,
    Welcome,
)
from stream_server.launcher import link
from stream_server.server import notices


class State(StrEnum):
    """Where a simulation stands; the last four are terminal."""

    WAITING = "waiting"
    RUNNING = "running"
    FINISHED = "finished"
    GIVEN_UP = "given_up"
    INVALID = "invalid"
    STOPPED = "stopped"

    @property
    def terminal(self) -> bool:
        return self not in (State.WAITING, State.RUNNING)


@dataclass(frozen=True, kw_only=True, slots=True)
class Reply:
    """Answer the client that sits behind `peer` on the control socket."""

    peer: bytes
    message: Message


@dataclass(frozen=True, kw_only=True, slots=True)
class Tell:
    """Tell every rank of the server, this one too."""

    notice: notices.Notice


@dataclass(frozen=True, kw_only=True, slots=True)
class ToLauncher:
    """Tell the launcher."""

    message: link.ToLauncher


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFailed:
    """The simulations cannot be made to run: the study ends with this text."""

    text: str


Action = Reply | Tell | ToLauncher | StudyFailed


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyFacts:
    """What every `Welcome` says."""

    study: str
    epoch: int
    endpoints: tuple[tuple[str, ...], ...]
    time_steps: TimeSteps
    fields: tuple[FieldSpec, ...]
    routing: Routing


@dataclass(kw_only=True, slots=True)
class Entry:
    """One simulation of the roster; `shares[r]` is the newest word of server rank r.

    `begun`: there was an attempt. `attached`: the current one is run by clients that nobody launched.
    """

    parameters: dict[str, float]
    state: State = State.WAITING
    attempt: int = 0
    begun: bool = False
    attached: bool = False
    ready: bool = False
    reason: str = ""
    shares: dict[int, notices.Share] = field(default_factory=dict)
    waiting: dict[bytes, Hello] = field(default_factory=dict)


class Roster:
    """The simulations of a study: ids, parameters, attempts and terminal states.

    Ids run from 0; `parameters[i]` are those of id i. The first `num_planned` ids run from the start, the first
    `num_held_out` of them for validation; the others are taken one by one when a simulation is redrawn. A simulation is
    *finished* when every rank says that its share is settled: the ledgers decide, whatever a scheduler says.
    """

    def __init__(
        self,
        facts: StudyFacts,
        parameters: Sequence[Mapping[str, float]],
        *,
        num_planned: int,
        num_held_out: int,
        num_ranks: int,
    ) -> None:
        self.facts = facts
        self.num_ranks = num_ranks
        self.failures: list[dict[str, object]] = []
        self.entries = {i: Entry(parameters=dict(parameters[i])) for i in range(num_planned)}
        self._spare = iter(range(num_planned, len(parameters)))
        self._parameters = parameters
        self._num_held_out = num_held_out
        self._requests: dict[int, tuple[bytes, Hello]] = {}
        self._guests: dict[bytes, int] = {}
        self._next_token = 0
        self._stopped = False
        self._failed = False
        self._final = False

    @property
    def final(self) -> bool:
        """Every simulation has its terminal state and no other will come."""
        return self._final

    @property
    def parameters(self) -> dict[int, dict[str, float]]:
        """The parameters of every simulation by id: those of redraws, and those that attached clients brought, too."""
        return {i: entry.parameters for i, entry in self.entries.items()}

    @property
    def plan(self) -> list[link.Planned]:
        """What the launcher is to run: every simulation without a terminal state."""
        return [
            link.Planned(simulation=i, parameters=entry.parameters)
            for i, entry in self.entries.items()
            if not entry.state.terminal
        ]

    def counts(self) -> dict[str, int]:
        """How many simulations are in each state."""
        counts = dict.fromkeys((state.value for state in State), 0)
        for entry in self.entries.values():
            counts[entry.state] += 1
        return counts

    @property
    def num_settled(self) -> int:
        """How many samples all ranks have accepted or rejected."""
        return sum(s.accepted + s.rejected for entry in self.entries.values() for s in entry.shares.values())

    def num_steps(self, simulation: int) -> int | None:
        """How many steps a simulation said it has, or the study gave it; None while neither has said."""
        totals = [share.total for share in self.entries[simulation].shares.values() if share.total is not None]
        # A rank that has its whole share may not have heard yet that the simulation ended early.
        return min(totals, default=None)

    def hello(self, peer: bytes, hello: Hello) -> list[Action]:
        """A client rank says who it is; the answer may have to wait until every server rank knows the attempt."""
        if hello.study != self.facts.study:
            text = f"this is study {self.facts.study}, but the message is for study {hello.study}"
            return [self._refuse(peer, Reason.WRONG_STUDY, text)]
        if self._stopped or self._final:
            return [Reply(peer=peer, message=Stop(text="the study has ended"))]
        problem = self._parameters_problem(hello)
        if problem:
            return [self._refuse(peer, Reason.WRONG_FIELDS, problem)]
        if hello.simulation is None:
            if hello.num_ranks > 1:
                text = "a parallel simulation that attaches by itself needs simulation_id=… on each of its ranks"
                return [self._refuse(peer, Reason.UNKNOWN_SIMULATION, text)]
            if peer in self._guests:
                # Its question crossed our answer: the same client must not get a second simulation.
                self.entries[self._guests[peer]].waiting[peer] = hello
                return self._welcome_all(self._guests[peer])
            return self._request(peer, hello)
        entry = self.entries.get(hello.simulation)
        if entry is None:
            text = f"simulation {hello.simulation} is not in the study, whose ids are 0 to {max(self.entries)}"
            return [self._refuse(peer, Reason.UNKNOWN_SIMULATION, text)]
        if entry.state.terminal:
            text = f"simulation {hello.simulation} is {entry.state.value.replace('_', ' ')} already"
            return [self._refuse(peer, Reason.STALE_ATTEMPT, text)]
        if hello.attempt == ATTACHING and entry.state is State.WAITING:
            if any(other.simulation == hello.simulation for _, other in self._requests.values()):
                entry.waiting[peer] = hello
                return []
            return self._request(peer, hello)
        if hello.attempt == ATTACHING and not entry.attached:
            text = f"simulation {hello.simulation} is run by the study itself"
            return [self._refuse(peer, Reason.STALE_ATTEMPT, text)]
        if hello.attempt not in (ATTACHING, entry.attempt) and entry.state is State.RUNNING:
            text = (
                f"attempt {hello.attempt} of simulation {hello.simulation} is over; attempt {entry.attempt} is current"
            )
            return [self._refuse(peer, Reason.STALE_ATTEMPT, text)]
        entry.waiting[peer] = hello
        return self._welcome_all(hello.simulation)

    def launched(self, simulation: int, attempt: int, key: str | None) -> list[Action]:
        """The launcher is about to start an attempt; `key` is the public key that will speak for it."""
        return self._begin(simulation, attempt, key)

    def attached(self, token: int, simulation: int, attempt: int) -> list[Action]:
        """The launcher gives a client that came by itself this simulation."""
        request = self._requests.pop(token, None)
        if request is None:
            return []
        peer, hello = request
        entry = self.entries[simulation]
        if hello.parameters is not None:
            if entry.begun and hello.parameters != entry.parameters:
                text = "every simulation was begun with other parameters already"
                return [self._refuse(peer, Reason.NO_SIMULATION_LEFT, text)]
            entry.parameters = {name: hello.parameters[name] for name in entry.parameters}
        self._guests[peer] = simulation
        actions = self._begin(simulation, attempt, None, attached=True)
        entry.waiting[peer] = hello
        return actions + self._welcome_all(simulation)

    def none_left(self, message: link.NoneLeft) -> list[Action]:
        """The launcher has no simulation for a client that came by itself."""
        request = self._requests.pop(message.token, None)
        if request is None:
            return []
        peer, hello = request
        reason = Reason.BUSY if message.busy else Reason.NO_SIMULATION_LEFT
        peers = [peer]
        if hello.simulation is not None:
            # The other ranks of the same parallel simulation wait for this answer too.
            peers += self.entries[hello.simulation].waiting
            self.entries[hello.simulation].waiting.clear()
        return [self._refuse(peer, reason, message.text) for peer in peers]

    def ready(self, simulation: int, attempt: int) -> list[Action]:
        """Every rank has acknowledged the notice of this attempt: its clients may come in."""
        entry = self.entries[simulation]
        if entry.attempt != attempt:
            return []
        entry.ready = True
        return self._welcome_all(simulation)

    def share(self, rank: int, share: notices.Share) -> list[Action]:
        """Rank `rank` says how far its share of a simulation has come."""
        entry = self.entries[share.simulation]
        if entry.state.terminal or share.attempt != entry.attempt:
            return []
        entry.shares[rank] = share
        progress = link.Progress(
            simulation=share.simulation,
            attempt=share.attempt,
            received=sum(s.received for s in entry.shares.values()),
            blocked=any(s.blocked for s in entry.shares.values()),
        )
        actions: list[Action] = [ToLauncher(message=progress)]
        if len(entry.shares) == self.num_ranks and all(s.complete for s in entry.shares.values()):
            actions.append(ToLauncher(message=link.Finished(simulation=share.simulation)))
            actions += self._end(share.simulation, State.FINISHED, "")
        return actions

    def invalidate(self, peer: bytes, message: Invalidate) -> list[Action]:
        """A client withdraws its own simulation: not to be trained on, not to be tried again."""
        entry = self.entries.get(message.simulation)
        if message.study != self.facts.study or entry is None or message.attempt != entry.attempt:
            text = f"simulation {message.simulation}, attempt {message.attempt} is not running"
            return [self._refuse(peer, Reason.STALE_ATTEMPT, text)]
        actions: list[Action] = [Reply(peer=peer, message=Invalidated(simulation=message.simulation))]
        if not entry.state.terminal:
            actions.append(ToLauncher(message=link.Invalid(simulation=message.simulation, reason=message.reason)))
            actions += self._end(message.simulation, State.INVALID, message.reason)
        return actions

    def failed(self, simulation: int, attempt: int) -> list[Action]:
        """The launcher says that an attempt has ended without finishing; another one, or `gave_up`, follows."""
        entry = self.entries[simulation]
        if entry.state is not State.RUNNING or entry.attempt != attempt:
            return []
        entry.state, entry.ready = State.WAITING, False
        return [Tell(notice=notices.Over(simulation=simulation, attempt=attempt))]

    def gave_up(self, message: link.GaveUp) -> list[Action]:
        """The launcher has no attempt left for a simulation; a redraw puts the next unused id in its place."""
        entry = self.entries[message.simulation]
        if entry.state.terminal:
            return []
        self.failures.append(
            {"id": message.simulation, "attempts": message.attempts, "reason": message.reason, "log": message.log}
        )
        actions: list[Action] = []
        # A redraw is a training simulation, so it cannot take the place of a held-out one.
        redrawn = next(self._spare, None) if message.redraw and message.simulation >= self._num_held_out else None
        if redrawn is not None:
            self.entries[redrawn] = Entry(parameters=dict(self._parameters[redrawn]))
            run = link.Run(simulation=redrawn, parameters=self.entries[redrawn].parameters)
            actions.append(ToLauncher(message=run))
        return actions + self._end(message.simulation, State.GIVEN_UP, message.reason)

    def too_many(self, text: str) -> list[Action]:
        """The launcher says that the simulations cannot be made to run: the study does not end in order any more."""
        self._failed = True
        return [StudyFailed(text=text)]

    def stop(self, reason: str, grace_s: float) -> list[Action]:
        """The study ends now: nothing more is wanted from any simulation, whose job has `grace_s` to end by itself."""
        if self._stopped:
            return []
        self._stopped = True
        actions: list[Action] = [ToLauncher(message=link.StopAll(reason=reason, grace_s=grace_s))]
        for entry in self.entries.values():
            actions += [Reply(peer=peer, message=Stop(text=reason)) for peer in entry.waiting]
            entry.waiting.clear()
            if not entry.state.terminal:
                entry.state, entry.reason = State.STOPPED, reason
        return [*actions, Tell(notice=notices.Stop(reason=reason))]

    def _parameters_problem(self, hello: Hello) -> str:
        """What is wrong with the parameters that a client brings along."""
        if hello.parameters is None or hello.attempt != ATTACHING:
            return ""
        wanted = self._parameters[0]
        if hello.parameters.keys() != wanted.keys():
            return f"the study has the parameters {', '.join(wanted)}, but these are {', '.join(hello.parameters)}"
        entry = None if hello.simulation is None else self.entries.get(hello.simulation)
        if entry is not None and entry.begun and hello.parameters != entry.parameters:
            return f"simulation {hello.simulation} was begun with other parameters, {entry.parameters}"
        return ""

    def _request(self, peer: bytes, hello: Hello) -> list[Action]:
        if any(peer == other for other, _ in self._requests.values()):
            return []
        token, self._next_token = self._next_token, self._next_token + 1
        self._requests[token] = (peer, hello)
        return [ToLauncher(message=link.AttachRequest(token=token, simulation=hello.simulation))]

    def _begin(self, simulation: int, attempt: int, key: str | None, *, attached: bool = False) -> list[Action]:
        entry = self.entries[simulation]
        if entry.state.terminal:
            return []
        entry.state, entry.attempt, entry.attached, entry.ready = State.RUNNING, attempt, attached, False
        entry.begun = True
        entry.shares.clear()
        notice = notices.Attempt(simulation=simulation, attempt=attempt, parameters=entry.parameters, key=key)
        return [Tell(notice=notice)]

    def _welcome_all(self, simulation: int) -> list[Action]:
        entry = self.entries[simulation]
        if not entry.ready:
            return []
        welcome = Welcome(
            study=self.facts.study,
            simulation=simulation,
            attempt=entry.attempt,
            epoch=self.facts.epoch,
            endpoints=self.facts.endpoints,
            parameters=entry.parameters,
            time_steps=self.facts.time_steps,
            fields=self.facts.fields,
            routing=self.facts.routing,
        )
        text = f"another attempt of simulation {simulation} is over or not begun; attempt {entry.attempt} is current"
        wanted = ATTACHING if entry.attached else entry.attempt
        actions: list[Action] = [
            Reply(peer=peer, message=welcome)
            if hello.attempt == wanted
            else self._refuse(peer, Reason.STALE_ATTEMPT, text)
            for peer, hello in entry.waiting.items()
        ]
        entry.waiting.clear()
        return actions

    def _end(self, simulation: int, state: State, reason: str) -> list[Action]:
        entry = self.entries[simulation]
        entry.state, entry.reason = state, reason
        text = reason or f"simulation {simulation} is {state.value}"
        actions: list[Action] = [self._refuse(peer, Reason.STALE_ATTEMPT, text) for peer in entry.waiting]
        entry.waiting.clear()
        actions.append(Tell(notice=notices.Terminal(simulation=simulation, state=state.value, reason=reason)))
        if not self._failed and all(entry.state.terminal for entry in self.entries.values()):
            self._final = True
            states = {i: entry.state.value for i, entry in self.entries.items()}
            actions.append(Tell(notice=notices.Final(states=states)))
        return actions

    def _refuse(self, peer: bytes, reason: Reason, text: str) -> Reply:
        return Reply(peer=peer, message=Refusal(reason=reason, text=text))
