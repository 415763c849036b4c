"""The memory that the samples of a study take, compared with what the ranks of a node may use."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.server.plan import Plan, make_plan

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")
GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Limit:
    """The most bytes that the processes of this node may use, together, and where that is written."""

    num_bytes: int
    source: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """Bytes of one rank for its slots, the spare ones included, and for the validation store."""

    buffer: int
    validation: int

    @classmethod
    def of(cls, config: StudyConfig, plan: Plan, num_ranks: int) -> "MemoryNeed":
        """That of a rank when the buffer is full; validation simulations of unknown length are not counted."""
        steps, num_held_out = config.study.time_steps, config.validation.simulations
        num_rows = 0
        if steps is not None and config.buffer.routing == "steps":
            num_rows = -(-num_held_out * steps.num // num_ranks)
        elif steps is not None:
            num_rows = -(-num_held_out // num_ranks) * steps.num
        return cls(buffer=plan.buffer_bytes, validation=num_rows * plan.sample_bytes)

    @property
    def rank(self) -> int:
        return self.buffer + self.validation

    def problem(self, limit: Limit, num_ranks: int) -> str:
        """Why so many ranks cannot have it on one node; "" if they can."""
        needed = self.rank * num_ranks
        if needed <= limit.num_bytes:
            return ""
        together = "" if num_ranks == 1 else f", {_gib(needed)} for the {num_ranks} ranks of a node"
        return (
            f"buffer.capacity: the samples of a rank take {self}{together}, but this node has {_gib(limit.num_bytes)} "
            f"({limit.source}). Write a smaller capacity, give study.fields a smaller dtype, or use more memory"
        )

    def __str__(self) -> str:
        return f"{_gib(self.rank)} ({_gib(self.buffer)} for the buffer, {_gib(self.validation)} for validation)"


def lacking(config: StudyConfig, num_ranks: int, num_local: int) -> str:
    """Why `num_local` of the ranks cannot have their samples on this node; "" if they can."""
    limit = limit_of_node()
    return "" if limit is None else MemoryNeed.of(config, make_plan(config), num_ranks).problem(limit, num_local)


def shortage(config: StudyConfig, num_ranks: int, num_local: int) -> str:
    """What to warn of when others use so much of this node that the samples may not find room; "" if they do not."""
    free = free_on_node()
    needed = num_local * MemoryNeed.of(config, make_plan(config), num_ranks).rank
    if free is None or needed <= free.num_bytes:
        return ""
    return (
        f"the samples will take {_gib(needed)} of this node when the buffer is full, but {_gib(free.num_bytes)} are "
        f"free now ({free.source})"
    )


def limit_of_node(proc: Path = PROC, cgroup: Path = CGROUP) -> Limit | None:
    """The smallest of the memory of this machine and the limits of the cgroups of this process; None if unknown."""
    limits = [*_of_machine(proc, "MemTotal"), *_of_cgroups(proc, cgroup)]
    return min(limits, key=lambda it: it.num_bytes, default=None)


def free_on_node(proc: Path = PROC) -> Limit | None:
    """What could be used now without swapping; None if unknown."""
    return next(_of_machine(proc, "MemAvailable"), None)


def _of_machine(proc: Path, key: str) -> Iterator[Limit]:
    file = proc / "meminfo"
    for line in _text(file).splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name == key and words and words[0].isdigit():
            yield Limit(num_bytes=1024 * int(words[0]), source=f"{key} in {file}")


def _of_cgroups(proc: Path, root: Path) -> Iterator[Limit]:
    """Those of version 2 and of version 1, from the group of this process upwards."""
    for line in _text(proc / "self" / "cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if not controllers:
            yield from _upwards(root, path, "memory.max")
        elif "memory" in controllers.split(","):
            yield from _upwards(root / "memory", path, "memory.limit_in_bytes")


def _upwards(root: Path, path: str, name: str) -> Iterator[Limit]:
    # In a container the path may be that of the host, of which only the root is seen.
    group = root / path.lstrip("/")
    for folder in (group, *group.parents):
        text = _text(folder / name).strip()
        # "max", or in version 1 a number above all memory, means that there is none.
        if text.isdigit():
            yield Limit(num_bytes=int(text), source=str(folder / name))
        if folder == root:
            return


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.1f} GiB" if num_bytes >= GIB / 10 else f"{num_bytes / 2**20:,.1f} MiB"
