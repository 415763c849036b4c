"""The validation sets: the sources of their batches, and how the ranks share them."""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import WindowShape
from stream_server.buffers.statics import StaticFields
from stream_server.config import StudyConfig
from stream_server.config.problems import nearest, one_of
from stream_server.config.training_sections import ValidationSettings
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.intake.validation_store import HeldOutRows, ValidationStore
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.user.components import loader_name, make_loader
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.user_code import call_user

Item = tuple[Any, int]

Observe = Callable[[str, NDArray[np.int64], NDArray[Any]], None]
"""Takes a score of held-out samples: its name, their simulations, and a value for each."""

# Items that are compared beside the first one.
NUM_COMPARED = 4
# The fractions of its multiples are spread evenly, however many there are.
GOLDEN_RATIO = 0.6180339887498949

_END = object()
# In place of the version of the statistics, where sets do not depend on them.
ALWAYS = -1


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOut:
    """Samples of held-out simulations: of each the `rows` in all `steps`, shape (n,), of windows (n, length).

    `statics` are the fields that the samples of a simulation share.
    """

    steps: HeldOutRows
    rows: NDArray[np.int64]
    parameters_of: Callable[[int], NDArray[np.float64]]
    statics: StaticFields

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, samples: slice | NDArray[np.bool_]) -> Self:
        """Some of them."""
        return replace(self, rows=self.rows[samples])

    @property
    def simulation_ids(self) -> NDArray[np.int64]:
        return self.steps.simulation_ids[self.rows if self.rows.ndim == 1 else self.rows[:, 0]]

    @property
    def time_steps(self) -> NDArray[np.int64]:
        return self.steps.time_steps[self.rows]

    @property
    def first_steps(self) -> NDArray[np.int64]:
        """The time step of each sample; of a window, its first."""
        return self.time_steps if self.rows.ndim == 1 else self.time_steps[:, 0]

    def batch(self, known: Mapping[str, NDArray[Any]] = MappingProxyType({})) -> SimulationBatch:
        """A copy of all of them, with what those of a simulation share; fields that are `known` are taken from there.

        Its reader may write into it.
        """
        steps, rows, simulations = self.steps, self.rows, self.simulation_ids
        fields = {name: known[name] if name in known else steps.take(name, rows) for name in steps.present}
        present = {name: np.ones(rows.shape, bool) if name in known else it[rows] for name, it in steps.present.items()}
        shared = self.statics.gather(simulations)
        return SimulationBatch(
            simulation_ids=simulations,
            time_steps=self.time_steps,
            parameters=np.stack([self.parameters_of(simulation) for simulation in simulations.tolist()]),
            fields=fields | shared,
            present=present | {name: np.ones(len(self), bool) for name in shared},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class HeldOutSamples:
    """Calling it gives all samples of this rank of the complete held-out simulations, with their parameters.

    `window_shape` is None where each time step is a sample. `statics` are the fields that the samples of a simulation
    share.
    """

    store: ValidationStore
    parameters_of: Callable[[int], NDArray[np.float64]]
    window_shape: WindowShape | None = None
    statics: StaticFields = field(default_factory=lambda: StaticFields({}))
    chosen: Callable[[HeldOut], HeldOut] = lambda samples: samples

    def __call__(self) -> HeldOut | None:
        steps = self.store.complete_rows()
        rows = np.arange(len(steps)) if self.window_shape is None else self._windows(steps, self.window_shape)
        found = self.chosen(HeldOut(steps=steps, rows=rows, parameters_of=self.parameters_of, statics=self.statics))
        return found if len(found) else None

    def _windows(self, steps: HeldOutRows, shape: WindowShape) -> NDArray[np.int64]:
        found = [np.empty((0, shape.length), np.int64)]
        for simulation in np.unique(steps.simulation_ids):
            rows = np.flatnonzero(steps.simulation_ids == simulation)
            found.append(rows[shape.places_among((steps.time_steps[rows] - shape.first) // shape.every)])
        return np.concatenate(found)


def choice(config: StudyConfig) -> Callable[[HeldOut], HeldOut]:
    """The choice of `validation.max_batches` among held-out samples, the same on any ranks and at any time.

    It goes by the numbers of all samples that there will ever be, those of one simulation after the other: the chosen
    ones are at equal distances. In each simulation they are counted from another time step on.
    """
    settings, steps, window = config.validation, config.study.time_steps, config.window
    if settings.max_batches is None or not settings.simulations or steps is None:
        return lambda samples: samples
    most, num = settings.max_batches * settings.batch_size, config.num_samples_of(steps.num)
    first, every = steps.first, steps.every * (1 if window is None else window.stride)
    total = settings.simulations * num

    def few(samples: HeldOut) -> HeldOut:
        simulations = samples.simulation_ids
        shifts = (simulations * GOLDEN_RATIO % 1 * num).astype(np.int64)
        numbers = simulations * num + ((samples.first_steps - first) // every + shifts) % num
        return samples[(numbers + 1) * most // total > numbers * most // total]

    return few


@dataclass(frozen=True, kw_only=True, slots=True)
class ValidationSet:
    """One set; `name` is "" for one that stands alone.

    `signature` differs once the set, or how it is shared, has changed; it is plain and the same on all ranks.
    `batches(n)` are this rank's batches but for the first n, with the number of samples in each. `raw(n)` are the
    samples of batch n as they came from the simulations; None for a set of the user's.
    """

    name: str
    signature: Any
    batches: Callable[[int], Iterator[Item]]
    raw: Callable[[int], HeldOut] | None = None

    def first(self, num: int) -> Self:
        """The set without all but the first batches of each rank."""
        return replace(self, batches=lambda start: islice(self.batches(start), num))


class ValidationSets:
    """The validation sets: those of the user's `val_dataloader`, or the complete held-out simulations. Main thread.

    Of a loader, an iterable of batches, rank r of R takes the items r, r + R, …. Of a dataset, which has a length and
    items but no batches, it takes so the batches of `batch_size` samples, collated as those of the stream. The ranks
    compare the names, the lengths and the first items of their sets, and some further ones that can be had by number.
    Held-out samples (`held_out` gives them) are where they were received. Of a loader that is limited the first batches
    are taken, of a dataset samples at equal distances.
    """

    def __init__(
        self, server: Any, ranks: Ranks, *, held_out: Callable[[], HeldOut | None], settings: ValidationSettings
    ) -> None:
        self._server = server
        self._ranks = ranks
        self._held_out = held_out
        self._settings = settings
        self._batch_size = settings.batch_size
        self._asked: list[ValidationSet] | None = None
        self._asked_at: int | None = None

    def __call__(self) -> list[ValidationSet]:
        """The sets as they are now; none while no held-out simulation is complete. Collective.

        Raises:
            UserCodeError: `val_dataloader` raised, returned something unusable, or not the same on every rank.
            ConfigError: a loader shuffles, and there are several ranks, or study.json names a set that is not there.
        """
        sets = self._of_user()
        self._refuse_different([sets is None, *(it.name for it in sets or ())])
        return self._complete_simulations() if sets is None else sets

    def _of_user(self) -> list[ValidationSet] | None:
        """The sets of `val_dataloader`, which is asked once, and again if it normalised by statistics of before."""
        normalization = self._server.normalization
        if self._asked_at not in (normalization.version, ALWAYS):
            num_uses = normalization.num_uses
            self._asked = self._ask_user()
            self._asked_at = normalization.version if normalization.num_uses > num_uses else ALWAYS
        return self._asked

    def _ask_user(self) -> list[ValidationSet] | None:
        made = make_loader(self._server, "validation.val_dataloader")
        loaders = self._call("val_dataloader") if made is None else made
        named = loaders if isinstance(loaders, Mapping) else {"": loaders}
        known = [name for name in map(str, named) if name]
        for name in self._settings.sets.keys() - {*known}:
            instead = f"write {nearest(name, known) or one_of(known)}" if known else "it names none"
            where = loader_name(self._server)
            raise ConfigError(f"validation.sets must name sets of {where}, but has {name!r}: {instead}")
        if loaders is None:
            return None
        return [self._set_of(str(name), loader) for name, loader in named.items()]

    def _set_of(self, name: str, loader: Any) -> ValidationSet:
        check_loader(name, loader, self._ranks.size)
        give = self._dataset_batches if is_dataset(loader) else self._loader_batches
        own = self._settings.sets.get(name)
        most = (own and own.max_batches) or self._settings.max_batches
        return ValidationSet(
            name=name,
            signature=[name, self._ranks.size, _length_of(loader), *([most] if most else [])],
            batches=lambda start: give(loader, start, most),
        )

    def _loader_batches(self, loader: Any, start: int, most: int | None) -> Iterator[Item]:
        ranks = self._ranks
        items = call_user(self._loader, iter, loader)
        first = call_user(self._loader, lambda: list(islice(items, 1)))
        self._refuse_different(call_user(self._loader, self._signature_of, loader, first))
        mine = islice(chain(first, items), ranks.rank + start * ranks.size, most, ranks.size)
        while (batch := call_user(self._loader, next, mine, _END)) is not _END:
            yield call_user(self._loader, self._server.collate.convert, batch), num_samples(batch)

    def _dataset_batches(self, dataset: Any, start: int, most: int | None) -> Iterator[Item]:
        ranks, length = self._ranks, len(dataset)
        num = length if most is None else min(length, most * self._batch_size)
        self._refuse_different(call_user(self._loader, self._signature_of, dataset, []))
        for rows in slices(num, self._batch_size)[ranks.rank + start * ranks.size :: ranks.size]:
            numbers = [number * length // num for number in range(*rows.indices(num))]
            samples = call_user(self._loader, lambda numbers=numbers: [dataset[number] for number in numbers])
            yield call_user(self._loader, self._server.collate, samples), len(samples)

    def _signature_of(self, loader: Any, first: list[Any]) -> list[int | None]:
        """The length of a loader, if it has one, and a checksum of its order, its first item and some others."""
        source, order = _numbered(loader) if self._ranks.size > 1 else ((), ())
        last = len(order) - 1
        numbers = sorted({last * part // NUM_COMPARED for part in range(NUM_COMPARED + 1)}) if order else []
        collate, checksum = self._server.collate, zlib.crc32(repr(order).encode())
        # What a collate_fn of the user's makes batches of need be none of our arrays.
        items: Iterable[Any] = (source[order[number]] for number in numbers)
        items = map(collate.convert, items) if source is loader else items
        for item in chain(map(collate.convert, first), items):
            for array in collate.arrays_in(item):
                with suppress(TypeError, ValueError, RuntimeError):
                    checksum = zlib.crc32(collate.bytes_of(array), checksum)
        return [_length_of(loader), len(first), checksum]

    def _refuse_different(self, mine: list[Any]) -> None:
        """Compare a description of the sets with that of the other ranks. Collective.

        Raises:
            UserCodeError: they differ, so that the ranks would take some samples twice and others never.
        """
        everywhere = self._ranks.broadcast(self._ranks.gather(mine))
        if other := next((rank for rank, found in enumerate(everywhere) if found != everywhere[0]), None):
            raise UserCodeError(
                f"{loader_name(self._server)} must give the same on every rank, but rank {other} has "
                "other sets or batches than rank 0. The study shares the batches out to the ranks: do not split it "
                "yourself (DistributedSampler, self.rank), draw at random only from a generator with a seed of your "
                "own, and make it of nothing that belongs to a rank, such as self.buffer"
            )

    def _complete_simulations(self) -> list[ValidationSet]:
        samples = self._held_out()
        everywhere = self._ranks.broadcast(self._ranks.gather(_key_checksum(samples)))
        if not any(num for num, _ in everywhere):
            return []
        return [
            ValidationSet(
                name="",
                signature=everywhere,
                batches=lambda start: self._held_out_batches(samples, start),
                raw=lambda index: self._raw(samples, index),
            )
        ]

    def _raw(self, samples: HeldOut | None, index: int) -> HeldOut:
        assert samples is not None
        return samples[index * self._batch_size : (index + 1) * self._batch_size]

    def _held_out_batches(self, samples: HeldOut | None, start: int) -> Iterator[Item]:
        if samples is None:
            return
        for rows in slices(len(samples), self._batch_size)[start:]:
            raw = samples[rows].batch()
            made = self._call("process_batch", raw, self._server.config)
            yield call_user("converting what process_batch returned", self._server.collate.convert, made), len(raw)

    @property
    def _loader(self) -> str:
        return f"what {loader_name(self._server)} returned"

    def _call(self, method: str, *arguments: Any) -> Any:
        return call_user(f"{type(self._server).__name__}.{method}", getattr(self._server, method), *arguments)


def _key_checksum(samples: HeldOut | None) -> list[int]:
    """The number of a rank's samples, and a checksum of which they are."""
    if samples is None:
        return [0, 0]
    return [len(samples), zlib.crc32(samples.simulation_ids.tobytes() + samples.time_steps.tobytes())]


def num_samples(batch: Any) -> int:
    """The number of samples of a user's batch: the length of the first array in it, 1 if there is none."""
    return _first_length(batch) or 1


def _first_length(batch: Any) -> int | None:
    if isinstance(batch, SimulationBatch):
        return len(batch)
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    items = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, tuple | list) else ()
    return next((length for item in items if (length := _first_length(item)) is not None), None)


def _length_of(loader: Any) -> int | None:
    """The number of items of a loader; None where it has none, as a DataLoader of an IterableDataset."""
    try:
        return len(loader)
    except TypeError:
        return None


def _numbered(loader: Any) -> tuple[Any, Sequence[Any]]:
    """The items of a set by number, and the numbers in order; nothing of both where there are none."""
    if isinstance(loader, Sequence) or is_dataset(loader):
        return loader, range(len(loader))
    if is_dataset(getattr(loader, "dataset", None)) and hasattr(loader, "sampler"):
        batches = loader.batch_sampler
        return loader.dataset, list(loader.sampler if batches is None else chain.from_iterable(batches))
    return (), ()


def is_dataset(loader: Any) -> bool:
    """Whether its items are single samples: a torch map-style dataset has a length and items, but is no iterable."""
    return hasattr(loader, "__getitem__") and hasattr(loader, "__len__") and not isinstance(loader, Iterable)


def check_loader(name: str, loader: Any, num_ranks: int) -> None:
    """Refuse sets that cannot be iterated repeatedly, in the same order on every rank.

    Raises:
        UserCodeError: it is no dataset and no iterable of batches, or one that ends for good or gives single samples.
        ConfigError: it shuffles, and there are several ranks.
    """
    where = f"val_dataloader()[{name!r}]" if name else "val_dataloader()"
    if not isinstance(loader, Iterable) and not hasattr(loader, "__getitem__"):
        raise UserCodeError(
            f"{where} must give an iterable of batches or a dataset of samples, but gave a {type(loader).__name__}"
        )
    if isinstance(loader, Iterator):
        raise UserCodeError(f"{where} gave a {type(loader).__name__}, which can be gone through only once; give a list")
    if any(base.__name__ == "IterableDataset" for base in type(loader).__mro__):
        raise UserCodeError(f"{where} gave an IterableDataset, whose items are not batches: put it into a DataLoader")
    if num_ranks > 1 and type(getattr(loader, "sampler", None)).__name__ == "RandomSampler":
        raise ConfigError(
            f"{where} shuffles, so the ranks would not share out its batches but take some twice and others never: "
            "use shuffle=False"
        )


def slices(num: int, size: int) -> list[slice]:
    """The rows of the batches of `size` samples that `num` samples make; the last one may be shorter."""
    return [slice(start, start + size) for start in range(0, num, size)]
