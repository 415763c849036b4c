"""`stream-study doctor`: what facts about a machine mean, and one look at this one."""

import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from stream_server.config import StudyConfig
from stream_server.doctor import examination, facts, findings
from stream_server.doctor.examination import as_table, conclusion
from stream_server.doctor.findings import CPU_TORCH, Finding, Severity
from stream_server.machine import private_folder
from stream_server.machine.interpreter import python_command
from stream_server.server.run.plan import MemoryLimit
from tests.support.decoys import STANDARD, installed, write_decoys
from tests.support.launch import OPENMPI_PREFIX, alone
from tests.support.studies import StudyFolder

GOOD, NOTE, REPAIR = Severity

PYTHON = facts.PythonFacts(
    version=(3, 12, 1),
    prefix="/env",
    package="0.1.0 in /env/lib",
    command="/env/bin/stream-server",
    is_own_command=True,
)
TORCH = facts.TorchFacts(version="2.13.0", gpu_build="13.0", num_cores=8)
MPI = facts.MpiFacts(mpi="MPICH 5.0.2", start="/env/bin/mpirun -n 2", sizes=(2, 2))
PORTS = facts.PortFacts(host="node1", folder="/tmp")


def memory(limit_gib: float, free_gib: float) -> facts.MemoryFacts:
    limit = MemoryLimit(num_bytes=int(limit_gib * 2**30), source="MemTotal")
    return facts.MemoryFacts(limit=limit, free=MemoryLimit(num_bytes=int(free_gib * 2**30), source="MemAvailable"))


@pytest.mark.parametrize(
    ("finding", "severity", "found", "advice"),
    [
        (findings.of_python(PYTHON), GOOD, "3.12.1 in /env; stream-server 0.1.0 in /env/lib", ""),
        (findings.of_python(replace(PYTHON, version=(3, 10, 0))), REPAIR, "3.10.0", "Python 3.11 or newer"),
        (findings.of_python(replace(PYTHON, command=None)), REPAIR, "/env", "activate this environment"),
        (
            findings.of_python(replace(PYTHON, command="/other/stream-server", is_own_command=False)),
            REPAIR,
            "/env",
            "another one, /other/stream-server: activate",
        ),
        (findings.of_torch(TORCH), GOOD, "2.13.0 on the CPU, 8 cores", ""),
        (findings.of_torch(replace(TORCH, gpus=("H200", "H200"))), GOOD, "2.13.0 on 2 × H200", ""),
        (findings.of_torch(facts.TorchFacts(error="No module named 'torch'")), REPAIR, "No module", CPU_TORCH),
        (findings.of_torch(replace(TORCH, node_has_gpu=True)), NOTE, "on the CPU", "built for 13.0, finds no GPU"),
        (
            findings.of_torch(replace(TORCH, node_has_gpu=True, gpu_build=None)),
            NOTE,
            "on the CPU",
            "built for CPUs: pip install --force-reinstall torch",
        ),
        (findings.of_memory(memory(64, 60)), GOOD, "64.0 GiB (MemTotal), 60.0 GiB free", ""),
        (findings.of_memory(memory(4, 60)), GOOD, "4.0 GiB (MemTotal), 4.0 GiB free", ""),
        (findings.of_memory(memory(64, 1)), NOTE, "1.0 GiB free", "stream-server --check"),
        (findings.of_memory(facts.MemoryFacts(limit=None, free=None)), GOOD, "not known", ""),
        (findings.of_files(facts.FileFacts(hard=None)), GOOD, "unlimited", ""),
        (findings.of_files(facts.FileFacts(hard=4096)), GOOD, "4,096 (ulimit -Hn): 3,968 connections", ""),
        (findings.of_files(facts.FileFacts(hard=1024)), NOTE, "896 connections", "a flood of connections"),
        (findings.of_files(facts.FileFacts(hard=256)), NOTE, "128 connections", "have the limit raised"),
        (findings.of_files(facts.FileFacts(hard=64)), REPAIR, "0 connections", "have the limit raised"),
        (findings.of_ports(PORTS), GOOD, "TCP at node1, and sockets in /tmp", ""),
        (findings.of_ports(replace(PORTS, tcp_error="not permitted")), REPAIR, "no port: not permitted", "TCP"),
        (findings.of_ports(replace(PORTS, folder_error="read-only")), REPAIR, "no socket in /tmp: read-only", "TMPDIR"),
        (findings.of_ports(replace(PORTS, host_error="unknown")), NOTE, "node1 does not lead here", "other nodes"),
        (findings.of_scheduler(facts.SchedulerFacts(found=())), GOOD, "none", ""),
        (findings.of_scheduler(facts.SchedulerFacts(found=("sbatch",))), NOTE, "Slurm (sbatch)", "run the doctor in a"),
        (
            findings.of_scheduler(facts.SchedulerFacts(found=("qsub",), job="17")),
            GOOD,
            "PBS or Grid Engine (qsub), in job 17",
            "",
        ),
    ],
)
def test_facts_have_a_verdict_and_whatever_is_not_good_has_advice(
    finding: Finding, severity: Severity, found: str, advice: str
) -> None:
    assert finding.severity is severity
    assert found in finding.found
    assert advice in finding.advice
    assert bool(advice) == bool(finding.advice)


NONE = "mpi4py loads no MPI: cannot load MPI library. Install one with `pip install mpich`"
WRONG = (
    "this rank was started by the mpirun of Open MPI, but the MPI here is MPICH 5.0.2: start it with /env/bin/mpirun"
)


@pytest.mark.parametrize(
    ("told", "severity", "advice"),
    [
        (MPI, GOOD, ""),
        (facts.MpiFacts(problem=NONE), REPAIR, NONE),
        (replace(MPI, sizes=(), failure="srun: error: no"), REPAIR, "a variable names Slurm as the launcher"),
        (
            replace(MPI, sizes=(), failure="Bus error", shared_bytes=4 * 2**20),
            REPAIR,
            "has 4.0 MiB free, and the memory",
        ),
        (replace(MPI, start=None, sizes=()), REPAIR, "put the mpirun of MPICH 5.0.2 on the PATH"),
        (replace(MPI, start=None, sizes=(), other_starter="/bin/srun"), NOTE, "start the ranks with /bin/srun"),
        (replace(MPI, sizes=(), problem=WRONG), REPAIR, WRONG),
        # Each rank a world of its own: an mpirun that leaves no sign of itself.
        (replace(MPI, sizes=(1, 1)), REPAIR, "do not find each other: use the mpirun of MPICH 5.0.2"),
        (replace(MPI, sizes=(), failure="no route to host"), REPAIR, "it failed: no route to host"),
        (replace(MPI, sizes=(2,), failure="Killed"), REPAIR, "it failed: Killed"),
    ],
)
def test_an_mpirun_is_good_if_its_ranks_find_each_other(told: facts.MpiFacts, severity: Severity, advice: str) -> None:
    finding = findings.of_mpi(told)
    assert finding.severity is severity
    assert advice in finding.advice


def test_the_table_shows_each_verdict_and_its_advice_and_the_last_line_what_to_repair() -> None:
    found = [
        Finding(subject="torch", found="2.13.0 [cpu]"),
        Finding(subject="MPI", found="none", severity=REPAIR, advice="pip install mpich"),
    ]
    shown = StringIO()
    Console(width=60, file=shown).print(as_table(found))
    lines = [line.split() for line in shown.getvalue().splitlines()]
    assert lines == [["good", "torch", "2.13.0", "[cpu]"], ["repair", "MPI", "none"], ["pip", "install", "mpich"]]
    assert conclusion(found) == "to repair: MPI"
    assert conclusion(found[:1]) == "ready: stream-study new heat my-study"


def test_a_path_is_not_cut_in_a_pipe(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = "/" + "/".join(["a folder of a cluster"] * 20)
    monkeypatch.setattr(examination, "examine", lambda _: [Finding(subject="Python", found=f"3.11.7 in {path}")])
    assert examination.report() == 0
    assert path in capsys.readouterr().out


def test_a_program_that_does_not_end_is_killed_with_all_that_it_started() -> None:
    done = facts.run(["sh", "-c", "echo first; sleep 60 & sleep 60"], 0.2)
    assert done.output == "first\n\nit did not end within 0 s"


def test_a_program_that_is_not_there_is_a_fact() -> None:
    assert facts.run(["/nowhere/mpirun"], 1.0).last_line == "/nowhere/mpirun cannot be run: No such file or directory"


def test_answers_are_found_among_what_else_is_printed() -> None:
    said = 'warning: {"size": 3\n{broken}\n[1]\n{"size": 2}\n{"size": 1}{"problem": "{"}\n\n{'
    assert facts.CommandOutput(output=said).answers == [{"size": 2}, {"size": 1}, {"problem": "{"}]


def test_a_rank_that_finds_no_mpi_says_how_to_get_one() -> None:
    environment = alone([]).environment | {"PMI_RANK": "0", "MPI4PY_LIBMPI": "/nowhere/libmpi.so"}
    for arguments in ([], ["--name"]):
        command = [sys.executable, "-m", "stream_server.doctor.rank", *arguments]
        said = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100).stdout
        (told,) = facts.CommandOutput(output=said).answers
        assert told["problem"].startswith("mpi4py loads no MPI: cannot load MPI library /nowhere/libmpi.so")
        assert "Install one with `pip install mpich`" in told["problem"]


def with_first_on_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch, config: StudyConfig | None = None) -> Finding:
    """The MPI that is found with this folder first on the PATH, for a study if there is one."""
    environment = alone([]).environment
    monkeypatch.setenv("PATH", f"{folder}:{Path(sys.prefix) / 'bin'}:{environment['PATH']}")
    return findings.of_mpi(facts.MpiFacts.gather(config))


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
    assert "2 ranks found each other" in found.found


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
    monkeypatch.setattr(facts, "MPIRUN_LIMIT_S", 1.0)
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
    assert good.found.endswith("mpirun -n 3: 3 ranks found each other")
    own = tmp_path / "start-ranks"
    own.write_text('#!/bin/sh\necho "$WORD: $TMPDIR: $*"; exit 1\n')
    own.chmod(0o755)
    job = {"mpirun": [str(own)], "environment": {"WORD": "of the study"}}
    monkeypatch.setenv("PBS_JOBID", "17")
    of_a_job = study.load({"server.ranks": 3, "server.backend": "pbs", "server.job": job})
    bad = with_first_on_the_path(tmp_path, monkeypatch, of_a_job)
    assert bad.severity is REPAIR
    assert f"stream-launcher's {own} -n 3" in bad.found
    assert f"it failed: of the study: {private_folder.new_name().parent / private_folder.PREFIX}" in bad.advice
