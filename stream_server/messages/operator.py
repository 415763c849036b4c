"""The questions of an operator (`stream-study`) and the answers of rank 0, as frames of JSON.

A holder of the key in the run's operator.json is an operator. That key speaks no other language, and no other key
speaks this one. A number that is not finite becomes None.

Why: docs/decisions/0081-operators-ask-rank-0.md
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from msgspec import Meta, field

from stream_server.messages import codec
from stream_server.messages.client import Count, Parameters, Text
from stream_server.messages.codec import JsonMessage, JsonObject
from stream_server.storage.typed import shortened
from stream_server.wording import counted

MAX_ROWS = 1000
MAX_CHANGES = 5


class AskStatus(JsonMessage, frozen=True, kw_only=True):
    """To rank 0: how far has the study come?"""


class AskSimulations(JsonMessage, frozen=True, kw_only=True):
    """To rank 0: `num` rows of the table of simulations, from the `first` on in the order of their ids."""

    first: Count
    num: Annotated[int, Meta(ge=1, le=MAX_ROWS)]


class AskStop(JsonMessage, frozen=True, kw_only=True):
    """To rank 0: save a checkpoint and leave; or, to `finish`, start no simulation and train what still comes."""

    finish: bool


class Change(JsonObject, frozen=True, kw_only=True):
    """A change that a restart made in a run, from a `batch` on: a `name` and its value `before` and `now`, `cut_off`.

    `source` is the file that says so, `note` what follows from it or stays as it was. `str()` is for people.
    """

    name: Text
    before: Any
    now: Any
    source: Text
    batch: int
    note: Text = ""

    def __str__(self) -> str:
        before, now = (_shown(value) for value in (self.before, self.now))
        return f"{self.name} {before} → {now}, from {self.source}" + (f"; {self.note}" if self.note else "")

    @property
    def with_batch(self) -> str:
        return f"from batch {self.batch:,}: {self}"


def cut_off(value: Any) -> Any:
    """A value of a `Change`, or the beginning of its JSON where it is long."""
    text = json.dumps(value, ensure_ascii=False)
    return value if text == shortened(text) else shortened(text)


def _shown(value: Any) -> str:
    is_cut_off = isinstance(value, str) and value.endswith("…")
    return shortened(value if is_cut_off else json.dumps(value, ensure_ascii=False))


def newest_changes(changes: Sequence[Change]) -> list[str]:
    """The newest of what restarts have changed, for people, each with the batch from which it holds."""
    texts = [change.with_batch for change in changes[-MAX_CHANGES:]]
    if (num_more := len(changes) - len(texts)) > 0:
        texts.insert(0, f"{counted(num_more, 'earlier change')}, and")
    return texts


class TrainingStatus(JsonObject, frozen=True, kw_only=True):
    """The training of rank 0 as its main thread last saw it, at `at_s` of the monotonic clock.

    `fraction` of the run is done after `elapsed_s` seconds of training, and `left_s` are to come; None when its length
    is not known. `population` and `capacity` are those of rank 0's buffer. `is_degraded`: the last checkpoint failed.
    `rounds`: how many have ended, of how many; None in a study without. `changes`: what restarts have changed.
    """

    at_s: float
    batches: int
    samples: int
    batches_per_s: float
    draws_per_s: float
    loss: float | None
    validation_loss: float | None
    population: int
    capacity: int
    fraction: float | None
    elapsed_s: float
    left_s: float | None
    is_degraded: bool
    rounds: tuple[int, int] | None = None
    changes: tuple[Change, ...] = ()


class StudyStatus(JsonMessage, frozen=True, kw_only=True):
    """Answer to `AskStatus`; `training` is None until the training begins, and was seen `age_s` seconds ago.

    `simulations` counts by state, `queue` those that are queued by what they wait for; `received` are the time steps
    that were accepted or rejected. `stage` is one of set-up, training, finishing (no new simulations) and ending (all
    is trained, or the study leaves).
    """

    stage: Text
    incarnation: int
    ranks: int
    simulations: Mapping[str, int]
    received: int
    awaited: Text
    queue: Mapping[str, int] = field(default_factory=dict)
    age_s: float = 0.0
    training: TrainingStatus | None = None


class SimulationRow(JsonObject, frozen=True, kw_only=True):
    """One simulation: its newest attempt, -1 for none, and how many time steps of it were accepted or rejected."""

    simulation: int
    parameters: Parameters
    state: Text
    attempt: int
    received: int
    reason: str = ""


class SimulationPage(JsonMessage, frozen=True, kw_only=True):
    """Answer to `AskSimulations`; the study has `num_all` simulations."""

    num_all: int
    rows: tuple[SimulationRow, ...] = ()


class StopAccepted(JsonMessage, frozen=True, kw_only=True):
    """Answer to `AskStop`: it will be done, or is under way already."""

    text: str


class NotUnderstood(JsonMessage, frozen=True, kw_only=True):
    """Answer to an unknown question: the versions differ."""

    text: str


Question = AskStatus | AskSimulations | AskStop
Answer = StudyStatus | SimulationPage | StopAccepted | NotUnderstood

encode = codec.encode
question: Callable[[bytes], Question] = codec.decoder(Question)
answer: Callable[[bytes], Answer] = codec.decoder(Answer)
