"""The page of rank 0 for Prometheus."""

import json
import socket
import sys
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stream_server.errors import ConfigError
from stream_server.server.study import prometheus
from stream_server.server.study.prometheus import HOST, MAX_CONNECTIONS, StudyCollector, serve_metrics
from stream_server.server.study.status import Snapshot
from tests.support.runs import NUMPY_STUDY, run_study
from tests.support.snapshots import NOTHING, changed

STATUS = changed(
    Snapshot(training=NOTHING),
    batches=3,
    samples=12,
    draws=15,
    received=20,
    loss=0.5,
    population=4,
    capacity=40,
    elapsed_s=2.5,
    checkpoints=1,
    checkpoint_at_s=100.0,
    simulations={"running": 2, "finished": 1},
)


def scrape(url: str) -> dict[tuple[str, str | None], float]:
    """Every value by its name and, of simulations, the state; all have the label of the study."""
    with urllib.request.urlopen(url, timeout=100) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    assert {sample.labels["study"] for sample in samples} <= {"ripple"}
    return {
        (sample.name.removeprefix("stream_server_"), sample.labels.get("state")): sample.value for sample in samples
    }


def listens(target: str) -> bool:
    host, port = target.split(":")
    with socket.socket() as probe:
        probe.settimeout(5)
        return probe.connect_ex((host, int(port))) == 0


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server((HOST, 0)) as server:
        yield server.getsockname()[1]


def test_the_page_gives_the_newest_status_until_it_is_closed(tmp_path: Path) -> None:
    collector, file = StudyCollector("ripple", 2), tmp_path / "prometheus.json"
    with serve_metrics(collector, 0, file) as url:
        assert scrape(url) == {("incarnation", None): 2}
        collector.show(STATUS)
        values = scrape(url)
        [target] = json.loads(file.read_text())[0]["targets"]
        assert url == f"http://{target}/metrics"
    assert values["samples_trained_total", None] == 12
    assert values["draws_trained_total", None] == 15
    assert values["training_seconds_total", None] == 2.5
    assert values["simulations", "running"] == 2
    assert values["last_checkpoint_timestamp_seconds", None] == 100
    assert ("validation_loss", None) not in values
    assert not file.exists()
    assert not listens(target)
    assert "prometheus" not in {thread.name for thread in threading.enumerate()}


def test_whoever_connects_to_the_page_and_says_nothing_takes_few_threads_of_the_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prometheus, "PATIENCE_S", 100.0)
    with serve_metrics(StudyCollector("ripple", 2), 0, tmp_path / "prometheus.json") as url, ExitStack() as stack:
        host, port = urlsplit(url).netloc.split(":")
        num_before = threading.active_count()
        silent = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(3 * MAX_CONNECTIONS)]
        for it in silent[: 2 * MAX_CONNECTIONS]:
            # They have made room for those that came later, without a word.
            it.settimeout(20)
            assert it.recv(1) == b""
        assert threading.active_count() <= num_before + MAX_CONNECTIONS
        # Nor do those that are left keep anybody out, though they go on to say a letter now and then.
        for it in silent[2 * MAX_CONNECTIONS :]:
            it.sendall(b"G")
        assert scrape(url) == {("incarnation", None): 2}


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with (
        pytest.raises(ConfigError, match=r"pip install '\.\[prometheus\]'"),
        serve_metrics(StudyCollector("ripple", 1), 0, tmp_path / "file"),
    ):
        pass


@pytest.mark.slow
def test_a_study_refuses_a_port_that_is_taken(tmp_path: Path, taken_port: int) -> None:
    run = run_study(NUMPY_STUDY, tmp_path / "run", mpi=None, settings={"metrics.prometheus_port": taken_port})
    assert run.exit_code == 2
    assert f"metrics.prometheus_port: port {taken_port} cannot be used" in run.output
