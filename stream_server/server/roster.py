"""Which simulations the study has, and how far each has come. Rank 0 only; pure: events in, actions out."""

from collections.abc import Mapping, Sequence

from stream_server.client_api.messages import Invalidate, Invalidated, Reason
from stream_server.launcher import link
from stream_server.server import notices
from stream_server.server.actions import Action, Reply, StudyFailed, Tell, ToLauncher, refuse
from stream_server.server.entry import Entry, State
from stream_server.server.lobby import Lobby, StudyFacts
from stream_server.server.stale import stale


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
        self.lobby = Lobby(facts, self.entries, tuple(parameters[0]))
        self._spare = iter(range(num_planned, len(parameters)))
        self._parameters = parameters
        self._num_held_out = num_held_out
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

    def launched(self, simulation: int, attempt: int, key: str | None) -> list[Action]:
        """The launcher is about to start an attempt; `key` is the public key that will speak for it."""
        return self._begin(simulation, attempt, key)

    def attached(self, token: int, simulation: int, attempt: int) -> list[Action]:
        """The launcher gives a client that came by itself this simulation."""
        request = self.lobby.take_request(token)
        if request is None:
            return []
        peer, hello = request
        entry = self.entries[simulation]
        if hello.parameters is not None:
            if entry.begun and hello.parameters != entry.parameters:
                text = "every simulation was begun with other parameters already"
                return [refuse(peer, Reason.NO_SIMULATION_LEFT, text)]
            entry.parameters = {name: hello.parameters[name] for name in entry.parameters}
        actions = self._begin(simulation, attempt, None, attached=True)
        return actions + self.lobby.seat(peer, hello, simulation)

    def ready(self, simulation: int, attempt: int) -> list[Action]:
        """Every rank has acknowledged the notice of this attempt: its clients may come in."""
        entry = self.entries[simulation]
        if entry.attempt != attempt:
            return []
        entry.ready = True
        return self.lobby.welcome(simulation)

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
            return [refuse(peer, Reason.STALE_ATTEMPT, text)]
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
        for entry in self.entries.values():
            if not entry.state.terminal:
                entry.state, entry.reason = State.STOPPED, reason
        return [
            ToLauncher(message=link.StopAll(reason=reason, grace_s=grace_s)),
            *self.lobby.close(reason),
            Tell(notice=notices.Stop(reason=reason)),
        ]

    def _begin(self, simulation: int, attempt: int, key: str | None, *, attached: bool = False) -> list[Action]:
        entry = self.entries[simulation]
        if entry.state.terminal:
            return []
        entry.state, entry.attempt, entry.attached, entry.ready = State.RUNNING, attempt, attached, False
        entry.begun = True
        entry.shares.clear()
        notice = notices.Attempt(simulation=simulation, attempt=attempt, parameters=entry.parameters, key=key)
        return [Tell(notice=notice)]

    def _end(self, simulation: int, state: State, reason: str) -> list[Action]:
        entry = self.entries[simulation]
        entry.state, entry.reason = state, reason
        text = reason or stale(simulation, entry.attempt, current=entry.attempt, state=state.value)
        actions = self.lobby.turn_away(simulation, Reason.STALE_ATTEMPT, text)
        actions.append(Tell(notice=notices.Terminal(simulation=simulation, state=state.value, reason=reason)))
        if not self._failed and all(entry.state.terminal for entry in self.entries.values()):
            self._final = True
            self.lobby.open = False
            states = {i: entry.state.value for i, entry in self.entries.items()}
            actions.append(Tell(notice=notices.Final(states=states)))
        return actions
