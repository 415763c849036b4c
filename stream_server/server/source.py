"""Where the samples of a study come from."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.server import events
from stream_server.server.closing import Simulations
from stream_server.server.reception_snapshot import ReceptionAccount, ReceptionSnapshot
from stream_server.server.training.stop import StopRequests
from stream_server.server.validation_store import ValidationStore

# The state of a snapshot has this key only if its samples came from a record.
REPLAY = "replay"


class Source(Protocol):
    """Simulations that run now, or the record of those that ran once.

    A context manager: entered before the training and left after it, on all ranks together. Main thread.
    """

    validation_store: ValidationStore

    def count(self, stack: ExitStack) -> Sequence[int] | None:
        """How many samples each rank is going to train, if that is known before it is entered. Collective.

        What it opens for that is closed with the `stack`.
        """
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *exc_info: object) -> None: ...

    @property
    def simulations(self) -> Simulations | None:
        """How the simulations fared. Rank 0, once entered."""
        ...

    @property
    def account(self) -> ReceptionAccount | None:
        """What this rank has received; None before it was entered."""
        ...

    @property
    def num_received(self) -> int:
        """How many steps this rank has settled, ever."""
        ...

    @property
    def num_missing(self) -> int:
        """How many samples to train on are known by now never to come. Rank 0; 0 on the others."""
        ...

    @property
    def num_left(self) -> int:
        """How many accepted samples have not reached the buffer yet."""
        ...

    @property
    def receive_s(self) -> float:
        """The time that receiving took."""
        ...

    @property
    def has_pressure(self) -> bool:
        """A checkpoint soon would spare simulations from being started again."""
        ...

    @property
    def warnings(self) -> list[str]:
        """What went wrong while the study went on."""
        ...

    def parameters_of(self, simulation: int) -> NDArray[np.float64]:
        """The parameters of a simulation of which samples have come."""
        ...

    def counts(self) -> tuple[dict[str, int], int]:
        """How many simulations are in each state, and how many samples all ranks have. Rank 0."""
        ...

    @property
    def awaited(self) -> str:
        """What must come from outside for the study to go on, "" if nothing must. Rank 0."""
        ...

    def fill(self) -> None:
        """A batch is about to be drawn."""
        ...

    def look(self) -> list[events.Event]:
        """What has happened since the last call."""
        ...

    def snapshot(self) -> ReceptionSnapshot:
        """Freeze what this rank has received."""
        ...

    def committed(self, snapshot: ReceptionSnapshot, generation: int, batches: int) -> None:
        """What was frozen is in a committed generation."""
        ...

    def end(self, stops: StopRequests) -> None:
        """The training is over. Collective."""
        ...
