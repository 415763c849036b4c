"""The study with a model of Keras."""

from pathlib import Path

import pytest
from safetensors.numpy import load_file

from tests.configs.smaller import assert_learns_in_two_starts


@pytest.mark.full
def test_a_network_in_keras_learns_on_two_ranks_and_goes_on_on_one(tmp_path: Path) -> None:
    done = assert_learns_in_two_starts("heat-keras", tmp_path)
    weights = load_file(done.output_dir / "model" / "model.safetensors")
    assert sorted(values.shape for values in weights.values()) == [
        (6, 256),
        (100,),
        (256,),
        (256,),
        (256, 100),
        (256, 256),
    ]
