"""A metric writer is one class in one file that study.json names; its errors never stop a training."""

import json
import logging
import os
import shutil
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.errors import ConfigError
from stream_server.server.commands.check import describe
from stream_server.server.metrics.histogram import Histogram
from stream_server.server.metrics.log_record import LoggedRun, Record, Writer
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_writers
from stream_server.server.ranks.communicator import SoloRanks
from tests.extending.examples import write_examples
from tests.server.metrics.logged import Figure
from tests.support.runs import LEFT_BY_WORK, NUMPY_STUDY, assert_complete, run_study
from tests.support.studies import StudyFolder

KEEPING = """
import json


class Keeping:
    def __init__(self, run, *, name="kept.jsonl", fails_in=""):
        if fails_in == "__init__":
            raise ConnectionError("nobody answers")
        self.fails_in = fails_in
        self.file = (run.folder / name).open("a")

    def tell(self, event, **what):
        print(json.dumps({"event": event, **what}), file=self.file, flush=True)
        if self.fails_in == event:
            raise RuntimeError(f"{event} fails")

    def write(self, record):
        self.tell("write", batch=record.batch, wall_s=record.wall_s, values=dict(record.values),
                  histograms=sorted(record.histograms), figures=sorted(record.figures))

    def flush(self):
        self.tell("flush")

    def end(self, status, reason):
        self.tell("end", status=status, reason=reason)

    def close(self):
        try:
            self.tell("close")
        finally:
            self.file.close()


class Deaf:
    def __init__(self, run):
        pass
"""
MLFLOW_STUDY = """
import sys
from pathlib import Path
import numpy as np
from stream_server.server.metrics.log_record import LoggedRun
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.writers import open_writers
from stream_server.server.ranks.communicator import SoloRanks
from tests.server.metrics.logged import Figure
from mlflow import MlflowClient

folder, uri = Path(sys.argv[1]), sys.argv[2]
wanted = [(f"{folder}/mlflow_writer.py:MlflowWriter", {"uri": uri, "experiment": "heat"})]
for start, batches in enumerate([(10, 20), (30,)]):
    run = LoggedRun(name="heat", id="abc", folder=folder, settings={"training": {"batch_size": 4}})
    writers = open_writers(run, wanted, folder)
    assert len(writers) == 3, "the writer was not opened"
    with Metrics(SoloRanks(), writers) as metrics:
        status, reason = [("interrupted", "saved"), ("failed", "no data")][start]
        for batch in batches:
            metrics.log("train/loss", 1 / batch)
            metrics.log_histogram("residual", np.arange(4.0))
            metrics.log_figure("field", Figure())
            metrics.write(batch, batch / 10)
        metrics.flush()
        metrics.end(status, reason)
        metrics.close()
        print(MlflowClient(uri).get_run(writers[-1]._run_id).info.status)
client = MlflowClient(uri)
(experiment,) = [it for it in client.search_experiments() if it.name == "heat"]
(run,) = client.search_runs([experiment.experiment_id])
history = client.get_metric_history(run.info.run_id, "train/loss")
print(sorted((it.step, it.value, it.timestamp) for it in history))
print(run.info.status, run.data.tags["reason"], run.data.params, run.data.metrics["residual/mean"])
print([it.path for it in client.list_artifacts(run.info.run_id, "histograms/residual")])
print([it.path for it in client.list_artifacts(run.info.run_id, "figures/field")])
"""


@pytest.fixture
def folder(folder: StudyFolder) -> StudyFolder:
    (folder.path / "keeping.py").write_text(KEEPING)
    return folder


def kept(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def writers_of(folder: StudyFolder, **args: Any) -> list[Writer]:
    return open_writers(LoggedRun(folder=folder.path), [("keeping.py:Keeping", args)], folder.path)


def log_everything(metrics: Metrics, batch: int) -> None:
    metrics.log("loss", 0.5)
    metrics.log_histogram("residual", np.arange(3.0))
    metrics.log_figure("field", Figure())
    metrics.write(batch, batch / 10)


def test_a_writer_gets_every_number_histogram_and_figure_and_is_flushed_and_closed(folder: StudyFolder) -> None:
    with Metrics(SoloRanks(), writers_of(folder, name="mine.jsonl")) as metrics:
        log_everything(metrics, 10)
        metrics.flush()
    written, *after = kept(folder.path / "mine.jsonl")
    assert (written["batch"], written["wall_s"], written["histograms"], written["figures"]) == (
        *(10, 1.0),
        *(["residual"], ["field"]),
    )
    assert written["values"]["loss"] == 0.5
    assert [it["event"] for it in after] == ["flush", "close"]


@pytest.mark.parametrize("fails_in", ["__init__", "write", "flush", "close"])
def test_an_error_of_a_writer_leaves_the_others_and_the_training_alone(
    folder: StudyFolder, fails_in: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Metrics(SoloRanks(), writers_of(folder, fails_in=fails_in)) as metrics:
        for batch in (10, 20):
            log_everything(metrics, batch)
            metrics.flush()
    assert [it["batch"] for it in kept(folder.path / "metrics.jsonl")] == [10, 20]
    (warning,) = caplog.records
    assert warning.levelno == logging.WARNING
    assert warning.exc_info is not None
    assert "Keeping" in warning.message
    if fails_in in ("write", "flush"):
        assert [it["event"] for it in kept(folder.path / "kept.jsonl")].count(fails_in) == 1


@pytest.mark.parametrize(
    ("writer", "problem"),
    [
        ("keeping.py:Deaf", "keeping.py:Deaf must define write and flush and close"),
        ("keeping.py:Nobody", "must name a class, but keeping.py has no Nobody"),
        ({"class": "keeping.py:Keeping", "args": {"file": 1}}, 'but the arguments of Keeping are "fails_in", "name"'),
        ({"class": "tensorboard", "args": {"file": 1}}, "in metrics.writers has"),
    ],
)
def test_what_does_not_fit_is_refused_by_the_check(folder: StudyFolder, writer: Any, problem: str) -> None:
    with pytest.raises(ConfigError) as refused:
        describe(folder.load({"metrics.writers": [writer]}))
    assert problem in str(refused.value).replace(f"{folder.path}/", "")


def test_a_name_that_is_no_writer_is_refused(folder: StudyFolder) -> None:
    with pytest.raises(ConfigError, match=r'"tensorbord" is not a writer\. Write "tensorboard", or FILE\.py:Class'):
        folder.load({"metrics.writers": ["tensorbord"]})


@pytest.mark.full
@pytest.mark.slow
def test_mlflow_has_all_that_two_starts_of_a_study_have_logged(tmp_path: Path) -> None:
    write_examples(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", MLFLOW_STUDY, str(tmp_path), (tmp_path / "mlruns").as_uri()],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "MLFLOW_ALLOW_FILE_STORE": "true"},
    )
    assert done.stdout.splitlines() == [
        "KILLED",
        "FAILED",
        "[(10, 0.1, 1000), (20, 0.05, 2000), (30, 0.03333333333333333, 3000)]",
        "FAILED no data {'training': '{\"batch_size\": 4}'} 1.5",
        str([f"histograms/residual/{batch}.json" for batch in (10, 20, 30)]),
        str([f"figures/field/{batch}.png" for batch in (10, 20, 30)]),
    ]


class FakeWandb(types.ModuleType):
    """Stands in for the four names of W&B that the example uses."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.calls: list[Any] = []
        self.summary: dict[str, str] = {}
        self.Histogram = lambda np_histogram: np_histogram
        self.Image = lambda png: png.getvalue()

    def init(self, **options: Any) -> Any:
        self.calls.append(("init", options))
        return types.SimpleNamespace(
            log=lambda values, step: self.calls.append((step, values)),
            finish=lambda exit_code: self.calls.append(("finish", exit_code)),
            summary=self.summary,
        )


def test_weights_and_biases_get_numbers_histograms_and_figures(
    folder: StudyFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    run = LoggedRun(name="heat", id="abc", folder=folder.path)
    *others, writer = open_writers(run, [("wandb_writer.py:WandbWriter", {"project": "mine"})], folder.path)
    for other in others:
        other.close()
    seen, same = Histogram.of(np.array([1.0, 1.0, 4.0])), Histogram.of(np.array([2.0, 2.0]))
    record = Record(batch=30, wall_s=2.0, values={"loss": 0.5})
    writer.write(replace(record, histograms={"seen": seen, "same": same}, figures={"field": b"png"}))
    writer.flush()
    ending: Any = writer
    ending.end("failed", "no data")
    writer.close()
    assert wandb.summary == {"ended": "failed: no data"}
    (_, options), (step, logged), last = wandb.calls
    assert (options["id"], options["resume"], options["project"]) == ("abc", "allow", "mine")
    assert (step, logged["loss"], logged["field"], logged["wall_s"], last) == (30, 0.5, b"png", 2.0, ("finish", 1))
    counts, edges = logged["seen"]
    assert (counts.sum(), edges[0], edges[-1]) == (3, 1.0, 4.0)
    assert len(edges) == len(counts) + 1
    assert logged["same"][0].tolist() == [2]


@pytest.mark.full
@pytest.mark.slow
def test_a_study_writes_to_what_study_json_names_on_every_rank(tmp_path: Path) -> None:
    study = shutil.copytree(NUMPY_STUDY.parent, tmp_path / "study") / "study.json"
    (study.parent / "keeping.py").write_text(KEEPING)
    mine = {"class": "keeping.py:Keeping"}
    settings: dict[str, Any] = {
        "metrics.writers": [mine, {**mine, "args": {"name": "failed.jsonl", "fails_in": "write"}}],
        "training.log_every_batches": 2,
        "checkpoint.every_batches": 4,
    }
    done = run_study(study, tmp_path / "run", num_ranks=2, settings=settings)
    assert_complete(done, num_simulations=6)
    metrics = tmp_path / "run" / "metrics"
    written = [it for it in kept(metrics / "kept.jsonl") if it["event"] == "write"]
    lines = kept(metrics / "metrics.jsonl")
    assert [it["batch"] for it in written] == [it["batch"] for it in lines]
    events = [it["event"] for it in kept(metrics / "kept.jsonl")]
    assert events.count("flush") > 1
    assert events[-2:] == ["end", "close"]
    assert [it["event"] for it in kept(metrics / "failed.jsonl")] == ["write", "close"]
    assert not (metrics / "tensorboard").exists()


@pytest.mark.parametrize(
    ("settings", "arguments", "status", "reason"),
    [
        ({"user.trouble": "prepare_training_attributes"}, [], "failed", "trouble in prepare_training_attributes"),
        ({"user.trouble": "training_step"}, [], "failed", "trouble in training_step"),
        ({"user.stop_at": 2}, [], "finished", "good enough"),
        (
            {"simulation.command": ["python", "endless.py"], "study.time_steps": None},
            ["--time-limit", "00:00:04"],
            *("interrupted", "saved before the time limit"),
        ),
    ],
)
def test_a_writer_is_told_how_a_start_has_ended(
    tmp_path: Path, settings: dict[str, Any], arguments: list[str], status: str, reason: str
) -> None:
    study = shutil.copytree(NUMPY_STUDY.parent, tmp_path / "study", ignore=LEFT_BY_WORK) / "study.json"
    (study.parent / "keeping.py").write_text(KEEPING)
    mine = {"metrics.writers": ["keeping.py:Keeping"], **settings}
    done = run_study(study, tmp_path / "run", settings=mine, arguments=arguments)
    *_, told, last = kept(done.output_dir / "metrics" / "kept.jsonl")
    assert (told["event"], told["status"], last["event"]) == ("end", status, "close")
    assert reason in told["reason"]
    assert told["reason"] == done.report["message"]
