"""Server ranks without sockets or training: what they received and drew is saved in a folder, and taken back."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np

from stream_server.buffers import Buffer, Policy, Slots, num_slots_to_load
from stream_server.messages.client import Routing
from stream_server.messages.routing import Dealing
from stream_server.server.checkpoint.capture import StudyCapture
from stream_server.server.checkpoint.random_states import RandomStates
from stream_server.server.checkpoint.restore import Part, RankRestore, restore_rank
from stream_server.server.checkpoint.saver import write_files
from stream_server.server.intake.account import RankAccount, Received
from stream_server.server.intake.parameters import SimulationParameters
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.training.stream import BatchStream
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.normalization import Observed
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.folders import FolderWriter, PendingFile
from tests.fakes.intakes import make

Key = tuple[int, int]

NUM_HELD_OUT = 1
NUM_STEPS = 40
SPARE = 30
SEED = (7, 2, 2)


def value(key: Key) -> np.ndarray:
    """The field `u` of a step."""
    return np.array([*key, key[0] * key[1], 0.5])


class SavedStudyRank:
    """One rank. Steps of simulation 0 are held out."""

    def __init__(self, policy: Policy, rank: int = 0, num_ranks: int = 1, routing: Routing = Routing.STEPS) -> None:
        self.rank = rank
        self.num_ranks = num_ranks
        self.store = ValidationStore(NUM_HELD_OUT)
        self.intake = make(num=NUM_STEPS, rank=rank, dealing=Dealing(routing, num_ranks), validation=self.store)
        self.policy = policy
        self.buffer = Buffer(policy, slots_of(policy.capacity + SPARE))
        self.parameters = SimulationParameters()
        self.stream = BatchStream(
            self.buffer, StreamServer(), parameters_of=self.parameters.__getitem__, batch_size=1, phases=Phases()
        )
        self.observed = Observed({})
        self.observed.num_samples = 1
        self.position: int | None = None

    @property
    def num_drawn(self) -> int:
        return self.stream.num_drawn

    @property
    def num_withdrawn(self) -> int:
        return self.intake.settlement.num_withdrawn

    def receive(self, *keys: Key) -> None:
        """Accept steps, which then wait until the policy has room."""
        for key in keys:
            simulation, step = key
            self.intake.state.ledger[simulation].accept(range(step, step + 1))
            self.parameters[simulation] = np.array([simulation / 2])
            if simulation < NUM_HELD_OUT:
                self.store.add(simulation, step, {"u": value(key)}, {"u": True})
                continue
            [slot] = self.buffer.claim(1)
            slots = self.buffer.slots
            slots.simulation_ids[slot], slots.time_steps[slot] = key
            slots.arrays["u"][slot] = value(key)
            self.buffer.enqueue([slot])
            self.buffer.admit()

    def reject(self, key: Key) -> None:
        self.intake.state.ledger[key[0]].reject(range(key[1], key[1] + 1), "nonfinite")

    def withdraw(self, simulation: int) -> None:
        self.intake.settlement.num_withdrawn += self.buffer.withdraw(simulation)

    def draw(self, num: int, *, release: bool = True) -> list[Key]:
        """A batch, as far as there is one."""
        draw = self.buffer.draw(num, 0)
        if draw is None:
            return []
        self.stream.num_drawn += draw.num_first
        keys = self.keys(draw.slots)
        if release:
            self.buffer.release(draw)
        self.buffer.admit()
        return keys

    def keys(self, slots: Any) -> list[Key]:
        ids, steps = self.buffer.slots.simulation_ids[slots], self.buffer.slots.time_steps[slots]
        return list(zip(ids.tolist(), steps.tolist(), strict=True))

    @property
    def num_accepted_and_drawn(self) -> int:
        """How many of the samples that it has accepted were drawn by any rank."""
        account = self.account()
        accepted = sum(it.accepted for simulation, it in account.intake.items() if simulation >= NUM_HELD_OUT)
        return accepted - account.withdrawn - account.left

    def account(self) -> RankAccount:
        """The account of this rank if the study ended now."""
        return RankAccount(
            intake={
                simulation: Received(accepted=entry.num_accepted, rejected=dict(entry.reasons))
                for simulation, entry in self.intake.state.ledger.entries.items()
            },
            drawn=self.num_drawn,
            withdrawn=self.num_withdrawn,
            left=self.buffer.num_unseen + self.buffer.num_waiting,
        )

    def snapshot(self) -> ReceptionSnapshot:
        """A snapshot as a source takes it."""
        return ReceptionSnapshot(
            buffer=self.buffer.freeze(),
            validation=self.store.freeze(),
            state={"intake": self.intake.state_dict(), "parameters": self.parameters.state_dict()},
            sync_record=lambda: self.position,
        )

    def save(self, folder: Path) -> None:
        """Write the part of this rank into the folder of a checkpoint."""
        step: Any = SimpleNamespace(random_state=lambda: {"cpu": self.rank})
        parts = {"stream": self.stream, "normalization": self.observed, "random": RandomStates(step)}
        write_rank(folder, self.snapshot(), self.buffer, rank=self.rank, num_ranks=self.num_ranks, parts=parts)

    @classmethod
    def of(cls, restored: RankRestore, policy: Policy, rank: int = 0, num_ranks: int = 1) -> "SavedStudyRank":
        """A rank that took back its part."""
        it = cls(policy, rank, num_ranks)
        num_slots = num_slots_to_load(restored.buffer, capacity=policy.capacity, planned=policy.capacity + SPARE)
        it.buffer = Buffer(policy, slots_of(num_slots))
        restored.into_buffer(it.buffer)
        restored.into_store(it.store)
        it.observed.num_samples = 0
        restored.load(
            {"intake": it.intake, "parameters": it.parameters, "stream": it.stream, "normalization": it.observed}
        )
        it.intake.restore_waiting(restored.waiting)
        return it


def write_rank(
    folder: Path,
    taken: ReceptionSnapshot,
    buffer: Buffer,
    *,
    rank: int,
    num_ranks: int,
    parts: Mapping[str, Part] = MappingProxyType({}),
) -> None:
    """Write what a rank saves, if this is what it has received and nobody has a model, into a checkpoint's folder."""
    write_files(FolderWriter(folder), files_of_rank(taken, buffer, rank=rank, num_ranks=num_ranks, parts=parts))


def files_of_rank(
    taken: ReceptionSnapshot, buffer: Buffer, *, rank: int, num_ranks: int, parts: Mapping[str, Part]
) -> list[PendingFile]:
    """The files that a rank saves then."""
    nothing = SimpleNamespace(
        quiesce=lambda: None,
        synchronize=lambda: None,
        fingerprints=dict,
        shards=dict,
        compare_saved=lambda: None,
        state_dict=dict,
    )
    # The other ranks would say the same of a model that nobody has.
    ranks = SimpleNamespace(rank=rank, size=num_ranks, gather=lambda value: [value], broadcast=lambda value: value)
    capture = StudyCapture(
        config=SimpleNamespace(checkpoint=SimpleNamespace(allow_pickle=False), resolved=dict),  # type: ignore[arg-type]
        ranks=ranks,  # type: ignore[arg-type]
        incarnation=1,
        base=0,
        source=SimpleNamespace(snapshot=lambda: taken),  # type: ignore[arg-type]
        buffer=buffer,
        stream=nothing,  # type: ignore[arg-type]
        server=StreamServer(),
        step=nothing,  # type: ignore[arg-type]
        progress=Progress(num_ranks),
        callbacks=Callbacks(None),
        wall_s=lambda: 0.0,
        threads=(1,) * num_ranks,
        parts=parts,
    )
    return capture.capture()


def slots_of(num_slots: int) -> Slots:
    slots = Slots({"u": (4,)}, num_slots)
    slots.allocate({"u": np.float64})
    return slots


def deal(keys: Iterable[Key], ranks: list[SavedStudyRank], routing: Routing = Routing.STEPS) -> None:
    """Let each rank receive what its routing brings it."""
    for key in keys:
        rank = Dealing(routing, len(ranks)).server_rank(*key)
        ranks[rank].receive(key)


def save_all(ranks: list[SavedStudyRank], folder: Path) -> Path:
    for rank in ranks:
        rank.save(folder)
    return folder


def restore_all(
    folder: Path,
    num_saved: int,
    num_ranks: int,
    make_policy: Callable[[int], Policy],
    routing: Routing = Routing.STEPS,
) -> tuple[list[RankRestore], list[SavedStudyRank]]:
    """All ranks of a study that goes on."""
    restores = [
        restore_rank(
            folder,
            incarnation=1,
            num_saved=num_saved,
            rank=rank,
            dealing=Dealing(routing, num_ranks),
            policy=type(make_policy(rank)),
            seed=SEED,
        )
        for rank in range(num_ranks)
    ]
    ranks = [SavedStudyRank.of(it, make_policy(rank), rank, num_ranks) for rank, it in enumerate(restores)]
    if num_saved != num_ranks:
        accepted = [rank.num_accepted_and_drawn for rank in ranks]
        for number, rank in enumerate(ranks):
            gathered = None if number else accepted
            others: Any = SimpleNamespace(gather=lambda own, gathered=gathered: gathered)
            rank.stream.share_drawn(others, accepted[number])
    return restores, ranks
