"""Studies whose study.json names the model, the optimizer, the scheduler and a callback."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as numpy_files

from tests.support.runs import Run, assert_complete

NAMED: dict[str, Any] = {
    "server.class": "networks.py:FittingServer",
    "training.model": {"class": "networks.py:Network", "args": {"width": 5}},
    "training.optimizer": {"class": "torch.optim:AdamW", "args": {"betas": [0.8, 0.9]}},
    "training.optimizer.args.lr": 1e-3,
    "training.lr_scheduler": {
        "class": "torch.optim.lr_scheduler:OneCycleLR",
        "args": {"max_lr": 0.02, "total_steps": "{expected_lr_steps}"},
    },
    "training.callbacks": [{"class": "networks.py:Diary", "args": {"name": "diary"}}],
}


def diaries(done: Run, num_ranks: int) -> list[Any]:
    return [np.loadtxt(done.output_dir / f"diary-{rank}.txt") for rank in range(num_ranks)]


def assert_was_trained_as_named(done: Run) -> None:
    assert_complete(done, num_simulations=6)
    model = numpy_files.load_file(done.output_dir / "model" / "model.safetensors")
    assert {name: values.shape for name, values in model.items()} == {
        "0.weight": (5, 3),
        "0.bias": (5,),
        "2.weight": (8, 5),
        "2.bias": (8,),
    }


def test_a_study_trains_what_study_json_names_on_all_ranks(run: Callable[..., Run]) -> None:
    done = run(num_ranks=2, settings=NAMED)
    assert_was_trained_as_named(done)
    first, second = diaries(done, 2)
    np.testing.assert_array_equal(first, second)
    num_steps, expected_lr_steps, *rates = first
    # 120 samples on 2 ranks in batches of 4.
    assert expected_lr_steps == 15
    assert num_steps == len(rates) >= 15
    assert rates[0] == pytest.approx(0.02 / 25)
    assert max(rates) == pytest.approx(0.02, rel=0.01)


def test_a_wrong_argument_ends_the_study_before_it_begins(run: Callable[..., Run]) -> None:
    done = run(mpi=None, settings=NAMED | {"training.model": {"class": "networks.py:Network", "args": {"with": 5}}})
    assert done.exit_code == 2, done.output
    assert "training.model.args do not fit" in done.output
    assert "write width" in done.output
