"""The source of a study's samples: simulations that run now, or a record; and snapshots of what was received.

Why: docs/decisions/0015-leaving-server-takes-nothing-in.md
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Frozen
from stream_server.server.intake import mailbox
from stream_server.server.intake.account import RankAccount, SimulationEnd
from stream_server.server.intake.parameters import Origin
from stream_server.server.intake.validation_store import HeldOutRows, ValidationStore
from stream_server.server.progress.stop import StopRequests

# The state of a snapshot has this part only if its samples came from a record.
REPLAY = "replay"


@dataclass(frozen=True, kw_only=True, slots=True)
class ReceptionSnapshot:
    """The samples of this rank at one moment: what to save, and what to tell the clients once it is committed.

    `state` is that of each part by its name; the rows of `buffer` are read later, those of `validation` never change.
    `roster` is rank 0's. `received_marks` say how far connections are received, and durable once this is in a committed
    checkpoint. `sync_record` puts on disk what is recorded so far, and says where that ends.
    """

    buffer: Frozen
    validation: HeldOutRows
    state: dict[str, Any]
    roster: dict[str, Any] | None = None
    received_marks: Mapping[bytes, int] = field(default_factory=dict)
    sync_record: Callable[[], int | None] = lambda: None


class Simulations(Protocol):
    """The outcome of the simulations; by default none has failed."""

    @property
    def ends(self) -> Mapping[int, SimulationEnd]: ...

    @property
    def parameters(self) -> dict[int, dict[str, float]]: ...

    @property
    def failures(self) -> Sequence[Mapping[str, object]]:
        return ()

    @property
    def failing(self) -> Sequence[Mapping[str, object]]:
        return ()

    @property
    def retried(self) -> Sequence[Mapping[str, object]]:
        return ()

    @property
    def failed_later(self) -> Sequence[Mapping[str, object]]:
        return ()

    @property
    def num_survived(self) -> int:
        return 0

    @property
    def origins(self) -> Mapping[int, Origin] | None:
        return None

    @property
    def awaited(self) -> str:
        return ""


class SampleSource(Protocol):
    """The part of a source of samples that a training needs. Main thread."""

    validation_store: ValidationStore

    @property
    def num_missing(self) -> int:
        """How many training samples are known by now to be missing for good. Rank 0; 0 on the others."""
        return 0

    def parameters_of(self, simulation: int) -> NDArray[np.float64]:
        """The parameters of a simulation of which samples have come, in the order of study.json."""
        ...

    def before_draw(self) -> None:
        """A batch is about to be drawn."""
        return

    def events(self) -> list[mailbox.Event]:
        """The events since the last call."""
        ...


class Source(SampleSource, Protocol):
    """Simulations that run now, or the record of those that ran once.

    A context manager: entered before the training and left after it, on all ranks together. Main thread.
    """

    def count(self, stack: ExitStack) -> Sequence[int] | None:
        """Number of samples that each rank will train, if known before it is entered. Collective.

        What it opens for that is closed with the `stack`.
        """
        return None

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    @property
    def simulations(self) -> Simulations | None:
        """The outcome of the simulations. Rank 0, once entered."""
        ...

    @property
    def account(self) -> RankAccount | None:
        """The account of this rank's samples; None before the source was entered.

        What is `left` has not reached the buffer yet.
        """
        ...

    @property
    def num_received(self) -> int:
        """Number of steps that this rank has settled, ever."""
        ...

    @property
    def receive_s(self) -> float:
        """The time that receiving took."""
        ...

    @property
    def has_pressure(self) -> bool:
        """A checkpoint soon would spare simulations from being started again."""
        return False

    @property
    def warnings(self) -> list[str]:
        """Problems that did not stop the study."""
        ...

    def counts(self) -> tuple[dict[str, int], int]:
        """Number of simulations in each state, and samples of all ranks. Rank 0."""
        ...

    @property
    def awaited(self) -> str:
        """The external input that the study is waiting for, "" if none. Rank 0."""
        return ""

    def stop_receiving(self) -> None:
        """Take nothing more in, so that the last checkpoint has all that was ever acknowledged as received."""
        return

    def snapshot(self) -> ReceptionSnapshot:
        """Freeze what this rank has received."""
        ...

    def committed(self, snapshot: ReceptionSnapshot, checkpoint: int, batches: int) -> None:
        """Take note that the snapshot is in a committed checkpoint."""
        return

    def stop_simulations(self, stops: StopRequests) -> None:
        """Tell the simulations that the training is over, and wait until they have ended. Collective."""
        return
