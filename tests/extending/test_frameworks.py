"""A framework is one class that a server class names."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server import StreamServer
from stream_server.errors import ConfigError
from tests.extending.examples import write_examples
from tests.support.killing import killed_at
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study


@pytest.mark.parametrize("name", ["functional:Missing", "no_such_module:Framework", "nothing"])
def test_a_framework_that_is_not_there_is_refused(name: str) -> None:
    class Server(StreamServer):
        framework = name

    with pytest.raises(ConfigError, match=f'framework must be "numpy", "torch" or .*, but is "{name}"'):
        Server()


@pytest.mark.full
@pytest.mark.slow
def test_a_study_trains_by_a_framework_of_ones_own_and_goes_on_after_a_kill(tmp_path: Path) -> None:
    study = shutil.copytree(NUMPY_STUDY.parent, tmp_path / "study") / "study.json"
    write_examples(study.parent)
    settings: dict[str, Any] = {
        "server.class": "ripple_server.py:RippleServer",
        "user.lr": 0.4,
        "checkpoint.every_batches": 2,
    }
    killed_at("checkpoint.renamed=kill@2", study, tmp_path / "run", num_ranks=2, settings=settings)
    done = run_study(study, tmp_path / "run", num_ranks=2, settings=settings)
    assert_complete(done, num_simulations=6)
    losses = [entry["loss"] for entry in done.report["validation"]]
    assert losses[-1] < losses[0]
    assert np.isfinite(losses).all()
