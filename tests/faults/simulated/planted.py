"""Bugs that are put into the product on purpose, to see that the simulation finds them. `with PLANTED[name]():`."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

from stream_server.buffers.statics import StaticFields
from stream_server.buffers.windows import Windows
from stream_server.client_api.session import Session
from stream_server.launcher.journal.journal import Journal
from stream_server.launcher.journal.records import AttemptStarting
from stream_server.launcher.schedule.schedule import SimulationSchedule
from stream_server.server.checkpoint.agreement import CheckpointAgreement, Stage
from stream_server.server.checkpoint.restore import SavedRank
from stream_server.server.intake.ledger import Ledger, StepSet
from stream_server.server.intake.mailbox import CheckpointCommitted
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.reception.receiver import Receiver
from stream_server.server.steering.feedback import SampleScores
from stream_server.server.steering.suggestion_log import SuggestionLog
from stream_server.server.training.control_round import SaveState


def _forget_the_ledger(load: Callable[..., None], self: Ledger, state: Mapping[str, Any]) -> None:
    load(self, state)
    for entry in self.entries.values():
        entry.settled = StepSet()


def _forget_the_last_step(load: Callable[..., None], self: Ledger, state: Mapping[str, Any]) -> None:
    load(self, state)
    for entry in self.entries.values():
        known = [index for index in range(entry.settled.stop) if index in entry.settled]
        entry.settled = StepSet()
        for index in known[:-1]:
            entry.settled.add(range(index, index + 1))


def _say_durable_at_once(take: Callable[..., ReceptionSnapshot], self: Receiver) -> ReceptionSnapshot:
    snapshot = take(self)
    self.post(CheckpointCommitted(received_marks=snapshot.received_marks, checkpoint=0, batches=0))
    return snapshot


def _commit_with_the_first(advance: Callable[..., None], self: CheckpointAgreement, total: SaveState) -> None:
    if self._stage is Stage.WRITING and total.written and self._job is not None and self._job.done():
        total = total._replace(written=self._ranks.size)
    advance(self, total)


def _journal_no_start(write: Callable[..., None], self: Journal, *written: Any) -> None:
    write(self, *(record for record in written if not isinstance(record, AttemptStarting)))


def _count_while_stopped(
    was_suspended: Callable[..., None], self: SimulationSchedule, seconds: float, now: float
) -> None:
    pass


def _wait_for_ever(longest: Callable[..., float], self: Session, connection: Any) -> float:
    return math.inf


def _forget_open_windows(
    load: Callable[..., None], self: Windows, state: Mapping[str, Any], windows: Any, held: Any
) -> None:
    load(self, {**state, "missing": state["missing"][:0], "kept": state["kept"][:0]}, windows, held)


def _restore_one_for_all(load: Callable[..., None], self: SavedRank, statics: StaticFields, *args: Any) -> None:
    load(self, statics, *args)
    saved = [it for it in self.state["statics"]["simulations"].tolist() if it in statics]
    for simulation in saved[1:]:
        statics.put(simulation, statics[saved[0]])


def _forget_the_last_suggestion(enter: Callable[..., SuggestionLog], self: SuggestionLog) -> SuggestionLog:
    opened = enter(self)
    opened.suggestions = opened.suggestions[:-1]
    return opened


def _forget_losses(load: Callable[..., None], self: SampleScores, state: Any) -> None:
    pass


def _planted(cls: type, name: str, instead: Callable[..., Any]) -> AbstractContextManager[Any]:
    original = getattr(cls, name)
    return mock.patch.object(cls, name, lambda self, *args: instead(original, self, *args))


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "ledger-lost": partial(_planted, Ledger, "load_state_dict", _forget_the_ledger),
    "ledger-off-by-one": partial(_planted, Ledger, "load_state_dict", _forget_the_last_step),
    "durable-before-commit": partial(_planted, Receiver, "snapshot", _say_durable_at_once),
    "commit-by-the-first": partial(_planted, CheckpointAgreement, "advance", _commit_with_the_first),
    "start-not-in-journal": partial(_planted, Journal, "write", _journal_no_start),
    "stopped-launcher-counts": partial(_planted, SimulationSchedule, "was_suspended", _count_while_stopped),
    "open-windows-lost": partial(_planted, Windows, "load_state_dict", _forget_open_windows),
    "statics-of-one-for-all": partial(_planted, SavedRank, "into_statics", _restore_one_for_all),
    "suggestion-forgotten": partial(_planted, SuggestionLog, "__enter__", _forget_the_last_suggestion),
    "losses-forgotten": partial(_planted, SampleScores, "load_state_dict", _forget_losses),
    "ranks-wait-for-each-other": partial(_planted, Session, "_longest_wait_s", _wait_for_ever),
}
