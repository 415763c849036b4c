"""`stream-launcher` on the login node, the server a job over two nodes, and simulations as jobs on a third."""

import shutil
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.test_studies import jobs_of, launcher_of, on_login
from tests.support.cluster import LOGIN, NETWORK, Cluster
from tests.support.failpoints import failpoints
from tests.support.runs import NUMPY_STUDY, LiveRun, Run, assert_complete, assert_tried_once

pytestmark = pytest.mark.slow
SUBNET = f"{NETWORK}.0/24"
NUM = 6
SETTINGS: Mapping[str, Any] = {
    "study.simulations": NUM,
    "simulation.command": ["python", "paced.py", "0.1"],
    "simulation.job.options": {"nodelist": "n3"},
    "simulation.timeout_s": 120,
    "server.backend": "slurm",
    "server.ranks": 2,
    "server.job.nodes": 2,
    "server.job.options": {"nodelist": "n1,n2"},
    "launcher.max_running": 3,
    "checkpoint.every_s": 1,
    "network.interface": SUBNET,
}
LIMIT_S = 150.0
ENDLESS_ID = 2


@pytest.fixture(scope="module")
def nodes() -> Iterator[Cluster]:
    """A cluster of three nodes."""
    with Cluster(3) as cluster:
        yield cluster


@pytest.fixture
def study(nodes: Cluster) -> Path:
    """A study in a folder that all hosts see."""
    return made_study(nodes)


def made_study(nodes: Cluster) -> Path:
    folder = nodes.shared / f"ripple {len(list(nodes.shared.iterdir()))}"
    shutil.copytree(NUMPY_STUDY.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))
    return folder / "study.json"


@contextmanager
def started(nodes: Cluster, study: Path, changes: Mapping[str, Any] | None = None, **options: Any) -> Iterator[LiveRun]:
    """A study that runs. What is left of its jobs in the end is cancelled."""
    try:
        with on_login(nodes, study, {**SETTINGS, **(changes or {})}, **options) as live:
            yield live
    finally:
        if numbers := list(jobs_of(nodes, live).values()):
            nodes.run(LOGIN, "scancel", "--quiet", *numbers)


def servers(nodes: Cluster, live: LiveRun, state: str = "all") -> list[str]:
    """The numbers of the jobs of the server."""
    return [number for name, number in jobs_of(nodes, live, state).items() if "-server-start-" in name]


def assert_balanced(done: Run, *, num_restarts: int, num: int = NUM) -> None:
    assert_complete(done, num_simulations=num)
    assert done.report["restarts"] == num_restarts


def test_the_server_is_a_job_on_two_nodes_and_comes_back_when_scancel_ends_it(nodes: Cluster, study: Path) -> None:
    with started(nodes, study) as live:
        live.wait_until(
            lambda: "simulation 1 finished" in live.launcher_log and "is committed" in live.launcher_log, LIMIT_S
        )
        [number] = servers(nodes, live)
        assert nodes.run(LOGIN, "squeue", "-h", "-j", number, "-o", "%N").strip() == "n[1-2]"
        nodes.run(LOGIN, "scancel", number)
        done = live.end(LIMIT_S)
        assert len(servers(nodes, live)) == 2
        assert_balanced(done, num_restarts=1)
    assert_tried_once(done)
    # What the server prints is seen where the study was started.
    assert "batches" in done.output
    assert not list(done.output_dir.glob("stream-launcher-*"))


def test_the_next_launcher_takes_the_job_over_and_an_order_to_stop_ends_it(nodes: Cluster, study: Path) -> None:
    # So long that simulation 3 still runs when the next launcher has begun.
    long = {"simulation.command": ["python", "paced.py", "0.3"]}
    with started(nodes, study, long) as live:
        live.wait_until(
            lambda: "simulation 1 finished" in live.launcher_log and "simulation 3, attempt 0: " in live.launcher_log,
            LIMIT_S,
        )
        launcher_of(live).kill()
        live.process.wait()
        before = jobs_of(nodes, live)
        with started(nodes, study, long, mark=live.mark) as second:
            second.wait_until(lambda: "server, start 1, is taken over" in second.launcher_log)
            second.wait_until(lambda: "goes on" in second.launcher_log)
            nodes.run(LOGIN, "stream-study", "stop", str(second.output_dir))
            done = second.end(LIMIT_S)
            assert before.items() <= jobs_of(nodes, second).items()
            assert len(servers(nodes, second)) == 1
            assert not jobs_of(nodes, second, "running,pending")
    assert done.exit_code == done.report["exit_code"] == 75
    assert done.report["restarts"] == 0
    # The first launcher may have died between its journal and the scheduler.
    assert_tried_once(done, of_begun=True)


def test_a_job_in_the_queue_is_taken_over_and_cancelled_by_ctrl_c(nodes: Cluster, study: Path) -> None:
    later = {"server.job.options": {"begin": "now+1hour"}}
    with started(nodes, study, later) as live:
        live.wait_until(lambda: servers(nodes, live, "pending"))
        launcher_of(live).kill()
        live.process.wait()
        with started(nodes, study, later, mark=live.mark) as second:
            second.wait_until(lambda: "is queued (BeginTime)" in second.launcher_log.partition("is taken over")[2])
            launcher_of(second).send_signal(signal.SIGINT)
            done = second.end()
            assert len(servers(nodes, second)) == 1
            assert not jobs_of(nodes, second, "running,pending")
    assert done.exit_code == 75
    assert "cancelled before it had begun" in done.launcher_log


@pytest.mark.full
def test_a_study_that_is_longer_than_the_walltime_goes_on_in_the_next_job(nodes: Cluster, study: Path) -> None:
    short = {
        "server.job.walltime": "00:00:16",
        # After its last checkpoint, while simulations send their last steps.
        "server.job.environment": failpoints(None, "server.before_end=delay:3"),
        "launcher.restarts": 10,
    }
    with started(nodes, study, short | {"simulation.command": ["python", "paced.py", "0.2"]}) as live:
        done = live.end(LIMIT_S)
        num = len(servers(nodes, live))
    assert num > 1
    assert_balanced(done, num_restarts=num - 1)
    assert "saved before the time limit; it goes on in the next job" in done.launcher_log
    assert done.output.count("saved: stream-launcher goes on in the next job") == num - 1
    assert "run the same command again" not in done.output
    assert_tried_once(done)


# The first attempt of a simulation never ends by itself.
ENDLESS = f"""
import os, signal
from ripple import connect, send_all
with connect() as simulation:
    if (os.environ["STREAM_SIMULATION_ID"], os.environ["STREAM_ATTEMPT"]) == ("{ENDLESS_ID}", "0"):
        signal.pause()
    send_all(simulation)
"""


@pytest.mark.full
def test_jobs_of_server_and_simulation_that_slurm_ends_at_their_time_limit_are_followed_by_others(
    nodes: Cluster, study: Path
) -> None:
    (study.parent / "endless.py").write_text(ENDLESS)
    endless = {
        "simulation.command": ["python", "endless.py"],
        "simulation.timeout_s": 300,
        "simulation.job.walltime": "00:30:00",
    }
    with started(nodes, study, endless) as live:
        live.wait_until(
            lambda: live.launcher_log.count(" finished") == NUM and "is committed" in live.launcher_log, LIMIT_S
        )
        [server] = servers(nodes, live)
        [simulation] = [it for name, it in jobs_of(nodes, live).items() if f"-{ENDLESS_ID}-attempt-0-" in name]
        # Slurm counts in minutes, but an end can be brought forward, though not into the past; it looks for those that
        # are late every 30 s.
        for number in (server, simulation):
            nodes.run(LOGIN, "scontrol", "update", f"jobid={number}", "endtime=now+10")
        done = live.end(LIMIT_S)
        assert set(jobs_of(nodes, live, "timeout").values()) == {server, simulation}
        assert len(servers(nodes, live)) == 2
        assert_balanced(done, num_restarts=1)
    assert done.attempts == dict.fromkeys(range(NUM + 1), 1) | {ENDLESS_ID: 2}
    assert f"simulation {ENDLESS_ID}, attempt 0 ended after its walltime" in done.launcher_log
    assert "it goes on in the next job" in done.launcher_log


@pytest.mark.full
def test_a_study_goes_on_in_another_job_when_a_node_of_its_server_is_lost() -> None:
    anywhere: dict[str, Any] = {"server.job.options": {}, "simulation.job.options": {"exclude": "n2"}}
    with Cluster(3) as nodes, started(nodes, made_study(nodes), anywhere) as live:
        live.wait_until(
            lambda: "simulation 1 finished" in live.launcher_log and "is committed" in live.launcher_log, LIMIT_S
        )
        [number] = servers(nodes, live)
        assert nodes.run(LOGIN, "squeue", "-h", "-j", number, "-o", "%N").strip() == "n[1-2]"
        nodes.lose("n2")
        # As the controller does by itself after SlurmdTimeout.
        nodes.run(LOGIN, "scontrol", "update", "nodename=n2", "state=down", "reason=lost")
        done = live.end(LIMIT_S)
        assert len(servers(nodes, live)) == 2
        assert_balanced(done, num_restarts=1)


IMPATIENT_S = 25.0
# It waits for a server that says nothing for as long as it is told, whether it has spoken to one before or not.
IMPATIENT = f"""
from ripple import send_all
from stream_server.client_api import connect
with connect(timeout_s={IMPATIENT_S}) as simulation:
    send_all(simulation)
"""


def test_simulations_that_begin_while_the_next_job_of_the_server_waits_keep_their_place(
    nodes: Cluster, study: Path
) -> None:
    (study.parent / "impatient.py").write_text(IMPATIENT)
    changes = {
        "simulation.command": ["python", "impatient.py"],
        "server.ranks": 1,
        "server.job.nodes": 1,
        "server.job.options": {"nodelist": "n1"},
        "client.wait_s": 1,
    }
    with held_by_another(nodes, "n3") as on_n3, started(nodes, study, changes) as live:
        live.wait_until(lambda: len(jobs_of(nodes, live, "pending")) == 3 and "incarnation 1" in live.launcher_log)
        [server] = servers(nodes, live)
        # It is before the next job of the server in the queue.
        with held_by_another(nodes, "n1") as on_n1:
            nodes.run(LOGIN, "scancel", server)
            live.wait_until(lambda: state_of(nodes, on_n1) == "RUNNING" and servers(nodes, live, "pending"), LIMIT_S)
            nodes.run(LOGIN, "scancel", on_n3)
            live.wait_until(lambda: len(jobs_of(nodes, live, "running")) == 3, LIMIT_S)
            waiting = jobs_of(nodes, live, "running")
            began = time.monotonic()
            live.wait_until(lambda: time.monotonic() > began + 2 * IMPATIENT_S, LIMIT_S)
            assert jobs_of(nodes, live, "running") == waiting
        done = live.end(LIMIT_S)
        assert waiting.items() <= jobs_of(nodes, live, "completed").items()
    assert_balanced(done, num_restarts=1)
    assert_tried_once(done)


@contextmanager
def held_by_another(nodes: Cluster, node: str, size: str = "--exclusive") -> Iterator[str]:
    """A job that takes a node, or part of it, once it can, until the end of the block or of the job."""
    options = ["--parsable", size, f"--nodelist={node}", "--wrap=sleep 1200", "--output=/dev/null"]
    number = nodes.run(LOGIN, "sbatch", *options).strip()
    try:
        yield number
    finally:
        nodes.run(LOGIN, "scancel", "--quiet", number)


def state_of(nodes: Cluster, number: str) -> str:
    """What squeue says of a job."""
    return nodes.run(LOGIN, "squeue", "-h", "-j", number, "-o", "%T").strip()
