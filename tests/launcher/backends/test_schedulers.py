"""The backends for PBS, LSF, Flux and OAR on commands that answer as those of the schedulers (tests/fakes)."""

import json
import os
import pwd
import re
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import Any, NoReturn

import pytest

from stream_server.config import StudyConfig
from stream_server.config.job_sections import JobSettings
from stream_server.errors import ConfigError, UserCodeError
from stream_server.launcher.backends import batch_backend, flux, lsf, oar, pbs, scheduler
from stream_server.launcher.backends.backend import JobState, JobStatus, Outage, SavedJob
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.registry import check_backends, load_backend
from stream_server.launcher.backends.scheduler import BatchJob, CommandScheduler, JobKind, NotSubmitted, SubmitRefusal
from tests.cluster.jobs import (
    STUBBORN,
    WAITING,
    ended,
    exit_code,
    job,
    output,
    python,
    simulations_backend,
    state,
    with_outage,
)
from tests.fakes import scheduler_commands as fake_scheduler
from tests.support.studies import StudyFolder
from tests.support.timing import until

MAKE = {"pbs": pbs.Pbs, "lsf": lsf.Lsf, "flux": flux.Flux, "oar": oar.Oar}
QUICK = {"ask_s": 0.05, "missing_s": 0.5, "retry_s": 0.1}

MakeBackend = Callable[..., AbstractContextManager[BatchBackend]]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a cluster whose commands come first on the PATH."""
    folder = tmp_path / "cluster"
    fake_scheduler.install(folder)
    # On a busy machine the commands take long: they are asked again at once.
    monkeypatch.setattr(batch_backend, "SHARE_OF_TIME", 1.0)
    monkeypatch.setattr(batch_backend, "CANCEL_AGAIN_S", 10.0)
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return folder


def backend_of(config: StudyConfig) -> BatchBackend:
    kind = JobKind.of_simulations(config)
    return with_outage(BatchBackend(kind, MAKE[config.launcher.backend](kind), **QUICK))


@pytest.fixture(params=MAKE)
def make(cluster: Path, tmp_path: Path, request: pytest.FixtureRequest) -> MakeBackend:
    @contextmanager
    def made(changes: dict[str, Any] | None = None) -> Iterator[BatchBackend]:
        config = StudyFolder(tmp_path).load({"launcher.backend": request.param, **(changes or {})})
        with closing(backend_of(config)) as backend:
            yield backend

    return made


def in_cluster(cluster: Path) -> list[dict[str, Any]]:
    return [json.loads(it.read_text()) for it in sorted(cluster.glob("*.json"))]


def test_a_job_has_its_command_its_environment_and_its_exit_code(
    make: MakeBackend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_LAUNCHER", "1")
    with make({"simulation.job.setup": ["export LOADED=1"]}) as backend:
        spec = job(tmp_path, "it's $(1)", "sh", "-c", "pwd; env; exit 3", ODD="$(touch x) '\"\n;", PBS_JOBID="ours")
        assert exit_code(backend, backend.submit(spec), spec.folder) == 3
    lines = (spec.folder / "output.log").read_text().splitlines()
    assert lines[0] == str(spec.folder)
    assert "LOADED=1" in lines
    assert "ODD=$(touch x) '\"" in lines
    assert len([line for line in lines if re.match("(PBS_JOBID|LSB_JOBID|FLUX_JOB_ID|OAR_JOB_ID)=7", line)]) == 1
    assert not [line for line in lines if line.startswith("OF_THE_LAUNCHER")]


def test_a_setup_that_fails_and_a_node_that_does_not_see_the_folder_are_told(
    make: MakeBackend, tmp_path: Path, cluster: Path
) -> None:
    (cluster / "slots").write_text("0")
    with make({"simulation.job.setup": ["false"]}) as backend:
        bad, lost = job(tmp_path, "0", "true"), job(tmp_path, "1", "true")
        handles = [backend.submit(bad), backend.submit(lost)]
        until(lambda: len(in_cluster(cluster)) == 2)
        lost.folder.rename(tmp_path / "elsewhere")
        (cluster / "slots").unlink()
        assert exit_code(backend, handles[0], bad.folder) == 1
        assert output(bad.folder) == "simulation.job.setup: `false` ended with exit code 1\n"
        assert "the nodes must see" in ended(backend, handles[1]).reason


def test_a_cancel_is_term_first_and_a_job_that_ignores_it_is_killed(make: MakeBackend, tmp_path: Path) -> None:
    code = "import signal, sys; signal.signal(15, lambda *_: sys.exit(5)); print('up', flush=True); signal.pause()"
    with make() as backend:
        polite, stubborn = python(tmp_path, "0", code), python(tmp_path, "1", STUBBORN)
        handles = [backend.submit(polite), backend.submit(stubborn)]
        output(polite.folder), output(stubborn.folder)
        backend.cancel(handles)
        assert exit_code(backend, handles[0], polite.folder) == 5
        ended(backend, handles[1])


def test_a_job_that_waits_says_why_and_no_more_than_max_queued_do(
    make: MakeBackend, tmp_path: Path, cluster: Path
) -> None:
    (cluster / "slots").write_text("1")
    with make({"launcher.max_queued": 1}) as backend:
        specs = [python(tmp_path, str(number), WAITING) for number in range(3)]
        handles = [backend.submit(spec) for spec in specs]
        until(lambda: backend.query(handles)[handles[1]].reason)
        assert re.search("resource|slot limit", backend.query(handles)[handles[1]].reason)
        assert len(in_cluster(cluster)) == 2
        for spec in specs:
            (spec.folder / "go").touch()
        assert [exit_code(backend, handle, it.folder) for handle, it in zip(handles, specs, strict=True)] == [4] * 3


def test_a_job_that_ran_out_of_time_tells_how_much_it_had(make: MakeBackend, tmp_path: Path) -> None:
    with make({"simulation.job.walltime": "00:00:01"}) as backend:
        status = ended(backend, backend.submit(python(tmp_path, "0", WAITING)))
    assert status.reason == "ended after its walltime of 1 s (simulation.job.walltime)"
    assert status.is_out_of_time


def test_a_limit_of_the_site_holds_a_job_back_and_a_refusal_ends_it(
    make: MakeBackend, tmp_path: Path, cluster: Path
) -> None:
    words = "would exceed complex's per-user limit; Pending job threshold reached; Too many; exceeds limit of max jobs"
    (cluster / "trouble").write_text(json.dumps({"words": words, "code": 1, "lost": False}))
    with make() as backend:
        spec = python(tmp_path, "0", WAITING)
        handle = backend.submit(spec)
        until(lambda: not (cluster / "trouble").exists())
        assert state(backend, handle) in (JobState.QUEUED, JobState.RUNNING)
        (spec.folder / "go").touch()
        assert exit_code(backend, handle, spec.folder) == 4
    with make({"simulation.job.partition": "nosuch"}) as backend:
        reason = ended(backend, backend.submit(python(tmp_path, "1", WAITING))).reason
        assert re.fullmatch("could not be submitted: .*ueue.*Write simulation.job.partition; .*", reason)


def test_a_submission_whose_answer_is_lost_is_found_by_its_name_and_not_repeated(
    make: MakeBackend, tmp_path: Path, cluster: Path
) -> None:
    (cluster / "trouble").write_text(
        json.dumps({"words": "Connection refused; DB connection error", "code": 1, "lost": True})
    )
    with make() as backend:
        spec = python(tmp_path, "0", WAITING)
        handle = backend.submit(spec)
        until(lambda: state(backend, handle) is JobState.RUNNING)
        (spec.folder / "go").touch()
        assert exit_code(backend, handle, spec.folder) == 4
    assert [it["name"] for it in in_cluster(cluster)] == [handle]


def test_the_next_launcher_takes_a_job_over_by_its_name(make: MakeBackend, tmp_path: Path) -> None:
    spec = python(tmp_path, "0", WAITING)
    with make() as first, make() as second:
        handle = first.submit(spec)
        output(spec.folder)
        assert second.reattach(SavedJob(folder=spec.folder, marks=spec.marks, handle=None)) == handle
        until(lambda: state(second, handle) is JobState.RUNNING)
        (spec.folder / "go").touch()
        assert exit_code(second, handle, spec.folder) == 4


def test_closing_kills_what_runs(make: MakeBackend, tmp_path: Path, cluster: Path) -> None:
    with make() as backend:
        spec = python(tmp_path, "0", STUBBORN)
        backend.submit(spec)
        output(spec.folder)
    assert {it["state"] for it in in_cluster(cluster)} == {"ended"}


def test_a_job_that_is_cancelled_while_it_waits_never_runs(make: MakeBackend, tmp_path: Path, cluster: Path) -> None:
    (cluster / "slots").write_text("0")
    with make() as backend:
        spec = python(tmp_path, "0", WAITING)
        handle = backend.submit(spec)
        until(lambda: in_cluster(cluster))
        backend.cancel([handle])
        assert ended(backend, handle).reason == "was cancelled"
    assert not (spec.folder / "output.log").exists()


def test_pbs_without_a_history_tells_by_the_folder_how_a_job_ended(tmp_path: Path, cluster: Path) -> None:
    (cluster / "no-history").touch()
    config = StudyFolder(tmp_path).load({"launcher.backend": "pbs"})
    with closing(backend_of(config)) as backend:
        spec = python(tmp_path, "0", WAITING)
        handle = backend.submit(spec)
        output(spec.folder)
        (spec.folder / "go").touch()
        assert exit_code(backend, handle, spec.folder) == 4


def pbs_of(tmp_path: Path) -> pbs.Pbs:
    return pbs.Pbs(JobKind.of_simulations(StudyFolder(tmp_path).load({"launcher.backend": "pbs"})))


def submitted(scheduler: CommandScheduler, name: str, tmp_path: Path, script: str = "exit 0") -> str:
    return scheduler.submit(BatchJob(name=name, folder=tmp_path, ranks=1, script=script))


def states(scheduler: CommandScheduler) -> dict[str, JobState]:
    return {it.name: it.status.state for it in scheduler.queue()}


def test_a_job_that_qstat_leaves_out_is_asked_for_alone_and_is_in_an_unknown_state(
    tmp_path: Path, cluster: Path
) -> None:
    (cluster / "slots").write_text("0")
    scheduler = pbs_of(tmp_path)
    first, second = (submitted(scheduler, name, tmp_path) for name in "ab")
    assert states(scheduler) == {"a": JobState.QUEUED, "b": JobState.QUEUED}
    (cluster / "left-out").write_text(second)
    assert states(scheduler) == {"a": JobState.QUEUED, "b": JobState.UNKNOWN}
    assert (cluster / "asked").read_text().splitlines()[-2:] == [f"{first} {second}", second]
    (cluster / "left-out").write_text(f"{first} {second}")
    assert states(scheduler) == {"a": JobState.UNKNOWN, "b": JobState.UNKNOWN}
    (cluster / "left-out").unlink()
    assert states(scheduler) == {"a": JobState.QUEUED, "b": JobState.QUEUED}


def test_the_history_of_pbs_is_read_once_and_a_job_that_has_ended_is_not_asked_for_again(
    tmp_path: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = pbs_of(tmp_path)
    old = submitted(before, "old", tmp_path)
    until(lambda: states(before) == {"old": JobState.ENDED})
    (cluster / "slots").write_text("0")
    scheduler = pbs_of(tmp_path)
    assert states(scheduler) == {"old": JobState.ENDED}
    called, call = list[str](), pbs.call
    monkeypatch.setattr(pbs, "call", lambda words, **more: called.append(" ".join(words)) or call(words, **more))
    new = submitted(scheduler, "new", tmp_path)
    assert states(scheduler) == {"old": JobState.ENDED, "new": JobState.QUEUED}
    assert (cluster / "asked").read_text().splitlines()[-2:] == [old, new]
    assert [it for it in called if it.startswith("qselect")] == []


def test_a_job_that_has_ended_behind_an_answer_of_qsub_that_was_lost_is_found_in_the_history(
    tmp_path: Path, cluster: Path
) -> None:
    scheduler = pbs_of(tmp_path)
    assert states(scheduler) == {}
    (cluster / "trouble").write_text(json.dumps({"words": "Connection refused", "code": 1, "lost": True}))
    with pytest.raises(NotSubmitted):
        submitted(scheduler, "lost", tmp_path)
    other = pbs_of(tmp_path)
    until(lambda: states(other) == {"lost": JobState.ENDED})
    assert states(scheduler) == {"lost": JobState.ENDED}


def test_a_job_that_somebody_deletes_with_qdel_has_failed(tmp_path: Path, cluster: Path) -> None:
    config = StudyFolder(tmp_path).load({"launcher.backend": "pbs"})
    with closing(backend_of(config)) as backend:
        spec = python(tmp_path, "0", WAITING)
        handle = backend.submit(spec)
        output(spec.folder)
        (id_,) = (f"{it.stem}.pbs" for it in cluster.glob("*.json"))
        subprocess.run(["qdel", id_], check=True)
        status = ended(backend, handle)
    assert (status.reason, status.excuse) == ("was cancelled from outside", "")


def test_a_user_without_a_name_is_told_before_the_study_starts(
    tmp_path: Path, cluster: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(user: int) -> NoReturn:
        raise KeyError(f"getpwuid(): uid not found: {user}")

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    with pytest.raises(ConfigError, match=r"launcher\.backend: user \d+ has no name on this machine"):
        pbs_of(tmp_path)


# As OpenPBS prints a job that has ended, and one that waits by its documents; JSON cannot say the environment of these.
QSTAT = """\
Job Id: 53.pbs
    Job_Name = heat-1-attempt-0-9cd1d73aae08
    Job_Owner = me@login.cluster.example
    resources_used.walltime = 00:00:07
    job_state = F
    queue = workq
    Error_Path = login.cluster.example:/home/me/a/folder/whose/name/is/longer/than/
\ta/line
    Resource_List.select = 1:ncpus=1:mpiprocs=1
    Resource_List.walltime = 00:10:00
    substate = 93
    Variable_List = PBS_O_HOME=/home/me,PBS_O_LANG=C,FOO=005,BAR=.5,
\tPBS_O_PATH=/usr/local/bin:/usr/bin:/bin,TEXT=a
    job_state = Q
    comment = Job run at Thu Nov 26 at 10:16 on (n1:ncpus=1) and failed
    Exit_status = {code}
    Submit_arguments = -N heat-1-attempt-0-9cd1d73aae08 -j oe

Job Id: 54.pbs
    Job_Name = heat-2-attempt-0-0b5a3c66e5f1
    job_state = Q
    substate = 10
    comment = Not Running: Insufficient amount of resource: ncpus (R: 1 A: 0 T: 2
\t)

"""


def test_what_qstat_prints_is_read_whatever_is_in_the_environment_of_a_job() -> None:
    first, second = pbs.entries_in(QSTAT.replace("{code}", "3"))
    assert (first.id, first.name, first.status.state) == ("53.pbs", "heat-1-attempt-0-9cd1d73aae08", JobState.ENDED)
    assert (second.id, second.status.state) == ("54.pbs", JobState.QUEUED)
    assert second.status.reason == "Insufficient amount of resource: ncpus (R: 1 A: 0 T: 2)"


@pytest.mark.parametrize("code", [-4, -11, -14, -20])
def test_a_node_that_pbs_has_lost_is_an_excuse(code: int) -> None:
    first, _ = pbs.entries_in(QSTAT.replace("{code}", str(code)))
    assert first.status.excuse == "lost its node"


@pytest.mark.parametrize("name", MAKE)
def test_without_the_commands_the_study_is_refused(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match=r"not found on PATH\. Start the study on a login node"):
        simulations_backend(StudyFolder(tmp_path).load({"launcher.backend": name}))


@pytest.mark.parametrize(
    ("name", "job", "told"),
    [
        (
            "slurm",
            {"nodes": 9},
            "nodes: 9, more than the 1 rank of the job, and each node needs one. "
            "Write 1 or less, or more in simulation.ranks.",
        ),
        (
            "slurm",
            {"options": {"time": "1:00:00"}},
            "options.time: there is a key for this. Write simulation.job.walltime.",
        ),
        (
            "slurm",
            {"options": {"array": "1-9"}},
            "options.array: the launcher sets this itself, or could not follow the job any more. Leave it out.",
        ),
        (
            "slurm-steps",
            {"options": {"--qos": "low"}},
            'options.--qos: this is no long option of Slurm. Write its name without dashes, such as "qos".',
        ),
        (
            "slurm",
            {"options": {"qos": [1]}},
            "options.qos: [1] is no value of an option. Write a text, a number or true.",
        ),
        (
            "flux",
            {"memory": "1GiB"},
            "memory: 1073741824 would be ignored, since Flux does not give out memory. Leave it out.",
        ),
        (
            "oar",
            {"gpus_per_rank": 1},
            "gpus_per_rank: 1 would be ignored, since OAR gives out nodes and cores. Leave it out.",
        ),
        ("pbs", {"options": {"q": "long"}}, "options.q: there is a key for this. Write simulation.job.partition."),
        (
            "lsf",
            {"options": {"-app": "x"}},
            'options.-app: this is no option of bsub. Write its name without a dash, such as "app".',
        ),
    ],
)
def test_a_setting_that_is_none_of_the_scheduler_is_refused_before_its_commands_are_looked_for(
    name: str, job: dict[str, Any], told: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    config = StudyFolder(tmp_path).load({"launcher.backend": name, "simulation.job": job})
    with pytest.raises(ConfigError, match=re.escape(f"the study has 1 problem:\n  simulation.job.{told}")):
        simulations_backend(config)


def test_the_job_of_the_server_has_keys_of_its_own(tmp_path: Path) -> None:
    config = StudyFolder(tmp_path).load({"server.backend": "slurm", "server.job.options": {"ntasks": 2}})
    told = r"server\.job\.options\.ntasks: there is a key for this\. Write server\.ranks\."
    with pytest.raises(ConfigError, match=told):
        load_backend(config, JobKind.of_server(config), Outage())


def test_the_settings_of_both_jobs_are_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    wrong: dict[str, Any] = {
        "server.backend": "slurm",
        "server.job.options": {"ntasks": 2},
        "launcher.backend": "flux",
        "simulation.job.memory": "1GiB",
    }
    told = r"2 problems:\n  server\.job\.options\.ntasks: .*\n  simulation\.job\.memory: "
    with pytest.raises(ConfigError, match=told):
        check_backends(StudyFolder(tmp_path).load(wrong))


def test_what_a_scheduler_of_the_users_raises_is_told_as_such(tmp_path: Path) -> None:
    study = StudyFolder(tmp_path)
    study.write(
        "mine.py",
        "from stream_server.launcher.backends.pbs import Pbs\n\n"
        "class Mine(Pbs):\n    @classmethod\n    def problems(cls, kind):\n        raise RuntimeError('no queue')\n",
    )
    with pytest.raises(UserCodeError, match=r"mine\.py:Mine raised RuntimeError: no queue"):
        check_backends(study.load({"launcher.backend": "mine.py:Mine"}))


JOB = JobSettings(
    cores_per_rank=2,
    gpus_per_rank=1,
    memory=512 * 2**20,
    nodes=2,
    walltime="01:30:00",
    partition="long",
    account="physics",
)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            pbs.resource_words,
            "-l select=2:ncpus=4:mpiprocs=2:ngpus=2:mem=1024mb -l place=scatter -l walltime=01:30:00 -q long "
            "-A physics",
        ),
        (
            lsf.resource_words,
            "-n 4 -R affinity[core(2)] -R rusage[mem=512MB/task] -R span[ptile=2] -gpu num=1/task -W 1:30 -q long "
            "-P physics",
        ),
        (
            oar.resource_words,
            "-l /network_address=2/resource_id=4,walltime=01:30:00 -q long --project physics",
        ),
        (flux.resource_words, "-n4 -c2 -g1 --nodes=2 --time-limit=5400s --queue=long --bank=physics"),
    ],
)
def test_what_a_job_takes_is_said_in_the_words_of_its_scheduler(
    words: Callable[[JobSettings, int], list[str]], told: str
) -> None:
    assert " ".join(words(JOB, 4)) == told


def test_flux_makes_an_instance_of_its_own_for_a_job_of_several_ranks(tmp_path: Path, cluster: Path) -> None:
    scheduler = flux.Flux(JobKind.of_simulations(StudyFolder(tmp_path).load({"launcher.backend": "flux"})))
    for ranks in (1, 2):
        scheduler.submit(flux.BatchJob(name="j", folder=tmp_path, ranks=ranks, script="exit 0"))
    assert [it["words"][0] for it in in_cluster(cluster)] == ["submit", "batch"]


@pytest.mark.parametrize(
    ("letter", "meant"),
    [
        *((letter, JobState.QUEUED) for letter in "HQTW"),
        *((letter, JobState.RUNNING) for letter in "RSUBM"),
        ("E", JobState.ENDING),
        ("F", JobState.ENDED),
        ("X", JobState.ENDED),
    ],
)
def test_each_letter_of_pbs_means_a_state(letter: str, meant: JobState) -> None:
    assert pbs.status_of({"job_state": letter}).state is meant


@pytest.mark.parametrize(
    ("stat", "why", "meant", "excuse"),
    [
        ("PEND", "", JobState.QUEUED, ""),
        ("PSUSP", "", JobState.QUEUED, ""),
        ("SSUSP", "", JobState.RUNNING, ""),
        ("UNKWN", "", JobState.RUNNING, ""),
        ("ZOMBI", "", JobState.RUNNING, ""),
        ("DONE", "", JobState.ENDED, ""),
        ("EXIT", "TERM_PREEMPT: job killed after preemption", JobState.ENDED, "was preempted by LSF"),
    ],
)
def test_each_state_of_lsf_means_one_of_a_job(stat: str, why: str, meant: JobState, excuse: str) -> None:
    status = lsf.status_of({"STAT": stat, "EXIT_REASON": why}, None)
    assert (status.state, status.excuse) == (meant, excuse)


def test_a_node_that_flux_has_lost_is_an_excuse() -> None:
    entry = flux.entry_of("f1|INACTIVE|FAILED|heat-0||lost contact with job shell on n3")
    assert entry is not None
    assert entry.status.excuse == "lost its node"
    assert flux.entry_of("a warning") is None


def oar_job(state: str, *events: tuple[str, str], **more: Any) -> str:
    """A job as oarstat -f -J of OAR 2.5.9 prints it, without what nobody reads."""
    job = {
        "Job_Id": 7,
        "name": "heat-1-attempt-0-9cd1d73aae08",
        "owner": "me",
        "state": state,
        "message": "R=1,W=0:10:0,J=B,N=heat-1-attempt-0-9cd1d73aae08 (Karma=0.000,quota_ok)",
        "walltime": 600,
        "exit_code": None,
        "types": [],
        "events": [{"type": type_, "description": told, "to_check": "NO", "job_id": 7} for type_, told in events],
        **more,
    }
    return json.dumps({"7": job}, indent=3)


BY_ITS_USER = ("FRAG_JOB_REQUEST", "User me requested to frag the job 7")
BY_ROOT = ("FRAG_JOB_REQUEST", "User root requested to frag the job 7")
OVER = ("WALLTIME", "[sarko] Job [7] from 1795883738 with 600; current time=1795884360 (Elapsed)")


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (oar_job("Waiting"), JobStatus(state=JobState.QUEUED)),
        (
            oar_job("Waiting", message="No enough matching resources (no_matching_slot)"),
            JobStatus(state=JobState.QUEUED, reason="No enough matching resources (no_matching_slot)"),
        ),
        (oar_job("Running"), JobStatus(state=JobState.RUNNING)),
        (oar_job("Finishing"), JobStatus(state=JobState.ENDING)),
        (oar_job("Terminated", exit_code=0), JobStatus(state=JobState.ENDED, exit_code=0)),
        # Its own code is in job.exit.
        (oar_job("Terminated", exit_code=768), JobStatus(state=JobState.ENDED)),
        (oar_job("Error", BY_ITS_USER), JobStatus(state=JobState.ENDED)),
        (
            oar_job("Error", BY_ROOT),
            JobStatus(
                state=JobState.ENDED,
                reason="was ended by OAR, as when a node is lost",
                excuse="was ended by OAR, as when a node is lost",
            ),
        ),
        (
            oar_job("Error", ("BESTEFFORT_KILL", "[MetaSched] kill the besteffort job 7"), BY_ROOT),
            JobStatus(state=JobState.ENDED, reason="was preempted by OAR", excuse="was preempted by OAR"),
        ),
        (
            oar_job("Error", ("PING_CHECKER_NODE_SUSPECTED", "[bipbip] OAR suspects nodes for the job 7 : n1")),
            JobStatus(state=JobState.ENDED, reason="lost its node", excuse="lost its node"),
        ),
        (
            oar_job("Error", BY_ROOT, OVER),
            JobStatus(
                state=JobState.ENDED,
                reason="ended after its walltime of 10 min (simulation.job.walltime)",
                is_out_of_time=True,
            ),
        ),
    ],
)
def test_what_oar_says_of_a_job_means_a_status(told: str, status: JobStatus) -> None:
    (entry,) = oar.entries_in(told)
    assert (entry.id, entry.name, entry.status) == ("7", "heat-1-attempt-0-9cd1d73aae08", status)
    assert entry.was_cancelled == ("User me" in told)


def test_a_job_that_oar_itself_submits_again_is_the_last_one_of_its_name() -> None:
    jobs = {**json.loads(oar_job("Waiting", Job_Id=10)), "9": json.loads(oar_job("Error", Job_Id=9))["7"]}
    assert [it.id for it in oar.entries_in(json.dumps(jobs))] == ["9", "10"]
    assert oar.entries_in("") == []


@pytest.mark.parametrize("told", ["[]", '{"1": {"ODD": 005}}'])
def test_an_answer_that_is_no_object_is_no_answer(told: str) -> None:
    for entries_in in (oar.entries_in, lsf.entries_in):
        with pytest.raises(subprocess.SubprocessError, match="gave no JSON"):
            entries_in(told)


OAR_COMMANDS = {
    "oarsub": "cat >/dev/null; printf '%s\\n' \"$@\" >\"$0.asked\"; echo '[ADMISSION RULE] Modify'; echo OAR_JOB_ID=7",
    "oardel": "echo $* >>\"$0.asked\"; [ $1 != -s ] || echo 'Cannot signal 9 ; This job is not running.' >&2",
    "oarstat": "",
}


def test_oardel_sends_term_first_and_kills_what_waits_and_what_is_still_there_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, script in OAR_COMMANDS.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    scheduler = oar.Oar(JobKind.of_simulations(StudyFolder(tmp_path).load({"launcher.backend": "oar"})))
    assert submitted(scheduler, "j", tmp_path) == "7"
    scheduler.cancel(["7", "9"])
    scheduler.cancel(["7"])
    scheduler.cancel(["8"], at_once=True)
    assert (tmp_path / "oardel.asked").read_text().splitlines() == ["-s TERM 7 9", "9", "7", "8"]


def test_a_job_of_oar_that_has_ended_before_it_is_waited_for_has_its_exit_code(tmp_path: Path) -> None:
    slowly = tmp_path / "slowly"
    # The shell rests before each of its commands.
    slowly.write_text("trap 'sleep 0.2' DEBUG\n")
    script = oar.FORWARDING.format(script="'trap - DEBUG; exit 7'")
    command = ["/bin/bash", "-c", script]
    assert subprocess.run(command, env=os.environ | {"BASH_ENV": str(slowly)}, check=False).returncode == 7


def test_what_oar_took_before_is_not_too_large_while_its_nodes_are_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    oarsub = tmp_path / "oarsub"
    for command in ("oardel", "oarstat", "oarsub"):
        (tmp_path / command).write_text(
            "#!/bin/sh\necho 'There are not enough resources for your request' >&2; exit 8\n"
        )
        (tmp_path / command).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    site = oar.Oar(JobKind.of_simulations(StudyFolder(tmp_path).load({"launcher.backend": "oar"})))
    with pytest.raises(NotSubmitted, match="not enough resources") as refused:
        submitted(site, "a-0", tmp_path)
    assert refused.value.refusal is SubmitRefusal.WRONG
    refusing = oarsub.read_text()
    oarsub.write_text("#!/bin/sh\necho OAR_JOB_ID=7\n")
    assert submitted(site, "a-1", tmp_path) == "7"
    oarsub.write_text(refusing)
    with pytest.raises(NotSubmitted, match="not enough resources") as refused:
        submitted(site, "a-2", tmp_path)
    assert refused.value.refusal is SubmitRefusal.FULL


def test_a_command_that_cannot_be_ended_is_waited_for_before_anything_else_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As oarsub, while the database of OAR is away: it runs as another user, and submits the job once that is back.
    def not_permitted(process: object) -> NoReturn:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(scheduler, "LIMIT_S", 0.1)
    monkeypatch.setattr(subprocess.Popen, "kill", not_permitted)
    with pytest.raises(subprocess.TimeoutExpired):
        scheduler.call(["sh", "-c", f"until [ -e '{tmp_path}/back' ]; do sleep 0.01; done"])
    with pytest.raises(subprocess.SubprocessError, match="sh still waits for an answer"):
        scheduler.call(["sh", "-c", "true"])
    # Those of another scheduler have nothing to do with it.
    assert scheduler.call(["true"]).returncode == 0
    (tmp_path / "back").touch()
    monkeypatch.setattr(scheduler, "LIMIT_S", 60.0)

    def is_answered() -> bool:
        try:
            return scheduler.call(["sh", "-c", "echo 4"]).stdout == "4\n"
        except subprocess.SubprocessError:
            return False

    until(is_answered)
