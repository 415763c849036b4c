"""What a study, a shell or a file name has in it reaches a program as it is, and no shell reads it."""

import os
import stat
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stream_server.config.job_sections import JobSettings
from stream_server.launcher.backends import job_script, scheduler
from stream_server.launcher.backends.backend import LOG_FILE, JobSpec
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.flux import Flux
from stream_server.launcher.backends.local import LocalBackend
from stream_server.launcher.backends.lsf import Lsf
from stream_server.launcher.backends.mpirun import Mpirun
from stream_server.launcher.backends.oar import Oar
from stream_server.launcher.backends.pbs import Pbs
from stream_server.launcher.backends.scheduler import JobKind
from stream_server.launcher.backends.slurm import Slurm
from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from tests.support.connections import NOWHERE
from tests.support.timing import until

EVIL = (
    "'; touch planted; '",
    '"; touch planted; "',
    "$(touch planted)",
    "`touch planted`",
    "a\ntouch planted\n",
    "> planted",
    "& touch planted &",
    "| touch planted",
    "\\",
    "!touch",
    "*",
    "~",
    "%s%n",
    "-n",
    "",
    "\x1b[2J",
    "#",
    "\udcff\udc80",
)
# Prints each of its arguments, and each variable EVIL_…, with a zero behind it.
PRINT = "import os, sys; sys.stdout.buffer.write(b''.join(it + b'\\0' for it in map(os.fsencode, {words})))"
ARGUMENTS = PRINT.format(words="sys.argv[1:]")
VARIABLES = PRINT.format(words="[os.environ[f'EVIL_{i}'] for i in range(int(sys.argv[1]))]")
ENVIRONMENT = {"PATH": os.environ["PATH"], **{f"EVIL_{i}": it for i, it in enumerate(EVIL)}}
NAMES = {"EVIL; touch planted": "1", "EVIL$(touch planted)": "1", "BASH_FUNC_printf%%": "() { touch planted; }"}


@pytest.fixture(params=["plain", "a folder; touch planted", "$(touch planted)", 'it\'s "this"\n'])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path = tmp_path / request.param
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _nothing_is_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    assert list(tmp_path.rglob("planted")) == []


def job(folder: Path, *words: str) -> JobSpec:
    environment = ENVIRONMENT | NAMES
    return JobSpec(command=words, environment=environment, folder=folder, marks=frozenset())


def said(folder: Path) -> list[str]:
    return os.fsdecode((folder / LOG_FILE).read_bytes()).split("\0")[:-1]


@pytest.mark.parametrize("what", ["arguments", "variables"])
def test_a_job_on_this_machine(folder: Path, what: str) -> None:
    words = (ARGUMENTS, *EVIL) if what == "arguments" else (VARIABLES, str(len(EVIL)))
    backend = LocalBackend()
    handle = backend.submit(job(folder, "python3", "-Sc", *words))
    try:
        until(lambda: (folder / "job.exit").exists())
        backend.query([handle])
    finally:
        backend.close()
    assert said(folder) == list(EVIL)


@pytest.mark.parametrize("kind", [Slurm, Pbs, Lsf, Flux, Oar])
@pytest.mark.parametrize("what", ["arguments", "variables"])
def test_a_job_of_a_scheduler(folder: Path, kind: Any, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    words = (ARGUMENTS, *EVIL) if what == "arguments" else (VARIABLES, str(len(EVIL)))
    monkeypatch.setattr(scheduler, "require", lambda *commands, key: None)
    monkeypatch.setattr(BatchBackend, "_wake", lambda backend: None)
    settings = JobSettings(environment={f"EVIL_{i}": it for i, it in enumerate(EVIL) if "\udcff" not in it})
    config: Any = SimpleNamespace(
        study=SimpleNamespace(name="$(touch planted); rm"),
        simulation=SimpleNamespace(job=settings, ranks=1, per_job=1),
        launcher=SimpleNamespace(backend="slurm", max_queued=None),
    )
    jobs = JobKind.of_simulations(config)
    backend = BatchBackend(jobs, kind(jobs))
    name = backend.submit(job(folder, "python3", "-Sc", *words))
    assert set(name) <= {*"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"}
    assert stat.S_IMODE((folder / job_script.JOB_FILE).stat().st_mode) == 0o600
    # What runs on the node.
    script = backend._jobs[name].submission.script
    done = subprocess.run(["bash"], input=os.fsencode(script), capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert said(folder) == list(EVIL)


def test_several_simulations_in_one_job_of_mpirun(folder: Path) -> None:
    """The line of shell before each of them."""
    identity = dict.fromkeys(("STREAM_CONNECTION", "STREAM_SIMULATION_ID"), "'; touch planted; '")
    rest = dict.fromkeys(("STREAM_ATTEMPT", "MELISSA_SIMU_ID"), "$(touch planted)")
    spec = job(folder, "python3", "-Sc", ARGUMENTS, *EVIL)
    spec = replace(spec, environment={**ENVIRONMENT, **identity, **rest})
    line = Mpirun(words=("mpirun", "-n", "1"), ranks=1).job([spec, spec]).command
    first = line[3 : line.index(":")]
    assert subprocess.run(first, timeout=120, check=False).returncode == 0
    assert said(folder) == list(EVIL)


def test_placeholders_and_templates_are_filled_in_and_not_read(tmp_path: Path) -> None:
    study = tmp_path / "study; touch planted"
    study.mkdir()
    (study / "input.sh").write_text("{name} $(touch planted)")
    attempts = AttemptFolders(
        command=("python3", "{missing}", "$(touch planted)", "{simulation}", "input.sh"),
        templates=(study / "input.sh",),
        environment=ENVIRONMENT,
        seed=0,
        study_dir=study,
        output_dir=tmp_path / "run",
    )
    spec = attempts.prepare(3, 0, {"x": 0.5}, NOWHERE, None)
    assert spec.command[:4] == ("python3", "{missing}", "$(touch planted)", "3")
    assert Path(spec.command[4]).read_text() == "{name} $(touch planted)"
