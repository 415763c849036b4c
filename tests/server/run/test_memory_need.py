"""The memory of a study and of its node."""

from pathlib import Path

import pytest

from stream_server.server.run import plan
from stream_server.server.run.plan import (
    MemoryLimit,
    MemoryNeed,
    free_on_node,
    limit_of_node,
    make_plan,
    memory_warning,
)
from tests.support.studies import Changes, StudyFolder

GIB = 2**30
NONE_IN_V1 = "9223372036854771712\n"


def need(tmp_path: Path, changes: Changes, num_ranks: int = 1) -> MemoryNeed:
    config = StudyFolder(tmp_path).load(changes)
    return MemoryNeed.of(config, make_plan(config), num_ranks)


def node(tmp_path: Path, files: dict[str, str]) -> tuple[Path, Path]:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "proc", tmp_path / "cgroup"


MEMINFO = {"proc/meminfo": f"MemTotal:       {24 * 2**20} kB\nMemFree: 1 kB\nMemAvailable: {8 * 2**20} kB\n"}


def test_what_is_sent_once_per_simulation_counts_for_the_simulations_that_are_here(tmp_path: Path) -> None:
    fields = {"u": {"shape": [4]}, "mesh": {"shape": [1000], "dtype": "float32", "per": "simulation"}}
    changes = {
        "study.fields": fields,
        "study.time_steps": 10,
        "buffer.capacity": 95,
        "validation.simulations": 3,
    }
    with_mesh = need(tmp_path, changes)
    without = need(tmp_path, changes | {"study.fields": {"u": fields["u"]}})
    at_once = make_plan(StudyFolder(tmp_path).load(changes)).max_clients
    assert with_mesh.buffer - without.buffer == (at_once + 10) * 4000
    assert with_mesh.validation - without.validation == 3 * 4000


@pytest.mark.parametrize(
    ("files", "gib", "source"),
    [
        pytest.param({}, 24, "MemTotal in", id="no cgroup"),
        pytest.param(
            {"proc/self/cgroup": "0::/job/step\n", "cgroup/job/step/memory.max": "max\n"},
            24,
            "MemTotal in",
            id="v2: no",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/job/step\n", "cgroup/job/step/memory.max": f"{4 * GIB}\n"},
            4,
            "cgroup/job/step/memory.max",
            id="v2",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "0::/job/step\n",
                "cgroup/job/step/memory.max": f"{4 * GIB}\n",
                "cgroup/job/memory.max": f"{2 * GIB}\n",
            },
            2,
            "cgroup/job/memory.max",
            id="v2: the group above",
        ),
        pytest.param(
            {
                "proc/self/cgroup": "4:cpu,memory:/job\n0::/\n",
                "cgroup/memory/job/memory.limit_in_bytes": f"{3 * GIB}\n",
                "cgroup/memory/memory.limit_in_bytes": NONE_IN_V1,
            },
            3,
            "cgroup/memory/job/memory.limit_in_bytes",
            id="v1",
        ),
        pytest.param(
            {"proc/self/cgroup": "0::/docker/1234\n", "cgroup/memory.max": f"{5 * GIB}\n"},
            5,
            "cgroup/memory.max",
            id="in a container",
        ),
        pytest.param({"proc/self/cgroup": "junk\n:\n0::\n"}, 24, "MemTotal in", id="junk"),
    ],
)
def test_the_smallest_limit_counts(tmp_path: Path, files: dict[str, str], gib: int, source: str) -> None:
    limit = limit_of_node(*node(tmp_path, MEMINFO | files))
    assert limit is not None
    assert limit.num_bytes == gib * GIB
    assert source in limit.source


def test_what_is_free_is_what_the_kernel_calls_available(tmp_path: Path) -> None:
    free = free_on_node(node(tmp_path, MEMINFO)[0])
    assert free is not None
    assert free.num_bytes == 8 * GIB


def test_nothing_is_known_of_a_machine_without_these_files(tmp_path: Path) -> None:
    assert limit_of_node(tmp_path, tmp_path) is None
    assert free_on_node(tmp_path) is None


def test_this_machine_has_a_limit() -> None:
    limit, free = limit_of_node(), free_on_node()
    assert limit is not None
    assert free is not None
    assert limit.num_bytes > GIB // 4


def test_the_buffer_needs_all_of_its_slots(tmp_path: Path) -> None:
    plan = make_plan(StudyFolder(tmp_path).load({}))
    assert need(tmp_path, {}).buffer == plan.num_slots * plan.sample_bytes > plan.capacity * plan.sample_bytes


@pytest.mark.parametrize(("routing", "rows"), [("steps", 17), ("simulations", 20)])
def test_validation_simulations_are_dealt_out_over_the_ranks(tmp_path: Path, routing: str, rows: int) -> None:
    changes: Changes = {"validation.simulations": 5, "study.time_steps": 10, "buffer.routing": routing}
    config = StudyFolder(tmp_path).load(changes)
    assert need(tmp_path, changes, 3).validation == rows * make_plan(config).sample_bytes


def test_the_ranks_of_a_node_share_its_memory() -> None:
    limit = MemoryLimit(num_bytes=24 * GIB, source="MemTotal in /proc/meminfo")
    of_rank = MemoryNeed(buffer=11 * GIB, validation=GIB // 2)
    assert of_rank.problem(limit, 1) == of_rank.problem(limit, 2) == ""
    assert of_rank.problem(limit, 3) == (
        "buffer.capacity: the samples of a rank take 11.5 GiB (11.0 GiB for the buffer, 512.0 MiB for validation), "
        "34.5 GiB for the 3 ranks of a node, but this node has 24.0 GiB (MemTotal in /proc/meminfo). Write a smaller "
        "capacity, give study.fields a smaller dtype, or use more memory"
    )


@pytest.mark.parametrize(("free", "is_told"), [(None, False), (10 * GIB, False), (1, True)])
def test_memory_that_others_use_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int | None, is_told: bool
) -> None:
    limit = None if free is None else MemoryLimit(num_bytes=free, source="MemAvailable")
    monkeypatch.setattr(plan, "free_on_node", lambda: limit)
    told = memory_warning(StudyFolder(tmp_path).load(), 1, 1)
    assert ("are free now (MemAvailable)" in told) == is_told
    assert bool(told) == is_told
