"""What users' code leaves behind does not keep a study from ending."""

from collections.abc import Callable

import pytest

from tests.support.runs import Run, assert_complete

full = pytest.mark.full
THROUGH_A_PIPE = ["bash", "-c", 'set -o pipefail; "$@" 2>&1 | cat', "bash"]
SAID = {
    "thread": "the command is done, but its process has not ended after 10 s: the thread 'plotter'",
    "child": "(sleep 4321) was left behind and holds the output of this command",
}


@pytest.mark.parametrize(
    ("holds", "mpi", "program"),
    [
        ("thread", "mpich", "stream-server"),
        pytest.param("thread", "openmpi", "stream-server", marks=full),
        pytest.param("thread", None, "stream-server", marks=full),
        pytest.param("thread", None, "stream-launcher", marks=full),
        ("child", "mpich", "stream-server"),
        pytest.param("child", "openmpi", "stream-server", marks=full),
        pytest.param("child", None, "stream-launcher", marks=full),
    ],
)
def test_a_study_ends_with_its_exit_code_and_names_what_its_class_left_behind(
    run: Callable[..., Run], holds: str, mpi: str | None, program: str
) -> None:
    num_ranks = 1 if mpi is None else 2
    settings = {
        "server.class": "holding_server.py:HoldingServer",
        "study.simulations": 2,
        "user": {"trouble": "none", "holds": holds, "rank": num_ranks - 1},
    }
    if program == "stream-launcher":
        settings["server.ranks"] = num_ranks
    done = run(num_ranks=num_ranks, mpi=mpi, program=program, settings=settings, within=THROUGH_A_PIPE)
    assert_complete(done, num_simulations=2)
    assert SAID[holds] in done.output
