"""Feeds a buffer from a record, in the place of simulations and a receiver."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from threading import Event
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.server import events
from stream_server.server.ranks import Ranks
from stream_server.server.reception_snapshot import ReceptionAccount, ReceptionSnapshot
from stream_server.server.record.layout import Kind
from stream_server.server.record.playback import Playback
from stream_server.server.record.played import PlayedSimulations
from stream_server.server.record.programme import Programme, together
from stream_server.server.record.rank_record import Entry
from stream_server.server.source import REPLAY
from stream_server.server.training.stop import StopRequests
from stream_server.server.validation_store import ValidationStore


class Restored(Protocol):
    """What this rank takes back from a checkpoint."""

    @property
    def state(self) -> Mapping[str, Any]: ...

    def into_buffer(self, buffer: Buffer) -> None: ...


class ReplayFeed:
    """Plays a record into `buffer` and `validation_store` while the `with` block lasts. Main thread, no other.

    `fill` comes before each draw. What is put and when depends on the record, the study and the draws so far, never on
    time: so a replay that was saved between two draws goes on with the same batches. As much is fed as there is room
    for; only when `training.draws_per_sample` bounds the reuse, the next samples wait until those that are there have
    been drawn often enough, as they do in a stream that is slower than the training.

    Entering is collective: the ranks count the samples together. What a live study is told by its reception, it is
    told by the attributes of the same names; `simulations` are rank 0's.
    """

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
        self.validation_store = ValidationStore(config.validation.simulations)
        self.simulations: PlayedSimulations | None = None
        self.receive_s = 0.0
        self.num_fed = 0
        self._events: list[events.Event] = []
        self._names = parameters
        self._restored = restored
        self._programme: Programme | None = None
        self._playback: Playback | None = None
        self._told: set[int] = set()
        self._closed = False
        self._stack = ExitStack()
        self._room = Event()
        self._waits_for_reuse = config.training.draws_per_sample is not None

    def count(self, stack: ExitStack) -> list[int]:
        """Open the record, until `stack` ends, and say how many of its samples each rank is given to train on.

        Raises:
            ConfigError: as on entering.
        """
        self._programme = Programme.open(self.config, self.ranks, self.folder, self._names, stack)
        return self._programme.samples_of_ranks

    def __enter__(self) -> Self:
        """Open the record, if `count` did not, and keep what is held out.

        Raises:
            ConfigError: the record does not fit the study, or is damaged; the same on all ranks.
        """
        with ExitStack() as stack:
            if self._programme is None:
                self.count(stack)
            assert self._programme is not None
            programme = self._programme
            self._playback = programme.samples()
            if self.ranks.rank == 0:
                num_held_out = self.config.validation.simulations
                self.simulations = PlayedSimulations(programme.tally, self._names, num_held_out=num_held_out)
            if not self.buffer.slots.arrays:
                self.buffer.slots.allocate(programme.dtypes)
            together(self.ranks, lambda: programme.hold_out(self.validation_store, programme.dtypes))
            if self._restored is not None:
                self._restored.into_buffer(self.buffer)
                self.load_state_dict(self._restored.state["reception"])
            self.buffer.on_room = self._room.set
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.buffer.on_room = None
        self._stack.close()

    @property
    def account(self) -> ReceptionAccount | None:
        """What this rank has been or will be given; None before the record was opened."""
        return None if self._programme is None else self._programme.account

    @property
    def num_missing(self) -> int:
        """None: all that is in the record comes."""
        return 0

    @property
    def num_left(self) -> int:
        """How many samples to train on have not been put into the buffer yet."""
        return 0 if self._programme is None else self._programme.num_samples - self.num_fed

    def parameters_of(self, simulation: int) -> npt.NDArray[np.float64]:
        """The parameters of a simulation, in the order of study.json."""
        assert self._programme is not None
        return self._programme.tally.parameters[simulation]

    def fill(self) -> None:
        """Put into the buffer what belongs there before the next draw, and close it after the last sample.

        Raises:
            DamagedRecord: what was read is not what was recorded.
        """
        started = time.perf_counter()
        while not self._closed and self._wants_more():
            self._feed()
        self.receive_s += time.perf_counter() - started

    @property
    def awaited(self) -> str:
        """All is there."""
        return ""

    def counts(self) -> tuple[dict[str, int], int]:
        """How many simulations are in each state, and how many samples all ranks have. Rank 0."""
        assert self.simulations is not None
        return self.simulations.counts(), self.simulations.num_settled

    def look(self) -> list[events.Event]:
        """What has happened since the last call."""
        found, self._events = self._events, []
        return found

    @property
    def warnings(self) -> list[str]:
        """Nothing goes on that people should be warned of."""
        return []

    def end(self, stops: StopRequests) -> None:
        """Nobody has to be told that the study has ended."""

    @property
    def num_received(self) -> int:
        """How many samples were put into the buffer, ever."""
        return self.num_fed

    @property
    def has_pressure(self) -> bool:
        """Nobody keeps samples back until they are in a checkpoint."""
        return False

    def snapshot(self) -> ReceptionSnapshot:
        """Freeze the buffer and say how far the record was played; what is held out is read again after a restart."""
        held_out = ValidationStore(0).rows()
        state = self.state_dict()
        return ReceptionSnapshot(buffer=self.buffer.freeze(), validation=held_out, state=state)

    def committed(self, snapshot: ReceptionSnapshot, generation: int, batches: int) -> None:
        """Nobody waits for a checkpoint."""

    def state_dict(self) -> dict[str, Any]:
        """How far the record was played, for a checkpoint that also has the buffer as it is now."""
        assert self._playback is not None
        return {
            REPLAY: {
                "position": self._playback.position,
                "num_fed": self.num_fed,
                "told": sorted(self._told),
                "closed": self._closed,
            },
            "receive_s": self.receive_s,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on, on as many ranks, where `state_dict` was called; the buffer was put back too."""
        replay = state[REPLAY]
        assert self._playback is not None
        self._playback.seek(int(replay["position"]))
        self.num_fed = int(replay["num_fed"])
        self.receive_s = float(state["receive_s"])
        self._told = set(replay["told"])
        self._closed = bool(replay["closed"])
        if self._closed:
            self.buffer.close()

    def _wants_more(self) -> bool:
        """Whether a sample is to be put before the next draw."""
        policy = self.buffer.policy
        if self._waits_for_reuse and policy.ready(self.config.training.batch_size):
            return False
        return policy.room > 0

    def _feed(self) -> None:
        """Put the next sample, or close the buffer after the last one.

        One by one, since how many are put at once decides which ones a reservoir evicts, and a checkpoint that is being
        written may keep slots back for a time that nobody knows.
        """
        sample = self._next_sample()
        if sample is None:
            self._closed = True
            self.buffer.close()
            self._events.append(events.ReceptionEnded())
            return
        [slot] = self.buffer.claim(1)
        self._fill_slot(slot, sample)
        self.buffer.commit([slot])
        while True:
            self._room.clear()
            if self.buffer.admit():
                break
            self._room.wait()
        self.num_fed += 1

    def _next_sample(self) -> Entry | None:
        assert self._playback is not None
        for entry in self._playback:
            if entry.kind is not Kind.FINISHED:
                return entry
            self._tell(entry.simulation)
        return None

    def _fill_slot(self, slot: int, entry: Entry) -> None:
        slots = self.buffer.slots
        slots.simulation_ids[slot] = entry.simulation
        slots.time_steps[slot] = entry.time_step
        for name, array in slots.arrays.items():
            if name in entry.fields:
                array[slot] = entry.fields[name]
            else:
                slots.leave_out(name, [slot])

    def _tell(self, simulation: int) -> None:
        if simulation not in self._told:
            self._told.add(simulation)
            self._events.append(events.SimulationFinished(simulation=simulation))
