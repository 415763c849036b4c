"""The answers that rank 0 gives to an operator: how the study is doing, and the orders to stop it.

Why: docs/decisions/0081-operators-ask-rank-0.md
"""

import time
from collections.abc import Callable, Iterable
from itertools import islice

from stream_server.errors import MalformedMessage
from stream_server.messages import launcher_link, operator
from stream_server.messages.simulation_phase import QUEUED
from stream_server.server.intake import mailbox
from stream_server.server.simulations.handshake import Action
from stream_server.server.simulations.roster import Roster

STOP_TEXT = "stopped by stream-study stop"
FINISH_TEXT = "no more simulations are started, as stream-study stop --finish asked"


class OperatorDesk:
    """Answers an operator from the roster and from what the main thread last told. Rank 0, receiver thread.

    `training` may be set by the main thread at any time; it is read here without a lock, since it is one value. A
    training that is busy for long therefore delays no answer, and its age tells. `was_asked_to_leave`: by an operator.
    """

    def __init__(
        self,
        roster: Roster,
        *,
        tell_launcher: Callable[[launcher_link.ToLauncher], None],
        tell_main: Callable[[mailbox.Event], None],
        perform: Callable[[Iterable[Action]], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.roster = roster
        self.tell_launcher = tell_launcher
        self.tell_main = tell_main
        self.perform = perform
        self.clock = clock
        self.training: operator.TrainingStatus | None = None
        self.was_asked_to_leave = False

    def hear(self, frame: bytes) -> operator.Answer:
        """The answer to one question."""
        try:
            question = operator.question(frame)
        except MalformedMessage as problem:
            return operator.NotUnderstood(text=str(problem))
        match question:
            case operator.AskStatus():
                return self._status()
            case operator.AskSimulations(first=first, num=num):
                return self._simulations(first, num)
            case operator.AskStop(finish=True):
                return self._finish()
            case operator.AskStop():
                return self._leave()

    def finish(self, order: launcher_link.FinishSimulations) -> None:
        """Start nothing more; what runs may end."""
        if self.roster.finish_order is None and self.roster.stop_order is None:
            self.perform(self.roster.finish(order))
            self.tell_main(mailbox.FinishAsked(reason=order.reason))

    def tell_stopping(self) -> None:
        """Tell the launcher that a server which dies on the way to its last checkpoint is not to be started again."""
        self.tell_launcher(launcher_link.Stopping(reason=STOP_TEXT))

    def _status(self) -> operator.StudyStatus:
        roster, training = self.roster, self.training
        return operator.StudyStatus(
            stage=self._stage,
            incarnation=roster.facts.incarnation,
            ranks=roster.num_ranks,
            simulations=roster.table.counts(),
            received=roster.table.num_settled,
            awaited=roster.awaited,
            queue=roster.table.queue(),
            age_s=0.0 if training is None else max(0.0, self.clock() - training.at_s),
            training=training,
        )

    @property
    def _stage(self) -> str:
        if self.roster.stop_order is not None or self.was_asked_to_leave:
            return "ending"
        if self.training is None:
            return "set-up"
        return "training" if self.roster.finish_order is None else "finishing"

    def _simulations(self, first: int, num: int) -> operator.SimulationPage:
        entries = self.roster.entries
        rows = (
            operator.SimulationRow(
                simulation=simulation,
                parameters=entry.parameters or {},
                state=QUEUED if entry.is_queued else entry.phase.value,
                attempt=entry.attempt if entry.begun else -1,
                received=entry.num_settled,
                reason=(entry.is_queued and entry.waits_for) or entry.reason,
            )
            for simulation, entry in islice(entries.items(), first, first + num)
        )
        return operator.SimulationPage(num_all=len(entries), rows=tuple(rows))

    def _leave(self) -> operator.StopAccepted:
        if self.roster.stop_order is not None:
            return operator.StopAccepted(text="the study is ending already")
        if not self.was_asked_to_leave:
            self.was_asked_to_leave = True
            self.tell_stopping()
            self.tell_main(mailbox.StopAsked(reason=STOP_TEXT))
        return operator.StopAccepted(text="the study saves a checkpoint and leaves with exit code 75")

    def _finish(self) -> operator.StopAccepted:
        if self.roster.stop_order is not None or self.was_asked_to_leave:
            return operator.StopAccepted(text="the study is ending already")
        self.finish(launcher_link.FinishSimulations(reason=FINISH_TEXT))
        return operator.StopAccepted(
            text="no more simulations are started; the study ends when all that comes is trained"
        )
