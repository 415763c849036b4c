"""What a simulation holds in its hands: one run of the solver, as the study sees it."""

import operator
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Protocol, SupportsIndex

import numpy as np

from stream_server.client_api.messages import MAX_UNKNOWN_STEPS, TimeSteps
from stream_server.errors import SimulationError


class Destination(Protocol):
    """Where the steps go, as those of `attempt`. `stop_reason`: why nothing more is wanted."""

    @property
    def attempt(self) -> int: ...

    @property
    def stop_reason(self) -> str: ...

    def declare_field(self, name: str, shape: Sequence[int], offset: Sequence[int] | None) -> None: ...

    def send(self, index: int, sample: dict[str, Any]) -> bool: ...

    def finish(self) -> None: ...

    def invalidate(self, reason: str) -> None: ...

    def abandon(self) -> None: ...

    def close(self) -> None: ...


class Nowhere:
    """Takes everything and does nothing with it: a solver that runs alone, or a study that has ended."""

    def __init__(self, *, attempt: int, wanted: bool, stop_reason: str = "") -> None:
        self.attempt = attempt
        self.stop_reason = stop_reason
        self._wanted = wanted

    def declare_field(self, name: str, shape: Sequence[int], offset: Sequence[int] | None) -> None:
        pass

    def send(self, index: int, sample: dict[str, Any]) -> bool:
        return self._wanted

    def finish(self) -> None:
        pass

    def invalidate(self, reason: str) -> None:
        pass

    def abandon(self) -> None:
        pass

    def close(self) -> None:
        pass


class Simulation:
    """One run of the solver. Made by `connect`; for one thread.

    In a `with` block, leaving normally finishes the simulation, and leaving by an exception leaves it
    unfinished: the study then starts a new attempt.

    Attributes:
        id: the study's number of this simulation.
        parameters: what to simulate, by name.
        time_steps: the labels of the steps that the study expects; None if it takes them as they come.
    """

    def __init__(
        self,
        destination: Destination,
        *,
        id: int,
        parameters: dict[str, float],
        time_steps: TimeSteps | None,
    ) -> None:
        self.id = id
        self.parameters = parameters
        self.time_steps: range | None = None
        if time_steps is not None and time_steps.num is not None:
            stop = time_steps.first + time_steps.num * time_steps.every
            self.time_steps = range(time_steps.first, stop, time_steps.every)
        self._labels = time_steps
        self._destination = destination
        self._failure: SimulationError | None = None
        self._finished = False

    @property
    def attempt(self) -> int:
        """How often it was started before. A new server may give another number to one that attached by itself."""
        return self._destination.attempt

    @property
    def stop_reason(self) -> str:
        """Why the study has ended, such as "training converged: …"; empty before, and when nobody told."""
        return self._destination.stop_reason

    def declare_field(self, name: str, *, shape: Sequence[int], offset: Sequence[int] | None = None) -> None:
        """Say that this rank sends a block of the field, whose global shape is `shape`.

        For parallel codes, before the first `send`. `offset` is where the block begins, counted from 0 in
        each dimension; its extent is that of the first array. Without `offset` the ranks cut the first
        axis as evenly as it goes, in rank order, the first ones taking one more if it does not divide.

        Raises:
            ValueError: the study has no such field, or one of another shape.
        """
        self._destination.declare_field(name, tuple(map(operator.index, shape)), offset)

    def send(self, time_step: SupportsIndex, /, **fields: Any) -> bool:
        """Send one sample: all fields of one time step, or this rank's blocks of them.

        The arrays are copied and may change at once. Blocks while the server has no room for more.

        Returns:
            False if the study has ended and wants nothing more, from then on for ever. Parallel codes learn
            this at different steps on different ranks, and must agree before they leave their loop.

        Raises:
            TypeError: the time step is a bool or no integer, or a field is not numeric, or of a type that cannot
                become what the study keeps.
            ValueError: a field is unknown, missing or of a wrong shape, or the study has no such time step.
            Refused: the server refused this sample or an earlier one.
            StepsLost: the server went back to a checkpoint, and misses steps that are not retained any more.
            Unreachable: the server stayed away for longer than the study lets a simulation wait.
        """
        if self._failure is not None:
            raise self._failure
        if self._finished:
            raise ValueError(f"simulation {self.id} is finished: nothing can be sent any more")
        index = self._index(time_step)
        try:
            wanted = self._destination.send(index, fields)
        except SimulationError as error:
            self._fail(error)
            raise
        if not wanted:
            self._leave()
        return wanted

    def invalidate(self, reason: str) -> None:
        """Withdraw what was sent, because the run is not worth learning from; it is not tried again.

        Afterwards `send` returns False and `finish` does nothing.
        """
        self._check_failure()
        try:
            self._destination.invalidate(reason)
        except SimulationError as error:
            self._fail(error)
            raise
        self._leave()

    def finish(self) -> None:
        """Wait until all that was sent has arrived, and leave. A second call does nothing.

        Raises:
            Refused, StepsLost, Unreachable: as for `send`.
        """
        self._check_failure()
        if self._finished:
            return
        try:
            self._destination.finish()
        except SimulationError as error:
            self._fail(error)
            raise
        finally:
            self._destination.close()
        self._finished = True

    def __enter__(self) -> "Simulation":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if kind is None:
            self.finish()
        else:
            self._destination.abandon()

    def _index(self, time_step: SupportsIndex) -> int:
        label = _integer(time_step)
        labels = self._labels
        if labels is None:
            return label
        index, remainder = divmod(label - labels.first, labels.every)
        num = labels.num if labels.num is not None else MAX_UNKNOWN_STEPS
        if remainder or not 0 <= index < num:
            last = labels.first + (num - 1) * labels.every
            every = f", every {labels.every}" if labels.every > 1 else ""
            raise ValueError(f"the study has the time steps {labels.first} to {last}{every}, but not {label}")
        return index

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _fail(self, error: SimulationError) -> None:
        self._failure = error
        self._destination.close()

    def _leave(self) -> None:
        self._destination.close()
        self._destination = Nowhere(attempt=self.attempt, wanted=False, stop_reason=self.stop_reason)
        self._labels = None


def _integer(time_step: SupportsIndex) -> int:
    # Python takes True for 1: a flag in the place of the time step would become sample 1.
    if isinstance(time_step, bool | np.bool_):
        raise TypeError(f"the time step must be an integer, but is {time_step!r}")
    return operator.index(time_step)
