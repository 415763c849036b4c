"""The sizes of a study, derived from study.json: slots, credit and connections of a rank, and the memory of a node.

Why: docs/decisions/0003-credit.md
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.machine.cgroups import CGROUPS, own_groups
from stream_server.machine.screen import size_shown
from stream_server.server.intake.credit import credit_per_simulation

HELD_BATCHES = 2
KEPT_SPANS = 2
SPARE_SHARE = 10

PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True, slots=True)
class RankPlan:
    """Sizes per server rank.

    `credit` is how many steps one simulation may have unacknowledged at this rank. All of them have a
    place beside a full buffer, so `num_slots` is capacity + credit × simulations at once + held batches + `spare`.
    The spare slots are for what leaves the buffer while a checkpoint is written and is not on disk yet.

    Where samples are windows, each of a full buffer may have slots of its own, so that capacity and held batches count
    `length` times. `most_kept` slots more are for steps that wait for others of their simulation, twice as many as
    simulations that send in order keep, and those of two windows for the step that is taken in. Memory is used for
    slots in use alone.
    """

    capacity: int
    credit: int
    max_clients: int
    spare: int
    most_kept: int
    num_slots: int
    sample_bytes: int
    connections: int

    @property
    def buffer_bytes(self) -> int:
        return self.num_slots * self.sample_bytes


def make_plan(config: StudyConfig) -> RankPlan:
    """Derive the sizes from the study; the credit is that of `credit_per_simulation`.

    With fewer spare slots than the credit of all simulations together, samples that waited for the buffer and were
    withdrawn while a checkpoint is written could keep others from finding a slot.
    """
    size = sum(spec.num_bytes for spec in config.study.step_fields.values())
    max_clients = config.max_simulations_at_once
    capacity = config.buffer.capacity
    credit = credit_per_simulation(
        retained_bytes=config.client.window, sample_bytes=size, capacity=capacity, max_simulations=max_clients
    )
    window = config.window
    length, span = (1, 0) if window is None else (window.length, window.span)
    num_held = HELD_BATCHES + config.training.prefetch
    full, held = capacity * length, num_held * config.training.batch_size * length
    under_way, most_kept = credit * max_clients, KEPT_SPANS * span * max_clients
    spare = max(-(-full // SPARE_SHARE), held, under_way)
    return RankPlan(
        capacity=capacity,
        credit=credit,
        max_clients=max_clients,
        spare=spare,
        most_kept=most_kept,
        num_slots=full + under_way + held + 1 + spare + most_kept + (0 if window is None else 2 * length),
        sample_bytes=size,
        connections=max_clients * config.simulation.ranks + 2,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryLimit:
    """The most bytes that the processes of this node may use, together, and where that is written."""

    num_bytes: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """Bytes of one rank for its slots, the spare ones included, and for the validation store."""

    buffer: int
    validation: int

    @classmethod
    def of(cls, config: StudyConfig, plan: RankPlan, num_ranks: int) -> "MemoryNeed":
        """The need of a rank when the buffer is full; validation simulations of unknown length are not counted.

        What is sent once per simulation counts for as few simulations as the samples in the buffer can be of.
        """
        steps, num_held_out = config.study.time_steps, config.validation.simulations
        in_steps = config.buffer.routing == "steps"
        share = num_held_out if in_steps else -(-num_held_out // num_ranks)
        num_rows, num_in_buffer = 0, 1
        if steps is not None:
            num_in_buffer = -(-plan.capacity // steps.num)
            num_rows = share * steps.num
            if in_steps:
                num_rows = -(-num_held_out * steps.num // num_ranks)
        static_bytes = sum(spec.num_bytes for spec in config.study.static_fields.values())
        return cls(
            buffer=plan.buffer_bytes + (plan.max_clients + num_in_buffer) * static_bytes,
            validation=num_rows * plan.sample_bytes + share * static_bytes,
        )

    @property
    def rank(self) -> int:
        return self.buffer + self.validation

    def problem(self, limit: MemoryLimit, num_ranks: int) -> str:
        """The error message if `num_ranks` ranks cannot have so much on one node; "" if they can."""
        needed = self.rank * num_ranks
        if needed <= limit.num_bytes:
            return ""
        together = "" if num_ranks == 1 else f", {size_shown(needed)} for the {num_ranks} ranks of a node"
        return (
            f"buffer.capacity: the samples of a rank take {self}{together}, but this node has "
            f"{size_shown(limit.num_bytes)} ({limit.source}). "
            "Write a smaller capacity, give study.fields a smaller dtype, or use more memory"
        )

    def __str__(self) -> str:
        parts = f"{size_shown(self.buffer)} for the buffer, {size_shown(self.validation)} for validation"
        return f"{size_shown(self.rank)} ({parts})"


def memory_problem(config: StudyConfig, num_ranks: int, num_local: int) -> str:
    """The error message if `num_local` of the ranks cannot have their samples on this node; "" if they can."""
    limit = limit_of_node()
    return "" if limit is None else MemoryNeed.of(config, make_plan(config), num_ranks).problem(limit, num_local)


def memory_warning(config: StudyConfig, num_ranks: int, num_local: int) -> str:
    """A warning if others use so much of this node that the samples may not fit; "" if they do not."""
    free = free_on_node()
    needed = num_local * MemoryNeed.of(config, make_plan(config), num_ranks).rank
    if free is None or needed <= free.num_bytes:
        return ""
    return (
        f"the samples will take {size_shown(needed)} of this node when the buffer is full, but "
        f"{size_shown(free.num_bytes)} are free now ({free.source})"
    )


def limit_of_node(proc: Path = PROC, cgroup: Path = CGROUPS) -> MemoryLimit | None:
    """The smallest of the memory of this machine and the limits of the cgroups of this process; None if unknown."""
    limits = [*_of_machine(proc, "MemTotal"), *_of_cgroups(proc, cgroup)]
    return min(limits, key=lambda limit: limit.num_bytes, default=None)


def free_on_node(proc: Path = PROC) -> MemoryLimit | None:
    """The memory that could be used now without swapping; None if unknown."""
    return next(_of_machine(proc, "MemAvailable"), None)


def _of_machine(proc: Path, key: str) -> Iterator[MemoryLimit]:
    file = proc / "meminfo"
    for line in _text(file).splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == key and words and words[0].isdigit():
            yield MemoryLimit(num_bytes=1024 * int(words[0]), source=f"{key} in {file}")


def _of_cgroups(proc: Path, root: Path) -> Iterator[MemoryLimit]:
    for group in own_groups("memory", root, proc / "self" / "cgroup"):
        for file in (group / "memory.max", group / "memory.limit_in_bytes"):
            # "max", or in version 1 a number above all memory, means that there is none.
            if (text := _text(file).strip()).isdigit():
                yield MemoryLimit(num_bytes=int(text), source=str(file))


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
