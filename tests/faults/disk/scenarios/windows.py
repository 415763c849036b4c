"""A rank with windows of fields that differ in size, and a field that is sent once per simulation.

Of its checkpoints, and of its record.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import numpy as np

from stream_server.buffers import Fifo, Slots, WindowBuffer, WindowShape, num_slots_to_load
from stream_server.messages.client import FieldSpec, Routing
from stream_server.messages.routing import Dealing
from stream_server.server.checkpoint.folder import CheckpointFolder
from stream_server.server.checkpoint.restore import restore_rank
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.replay.record_reader import RecordEntry
from stream_server.storage.folders import PendingFile
from tests.faults.disk.scenarios.checkpoints import STORE, Good, Started, restart, save_parts
from tests.faults.disk.scenarios.record import SAMPLES, Content, Recordings, Statics
from tests.faults.disk.scenarios.scenario import Tell
from tests.support.checkpoint_stores import start
from tests.support.saved_ranks import files_of_rank

Key = tuple[int, int]
"""A simulation and a time step, of a window the first one."""

SHAPE = WindowShape(length=3, spacing=2, stride=1)
CAPACITY = 4
NUM_SIMULATIONS = 3
NUM_STEPS = 24
LARGEST = 3


def order() -> list[Key]:
    """All steps, as they come: those of a simulation not quite in their order."""
    random = Random(4)
    steps = [(simulation, step) for step in range(NUM_STEPS) for simulation in range(NUM_SIMULATIONS)]
    return sorted(steps, key=lambda it: it[1] + random.uniform(0, 2))


KEYS = order()


def num_keys(number: int) -> int:
    """How many steps have come when this checkpoint is saved."""
    return 16 + 8 * number if number else 0


def num_drawn(number: int) -> int:
    """How many windows were drawn then."""
    return 2 * number


def whole(keys: Iterable[Key]) -> list[Key]:
    """The windows of which all steps are there, in the order in which they became whole."""
    came: defaultdict[int, set[int]] = defaultdict(set)
    found: list[Key] = []
    for simulation, step in keys:
        came[simulation].add(step)
        firsts = range(max(0, step - SHAPE.span), step + 1)
        found += [
            (simulation, it) for it in firsts if step in (window := {*SHAPE.steps(it)}) and window <= came[simulation]
        ]
    return found


class WindowRank:
    """A rank that receives steps and draws windows; each checkpoint is of the same moment, whatever came before."""

    def __init__(self, num_slots: int = 100) -> None:
        slots = Slots(
            {"u": (2,), "p": (LARGEST,)}, num_slots, {"mesh": (2,), "edges": (LARGEST,)}, ragged={"p", "edges"}
        )
        slots.allocate({"u": np.float64, "p": np.float64})
        self.buffer = WindowBuffer(Fifo(capacity=CAPACITY), slots, shape=SHAPE, most_kept=40, spare=40)

    @classmethod
    def of(cls, store: Path, good: Good) -> "WindowRank":
        """One that goes on from a checkpoint, or begins."""
        if not good.number:
            return cls()
        restored = restore_rank(
            CheckpointFolder(store).path(good.number),
            incarnation=good.incarnation,
            num_saved=1,
            rank=0,
            dealing=Dealing(Routing.SIMULATIONS, 1),
            policy=Fifo,
            seed=(0,),
            whole_simulations=True,
        )
        it = cls(num_slots_to_load(restored.buffer, capacity=CAPACITY, planned=100))
        restored.into_buffer(it.buffer)
        return it

    def receive(self, keys: Iterable[Key]) -> None:
        """Accept steps, before the first of a simulation what it sends once."""
        for simulation, step in keys:
            self.accept((simulation, step), fields_of(simulation, step), statics_of(simulation))

    def accept(self, key: Key, fields: Mapping[str, np.ndarray], statics: Mapping[str, np.ndarray]) -> None:
        """Accept a step with these fields, and if it is the first of its simulation what that sends once."""
        slots = self.buffer.slots
        if key[0] not in slots.statics:
            slots.statics.put(key[0], statics)
        [slot] = self.buffer.claim(1)
        slots.simulation_ids[slot], slots.time_steps[slot] = key
        for name, value in fields.items():
            slots.set_value(name, slot, value)
        self.buffer.enqueue([slot])
        self.buffer.admit()

    def draw(self, most: int) -> list[Key]:
        """Draw windows, which are checked."""
        drawn: list[Key] = []
        while len(drawn) < most and (draw := self.buffer.draw(1, 0.0)) is not None:
            fields = self.buffer.gather(draw)
            [simulation] = self.buffer.slots.simulation_ids[draw.slots].tolist()
            [first] = self.buffer.slots.time_steps[draw.slots].tolist()
            shared = self.buffer.slots.statics.gather(np.array([simulation]))
            steps = [*SHAPE.steps(first)]
            assert fields["u"].tolist() == [[[simulation, step] for step in steps]]
            assert [it.tolist() for it in fields["p"][0]] == [particles(simulation, step).tolist() for step in steps]
            assert all(np.array_equal(shared[name][0], it) for name, it in statics_of(simulation).items())
            drawn.append((simulation, first))
            self.buffer.release(draw)
            self.buffer.admit()
        return drawn

    def parts(self) -> list[PendingFile]:
        """The files of this rank in a checkpoint."""
        taken = ReceptionSnapshot(buffer=self.buffer.freeze(), validation=ValidationStore(0).freeze(), state={})
        return files_of_rank(taken, self.buffer, rank=0, num_ranks=1, parts={})

    def go_on(self, store: Path, good: Good, incarnation: int, tell: Tell) -> Good:
        """Receive and draw, from checkpoint `good` to the next one, which is saved."""
        before, number = good.number, good.number + 1
        self.receive(KEYS[num_keys(before) : num_keys(number)])
        assert len(self.draw(num_drawn(number) - num_drawn(before))) == num_drawn(number) - num_drawn(before)
        save_parts(store, number, incarnation, self.parts(), tell)
        return Good(number, incarnation)


def check(store: Path, good: Good) -> None:
    """Check that a checkpoint has the windows that were not drawn, and makes all others of the steps that follow."""
    rank, num = WindowRank.of(store, good), num_keys(good.number)
    there, all_of_them = whole(KEYS[:num]), whole(KEYS)
    assert rank.draw(len(KEYS)) == there[num_drawn(good.number) :]
    rank.receive(KEYS[num:])
    assert rank.draw(len(KEYS)) == all_of_them[len(there) :]


def statics_of(simulation: int) -> dict[str, np.ndarray]:
    """The static fields of a simulation; of the second one each has another number of rows, perhaps none."""
    return {"mesh": np.array([simulation, 0.5]), "edges": np.full(simulation % (LARGEST + 1), simulation + 0.25)}


def particles(simulation: int, step: int) -> np.ndarray:
    """A field of which each step has another number of rows, perhaps none."""
    return np.full((simulation + step) % (LARGEST + 1), 10.0 * simulation + step)


def fields_of(simulation: int, step: int) -> dict[str, np.ndarray]:
    """The fields of a step."""
    return {"u": np.array([simulation, step], np.float64), "p": particles(simulation, step)}


def slots_with(keys: Sequence[Key]) -> Slots:
    """Slot i holds the step of the i-th key."""
    slots = Slots({"u": (2,), "p": (LARGEST,)}, len(keys), {"mesh": (2,), "edges": (LARGEST,)}, ragged={"p", "edges"})
    slots.allocate({"u": np.float64, "p": np.float64})
    for slot, key in enumerate(keys):
        slots.simulation_ids[slot], slots.time_steps[slot] = key
        for name, value in fields_of(*key).items():
            slots.set_value(name, slot, value)
        slots.statics.put(key[0], statics_of(key[0]))
    return slots


def check_windows(samples: Sequence[RecordEntry], statics: Statics) -> None:
    """Check that a replay makes exactly the windows of these steps, with their fields and those sent once."""
    rank, keys = WindowRank(), [(it.simulation, it.time_step) for it in samples]
    for key, entry in zip(keys, samples, strict=True):
        rank.accept(key, entry.fields, statics[entry.simulation])
    assert rank.draw(len(KEYS)) == whole(keys)


RECORD = Recordings(
    name="a record of windows",
    content=Content(
        study=replace(
            SAMPLES.study,
            ranks=1,
            fields=(
                FieldSpec(name="u", shape=(2,)),
                FieldSpec(name="p", shape=(LARGEST,), ragged=True),
                FieldSpec(name="mesh", shape=(2,), per="simulation"),
                FieldSpec(name="edges", shape=(LARGEST,), per="simulation", ragged=True),
            ),
        ),
        keys=KEYS,
        slots=slots_with(KEYS),
        check=check_windows,
    ),
)


@dataclass(frozen=True, slots=True)
class Windows:
    """Checkpoints are saved while steps come and windows are drawn."""

    name: str = "checkpoints of windows"

    def prepare(self, folder: Path) -> Sequence[object]:
        store = folder / STORE
        start(store)
        good = WindowRank().go_on(store, Good(0, 0), 1, lambda fact: None)
        return [Started(1), good]

    def run(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        store, good = folder / STORE, Good(1, 1)
        rank = WindowRank.of(store, good)
        for _ in range(2):
            good = rank.go_on(store, good, 1, tell)

    def recover(self, folder: Path, told: Sequence[object], tell: Tell) -> None:
        store = folder / STORE
        good, incarnation = restart(store, told, tell)
        check(store, good)
        check(store, WindowRank.of(store, good).go_on(store, good, incarnation, tell))
