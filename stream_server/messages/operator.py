"""The questions of an operator (`stream-study`) and the answers of rank 0, as frames of JSON.

A holder of the key in the run's operator.json is an operator. That key speaks no other language, and no other key
speaks this one. Numbers that are not finite become None before they get here.

Why: docs/decisions/0081-operators-ask-rank-0.md
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, get_args

from stream_server.messages import codec
from stream_server.messages.client import Count, Parameters, Text
from stream_server.storage.typed import Range

MAX_ROWS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class AskStatus:
    """To rank 0: how far has the study come?"""


@dataclass(frozen=True, kw_only=True, slots=True)
class AskSimulations:
    """To rank 0: `num` rows of the table of simulations, from the `first` on in the order of their ids."""

    first: Count
    num: Annotated[int, Range(1, MAX_ROWS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class AskStop:
    """To rank 0: save a checkpoint and leave; or, to `finish`, start no simulation and train what still comes."""

    finish: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingStatus:
    """The training of rank 0 as its main thread last saw it, at `at_s` of the monotonic clock.

    `fraction` of the run is done after `elapsed_s` seconds of training, and `left_s` are to come; None when its length
    is not known. `population` and `capacity` are those of rank 0's buffer. `is_degraded`: the last checkpoint failed.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyStatus:
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


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationRow:
    """One simulation: its newest attempt, -1 for none, and how many time steps of it were accepted or rejected."""

    simulation: int
    parameters: Parameters
    state: Text
    attempt: int
    received: int
    reason: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationPage:
    """Answer to `AskSimulations`; the study has `num_all` simulations."""

    num_all: int
    rows: tuple[SimulationRow, ...] = field(default=())


@dataclass(frozen=True, kw_only=True, slots=True)
class StopAccepted:
    """Answer to `AskStop`: it will be done, or is under way already."""

    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class NotUnderstood:
    """Answer to what is no question: the versions of the two differ."""

    text: str


Question = AskStatus | AskSimulations | AskStop
Answer = StudyStatus | SimulationPage | StopAccepted | NotUnderstood

_QUESTIONS = codec.by_name(get_args(Question))
_ANSWERS = codec.by_name(get_args(Answer))


def encode(message: Question | Answer) -> bytes:
    """The frame of a message."""
    return codec.encode(message)


def question(frame: bytes) -> Question:
    """The question that an operator asked.

    Raises:
        MalformedMessage: the frame is none.
    """
    asked: Question = codec.message(codec.parse(frame), _QUESTIONS)
    return asked


def answer(frame: bytes) -> Answer:
    """The answer that rank 0 gave.

    Raises:
        MalformedMessage: the frame is none.
    """
    answered: Answer = codec.message(codec.parse(frame), _ANSWERS)
    return answered
