"""`stream-study doctor`: what its checks find on machines of many kinds, and one look at this one."""

import json
import resource
import shutil
import socket
import subprocess
import sys
import sysconfig
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from stream_server.config import StudyConfig
from stream_server.doctor import checks
from stream_server.doctor.checks import CPU_TORCH, CommandOutput, Finding, Severity, as_table, conclusion, run
from stream_server.launcher.backends.registry import schedulers
from stream_server.machine import private_folder
from stream_server.machine.interpreter import python_command
from stream_server.server.run.plan import MemoryLimit
from tests.support.decoys import STANDARD, installed, write_decoys
from tests.support.launch import OPENMPI_PREFIX, alone
from tests.support.studies import StudyFolder

GOOD, NOTE, REPAIR = Severity
GIB = 2**30


def check(finding: Finding, severity: Severity, found: str, advice: str = "") -> None:
    assert finding.severity is severity
    assert found in finding.fact
    assert advice in finding.advice
    assert bool(advice) == bool(finding.advice)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> "Machine":
    return Machine(monkeypatch)


class Machine:
    """A machine on which programs print what a test says, and which is in no job."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patch = monkeypatch
        for name in [name for it in schedulers() for name in it.job_variables]:
            monkeypatch.delenv(name, raising=False)

    def has_programs(self, **paths: str) -> None:
        self.patch.setattr(shutil, "which", paths.get)

    def prints(self, output: str, name: str = '{"mpi": "MPICH 5.0.2"}') -> None:
        """What any program prints; `name` is what the rank prints that is asked for its MPI alone."""
        self.patch.setattr(
            checks, "run", lambda command, *_: CommandOutput(output=name if "--name" in command else output)
        )


def test_the_environment_of_this_python_must_be_the_one_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts"))
    check(checks.check_python(), GOOD, f"in {sys.prefix}; stream-server 0.")
    monkeypatch.setenv("PATH", str(tmp_path))
    check(checks.check_python(), REPAIR, sys.prefix, "not on the PATH: activate this environment")
    other = tmp_path / "stream-server"
    other.touch(0o755)
    check(checks.check_python(), REPAIR, sys.prefix, f"another one, {other}: activate this environment")


@pytest.mark.parametrize(
    ("gpus", "node_has_gpu", "gpu_build", "severity", "found", "advice"),
    [
        ([], False, "13.0", GOOD, "2.13.0 on the CPU, 8 cores", ""),
        (["H200", "H200"], True, "13.0", GOOD, "2.13.0 on 2 × H200", ""),
        ([], True, "13.0", NOTE, "on the CPU", "built for 13.0, finds no GPU"),
        ([], True, None, NOTE, "on the CPU", "built for CPUs: pip install --force-reinstall torch"),
    ],
)
def test_a_torch_that_does_not_find_the_gpu_of_its_node_is_noted(
    gpus: list[str],
    node_has_gpu: bool,
    gpu_build: str | None,
    severity: Severity,
    found: str,
    advice: str,
    machine: Machine,
    tmp_path: Path,
) -> None:
    machine.prints(json.dumps({"version": "2.13.0", "gpu_build": gpu_build, "gpus": gpus}))
    machine.patch.setattr(checks, "GPUS", (str(tmp_path),) if node_has_gpu else ())
    machine.patch.setattr(checks, "within_quota", lambda _: 8)
    check(checks.check_torch(), severity, found, advice)


def test_without_torch_a_way_to_install_it_is_named(machine: Machine) -> None:
    machine.prints("Traceback\nNo module named 'torch'")
    check(checks.check_torch(), REPAIR, "cannot be imported: No module named 'torch'", CPU_TORCH)


@pytest.mark.parametrize(
    ("limit_gib", "free_gib", "severity", "found", "advice"),
    [
        (64, 60, GOOD, "64.0 GiB (MemTotal), 60.0 GiB free", ""),
        (4, 60, GOOD, "4.0 GiB (MemTotal), 4.0 GiB free", ""),
        (64, 1, NOTE, "1.0 GiB free", "stream-server --check"),
    ],
)
def test_little_free_memory_is_noted(
    limit_gib: int, free_gib: int, severity: Severity, found: str, advice: str, machine: Machine
) -> None:
    limit = MemoryLimit(num_bytes=limit_gib * GIB, source="MemTotal")
    free = MemoryLimit(num_bytes=free_gib * GIB, source="MemAvailable")
    machine.patch.setattr(checks, "limit_of_node", lambda: limit)
    machine.patch.setattr(checks, "free_on_node", lambda: free)
    check(checks.check_memory(), severity, found, advice)


def test_memory_of_which_nothing_is_known_is_no_fault(machine: Machine) -> None:
    machine.patch.setattr(checks, "limit_of_node", lambda: None)
    check(checks.check_memory(), GOOD, "not known")


@pytest.mark.parametrize(
    ("hard", "severity", "found", "advice"),
    [
        (resource.RLIM_INFINITY, GOOD, "unlimited", ""),
        (4096, GOOD, "4,096 (ulimit -Hn): 3,968 connections", ""),
        (1024, NOTE, "896 connections", "a flood of connections"),
        (256, NOTE, "128 connections", "have the limit raised"),
        (64, REPAIR, "0 connections", "have the limit raised"),
    ],
)
def test_the_hard_limit_on_open_files_is_judged(
    hard: int, severity: Severity, found: str, advice: str, machine: Machine
) -> None:
    machine.patch.setattr(resource, "getrlimit", lambda _: (64, hard))
    check(checks.check_open_files(), severity, found, advice)


def test_a_server_must_be_able_to_listen_and_its_host_name_should_lead_to_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "localhost")
    check(checks.check_ports(), GOOD, f"TCP at localhost, and sockets in {private_folder.place()}")
    monkeypatch.setattr(socket, "gethostname", lambda: "node.invalid")
    check(checks.check_ports(), NOTE, "node.invalid does not lead here: ", "nodes need that; see network.interface")
    monkeypatch.setattr(private_folder, "place", lambda: Path("/nowhere"))
    check(checks.check_ports(), REPAIR, "no socket in /nowhere: [Errno 2]", "set TMPDIR")

    def not_permitted(*_: object, **__: object) -> None:
        raise OSError("not permitted")

    monkeypatch.setattr(socket, "create_server", not_permitted)
    check(checks.check_ports(), REPAIR, "no port: not permitted", "TCP")


def test_a_scheduler_is_noted_outside_of_its_jobs(machine: Machine) -> None:
    machine.has_programs()
    check(checks.check_scheduler(), GOOD, "none")
    machine.has_programs(sbatch="/bin/sbatch")
    check(checks.check_scheduler(), NOTE, "Slurm (sbatch)", "run the doctor in a job")
    machine.has_programs(qsub="/bin/qsub")
    machine.patch.setenv("PBS_JOBID", "17")
    check(checks.check_scheduler(), GOOD, "PBS or Grid Engine (qsub), in job 17")


NONE = "mpi4py loads no MPI: cannot load MPI library. Install one with `pip install mpich`"
WRONG = (
    "this rank was started by the mpirun of Open MPI, but the MPI here is MPICH 5.0.2: start it with /env/bin/mpirun"
)


@pytest.mark.parametrize(
    ("output", "severity", "advice"),
    [
        ('{"size": 2}\n{"size": 2}', GOOD, ""),
        ("srun: error: no", REPAIR, "a variable names Slurm as the launcher"),
        (f'{{"problem": "{WRONG}"}}', REPAIR, WRONG),
        # Each rank a world of its own: an mpirun that leaves no sign of itself.
        ('{"size": 1}\n{"size": 1}', REPAIR, "do not find each other: use the mpirun of MPICH 5.0.2"),
        ("no route to host", REPAIR, "it failed: no route to host"),
        ('{"size": 2}\nKilled', REPAIR, "… Killed"),
    ],
)
def test_an_mpirun_is_good_if_its_ranks_find_each_other(
    output: str, severity: Severity, advice: str, machine: Machine
) -> None:
    machine.has_programs(mpirun="/env/bin/mpirun")
    machine.prints(output)
    check(checks.check_mpi(), severity, "MPICH 5.0.2, /env/bin/mpirun -n 2", advice)


def test_what_a_rank_says_of_its_mpi_is_told_as_it_is(machine: Machine) -> None:
    machine.has_programs(mpirun="/env/bin/mpirun")
    machine.prints(f'{{"problem": "{WRONG}"}}')
    assert checks.check_mpi().advice == WRONG


def test_an_mpirun_is_tried_with_as_many_ranks_as_the_study_has(machine: Machine, tmp_path: Path) -> None:
    config = StudyFolder(tmp_path / "study").load({"server.ranks": 3})
    machine.has_programs(mpirun="/env/bin/mpirun")
    machine.prints('{"size": 1}\n' * 3)
    check(checks.check_mpi(config), REPAIR, "/env/bin/mpirun -n 3", "do not find each other")


def test_ranks_that_die_beside_little_shared_memory_are_told_of_it(machine: Machine) -> None:
    machine.has_programs(mpirun="/env/bin/mpirun")
    machine.prints("Bus error")
    machine.patch.setattr(checks, "SHARED_MEMORY", "/")
    machine.patch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4 * 2**20))
    check(
        checks.check_mpi(), REPAIR, "MPICH", "/ has 4.0 MiB free, and the memory that ranks share is there: give it 32"
    )


def test_without_an_mpirun_another_program_may_start_the_ranks(machine: Machine) -> None:
    machine.has_programs()
    machine.prints("", name=f'{{"problem": "{NONE}"}}')
    check(checks.check_mpi(), REPAIR, "none", NONE)
    machine.prints("")
    check(checks.check_mpi(), REPAIR, "MPICH 5.0.2, no mpirun", "put the mpirun of MPICH 5.0.2 on the PATH")
    machine.has_programs(srun="/bin/srun")
    check(checks.check_mpi(), NOTE, "MPICH 5.0.2, no mpirun", "start the ranks with /bin/srun")


def test_the_table_shows_each_verdict_and_its_advice_and_the_last_line_what_to_repair() -> None:
    found = [
        Finding("torch", "2.13.0 [cpu]"),
        Finding("MPI", "none", REPAIR, "pip install mpich"),
    ]
    shown = StringIO()
    Console(width=60, file=shown).print(as_table(found))
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines == [["good", "torch", "2.13.0", "[cpu]"], ["repair", "MPI", "none"], ["pip", "install", "mpich"]]
    assert conclusion(found) == "to repair: MPI"
    assert conclusion(found[:1]) == "ready: stream-study new heat my-study"


def test_a_path_is_not_cut_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/" + "/".join(["a folder of a cluster"] * 20)
    monkeypatch.setattr(checks, "examine", lambda _: [Finding("Python", f"3.11.7 in {path}")])
    assert checks.report() == 0
    assert path in capsys.readouterr().out


def test_a_program_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    done = run(["sh", "-c", "echo first; sleep 60 & sleep 60"], 0.2)
    assert done.output == "first\n\nit did not end within 0 s"


def test_a_program_that_is_not_there_is_a_fact() -> None:
    assert run(["/nowhere/mpirun"], 1.0).last_line == "/nowhere/mpirun cannot be run: No such file or directory"


def test_answers_are_found_among_what_else_is_printed() -> None:
    said = 'warning: {"size": 3\n{broken}\n[1]\n{"size": 2}\n{"size": 1}{"problem": "{"}\n\n{'
    assert CommandOutput(output=said).answers == [{"size": 2}, {"size": 1}, {"problem": "{"}]


def test_a_rank_that_finds_no_mpi_says_how_to_get_one() -> None:
    environment = alone([]).environment | {"PMI_RANK": "0", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    for arguments in ([], ["--name"]):
        command = [sys.executable, "-m", "stream_server.doctor.rank", *arguments]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
        (told,) = CommandOutput(output=said).answers
        assert told["problem"].startswith("mpi4py loads no MPI: cannot load MPI library /nowhere/libmpi.so")
        assert "Install one with `pip install mpich`" in told["problem"]


def with_first_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, config: StudyConfig | None = None) -> Finding:
    """The MPI that is found with this folder first on the PATH, for a study if there is one."""
    environment = alone([]).environment
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.prefix) / 'bin'}:{environment['PATH']}")
    return checks.check_mpi(config)


@pytest.mark.slow
def test_a_machine_on_which_the_tests_run_is_ready_whatever_files_are_where_one_stands(tmp_path: Path) -> None:
    here, notes = tmp_path / "here", tmp_path / "notes"
    here.mkdir()
    write_decoys(here, STANDARD | installed(), notes)
    command = python_command("-m", "stream_server.commands.cli", "doctor")
    environment = alone([]).environment | {"COLUMNS": "300"}
    done = subprocess.run(command, cwd=here, env=environment, capture_output=True, text=True, timeout=150)
    assert not notes.exists()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 ranks found each other" in done.stdout
    assert done.stdout.splitlines()[-1] == "ready: stream-study new heat my-study"


@pytest.mark.slow
def test_an_mpirun_that_mixes_what_its_ranks_print_is_good(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(f"#!/bin/sh\n'{Path(sys.executable).with_name('mpirun')}' \"$@\" | tr -d '\\n'\n")
    mpirun.chmod(0o755)
    found = with_first_on_the_path(tmp_path, monkeypatch)
    assert found.severity is GOOD
    assert "2 ranks found each other" in found.fact


HANGING = """#!/bin/sh
[ -z "$SLURM_TASKS_PER_NODE" ] || { echo "srun: error: no controller answers"; echo "[mpiexec] stuck"; exec sleep 100; }
exec '%s' "$@"
"""


@pytest.mark.slow
def test_an_mpirun_that_hangs_where_a_study_would_is_to_be_repaired(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MPICH's has Slurm start its ranks where these variables are, whether there is a cluster or not."""
    mpirun = tmp_path / "mpirun"
    mpirun.write_text(HANGING % Path(sys.executable).with_name("mpirun"))
    mpirun.chmod(0o755)
    monkeypatch.setattr(checks, "MPIRUN_LIMIT_S", 1.0)
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_TASKS_PER_NODE", "2")
    found = with_first_on_the_path(tmp_path, monkeypatch)
    assert found.severity is REPAIR
    assert "srun: error: no controller answers … it did not end within 1 s. SLURM_JOB_ID is 17" in found.advice


@pytest.mark.slow
def test_the_mpirun_of_another_mpi_is_to_be_repaired_and_the_right_one_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"):
        monkeypatch.setenv(name, "1")
        monkeypatch.setenv(f"{name}_CONFIRM", "1")
    found = with_first_on_the_path(OPENMPI_PREFIX / "bin", monkeypatch)
    assert found.severity is REPAIR
    assert "started by the mpirun of Open MPI, but the MPI here is MPICH" in found.advice
    assert f"start it with {Path(sys.executable).with_name('mpirun')}" in found.advice
    assert conclusion([found]) == "to repair: MPI"


@pytest.mark.slow
def test_as_many_ranks_are_tried_as_the_study_has_and_as_stream_launcher_starts_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What fails with the ranks of a study, such as a small /dev/shm, does not fail with two."""
    study = StudyFolder(tmp_path / "study")
    good = with_first_on_the_path(tmp_path, monkeypatch, study.load({"server.ranks": 3}))
    assert good.severity is GOOD
    assert good.fact.endswith("mpirun -n 3: 3 ranks found each other")
    own = tmp_path / "start-ranks"
    own.write_text('#!/bin/sh\necho "$WORD: $TMPDIR: $*"; exit 1\n')
    own.chmod(0o755)
    job = {"mpirun": [str(own)], "environment": {"WORD": "of the study"}}
    monkeypatch.setenv("PBS_JOBID", "17")
    of_a_job = study.load({"server.ranks": 3, "server.backend": "pbs", "server.job": job})
    bad = with_first_on_the_path(tmp_path, monkeypatch, of_a_job)
    assert bad.severity is REPAIR
    assert f"stream-launcher's {own} -n 3" in bad.fact
    assert f"it failed: of the study: {private_folder.new_name().parent / private_folder.PREFIX}" in bad.advice
