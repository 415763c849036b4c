"""The source of samples of a replay: a record, in the place of simulations and a receiver."""

import logging
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from threading import Event
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.server.intake import mailbox
from stream_server.server.intake.account import RankAccount, SimulationEnd
from stream_server.server.intake.source import REPLAY, ReceptionSnapshot, Simulations, Source
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.replay.dealing import RecordCounts
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import RecordEntry
from stream_server.server.replay.share import ReplayShare, on_all_ranks
from stream_server.server.run.build import ragged_fields

log = logging.getLogger(__name__)


class Restored(Protocol):
    """The part of this rank in a checkpoint."""

    def load(self, parts: Mapping[str, Any]) -> None: ...

    def into_buffer(self, buffer: Buffer) -> None: ...


class RecordedSimulations(Simulations):
    """The simulations of a record, for the display and the report, as a roster has those of a live study. Rank 0 only.

    All have ended, and as many steps as were recorded are all that a simulation has.
    """

    def __init__(self, counts: RecordCounts, names: tuple[str, ...], *, num_held_out: int) -> None:
        self._counts = counts
        self._names = names
        self._num_held_out = num_held_out

    @cached_property
    def parameters(self) -> dict[int, dict[str, float]]:
        """By name, of each simulation."""
        of, names = self._counts.parameters, self._names
        return {simulation: dict(zip(names, of[simulation], strict=True)) for simulation in self._counts.simulations}

    @cached_property
    def ends(self) -> dict[int, SimulationEnd]:
        """The end of each simulation."""
        return {simulation: self._end_of(simulation) for simulation in self._counts.simulations}

    def _end_of(self, simulation: int) -> SimulationEnd:
        is_withdrawn = simulation in self._counts.withdrawn
        return SimulationEnd(
            state=(SimulationPhase.INVALID if is_withdrawn else SimulationPhase.FINISHED).value,
            num_steps=self._counts.num_samples(simulation),
            held_out=simulation < self._num_held_out,
        )


class ReplaySource(Source):
    """Feeds a record to `buffer` and `validation_store` while the `with` block lasts. Main thread, no other.

    `fill` comes before each draw. What is put and when depends on the record, the study and the draws so far, never on
    time: so a replay that was saved between two draws goes on with the same batches. As much is fed as the buffer
    admits; only when `training.draws_per_sample` bounds the reuse, the next samples wait until those that are there
    have been drawn often enough, as they do in a stream that is slower than the training.

    Entering is collective: the ranks count the samples together.
    """

    simulations: RecordedSimulations | None = None
    num_received = 0
    receive_s = 0.0
    _entries: Iterator[RecordEntry | None]
    _position: int

    def __init__(
        self,
        config: StudyConfig,
        ranks: Ranks,
        folder: Path,
        *,
        parameters: tuple[str, ...],
        buffer: Buffer,
        restored: Restored | None = None,
    ) -> None:
        self.config = config
        self.ranks = ranks
        self.folder = folder
        self.buffer = buffer
        self.validation_store = ValidationStore(config.validation.simulations, ragged=ragged_fields(config))
        self._events: list[mailbox.Event] = []
        self._names = parameters
        self._restored = restored
        self._share: ReplayShare | None = None
        self._finished: set[int] = set()
        self._num_steps: Counter[int] = Counter()
        self._closed = False
        self._stack = ExitStack()
        self._has_room = Event()
        self._waits_for_reuse = config.training.draws_per_sample is not None

    def count(self, stack: ExitStack) -> list[int]:
        """Open the record, until `stack` ends, and count how many of its samples each rank is given to train on.

        Raises:
            ConfigError: as on entering.
        """
        self._share = ReplayShare(self.config, self.ranks, self.folder, self._names, stack)
        for text in self.warnings:
            log.warning("%s: %s", self.folder, text)
        return self._share.samples_of_ranks

    def __enter__(self) -> Self:
        """Open the record, if `count` did not, and keep what is held out.

        Raises:
            ConfigError: the record does not fit the study, or is damaged; the same on all ranks.
        """
        with ExitStack() as stack:
            if self._share is None:
                self.count(stack)
            share = self._opened
            self._seek(0)
            if self.ranks.rank == 0:
                num_held_out = self.config.validation.simulations
                self.simulations = RecordedSimulations(share.counts, self._names, num_held_out=num_held_out)
            if not self.buffer.slots.arrays:
                self._allocate(share.dtypes)
            on_all_ranks(self.ranks, lambda: share.read_held_out(self.validation_store, self.buffer))
            if self._restored is not None:
                self._restored.into_buffer(self.buffer)
                self._restored.load({REPLAY: self})
            self.buffer.on_room = self._has_room.set
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.buffer.on_room = None
        self._stack.close()

    @property
    def account(self) -> RankAccount | None:
        """The account of what this rank has been or will be given; None before the record was opened."""
        return None if self._share is None else replace(self._share.account, left=self.num_left)

    @property
    def num_left(self) -> int:
        """The number of samples to train on that have not been put into the buffer yet."""
        windows = self.buffer.windows
        return self._opened.num_samples - (self.num_received if windows is None else windows.num_made)

    @property
    def warnings(self) -> list[str]:
        return [] if self._share is None or self.ranks.rank else self._share.warnings

    def parameters_of(self, simulation: int) -> npt.NDArray[np.float64]:
        return np.array(self._opened.counts.parameters[simulation], np.float64)

    def before_draw(self) -> None:
        """Put into the buffer what belongs there before the next draw, and close it after the last sample.

        Raises:
            DamagedRecord: what was read is not what was recorded.
        """
        started = time.perf_counter()
        while not self._closed and self._wants_more():
            self._feed()
        self.receive_s += time.perf_counter() - started

    def counts(self) -> tuple[dict[str, int], int]:
        assert self.simulations is not None
        ends, states = self.simulations.ends.values(), Counter({phase.value: 0 for phase in SimulationPhase})
        states.update(end.state for end in ends)
        return dict(states), sum(end.num_steps or 0 for end in ends)

    def events(self) -> list[mailbox.Event]:
        found, self._events = self._events, []
        return found

    def snapshot(self) -> ReceptionSnapshot:
        """Freeze the buffer and save the position in the record; what is held out is read again after a restart."""
        held_out = ValidationStore(0).freeze()
        state = {REPLAY: self.state_dict()}
        return ReceptionSnapshot(buffer=self.buffer.freeze(), validation=held_out, state=state)

    def state_dict(self) -> dict[str, Any]:
        """The position in the record, for a checkpoint that also has the buffer as it is now."""
        return {
            "position": self._position,
            "num_fed": self.num_received,
            "told": sorted(self._finished),
            "closed": self._closed,
            "num_entries": self._opened.num_entries,
            "num_steps": dict(self._num_steps),
            "observed": sorted(self.buffer.slots.statics.observed),
            "receive_s": self.receive_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue, on as many ranks, where `state_dict` was called; the buffer was restored too."""
        num_entries = self._opened.num_entries
        if state["num_entries"] != num_entries:
            raise ConfigError(
                f"{self.folder} is not what this run began with: there are {num_entries} entries instead of "
                f"{state['num_entries']}. Put back what was there, or start over with --fresh"
            )
        self._seek(int(state["position"]))
        self.num_received = int(state["num_fed"])
        self.receive_s = float(state["receive_s"])
        self._finished = set(state["told"])
        self._num_steps = Counter({int(it): num for it, num in state["num_steps"].items()})
        self.buffer.slots.statics.observe(state["observed"])
        self._closed = bool(state["closed"])
        if self._closed:
            self.buffer.close()

    @property
    def _opened(self) -> ReplayShare:
        assert self._share is not None
        return self._share

    def _seek(self, position: int) -> None:
        self._position, self._entries = position, self._opened.samples(position)

    def _allocate(self, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        slots = self.buffer.slots
        slots.allocate({name: dtypes[name] for name in slots.shapes})
        slots.statics.dtypes = {name: np.dtype(dtypes[name]) for name in slots.statics.shapes}

    def _wants_more(self) -> bool:
        """Return whether a sample is to be put before the next draw."""
        policy = self.buffer.policy
        if self._waits_for_reuse and policy.ready(self.config.training.batch_size):
            return False
        return policy.room > 0

    def _feed(self) -> None:
        """Put the next sample or time step, or close the buffer after the last one.

        One by one, since how many are put at once decides which ones a reservoir evicts, and a checkpoint that is being
        written may keep slots back for a time that nobody knows.
        """
        if not self.buffer.num_waiting:
            sample = self._next_sample()
            if sample is None:
                self._closed = True
                self.buffer.close()
                self._events.append(mailbox.ReceptionEnded())
                return
            [slot] = self.buffer.claim(1)
            self.buffer.slots.fill(slot, sample.simulation, sample.time_step, sample.fields)
            self._share_statics(sample.simulation)
            self._begin_simulation(sample.simulation)
            self.buffer.enqueue([slot])
            self._count_step(sample.simulation)
        while True:
            self._has_room.clear()
            if admitted := self.buffer.admit(1):
                self.num_received += len(admitted)
                return
            if self.buffer.num_made:
                # There is room for further windows of this step after the next draw at the latest.
                return
            self._has_room.wait()

    def _begin_simulation(self, simulation: int) -> None:
        """Give up the windows that would have steps of two trajectories, before the first step of a simulation."""
        if self.buffer.windows is not None and not self._num_steps[simulation]:
            for end in self._opened.trajectory_ends(simulation):
                labels = self._opened.counts.labels[simulation]
                before = labels[labels <= end].tolist()
                self.buffer.part(simulation, before, range(self._opened.time_steps.index(end) + 1).__contains__)

    def _count_step(self, simulation: int) -> None:
        """Count a step that is put, and say that no other comes after the last of a simulation."""
        if self.buffer.windows is None:
            return
        self._num_steps[simulation] += 1
        if self._num_steps[simulation] == self._opened.num_steps[simulation]:
            del self._num_steps[simulation]
            self.buffer.end([simulation])

    def _next_sample(self) -> RecordEntry | None:
        for entry in self._entries:
            self._position += 1
            if entry is not None and entry.kind is not EntryKind.FINISHED:
                return entry
            if entry is not None:
                self._finish(entry.simulation)
        return None

    def _share_statics(self, simulation: int) -> None:
        """Keep the static fields of a simulation as long as there is a sample of it; a later one reads them again."""
        self._opened.put_statics(simulation, self.buffer.slots.statics)
        self.buffer.free_statics(self.validation_store.__contains__)

    def _finish(self, simulation: int) -> None:
        if simulation in self._opened.counts.finished and simulation not in self._finished:
            self._finished.add(simulation)
            self._events.append(mailbox.SimulationFinished(simulation=simulation))
