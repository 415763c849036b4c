"""A study is trained again from what it recorded: bit by bit the same, whatever was killed meanwhile."""

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.simulations import simulations_of
from stream_server.server.checkpoint.incarnations import read_incarnations
from stream_server.server.replay.record_format import SAMPLES
from stream_server.server.replay.record_reader import RankRecord
from stream_server.server.training.torch.state import restored
from stream_server.storage.plain_state import read_state
from tests.study.commands.test_every_way import POLICIES
from tests.study.conftest import KILLED
from tests.support.killing import checkpoints, copy_of, flip_a_byte, killed_at, model_of
from tests.support.runs import NUMPY_STUDY, Run, assert_complete, run_here, run_study

SETTINGS: dict[str, Any] = {
    "study.simulations": KILLED["study.simulations"],
    "training.batch_size": 2,
    "checkpoint.every_batches": 2,
    "buffer.capacity": 20,
    "server.class": "noisy_server.py:NoisyServer",
}
POINTS = (
    "buffer.drawn=kill@7",
    "checkpoint.renamed=kill@2",
    "checkpoint.part_written=kill@5",
    "server.before_last_checkpoint=kill",
)
# One rank is below, with torch; `make test-all` runs the others.
COVER = {(2, "firo"): POINTS[2:]}
PRODUCT = [
    pytest.param(
        *pair, COVER.get(pair, POINTS), marks=[] if pair in COVER else pytest.mark.full, id="{}-{}".format(*pair)
    )
    for pair in itertools.product((1, 2), POLICIES)
]


def replay(recorded: Run, output_dir: Path, num_ranks: int = 1, **settings: Any) -> Run:
    """Replay to the end; on one rank in this process."""
    options: dict[str, Any] = {"settings": settings, "arguments": ["--replay", str(recorded.output_dir)]}
    if num_ranks == 1:
        return run_here(NUMPY_STUDY, output_dir, **options)
    return run_study(NUMPY_STUDY, output_dir, num_ranks=num_ranks, **options)


def assert_the_same_after_kills(
    recorded: Run, folder: Path, points: Sequence[str], *, num_ranks: int, settings: dict[str, Any]
) -> None:
    """Replay twice, once undisturbed and once killed at every point, and compare all that was learnt."""
    whole = replay(recorded, folder / "whole", num_ranks, **settings)
    assert_complete(whole, num_simulations=4)
    options: dict[str, Any] = {"num_ranks": num_ranks, "mpi": None if num_ranks == 1 else "mpich"}
    options |= {"settings": settings, "arguments": ["--replay", str(recorded.output_dir)]}
    for point in points:
        killed_at(point, NUMPY_STUDY, folder / "killed", **options)
    resumed = replay(recorded, folder / "killed", num_ranks, **settings)
    assert_complete(resumed, num_simulations=4)
    assert resumed.report["restarts"] == len(points)
    starts = read_incarnations(resumed.output_dir / "checkpoints").starts
    assert any(0 < start.batches < resumed.report["batches"] for start in starts)
    assert resumed.report["validation"] == whole.report["validation"]
    for count in ("draws", "batches", "batches_per_rank", "updates"):
        assert resumed.report[count] == whole.report[count]
    assert model_of(resumed.output_dir) == model_of(whole.output_dir)


@pytest.mark.parametrize(("num_ranks", "policy", "points"), PRODUCT)
def test_a_replay_that_is_killed_ends_with_the_same_weights_to_the_last_bit(
    recorded: Run, tmp_path: Path, num_ranks: int, policy: str, points: Sequence[str]
) -> None:
    settings = SETTINGS | {"buffer.policy": policy}
    if policy == "reservoir":
        settings["training.draws_per_sample"] = 3
    assert_the_same_after_kills(recorded, tmp_path, points, num_ranks=num_ranks, settings=settings)


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_replay_with_torch_that_is_killed_ends_with_the_same_weights_to_the_last_bit(
    recorded: Run, tmp_path: Path, num_ranks: int
) -> None:
    """An average of the weights too, which is what is validated and exported."""
    settings = SETTINGS | {
        "server.class": "averaged_server.py:AveragedServer",
        "buffer.policy": "firo",
        "validation.save_before": True,
    }
    assert_the_same_after_kills(recorded, tmp_path, ["validation.known=kill@2"], num_ranks=num_ranks, settings=settings)
    exported, again = (load_file(tmp_path / run / "model" / "model.safetensors") for run in ("whole", "killed"))
    checkpoint = tmp_path / "killed" / "checkpoints" / checkpoints(tmp_path / "killed")[-1]
    state = restored(read_state(checkpoint / "model" / "model.state"))
    averages, trained = state["modules"]["ema"], state["model"]
    assert set(exported) == set(trained)
    for name, values in exported.items():
        assert torch.equal(values, averages[f"module.{name}"])
        assert torch.equal(values, again[name])
        assert not torch.equal(values, trained[name])


def samples_of(record: Path, num_ranks: int) -> Iterator[tuple[int, int]]:
    for rank in range(num_ranks):
        files = RankRecord(record, rank)
        try:
            assert files.is_closed
            entries = map(files.read, range(len(files)))
            yield from [(entry.simulation, entry.time_step) for entry in entries if entry.kind in SAMPLES]
        finally:
            files.close()


def test_a_record_that_was_continued_holds_each_accepted_sample_once(recorded: Run) -> None:
    assert_complete(recorded, num_simulations=4)
    assert recorded.report["restarts"] == 1
    record = recorded.output_dir / "record"
    assert {file.name.split(".")[1] for file in record.glob("*.samples")} == {"incarnation-1", "incarnation-2"}
    found = Counter(samples_of(record, num_ranks=2))
    assert found == Counter(itertools.product(range(5), range(20)))


def test_a_replay_takes_the_study_that_recorded_and_is_not_recorded_again(recorded: Run, tmp_path: Path) -> None:
    assert KILLED["checkpoint.record"]
    done = replay(recorded, tmp_path / "run", **KILLED)
    assert_complete(done, num_simulations=4)
    assert not (done.output_dir / "record").exists()


def test_a_replay_is_as_long_as_its_record_whatever_the_study_asked_for(recorded: Run, tmp_path: Path) -> None:
    """On one rank, 80 samples make 20 batches."""
    settings = {"study.simulations": 6, "server.class": "measuring_server.py:MeasuringServer"}
    done = replay(recorded, tmp_path / "run", **settings)
    assert done.exit_code == 0, done.output
    measured = [json.loads(line) for line in (done.output_dir / "progress.jsonl").read_text().splitlines()]
    assert len(measured) == 20
    assert measured[4] == {"fraction": 0.25, "expected_samples": 80, "expected_batches": 20}
    assert measured[-1]["fraction"] == 1.0
    assert {it.state for it in simulations_of(RunFolder(done.output_dir))} == {"replayed"}


def test_a_replay_of_a_damaged_record_is_refused(recorded: Run, tmp_path: Path) -> None:
    output_dir = copy_of(recorded, tmp_path / "damaged")
    damaged = max((output_dir / "record").glob("rank-1.*.samples"), key=lambda file: file.stat().st_size)
    flip_a_byte(damaged)
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=SETTINGS, arguments=["--replay", str(output_dir)])
    assert done.exit_code == 2
    assert str(damaged) in done.output
