"""A server rank without sockets, MPI or training: what clients say goes in as frames, what it answers comes out."""

from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from stream_server.buffers import Slots
from stream_server.messages import wire
from stream_server.messages.client import FieldSpec, Message, Routing, TimeSteps
from stream_server.messages.curve import KeyPair
from stream_server.messages.routing import Dealing
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.dispatcher import Dispatcher
from stream_server.storage.plain_state import from_bytes, to_bytes

Key = tuple[int, int]
STUDY = "s"
U = FieldSpec(name="u", shape=(4,), dtype="<f8")
V = FieldSpec(name="v", shape=(), dtype="<i4", optional=True)


@dataclass(frozen=True, kw_only=True)
class StudyShape:
    """The settings that all ranks of a study share, and their sizes."""

    routing: Routing
    num_steps: int | None
    credit: int
    room: int
    capacity: int
    fields: tuple[FieldSpec, ...]


def is_fit(key: Key) -> bool:
    """Whether a step can be trained on; the others have NaN in them."""
    return sum(key) % 5 != 3


def u_of(key: Key) -> npt.NDArray[np.float64]:
    """The field `u` of a step."""
    first = float(key[0]) if is_fit(key) else np.nan
    return np.array([first, key[1], key[0] * 100 + key[1], 0.5])


class Frames:
    """The payload of one message, as a `filling.Payload`."""

    def __init__(self, frames: Sequence[Any]) -> None:
        self._frames = deque(bytes(frame) for frame in frames)

    def more(self) -> bool:
        return bool(self._frames)

    def into(self, buffer: npt.NDArray[Any], /) -> int:
        frame = self._frames.popleft()
        memory = buffer.reshape(-1).view(np.uint8)
        memory[: len(frame)] = np.frombuffer(frame, np.uint8)[: len(memory)]
        return len(frame)

    def frame(self) -> memoryview:
        return memoryview(self._frames.popleft())


class Stream:
    """The training stream of one rank, in place of its buffer.

    Steps that are committed wait in `backlog` until there is room, `num_waited` of them since an earlier start, and are
    `inside` until they are drawn. `came` are all steps that were ever committed on any rank: none may come twice.
    """

    windows = None

    def __init__(self, shape: StudyShape, came: set[Key], *, waiting: Sequence[Key], inside: Sequence[Key]) -> None:
        self.capacity = shape.capacity
        num_slots = shape.capacity + shape.room + len(waiting) + len(inside)
        self.slots = Slots({spec.name: spec.shape for spec in shape.fields}, num_slots)
        self.came = came
        self.num_waited = len(waiting)
        self.backlog = [self._hold(key) for key in waiting]
        self.inside = [self._hold(key) for key in inside]

    def _hold(self, key: Key) -> int:
        [slot] = self.slots.claim(1)
        self.slots.simulation_ids[slot], self.slots.time_steps[slot] = key
        return slot

    def restore_values(self) -> None:
        """Fill the slots of the steps that an earlier start had received, once there are arrays."""
        slots = [*self.backlog, *self.inside]
        for slot, key in zip(slots, self.keys(slots), strict=True):
            self.slots.arrays["u"][slot] = u_of(key)
            if "v" not in self.slots.arrays:
                continue
            if key[1] % 3:
                self.slots.arrays["v"][slot] = key[1]
            else:
                self.slots.leave_out("v", [slot])

    def keys(self, slots: Sequence[int]) -> list[Key]:
        ids, steps = self.slots.simulation_ids[slots], self.slots.time_steps[slots]
        return list(zip(ids.tolist(), steps.tolist(), strict=True))

    def claim(self, num: int) -> list[int]:
        return self.slots.claim(num)

    def discard(self, slots: Sequence[int]) -> None:
        self.slots.free(slots)

    def enqueue(self, slots: Sequence[int]) -> None:
        for slot, key in zip(slots, self.keys(slots), strict=True):
            assert key not in self.came, f"{key} came into the stream twice"
            assert is_fit(key)
            assert self.slots.arrays["u"][slot].tolist() == u_of(key).tolist()
            if "v" in self.slots.arrays:
                assert bool(self.slots.present["v"][slot]) == (key[1] % 3 != 0)
                assert self.slots.arrays["v"][slot] == (key[1] if key[1] % 3 else 0)
            self.came.add(key)
        self.backlog += slots

    def admit(self) -> list[int]:
        num = max(0, self.capacity - len(self.inside))
        admitted, self.backlog = self.backlog[:num], self.backlog[num:]
        self.inside += admitted
        return admitted

    def withdraw(self, simulation_id: int) -> int:
        gone = [slot for slot in (*self.backlog, *self.inside) if self.slots.simulation_ids[slot] == simulation_id]
        self.backlog = [slot for slot in self.backlog if slot not in gone]
        self.inside = [slot for slot in self.inside if slot not in gone]
        self.slots.free(gone)
        return len(gone)

    def steps_to_compare(self, simulation_id: int) -> dict[int, int]:
        slots = (*self.backlog, *self.inside)
        held = {self.slots.time_steps[slot]: slot for slot in slots if self.slots.simulation_ids[slot] == simulation_id}
        return {int(time_step): held[time_step] for time_step in sorted(held)[-1:]}

    def part(self, simulation_id: int, time_steps: Iterable[int], is_settled: Callable[[int], bool]) -> None:
        raise AssertionError(f"simulation {simulation_id} sent other values than before")

    def leave_out(self, simulation_id: int, time_step: int) -> None:
        pass

    def end(self, simulation_ids: Sequence[int]) -> None:
        pass

    def close(self, error: BaseException | None = None) -> None:
        raise NotImplementedError

    def draw(self) -> None:
        """The training takes the oldest sample."""
        self.slots.free([self.inside.pop(0)])


@dataclass(frozen=True, kw_only=True)
class Saved:
    """The part of one rank in a checkpoint."""

    intake: dict[str, Any]
    waiting: list[Key]
    inside: list[Key]
    received_marks: dict[bytes, int]


class ServerRank:
    """The receiving side of one rank, but for its sockets; `answers` has what each peer was told and has not read."""

    def __init__(
        self,
        shape: StudyShape,
        came: set[Key],
        *,
        rank: int,
        num_ranks: int,
        incarnation: int,
        saved: Sequence[Saved] = (),
    ) -> None:
        self.answers: defaultdict[bytes, deque[Message]] = defaultdict(deque)
        waiting, inside = _dealt(saved, rank, num_ranks)
        self.stream = Stream(shape, came, waiting=waiting, inside=inside)
        self.intake = Intake(
            IntakeState(
                rank=rank,
                dealing=Dealing(shape.routing, num_ranks),
                time_steps=TimeSteps(num=shape.num_steps),
                fields=shape.fields,
                study=STUDY,
                incarnation=incarnation,
                credit=shape.credit,
            ),
            buffer=self.stream,
            validation=ValidationStore(0),
            credit_slots=shape.room,
        )
        self.dispatcher = Dispatcher(
            intake=self.intake,
            access=CurveAccess(KeyPair.make()),
            reply=lambda peer, message: self.answers[peer].append(message),
            tell_main=lambda event: None,
        )
        if saved:
            states = [from_bytes(to_bytes(it.intake)) for it in saved]
            if len(saved) != num_ranks:
                self.intake.load_state_dict(Intake.redealt(states, rank, Dealing(shape.routing, num_ranks)))
            else:
                self.intake.load_state_dict(states[rank])
            self.stream.restore_values()
            self.intake.restore_waiting([simulation for simulation, _ in waiting])

    @property
    def settled(self) -> set[Key]:
        """The steps that the ledger of this rank has."""
        return {
            (simulation, index)
            for simulation, entry in self.intake.state.ledger.entries.items()
            for index in range(entry.settled.stop)
            if index in entry.settled
        }

    def hear(self, peer: bytes, message: Message, payload: Sequence[Any] = ()) -> None:
        """A message of a client arrives."""
        header, *frames = wire.encode(message, payload)
        self.dispatcher.hear(peer, bytes(header), Frames(frames), None)

    def save(self) -> Saved:
        """The part of a checkpoint that this rank saves; called between two turns."""
        self.intake.checkpoint_taken()
        return Saved(
            intake=self.intake.state_dict(),
            waiting=self.stream.keys(self.stream.backlog),
            inside=self.stream.keys(self.stream.inside),
            received_marks=self.dispatcher.acknowledgements.received_marks(),
        )


def _dealt(saved: Sequence[Saved], rank: int, num_ranks: int) -> tuple[list[Key], list[Key]]:
    if len(saved) == num_ranks:
        return saved[rank].waiting, saved[rank].inside
    waiting = [key for part in saved for key in part.waiting]
    inside = [key for part in saved for key in part.inside]
    return waiting[rank::num_ranks], inside[rank::num_ranks]
