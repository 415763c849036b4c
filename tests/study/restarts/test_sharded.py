"""Studies whose model is sharded are killed, and go on on other numbers of ranks, also without shards."""

from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from stream_server.analysis.reading import RunFolder
from stream_server.server.checkpoint.user_state import read_learned
from stream_server.server.training.torch.state import restored
from stream_server.studies.trained import trained_model
from tests.support.killing import checkpoints, killed_at
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

SETTINGS: dict[str, Any] = {
    "server.class": "averaged_server.py:AveragedServer",
    "checkpoint.every_batches": 3,
    "checkpoint.keep_best": 1,
    "validation.pictures": 0,
}
SHARDED = SETTINGS | {"training.sharding.kind": "full"}


def parts(output_dir: Path) -> set[str]:
    """The ranks that have a part of the newest checkpoint's model."""
    newest = output_dir / "checkpoints" / checkpoints(output_dir)[-1]
    return {file.parent.name for file in newest.glob("rank-*/shards.state")}


def test_a_sharded_study_goes_on_on_other_ranks_and_without_shards(tmp_path: Path) -> None:
    output_dir = tmp_path / "run"
    killed_at("checkpoint.renamed=kill@2", NUMPY_STUDY, output_dir, num_ranks=2, settings=SHARDED)
    assert parts(output_dir) == {"rank-0", "rank-1"}
    killed_at("checkpoint.renamed=kill", NUMPY_STUDY, output_dir, num_ranks=1, settings=SETTINGS)
    assert parts(output_dir) == set()
    done = run_study(NUMPY_STUDY, output_dir, num_ranks=3, settings=SHARDED)
    assert parts(output_dir) == {"rank-0", "rank-1", "rank-2"}
    assert_complete(done, num_simulations=6)
    assert [text for text in done.report["warnings"] if "did not change" in text or "not the same" in text] == []
    state = restored(read_learned(output_dir / "checkpoints" / checkpoints(output_dir)[-1]))
    exported = load_file(output_dir / "model" / "model.safetensors")
    assert all(torch.equal(values, state["modules"]["ema"][f"module.{name}"]) for name, values in exported.items())
    assert not any(torch.equal(values, state["model"][name]) for name, values in exported.items())
    loaded = trained_model(RunFolder(output_dir), None).state_dict()
    assert all(torch.equal(values, exported[name]) for name, values in loaded.items())
    whole, sharded = (
        run_study(
            NUMPY_STUDY, output_dir, num_ranks=num_ranks, settings=settings, arguments=["--evaluate", str(output_dir)]
        )
        for num_ranks, settings in ((1, SETTINGS), (2, SHARDED))
    )
    assert "loss" in whole.output
    assert sharded.output == whole.output
