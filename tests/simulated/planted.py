"""Bugs that are put into the product on purpose, to see that the simulation finds them. `with PLANTED[name]():`."""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import Any
from unittest import mock

from stream_server.client_api.conversation import Conversation
from stream_server.launcher.journal import Journal
from stream_server.launcher.records import AttemptStarting
from stream_server.launcher.schedule import Schedule
from stream_server.server.commands import Committed
from stream_server.server.ledger import Ledger, Steps
from stream_server.server.receiver import Receiver
from stream_server.server.reception_snapshot import ReceptionSnapshot
from stream_server.server.training.checkpoints import Checkpoints, Stage
from stream_server.server.training.saves import SaveWords


def _forget_the_ledger(load: Callable[..., None], self: Ledger, state: Mapping[str, Any]) -> None:
    load(self, state)
    for marks in self.marks.values():
        marks.settled = Steps()


def _forget_the_last_step(load: Callable[..., None], self: Ledger, state: Mapping[str, Any]) -> None:
    load(self, state)
    for marks in self.marks.values():
        known = [index for index in range(marks.settled.stop) if index in marks.settled]
        marks.settled = Steps()
        for index in known[:-1]:
            marks.settled.add(range(index, index + 1))


def _say_durable_at_once(take: Callable[..., ReceptionSnapshot], self: Receiver) -> ReceptionSnapshot:
    snapshot = take(self)
    self.post(Committed(marks=snapshot.marks, generation=0, batches=0))
    return snapshot


def _commit_with_the_first(hear: Callable[..., None], self: Checkpoints, said: SaveWords) -> None:
    if self._stage is Stage.WRITING and said.written and self._said is not None:
        said = said._replace(written=self._ranks.size)
    hear(self, said)


def _journal_no_start(write: Callable[..., None], self: Journal, *written: Any) -> None:
    write(self, *(record for record in written if not isinstance(record, AttemptStarting)))


def _count_while_stopped(overslept: Callable[..., None], self: Schedule, seconds: float, now: float) -> None:
    pass


def _wait_for_ever(longest: Callable[..., float], self: Conversation, connection: Any) -> float:
    return math.inf


def _planted(cls: type, name: str, instead: Callable[..., Any]) -> AbstractContextManager[Any]:
    original = getattr(cls, name)
    return mock.patch.object(cls, name, lambda self, *args: instead(original, self, *args))


PLANTED: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "ledger-lost": partial(_planted, Ledger, "load_state_dict", _forget_the_ledger),
    "ledger-off-by-one": partial(_planted, Ledger, "load_state_dict", _forget_the_last_step),
    "durable-before-commit": partial(_planted, Receiver, "snapshot", _say_durable_at_once),
    "commit-by-the-first": partial(_planted, Checkpoints, "hear", _commit_with_the_first),
    "start-not-in-journal": partial(_planted, Journal, "write", _journal_no_start),
    "stopped-launcher-counts": partial(_planted, Schedule, "overslept", _count_while_stopped),
    "ranks-wait-for-each-other": partial(_planted, Conversation, "_longest_wait_s", _wait_for_ever),
}
