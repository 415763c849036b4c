"""Means over the ranks which ranks without a batch join by themselves."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from threading import get_ident
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from stream_server.errors import UserCodeError
from stream_server.server.ranks.communicator import Ranks
from stream_server.storage.plain_state import as_array

Signature = list[Any]


class TakesTurns(Protocol):
    """The order of all that ranks do together; ranks without a batch join by themselves.

    `take_mean` waits for the turn of a mean, and gives the rank that announces its shapes.
    """

    def take_mean(self) -> int: ...


class UnionMean:
    """Weighted means of arrays over the ranks.

    Outside of a step all ranks call `mean`. The lowest rank announces the shapes of every call; within `step`, the
    lowest with a batch, so that ranks without one, which run no user code, add zeros to each until it announces the
    end. What else the ranks do together in a step is announced by a name in the same way.

    Whoever does something else than the mean that is announced adds zeros and says so in the sum, so that all raise the
    same error, and none waits for one that has raised it. The end of a step is announced once there was a mean: one
    that some ranks alone make before that meets what the others do next.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._thread = get_ident()
        self._sizes: Sequence[int] = ()
        self._joins: Mapping[str, Callable[[], None]] | None = None
        self._is_alone = False
        self._turns: TakesTurns | None = None
        self._has_ended = False
        self._has_means = False
        self.num_joined = 0
        """How many calls ranks without a batch joined in the last step; the same on all ranks."""
        self.num_means = 0
        """How many means this rank has asked for."""

    @property
    def sizes(self) -> Sequence[int]:
        """Number of samples of each rank in the present step; empty outside of one."""
        return self._sizes

    @property
    def share(self) -> float:
        """The factor for this rank's mean loss with which the sum over all ranks is the mean loss of the union."""
        return self._sizes[self._ranks.rank] / sum(self._sizes) if self._sizes else 1.0

    @contextmanager
    def in_turns(self, turns: TakesTurns) -> Iterator[None]:
        """Within, means wait for their turn, and ranks that come to none call `join`."""
        self._turns, self._has_ended = turns, False
        try:
            yield
        finally:
            self._turns = None

    def step(self, sizes: Sequence[int], joins: Mapping[str, Callable[[], None]] | None = None) -> "UnionMean":
        """A `with` block for a step of `sizes[r]` samples on rank r; ranks without any join the calls of others in it.

        `joins`: what a rank without a batch does in each call that is announced by its name. Where there are any, calls
        and the end are announced even if all ranks have a batch, so that ranks that make different ones get an error.
        """
        self._sizes = sizes
        self._joins = joins
        self.num_joined = 0
        return self

    def __enter__(self) -> None:
        if not self._sizes[self._ranks.rank] and self._turns is None:
            try:
                self._join()
            except BaseException:
                self._leave()
                raise

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            if kind is None and self._is_announcing and self._sizes[self._ranks.rank]:
                self._announce(None, self._lowest())
        finally:
            self._leave()

    def _leave(self) -> None:
        self._has_ended = self._sizes[self._ranks.rank] > 0
        self._sizes, self._joins = (), None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Within, user code runs on rank 0 alone, and `mean` is refused where there are others, who do not come."""
        self._is_alone = self._ranks.size > 1
        try:
            yield
        finally:
            self._is_alone = False

    def announce(self, name: str) -> None:
        """All ranks with a batch do now what is called `name`.

        Raises:
            UserCodeError: other ranks do something else.
        """
        if self._is_announcing:
            self._announce([name], self._lowest())

    def check_call(self, name: str, *, in_steps: bool = True) -> None:
        """Check that all ranks can make the user's call of this name here; `in_steps`: some ranks without a batch join.

        Raises:
            UserCodeError: they cannot.
        """
        if get_ident() != self._thread:
            raise UserCodeError(
                f"{name} must be called in the main thread, and not where training.prefetch or a train_dataloader "
                f"runs methods on another one: call it in {'training_step or ' if in_steps else ''}on_step_end"
            )
        if self._is_alone:
            raise UserCodeError(
                f"{name} must not be called in state_dict or rank_state_dict, which also runs on rank 0 alone and "
                "would wait for the others for ever: call it in on_step_end, and return what it gave"
            )
        if self._sizes and not in_steps:
            raise UserCodeError(
                f"{name} must be called on every rank, as in on_step_end: not in training_step or validation_step"
            )

    def mean(self, arrays: Any, weight: float | None = None) -> Any:
        """The mean over the ranks of an array or of each array in a list, tuple or dict.

        Raises:
            UserCodeError: the ranks passed arrays of different shapes, or this is not the thread of the training, or
                this rank is `alone`.
            ValueError: the weights add up to nothing.
        """
        self.check_call("all_reduce")
        self.num_means += 1
        own = self._sizes[self._ranks.rank] if self._sizes else 1.0
        leaves: list[Any] = []
        rebuild = _take_apart(arrays, leaves)
        values = [as_array(leaf) for leaf in leaves]
        dtype = np.result_type(np.float32, *{value.dtype for value in values})
        if 0 in self._sizes:
            self.num_joined += 1
        if self._ranks.size > 1:
            # Sums of different arrays would be wrong, or end the process in MPI.
            caller = self._lowest() if self._turns is None else self._turns.take_mean()
            self._announce(_signature(values, dtype), caller)
        means = self._reduce(values, dtype, own if weight is None else weight)
        if means is None:
            raise ValueError("all_reduce: the weights of all ranks add up to 0")
        return rebuild(iter(_like(mean, leaf) for mean, leaf in zip(means, leaves, strict=True)))

    @property
    def _is_announcing(self) -> bool:
        # Nobody else pays for what tells ranks that make another number of calls.
        told = 0 in self._sizes or self._joins is not None or self._has_means
        return told and self._turns is None and self._ranks.size > 1

    def join(self, caller: int) -> None:
        """Take part in the mean that rank `caller` announces and this one has not come to.

        Raises:
            UserCodeError: it had a batch, so that it should have; or another one should have.
        """
        self._add_zeros(self._ranks.broadcast(None, caller), instead=_describe(None) if self._has_ended else "")

    def _join(self) -> None:
        joins = self._joins or {}
        while (call := self._ranks.broadcast(None, self._lowest())) is not None:
            if len(call) == 1:
                joins[call[0]]()
                continue
            self.num_joined += 1
            self._add_zeros(call, instead="")

    def _announce(self, call: Signature | None, lowest: int) -> None:
        announced = self._ranks.broadcast(call, lowest)
        if announced == call:
            return
        if announced is not None and len(announced) > 1:
            self._add_zeros(announced, instead=_describe(call))
        raise _disagreement(lowest, _describe(announced), self._ranks.rank, _describe(call))

    def _add_zeros(self, call: Signature, *, instead: str) -> None:
        shapes, dtype = call
        self._reduce([np.zeros(shape, dtype) for shape in shapes], np.dtype(dtype), 0, instead=instead)

    def _lowest(self) -> int:
        return next((rank for rank, size in enumerate(self._sizes) if size), 0)

    def _reduce(
        self, values: Sequence[NDArray[Any]], dtype: np.dtype[Any], weight: float, *, instead: str | None = None
    ) -> list[NDArray[Any]] | None:
        """The weighted means; `instead`: what this rank does instead of asking for them, "" if it has no batch."""
        self._has_means = True
        flat = np.empty(sum(value.size for value in values) + 2, dtype)
        parts = np.split(flat[:-2], np.cumsum([value.size for value in values[:-1]])) if values else []
        for part, value in zip(parts, values, strict=True):
            np.multiply(value.reshape(-1), weight, out=part, casting="unsafe")
        flat[-2], flat[-1] = weight, bool(instead)
        total = self._ranks.all_reduce(flat)
        if total[-1]:
            own = _describe(_signature(values, dtype)) if instead is None else instead
            made = self._ranks.broadcast(self._ranks.gather(own))
            first, *others = ((rank, what) for rank, what in enumerate(made) if what)
            raise _disagreement(*first, *next(other for other in others if other[1] != first[1]))
        if not total[-2]:
            return None
        total[:-2] /= total[-2]
        ends = np.cumsum([value.size for value in values])
        return [total[end - value.size : end].reshape(value.shape) for end, value in zip(ends, values, strict=True)]


def _signature(values: Sequence[NDArray[Any]], dtype: np.dtype[Any]) -> Signature:
    return [[list(value.shape) for value in values], dtype.name]


def _disagreement(rank: int, what: str, other: int, what_other: str) -> UserCodeError:
    return UserCodeError(
        "training_step, on_step_end and the like must communicate in the same way on all ranks, but rank "
        f"{rank} made {what} where rank {other} made {what_other}"
    )


def _take_apart(arrays: Any, leaves: list[Any]) -> Callable[[Iterator[Any]], Any]:
    """Append the arrays of a structure to `leaves`; the result puts such a structure together again."""
    if isinstance(arrays, Mapping):
        parts = {key: _take_apart(value, leaves) for key, value in arrays.items()}
        return lambda values: {key: part(values) for key, part in parts.items()}
    if isinstance(arrays, list | tuple):
        items = [_take_apart(value, leaves) for value in arrays]
        kind = cast("Callable[[Any], Any]", list if isinstance(arrays, list) else tuple)
        return lambda values: kind([item(values) for item in items])
    leaves.append(arrays)
    return lambda values: next(values)


def _like(mean: NDArray[Any], leaf: Any) -> Any:
    """The mean as the kind of array that the user passed."""
    if hasattr(leaf, "new_tensor"):
        return leaf.new_tensor(mean)
    floating = isinstance(leaf, np.ndarray | np.generic) and np.issubdtype(leaf.dtype, np.floating)
    value = mean.astype(leaf.dtype, copy=False) if floating else mean
    return value if value.ndim else value[()]


def _describe(call: Signature | None) -> str:
    if call is None:
        return "no further call"
    return call[0] if len(call) == 1 else f"an all_reduce of arrays of shapes {call[0]} as {call[1]}"
