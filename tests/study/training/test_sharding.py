"""Whole studies whose model the ranks share out: they end as the same studies do without, or are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.validations import read_validation
from stream_server.errors import ConfigError
from tests.study.restarts.test_replay import SETTINGS
from tests.study.training.test_rollouts import OPERATOR_STUDY
from tests.support.runs import NUMPY_STUDY, Run, run_here, run_study

EXACT = {"training.precision": "64-true"}
SHARDED = {"training.sharding": {"kind": "full"}}
AVERAGED = SETTINGS | EXACT | {"server.class": "sharded_server.py:Averaged", "buffer.policy": "firo"}


def ended(study: Path, output_dir: Path, num_ranks: int, settings: dict[str, Any], record: Run) -> Run:
    # The group of torch's that a sharded model belongs to goes with its process alone.
    arguments = ["--replay", str(record.output_dir)]
    return run_study(study, output_dir, num_ranks=num_ranks, settings=settings, arguments=arguments)


def assert_alike(sharded: Run, whole: Run) -> None:
    """Both have the same account, validations and exported model."""
    for run in (sharded, whole):
        assert run.exit_code == 0, run.output
    assert sharded.account == whole.account
    for name in ("batches", "updates"):
        assert sharded.report[name] == whole.report[name]
    for one, other in zip(sharded.report["validation"], whole.report["validation"], strict=True):
        assert one.keys() == other.keys()
        assert one["batch"] == other["batch"]
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-10)
    models = [load_file(run.output_dir / "model" / "model.safetensors") for run in (sharded, whole)]
    assert models[0].keys() == models[1].keys()
    for name, values in models[0].items():
        np.testing.assert_allclose(values, models[1][name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("num_ranks", [1, *(pytest.param(num, marks=pytest.mark.full) for num in (2, 3))])
def test_a_replay_with_shards_ends_as_one_without(recorded: Run, tmp_path: Path, num_ranks: int) -> None:
    """An average of the weights is validated, and a single sample is held out for all ranks."""
    runs = [
        ended(NUMPY_STUDY, tmp_path / name, num_ranks, AVERAGED | more, recorded)
        for name, more in (("sharded", SHARDED), ("whole", {}))
    ]
    assert_alike(*runs)


@pytest.mark.full
def test_forecasts_and_predictions_are_those_of_a_study_without_shards(tmp_path: Path) -> None:
    record = run_study(OPERATOR_STUDY, tmp_path / "record", num_ranks=2, settings={"checkpoint.record": True})
    assert record.exit_code == 0, record.output
    blocks = {"training.sharding": {"kind": "full", "blocks": ["Spectral", "Conv1d"]}}
    runs = [
        ended(OPERATOR_STUDY, tmp_path / name, 2, EXACT | more, record)
        for name, more in (("sharded", blocks), ("whole", {}))
    ]
    assert_alike(*runs)
    first, second = (run.report["rollout"] for run in runs)
    assert first["lead_times"] == second["lead_times"]
    assert first["mse"]["u"] == pytest.approx(second["mse"]["u"], rel=1e-6)
    found = [read_validation(RunFolder(run.output_dir)) for run in runs]
    assert found[0] is not None
    assert found[1] is not None
    np.testing.assert_allclose(found[0].errors, found[1].errors, rtol=1e-6)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({"server.class": "server.py:LinearServer"}, "training.sharding must be left out: that is for a"),
    "class": (
        {"training.sharding": {"kind": "full", "blocks": ["Lineer"]}},
        'no module of the model is of the class "Lineer"; write "Linear"',
    ),
    "offload": (
        {"training.sharding": {"kind": "full", "offload": "cpu"}, "training.device": "cpu"},
        'training.sharding.offload "cpu" needs a GPU',
    ),
    "manual": (
        {"server.class": "sharded_server.py:Manual"},
        "training.sharding cannot be combined with automatic_optimization = False, as in Manual",
    ),
    "kind": ({"training.sharding": {"kind": "ful"}}, 'training.sharding.kind: "ful" is not "full"'),
    "compile": ({"training.compile": True}, "training.compile: true, but"),
    "bf16": (
        {"training.sharding": {"kind": "full", "mixed_precision": "bf16"}, "training.precision": "64-true"},
        'training.sharding.mixed_precision: "bf16", but training.precision is "64-true"',
    ),
}


@pytest.mark.parametrize("num_ranks", [1, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_sharded_is_refused_with_the_reason(tmp_path: Path, name: str, num_ranks: int) -> None:
    changes, said = REFUSED[name]
    settings = {"server.class": "sharded_server.py:Averaged"} | SHARDED | changes
    if num_ranks == 1:
        run = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    else:
        run = run_study(NUMPY_STUDY, tmp_path / "run", num_ranks=num_ranks, settings=settings, limit_s=60)
    assert run.exit_code == ConfigError.exit_code, run.output
    assert said in " ".join(run.output.split())
