"""The speed of a training whose data costs nothing."""

import json
import re
import subprocess
from pathlib import Path

import pytest

from benchmarks.training_alone import NUM_WARM_UP, train_alone
from stream_server.config import StudyConfig, load
from tests.support.launch import mpirun

SERVER = """
import json, time
import numpy as np
from stream_server import StreamServer


class PacedServer(StreamServer):
    def prepare_training_attributes(self):
        self.seen = []

    def process_simulation_data(self, data, config):
        return data.fields["x"]

    def training_step(self, batch, batch_idx):
        time.sleep(0.02)
        self.seen.append(batch.copy())
        if "raise" in self.config.user and batch_idx == 3:
            raise ArithmeticError("no good")
        (self.output_dir / "notes").write_text("goes with the folder")
        with open(f"{self.config.user['seen']}-{self.rank}", "w") as file:
            json.dump([len(self.seen), float(np.ptp(self.seen, axis=0).max())], file)
        self.all_reduce(np.mean(batch))
        return 1.0
"""


def study(folder: Path, **user: str) -> Path:
    (folder / "server.py").write_text(SERVER)
    content = {
        "study": {"simulations": 4, "time_steps": 5, "fields": {"x": [3, 2]}},
        "parameters": {"bounds": {"a": [0, 1]}},
        "server": {"class": "server.py:PacedServer"},
        "buffer": {"capacity": 100},
        "training": {"batch_size": 4, "max_batches": 5},
        "user": {"seen": str(folder / "seen"), **user},
    }
    (folder / "study.json").write_text(json.dumps(content))
    return folder / "study.json"


def config_of(folder: Path, **user: str) -> StudyConfig:
    return load(study(folder, **user), [])


def speed(text: str) -> float:
    found = re.search(r"speed +([0-9.,]+) batches/s", text)
    assert found is not None, text
    return float(found[1].replace(",", ""))


def test_one_batch_is_trained_again_and_again_and_nothing_is_left(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_alone(config_of(tmp_path), 0.5) == 0
    text = capsys.readouterr().out
    num, spread = json.loads((tmp_path / "seen-0").read_text())
    measured = int(re.search(r"measured +(\d+) batches", text)[1])  # type: ignore[index]
    assert spread == 0.0
    # The limits of the study do not hold.
    assert num == measured + NUM_WARM_UP > 5
    assert speed(text) <= 50.0
    assert not (tmp_path / "runs").exists()


def test_the_last_run_is_set_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_of(tmp_path)
    config.output_dir.mkdir(parents=True)
    report = {"ranks": 1, "throughput": {"batches_per_s": 2.5}}
    (config.output_dir / "report.json").write_text(json.dumps(report))
    assert train_alone(config, 0.2) == 0
    text = capsys.readouterr().out
    told = re.search(r"2\.5 batches/s, (\d+)% of it", text)
    assert told is not None
    # The speed is rounded, too.
    assert int(told[1]) == pytest.approx(100 * 2.5 / speed(text), abs=1)


def test_an_error_of_the_class_is_shown_with_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert train_alone(config_of(tmp_path, **{"raise": "yes"}), 5.0) == 3
    assert "ArithmeticError: no good" in capsys.readouterr().err


@pytest.mark.slow
def test_all_ranks_train_in_step(tmp_path: Path) -> None:
    argv = ["-m", "benchmarks.training_alone", str(study(tmp_path)), "--seconds=0.5"]
    launch = mpirun("mpich", 2, argv)
    done = subprocess.run(launch.argv, env=launch.environment, capture_output=True, text=True, timeout=120, check=True)
    counts = {json.loads((tmp_path / f"seen-{rank}").read_text())[0] for rank in range(2)}
    assert len(counts) == 1
    assert "2 x 4 samples" in done.stdout
    assert done.stdout.count("speed") == 1
