"""The command lines of parallel simulations, and real mpiruns of both MPIs as jobs."""

import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from stream_server.config import StudyConfig, load
from stream_server.errors import ConfigError
from stream_server.launcher.backends import mpirun
from stream_server.launcher.backends.backend import JobSpec, JobState, JobStatus
from stream_server.launcher.backends.local import LocalBackend
from stream_server.launcher.backends.mpirun import Mpirun, missing_program, shown
from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.machine import processes
from tests.support.connections import NOWHERE
from tests.support.launch import IMPLEMENTATIONS, MPICH_PREFIX, OPENMPI_PREFIX
from tests.support.studies import StudyFolder
from tests.support.timing import until

pytestmark = pytest.mark.slow

PREFIXES = {"mpich": MPICH_PREFIX, "openmpi": OPENMPI_PREFIX}
PARALLEL = {"simulation.ranks": 2, "simulation.command": ["solver", "--id", "{simulation}"]}

Make = Callable[..., StudyConfig]


@pytest.fixture
def study(tmp_path: Path) -> Make:
    """`study({...}, version="…")` is a study whose simulations find an mpirun that says it is of this version."""

    def make(changes: dict[str, object], version: str = "HYDRA build details:") -> StudyConfig:
        folder = StudyFolder(tmp_path)
        program = folder.write("bin/mpirun", f"#!/bin/sh\necho '{version}'\n")
        program.chmod(0o755)
        path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
        environment = {"simulation.job.environment": {"PATH": path}}
        return load(folder.study({**PARALLEL, "launcher.max_running": 4, **environment, **changes}))

    return make


def line(config: StudyConfig, *programs: list[str]) -> list[str]:
    """The arguments that follow the name of the program."""
    found = Mpirun.of(config)
    assert found is not None
    program, *words = found.line(*programs)
    assert Path(program).is_absolute()
    return words


@pytest.mark.parametrize(
    ("words", "is_missing"),
    [
        (["sh", "solve.sh"], True),
        (["sh", "there.sh"], False),
        (["sh", "/no-such-folder/solve.sh"], True),
        (["sh", "-c", "true"], False),
        (["sh", "{study_dir}/solve.sh"], False),
        (["sh"], False),
        (["env", "solve.sh"], False),
    ],
)
def test_a_script_that_an_interpreter_would_not_find_is_missing(
    study: Make, tmp_path: Path, words: list[str], *, is_missing: bool
) -> None:
    (tmp_path / "there.sh").touch()
    assert bool(missing_program(study({"simulation.command": words}))) == is_missing


@pytest.mark.parametrize("words", [["sh", "made.sh"], ["./made.sh"]], ids=" ".join)
def test_a_script_may_come_with_the_templates(study: Make, tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "input.txt").touch()
    config = study({"simulation.command": words, "simulation.templates": ["input.txt"]})
    assert missing_program(config) == ""


@pytest.mark.parametrize(("starter", "is_missing"), [("mpirun", True), ("mpiexec.hydra", True), ("env", False)])
def test_a_program_that_is_not_here_may_be_where_another_program_starts_it(
    study: Make, starter: str, *, is_missing: bool
) -> None:
    config = study({"simulation.command": ["/opt/solver"], "simulation.job.mpirun": [starter, "-n", "{ranks}"]})
    assert bool(missing_program(config)) == is_missing


def test_a_simulation_of_one_rank_that_is_alone_needs_no_mpirun(study: Make) -> None:
    config = study({"simulation.ranks": 1})
    assert Mpirun.of(config) is None
    assert shown(config) == "solver --id '{simulation}'"


def test_a_simulation_of_one_rank_gets_the_mpirun_that_the_study_names(study: Make) -> None:
    config = study({"simulation.ranks": 1, "simulation.job.mpirun": ["mpirun", "--launcher", "fork"]})
    assert line(config, ["solver"]) == ["--launcher", "fork", "-n", "1", "solver"]


def test_mpirun_is_that_of_the_path_of_the_simulations(study: Make, tmp_path: Path) -> None:
    config = study({})
    assert shown(config) == f"{tmp_path / 'bin' / 'mpirun'} -n 2 solver --id '{{simulation}}'"


def test_an_mpirun_that_a_relative_path_leads_to_is_found_from_any_folder(
    study: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = study({"simulation.job.environment": {"PATH": "bin"}})
    assert mpirun.require(config) == str(tmp_path / "bin" / "mpirun")


@pytest.mark.parametrize("version", ["mpirun (Open MPI) 5.0.11", "mpirun (Open MPI) 4.1.4", "OpenRTE 4"])
def test_open_mpi_is_kept_from_binding_all_simulations_to_the_same_cores(
    study: Make, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--bind-to", "none", "--oversubscribe"]
    monkeypatch.setattr(mpirun.os, "geteuid", lambda: 1000)
    assert line(study({}, version), ["a"]) == [*options, "-n", "2", "a"]
    monkeypatch.setattr(mpirun.os, "geteuid", lambda: 0)
    assert line(study({}, version), ["a"]) == [*options, "--allow-run-as-root", "-n", "2", "a"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["mpirun", "-np", "{ranks}", "--mca", "a=b"], ["-np", "2", "--mca", "a=b"]),
        (["mpirun", "--tasks={ranks}"], ["--tasks=2"]),
        (["mpirun", "--quiet"], ["--quiet", "-n", "2"]),
        (["mpirun"], ["-n", "2"]),
    ],
    ids=str,
)
def test_the_command_template_comes_before_the_program(study: Make, words: list[str], expected: list[str]) -> None:
    # What the study says itself is not added to, whatever the MPI.
    config = study({"simulation.job.mpirun": words}, "mpirun (Open MPI) 5.0.11")
    assert line(config, ["a", "b"]) == [*expected, "a", "b"]


def test_programs_of_one_job_are_separated_by_colons(study: Make) -> None:
    config = study({"simulation.per_job": 3})
    assert line(config, ["a", "1"], ["b"], ["c"]) == ["-n", "2", "a", "1", ":", "-n", "2", "b", ":", "-n", "2", "c"]
    assert shown(config).endswith("mpirun -n 2 solver --id '{simulation}' : … (3 simulations in one job)")


def test_simulations_of_one_rank_can_share_a_job(study: Make) -> None:
    config = study({"simulation.per_job": 2, "simulation.ranks": 1})
    assert line(config, ["a"], ["b"]) == ["-n", "1", "a", ":", "-n", "1", "b"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"simulation.job.mpirun": ["no_such_mpirun"]}, "simulation.job.mpirun: 'no_such_mpirun' was not found"),
        ({"simulation.job.environment": {"PATH": "/nowhere"}}, "mpirun was not found on the PATH of the simulations"),
    ],
    ids=str,
)
def test_a_missing_mpirun_is_told_with_advice(study: Make, changes: dict[str, object], told: str) -> None:
    config = study(changes)
    for find in (Mpirun.of, mpirun.require, shown):
        with pytest.raises(ConfigError, match=told):
            find(config)


@pytest.fixture
def jobs() -> Iterator[LocalBackend]:
    with closing(LocalBackend(grace_s=3.0)) as jobs:
        yield jobs


RANK = """
import os, sys, time
names = "STREAM_CONNECTION STREAM_SIMULATION_ID STREAM_ATTEMPT MELISSA_SIMU_ID".split()
with open(f"rank-{os.getpid()}", "w") as file:
    print(*(os.environ[name] for name in names), len(os.sched_getaffinity(0)), file=file)
print(*sys.argv[1:])
"""
SLEEPING = RANK + "time.sleep(120)\n"
DEAF = "import signal\nfor number in (1, 2, 15): signal.signal(number, signal.SIG_IGN)\n" + SLEEPING
# MPICH's mpirun takes no notice of a process that ends before it called MPI_Init.
PARALLEL_RANK = "from mpi4py import MPI\n" + SLEEPING


class World:
    """Attempts 0 of some simulations that run `code` on two ranks each, under one of the MPIs."""

    def __init__(self, folder: Path, mpi: str, code: str, num: int) -> None:
        prefix = PREFIXES[mpi]
        (folder / "rank.py").write_text(code)
        path = f"{prefix / 'bin'}{os.pathsep}{os.environ['PATH']}"
        changes = {
            "simulation.ranks": 2,
            "simulation.per_job": num,
            "launcher.max_running": num,
            "simulation.command": [str(prefix / "bin" / "python"), "rank.py", "a b", "$HOME", ";"],
            "simulation.job.environment": {"PATH": path},
        }
        config = load(StudyFolder(folder).study(changes))
        found = Mpirun.of(config)
        assert found is not None
        assert ("--bind-to" in found.words) == (mpi == "openmpi")
        self.mpirun = found
        self.attempts = AttemptFolders(
            command=config.simulation.command or (),
            templates=(),
            environment=mpirun.simulation_environment(config),
            seed=0,
            study_dir=folder,
            output_dir=folder / "a run",
        )
        self.specs = [self.attempts.prepare(it, 0, {}, NOWHERE, None) for it in range(num)]
        self.job: JobSpec = self.mpirun.job(self.specs)

    def ranks(self, simulation: int) -> list[Path]:
        return list(self.specs[simulation].folder.glob("rank-*"))

    def wait_for_ranks(self) -> None:
        until(
            lambda: all(len([it for it in self.ranks(i) if it.read_text()]) == 2 for i in range(len(self.specs))),
            told=(self.job.folder / "output.log").read_text,
        )

    def running(self) -> list[processes.Process]:
        return [it for it in processes.running("STREAM_CONNECTION") if it.mark in self.job.marks]


def wait_for_end(jobs: LocalBackend, handle: str) -> JobStatus:
    return until(lambda: (it := jobs.query([handle])[handle]).state is JobState.ENDED and it)


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
@pytest.mark.parametrize("num", [1, 2])
def test_each_rank_knows_its_simulation_and_runs_in_its_folder_on_all_cores(
    jobs: LocalBackend, tmp_path: Path, mpi: str, num: int
) -> None:
    world = World(tmp_path, mpi, RANK, num)
    handle = jobs.submit(world.job)
    assert wait_for_end(jobs, handle).exit_code == 0
    for simulation, spec in enumerate(world.specs):
        connection, *others = (str(spec.folder / "connection.json"), simulation, 0, simulation)
        told = f"{connection} {' '.join(map(str, others))} {len(os.sched_getaffinity(0))}\n"
        assert [it.read_text() for it in world.ranks(simulation)] == [told, told]
        # What two ranks print at the same time may mix.
        assert Counter((spec.folder / "output.log").read_text()) == Counter(2 * "a b $HOME ;\n")
        if num > 1:
            assert (spec.folder / "ranks.exit").read_text() == "0\n0\n"


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
@pytest.mark.parametrize(
    ("code", "num"),
    [(SLEEPING, 2), pytest.param(SLEEPING, 1, marks=pytest.mark.full), (DEAF, 1)],
    ids=["two", "one", "deaf"],
)
def test_a_cancel_ends_all_ranks_and_what_started_them(
    jobs: LocalBackend, tmp_path: Path, mpi: str, code: str, num: int
) -> None:
    world = World(tmp_path, mpi, code, num)
    handle = jobs.submit(world.job)
    world.wait_for_ranks()
    assert len(world.running()) >= 2 * num + 1
    jobs.cancel([handle])
    assert wait_for_end(jobs, handle).exit_code != 0
    assert world.running() == []
    # A rank that was cancelled has done nothing wrong.
    assert not (world.specs[-1].folder / "ranks.exit").exists()


@pytest.mark.parametrize("mpi", IMPLEMENTATIONS)
def test_a_rank_that_is_killed_ends_the_job_and_leaves_its_trace(jobs: LocalBackend, tmp_path: Path, mpi: str) -> None:
    world = World(tmp_path, mpi, PARALLEL_RANK, 2)
    handle = jobs.submit(world.job)
    world.wait_for_ranks()
    os.kill(int(world.ranks(1)[0].name.removeprefix("rank-")), signal.SIGKILL)
    assert wait_for_end(jobs, handle).exit_code not in (0, None)
    assert world.running() == []
    assert not (world.specs[0].folder / "ranks.exit").exists()
    assert (world.specs[1].folder / "ranks.exit").read_text() == "137\n"
