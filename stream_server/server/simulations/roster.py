"""The roster: which simulations the study has, and how far each has come.

Rank 0 only; pure: events in, actions out.

Why: docs/decisions/0011-finished-stays-finished.md
"""

from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice
from typing import Any

from stream_server.machine.screen import in_one_line
from stream_server.messages import launcher_link, notices
from stream_server.messages.client import ATTACHING, Hello, Invalidate, Invalidated, Reason, Stop, Welcome
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake.account import SimulationEnd
from stream_server.server.intake.attempts import why_stale
from stream_server.server.intake.mailbox import SimulationsFailed, SimulationWarning
from stream_server.server.intake.parameters import Origin
from stream_server.server.simulations.handshake import Action, Handshake, Reply, brought, refuse
from stream_server.server.simulations.simulation_table import SimulationState, SimulationTable
from stream_server.server.simulations.warnings import FailedAttempt, FailedAttempts, SimulationWarnings

MOST_NAMED = 5
# Their samples are trained on.
KEPT = (SimulationPhase.FINISHED, SimulationPhase.GIVEN_UP, SimulationPhase.STOPPED_EARLY)


class Roster:
    """The simulations of a study: ids, parameters, attempts and terminal states.

    Ids run from 0; `parameters[i]` are those of id i, None where they are yet to be suggested, which is done in the
    order of ids: `lookahead` of them are to be ready. The first `num_planned` ids run from the start, but for those
    from `num_released` on, whose round has yet to begin; the first `num_held_out` of them for validation. The others
    are taken one by one when a simulation is redrawn. A simulation is *finished* when every rank says that its share is
    complete: the ledgers decide, whatever a scheduler says.
    `table` has the state of each, and counts. `num_survived` counts simulations that went on, while they ran, after the
    server had been away. `num_missing` are the samples of training simulations that will never come; those that redraws
    bring in their place are taken off. `warnings` are about single simulations.
    `num_samples_of` gives the number of samples that this many steps of one simulation make, assuming no gaps.
    Unless the study `starts_jobs`, simulations only attach by themselves.
    """

    def __init__(
        self,
        facts: Welcome,
        parameters: Sequence[Mapping[str, float] | None],
        *,
        names: Sequence[str] | None = None,
        lookahead: int = 0,
        num_released: int | None = None,
        origins_of: Callable[[], Mapping[int, Origin]] | None = None,
        num_planned: int,
        num_held_out: int,
        num_ranks: int,
        starts_jobs: bool = True,
        num_samples_of: Callable[[int], int] = int,
    ) -> None:
        self.facts = facts
        self._num_samples_of = num_samples_of
        self.num_ranks = num_ranks
        self._failed_attempts = FailedAttempts()
        self.warnings = SimulationWarnings()
        self.num_survived = 0
        self.num_missing = 0
        self._origins_of = origins_of
        names = tuple((parameters[0] or ()) if names is None else names)
        self._parameters = parameters
        self.table = SimulationTable(lookahead=lookahead, num_released=num_released)
        self.entries = self.table.entries
        for i in range(num_planned):
            self.table.add(i, SimulationState(parameters=self._known_of(i)))
        self.handshake = Handshake(facts, self.entries, names)
        self._num_planned = num_planned
        self._spare = iter(range(num_planned, len(parameters)))
        self._has_told_round = False
        self._num_held_out = num_held_out
        self.starts_jobs = starts_jobs
        self._awaited_at_the_end = ""
        self.stop_order: launcher_link.StopSimulations | None = None
        self.finish_order: launcher_link.FinishSimulations | None = None
        self._failed = False

    @property
    def parameters(self) -> dict[int, dict[str, float]]:
        """The parameters of every simulation by id: those of redraws, and those that attached clients brought, too.

        Those that are yet to be suggested are missing.
        """
        return {i: entry.parameters for i, entry in self.entries.items() if entry.parameters is not None}

    @property
    def origins(self) -> Mapping[int, Origin] | None:
        """The origins of suggested parameters; None if parameters follow from study.json."""
        return None if self._origins_of is None else self._origins_of()

    @property
    def plan(self) -> list[launcher_link.Planned]:
        """The simulations for the launcher: with parameters and without a terminal state."""
        return [
            launcher_link.Planned(
                simulation=i, parameters=entry.parameters, attempt=entry.attempt if entry.begun else -1
            )
            for i, entry in self.entries.items()
            if entry.parameters is not None and not entry.phase.terminal
        ]

    @property
    def failures(self) -> list[FailedAttempt]:
        return self._failed_attempts.given_up

    @property
    def failing(self) -> list[FailedAttempt]:
        """The failures of simulations that wait for another attempt, or never had it."""
        missed = self.table.of_phase(SimulationPhase.WAITING, SimulationPhase.STOPPED)
        return self._failed_attempts.newest_of(set(missed))

    @property
    def retried(self) -> list[FailedAttempt]:
        """The newest failure of each simulation that another attempt followed."""
        return list(self._failed_attempts.retried.values())

    @property
    def failed_later(self) -> list[FailedAttempt]:
        """The failures of attempts that had sent every time step."""
        return list(self._failed_attempts.later.values())

    @property
    def failed_simulations(self) -> list[int]:
        return self.table.of_phase(SimulationPhase.GIVEN_UP, SimulationPhase.INVALID)

    def begin(self) -> list[Action]:
        """All ranks are there: announce the end of reception if a restored study has nothing left to come."""
        return self._conclude()

    def state_dict(self) -> dict[str, Any]:
        """Every simulation as it stands, and the failures; rank 0's part of a checkpoint."""
        return {
            "simulations": self.table.rows(),
            "num_planned": self._num_planned,
            "num_survived": self.num_survived,
            "warnings": self.warnings.state_dict(),
            **self._failed_attempts.state_dict(),
        }

    def load_state_dict(
        self, state: Mapping[str, Any], finished: Mapping[int, int | None], retried: Container[int] = ()
    ) -> None:
        """Continue a study, before anything has begun.

        What was given up or withdrawn stays so, but for the given-up ones that are `retried`. Of all others, `finished`
        are those whose shares are complete in the ledgers of all ranks, with their number of steps: they alone are
        finished, whatever rank 0 knew when its part was saved, and the rest is still to come. The study may have become
        larger, or smaller by simulations that never began.
        """
        num_planned, num_planned_before = len(self.entries), state["num_planned"]

        def continued(simulation: int, entry: SimulationState) -> bool:
            if simulation in retried and entry.phase is SimulationPhase.GIVEN_UP:
                entry.phase = SimulationPhase.WAITING
                self._failed_attempts.take_back(simulation)
            entry.restore(finished.get(simulation), is_finished=simulation in finished)
            if entry.parameters is None and simulation < len(self._parameters):
                # Suggested after this checkpoint, or not yet.
                entry.parameters = self._known_of(simulation)
            return simulation < num_planned or simulation >= num_planned_before or entry.begun

        self._failed_attempts.load_state_dict(state)
        following = self.table.load(state["simulations"], continued)
        self._spare = iter(range(following, len(self._parameters)))
        for i in islice(self._spare, max(0, num_planned - num_planned_before)):
            self.table.add(i, SimulationState(parameters=self._known_of(i)))
        self.warnings.load_state_dict(state["warnings"])
        self.num_survived = state["num_survived"]
        num_redrawn = len(self.entries) - num_planned
        ended = [i for i, entry in self.entries.items() if entry.phase.terminal]
        self.num_missing = sum(map(self._num_missing_of, ended)) - num_redrawn * self._num_samples_of(
            self.facts.time_steps.num or 0
        )

    @property
    def ends(self) -> dict[int, SimulationEnd]:
        """The end of every simulation, for the closing account."""
        steps = self.facts.time_steps.num
        failing = {each["id"]: f"attempt {each['attempts'] - 1} failed: {each['reason']}" for each in self.failing}
        return {
            simulation: SimulationEnd(
                state=entry.phase.value,
                num_steps=entry.num_steps if steps is None else steps,
                num_sent=entry.num_steps if entry.phase is SimulationPhase.FINISHED else None,
                reason=entry.reason or failing.get(simulation, ""),
                held_out=simulation < self._num_held_out,
            )
            for simulation, entry in self.entries.items()
        }

    @property
    def awaited(self) -> str:
        """The event that the study waits for once nothing runs that could end by itself; "" while something does."""
        if self.stop_order is not None:
            return self._awaited_at_the_end
        running = sorted(self.table.running)
        silent = [i for i in running if self.entries[i].attached and self.entries[i].goes_on]
        num_waiting = self.table.num_in(SimulationPhase.WAITING) - self.table.num_unreleased
        if len(silent) < len(running) or (num_waiting and self.starts_jobs):
            return ""
        texts = []
        if silent:
            named = ", ".join(map(str, silent[:MOST_NAMED])) + " …" * (len(silent) > MOST_NAMED)
            texts.append(f"clients that attached to simulation {named} before a restart, and have not come back")
        if num_waiting:
            simulations = f"{num_waiting} simulation{'s' * (num_waiting > 1)}"
            texts.append(f"somebody to attach for {simulations}, since simulation.command starts none")
        return "; ".join(texts)

    def ended(self) -> dict[str, Any]:
        """For the other ranks of a restored study: what has finished or was withdrawn, and whether all is over."""
        finished, invalid = map(self.table.of_phase, (SimulationPhase.FINISHED, SimulationPhase.INVALID))
        return {"finished": finished, "invalid": invalid, "final": self.table.all_over}

    def suggested(self, parameters: Mapping[int, Mapping[str, float]]) -> list[Action]:
        """Simulations have got their parameters, and the launcher may start them."""
        return [
            launcher_link.AddSimulation(simulation=simulation, parameters=self.entries[simulation].known_parameters)
            for simulation, values in parameters.items()
            if self.table.suggest(simulation, values)
        ]

    def begin_round(self, num_released: int) -> dict[int, dict[str, float]]:
        """Release the simulations below this id; returns the parameters of those that need not be suggested."""
        self.table.num_released, self._has_told_round = num_released, False
        return {i: it for i in self.table.unsuggested if i < num_released and (it := self._known_of(i)) is not None}

    def launched(self, message: launcher_link.Attempt) -> list[Action]:
        """The launcher is about to start an attempt, or has one that goes on although the server was away."""
        simulation, attempt = message.simulation, message.attempt
        entry = self.entries[simulation]
        if entry.phase.terminal or (entry.phase is SimulationPhase.RUNNING and entry.attempt == attempt):
            return []
        if entry.parameters is None:
            # It began after the checkpoint that is continued, and belongs to a later round now.
            return []
        self._failed_attempts.try_again(simulation)
        entry.waits_for, entry.had_to_wait = message.waits_for, message.waits_for is not None
        self.table.enter(simulation, SimulationPhase.RUNNING)
        entry.attempt, entry.attached, entry.ready = attempt, message.attached, False
        # If the last checkpoint lacks the parameters of an attached simulation, its client knows them.
        entry.begun, entry.goes_on = entry.begun or not (message.attached and message.goes_on), message.goes_on
        entry.shares.clear()
        notice = notices.AttemptNotice(
            simulation=simulation,
            attempt=attempt,
            parameters=entry.known_parameters,
            key=message.public_key,
            goes_on=message.goes_on,
        )
        return [notice]

    def queued(self, message: launcher_link.Queued) -> None:
        """The launcher says what the jobs of some simulations wait for, or that they run."""
        for simulation in message.simulations:
            entry = self.entries[simulation]
            entry.waits_for = message.waits_for
            entry.had_to_wait = entry.had_to_wait or entry.is_queued

    def attached(self, token: int, simulation: int, attempt: int) -> list[Action]:
        """The launcher gives a client that came by itself this simulation."""
        request = self.handshake.take_request(token)
        if request is None:
            return []
        peer, hello = request
        entry = self.entries[simulation]
        if entry.phase.terminal:
            return [refuse(peer, Reason.BUSY, f"simulation {simulation} has ended meanwhile")]
        if hello.parameters is not None and entry.begun and hello.parameters != entry.parameters:
            self.handshake.release(simulation)
            text = "every simulation was begun with other parameters already"
            return [refuse(peer, Reason.NO_SIMULATION_LEFT, text)]
        if entry.phase is SimulationPhase.RUNNING and entry.attempt == attempt:
            actions = self.handshake.take_up(simulation, hello)
        else:
            entry.parameters = brought(hello, entry)
            actions = self.launched(
                launcher_link.Attempt(simulation=simulation, attempt=attempt, public_key=None, attached=True)
            )
        return actions + self.handshake.seat(peer, hello, simulation)

    def ready(self, simulation: int, attempt: int) -> list[Action]:
        """Every rank has acknowledged the notice of this attempt: its clients may come in."""
        entry = self.entries[simulation]
        if entry.attempt != attempt:
            return []
        entry.ready = True
        return self.handshake.welcome(simulation)

    def standing(self) -> list[Action]:
        """For a launcher that takes over: how far the running simulations are, and which clients wait for one."""
        running = [i for i in sorted(self.table.running) if self.entries[i].shares]
        return [*map(self._progress, running), *self.handshake.requests()]

    def share(self, rank: int, share: notices.Share) -> list[Action]:
        """Rank `rank` says how far its share of a simulation has come."""
        entry = self.entries[share.simulation]
        if entry.phase is SimulationPhase.STOPPED_EARLY and share.attempt == entry.attempt:
            # What came before this rank heard of the stop.
            entry.shares[rank] = share
            before = self._num_missing_of(share.simulation)
            self.table.count_settled(share.simulation)
            self.num_missing += self._num_missing_of(share.simulation) - before
        if entry.phase.terminal or share.attempt != entry.attempt:
            return []
        if entry.goes_on and share.received:
            # Its client has come back: it was not started again.
            entry.goes_on = False
            self.num_survived += not entry.had_to_wait
        was_repeated, was_different = entry.num_repeated, any(share.differs for share in entry.shares.values())
        entry.shares[rank] = share
        self.table.count_settled(share.simulation)
        actions: list[Action] = [self._progress(share.simulation)]
        if entry.num_repeated and not was_repeated:
            actions += self.warnings.repeated(share.simulation, entry.attempt)
        if share.differs and not was_different:
            actions += self.warnings.differs(share.simulation, entry.attempt, share.differs)
        if len(entry.shares) == self.num_ranks and all(s.complete for s in entry.shares.values()):
            actions.append(launcher_link.Finished(simulation=share.simulation))
            actions += self._end(share.simulation, SimulationPhase.FINISHED, "")
            steps, num_sent = self.facts.time_steps.num, entry.num_steps
            if steps is not None and num_sent is not None and num_sent < steps and not entry.num_repeated:
                actions += self.warnings.short(share.simulation, num_sent, steps)
        return actions

    def hello(self, peer: bytes, message: Hello) -> list[Action]:
        """A client rank says who it is.

        A second process for one client rank of a job withdraws the simulation, since nobody knows whose steps are
        which. One that attaches is let in no further than this.
        """
        simulation, conflict = message.simulation, self.handshake.conflict(peer, message)
        if simulation is None or not conflict:
            return self.handshake.hello(peer, message)
        if message.attempt == ATTACHING:
            return [refuse(peer, Reason.STALE_ATTEMPT, conflict)]
        kept = self.entries[simulation].phase in KEPT
        actions = self._warn_kept(simulation, conflict)[1] if kept else self._withdraw(simulation, conflict)
        return [refuse(peer, Reason.STALE_ATTEMPT, conflict), *actions]

    def invalidate(self, peer: bytes, message: Invalidate) -> list[Action]:
        """A client withdraws its own simulation: not to be trained on, not to be tried again.

        One that has finished cannot be withdrawn: the study may end at any moment, and after a restart from an earlier
        checkpoint nobody would withdraw it again. Its client is refused, and the report tells the reason.
        """
        entry = self.entries.get(message.simulation)
        if message.study != self.facts.study or entry is None or message.attempt != entry.attempt:
            text = f"simulation {message.simulation}, attempt {message.attempt} is not running"
            return [refuse(peer, Reason.STALE_ATTEMPT, text)]
        if entry.phase in KEPT:
            return self._keep(peer, message, entry)
        actions: list[Action] = [Reply(peer=peer, message=Invalidated(simulation=message.simulation))]
        return actions + self._withdraw(message.simulation, in_one_line(message.reason))

    def end_early(self, notice: notices.EndEarly) -> list[Action]:
        """End a waiting or running training simulation that is not wanted any more; others stay."""
        simulation, entry = notice.simulation, self.entries.get(notice.simulation)
        if entry is None or entry.phase.terminal or entry.parameters is None or simulation < self._num_held_out:
            return []
        # To the launcher it is finished: the server has all that it wants, however the job ends.
        return [
            *self.handshake.stop(simulation, notice.reason),
            launcher_link.Finished(simulation=simulation),
            *self._end(simulation, SimulationPhase.STOPPED_EARLY, notice.reason),
        ]

    def failed(self, simulation: int, attempt: int, reason: str = "", log: str = "") -> list[Action]:
        """The launcher says that an attempt has ended without finishing; another one, or `gave_up`, follows."""
        entry = self.entries[simulation]
        if entry.phase is not SimulationPhase.RUNNING or entry.attempt != attempt:
            return []
        self.table.enter(simulation, SimulationPhase.WAITING)
        entry.ready = False
        self.handshake.release(simulation)
        self._failed_attempts.add(simulation, attempt, reason, log)
        return [notices.AttemptOver(simulation=simulation, attempt=attempt)]

    def fails_later(self, message: launcher_link.FailedLater) -> bool:
        """An attempt failed that had sent every time step: for the report alone.

        Returns:
            Whether that is worth telling: a program may take it for a failure that it was stopped early, or that its
            round has yet to begin.
        """
        entry = self.entries[message.simulation]
        if entry.phase is SimulationPhase.STOPPED_EARLY or entry.parameters is None:
            return False
        self._failed_attempts.add_later(message.simulation, message.attempt, message.reason, message.log)
        return True

    def gave_up(self, message: launcher_link.GaveUp) -> list[Action]:
        """The launcher has no attempt left for a simulation; a redraw puts the next unused id in its place."""
        entry = self.entries[message.simulation]
        if entry.phase.terminal:
            return []
        self._failed_attempts.give_up(message.simulation, message.attempts, message.reason, message.log)
        actions: list[Action] = []
        # A redraw is a training simulation, so it cannot take the place of a held-out one.
        is_redrawn = message.redraw and message.simulation >= self._num_held_out and self.finish_order is None
        redrawn = next(self._spare, None) if is_redrawn else None
        if redrawn is not None:
            entry = SimulationState(parameters=self._known_of(redrawn))
            self.table.add(redrawn, entry)
            self.num_missing -= self._num_samples_of(self.facts.time_steps.num or 0)
            if entry.parameters is not None:
                actions.append(launcher_link.AddSimulation(simulation=redrawn, parameters=entry.parameters))
        return actions + self._end(message.simulation, SimulationPhase.GIVEN_UP, message.reason)

    def dropped(self, message: launcher_link.Dropped) -> list[Action]:
        """The launcher starts nothing more, and nothing runs of these simulations."""
        self.finish_order = self.finish_order or launcher_link.FinishSimulations(reason=message.reason)
        return self._drop(message.simulations, message.reason)

    def finish(self, order: launcher_link.FinishSimulations) -> list[Action]:
        """Start nothing more: what was never suggested ends here, the rest when it is `dropped`."""
        self.finish_order = order
        return [order, *self._drop((), order.reason)]

    def enough(self, reason: str) -> list[Action]:
        """No further parameters are suggested: what has none ends here, and nothing is redrawn."""
        self._spare = iter(())
        return self._drop((), reason)

    def too_many(self, text: str) -> list[Action]:
        """The launcher reports that the simulations cannot be made to run: the study cannot end normally any more."""
        self._failed = True
        return [SimulationsFailed(text=text)]

    def stop(self, order: launcher_link.StopSimulations) -> list[Action]:
        """The study ends now: nothing more is wanted from any simulation."""
        if self.stop_order is not None:
            return []
        self._awaited_at_the_end = self.awaited
        self.stop_order = order
        for i, entry in self.entries.items():
            if not entry.phase.terminal:
                self.table.enter(i, SimulationPhase.STOPPED, order.reason)
        return [order, *self.handshake.close(order.reason), notices.StopNotice(reason=order.reason)]

    def _withdraw(self, simulation: int, reason: str) -> list[Action]:
        if self.entries[simulation].phase.terminal:
            return []
        invalid = launcher_link.Invalid(simulation=simulation, reason=reason)
        return [invalid, *self._end(simulation, SimulationPhase.INVALID, reason)]

    def _keep(self, peer: bytes, message: Invalidate, entry: SimulationState) -> list[Action]:
        why, warnings = self._warn_kept(message.simulation, in_one_line(message.reason))
        if entry.phase is SimulationPhase.STOPPED_EARLY:
            # Its client may not have heard of that yet, and is to take it for no error.
            return [Reply(peer=peer, message=Stop(text=entry.reason)), *warnings]
        advice = f"{why}, and what it sent is trained on; withdraw a simulation before it sends its last time step"
        return [refuse(peer, Reason.STALE_ATTEMPT, advice), *warnings]

    def _warn_kept(self, simulation: int, reason: str) -> tuple[str, list[SimulationWarning]]:
        attempt, phase = self.entries[simulation].attempt, self.entries[simulation].phase
        why = why_stale(simulation, attempt, current=attempt, end_state=phase.value)
        return why, self.warnings.kept(simulation, why, reason)

    def _drop(self, simulations: Sequence[int], reason: str) -> list[Action]:
        dropped = (*simulations, *self.table.unsuggested)
        left = [i for i in dropped if i in self.entries and not self.entries[i].phase.terminal]
        actions = [action for i in left for action in self._close(i, SimulationPhase.STOPPED, reason)]
        return actions + self._conclude()

    def _end(self, simulation: int, phase: SimulationPhase, reason: str) -> list[Action]:
        return self._close(simulation, phase, reason) + self._conclude()

    def _close(self, simulation: int, phase: SimulationPhase, reason: str) -> list[Action]:
        entry = self.entries[simulation]
        self.table.enter(simulation, phase, reason)
        self.num_missing += self._num_missing_of(simulation)
        text = reason or why_stale(simulation, entry.attempt, current=entry.attempt, end_state=phase.value)
        self.handshake.ended(simulation)
        actions = self.handshake.turn_away(simulation, Reason.STALE_ATTEMPT, text)
        actions.append(notices.Terminal(simulation=simulation, state=phase.value, reason=reason))
        return actions

    def _num_missing_of(self, simulation: int) -> int:
        entry, steps = self.entries[simulation], self.facts.time_steps.num
        if steps is None or simulation < self._num_held_out:
            return 0
        num_came = (entry.num_steps or steps) if entry.phase is SimulationPhase.FINISHED else entry.num_settled
        return self._num_samples_of(steps) - self._num_samples_of(num_came)

    def _progress(self, simulation: int) -> launcher_link.ProgressReport:
        entry = self.entries[simulation]
        return launcher_link.ProgressReport(
            simulation=simulation,
            attempt=entry.attempt,
            received=sum(s.received for s in entry.shares.values()),
            blocked=any(s.blocked for s in entry.shares.values()),
        )

    def _known_of(self, simulation: int) -> dict[str, float] | None:
        """The parameters of a simulation, None if it must wait for them, or for its round."""
        parameters = self._parameters[simulation] if simulation < self.table.num_released else None
        return None if parameters is None else dict(parameters)

    def _conclude(self) -> list[Action]:
        if not self._failed and self.table.round_over and not self._has_told_round:
            self._has_told_round = True
            return [notices.AllTerminal(states={}, round_over=True)]
        if self._failed or not self.table.all_over:
            return []
        self.handshake.open = False
        states = {i: entry.phase.value for i, entry in self.entries.items()}
        return [notices.AllTerminal(states=states)]
