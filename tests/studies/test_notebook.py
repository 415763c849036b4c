"""The notebook and the examples of docs/guide/python.md run as they are printed."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

from stream_server.analysis.reading import RunFolder
from stream_server.errors import ConfigError
from stream_server.studies.notebook import pictures_of
from tests.analysis.conftest import fonts  # noqa: F401
from tests.analysis.logged_run import log_run
from tests.support.runs import NUMPY_STUDY

GUIDE = Path(__file__).parents[2] / "docs" / "guide"
NOTEBOOK = GUIDE / "notebook.ipynb"
CODE = re.compile(r"```python\n(.*?)```", re.DOTALL)
LIMIT_S = 240
EXECUTE = """
import sys, nbformat, nbclient
notebook = nbformat.read(sys.argv[1], 4)
nbclient.NotebookClient(notebook, timeout=200, kernel_name="python3").execute()
nbformat.write(notebook, sys.argv[2])
"""
# The model of the examples is the one that the server makes, with the weights that were trained.
SAME_MODEL = """
import os, sys
from safetensors.torch import load_file
from torch import nn
own = nn.Sequential(nn.Linear(3, 16), nn.Dropout(0.1), nn.Tanh(), nn.Linear(16, 8)).eval()
own.load_state_dict(load_file(run.path / "model" / "model.safetensors"))
inputs = torch.linspace(-1, 1, 15).reshape(5, 3)
torch.testing.assert_close(model(inputs), own(inputs), rtol=0, atol=0)
assert os.getcwd() not in sys.path
"""


def run(code: str, *arguments: str, cwd: Path) -> str:
    """The output of a Python program, whose temporary files are in its folder, too."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=os.environ | {"TMPDIR": str(cwd)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.full
@pytest.mark.slow
def test_the_notebook_runs_and_shows_tables_pictures_and_a_prediction(tmp_path: Path) -> None:
    executed = tmp_path / "executed.ipynb"
    # In a process of its own: nbclient leaves the sockets of its event loop open.
    run(EXECUTE, str(NOTEBOOK), str(executed), cwd=tmp_path)
    notebook = nbformat.read(executed, 4)
    shown = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert [it for it in shown if it.output_type == "error"] == []
    assert any("image/png" in it.get("data", {}) for it in shown)
    texts = "".join(it.get("text", "") + it.get("data", {}).get("text/plain", "") for it in shown)
    assert "'stopped'" in texts
    assert "state         finished" in texts
    assert "root mean square error" in texts


def test_the_notebook_is_kept_with_its_outputs() -> None:
    notebook = nbformat.read(NOTEBOOK, 4)
    nbformat.validate(notebook)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
    assert NOTEBOOK.stat().st_size < 150_000


def test_a_plot_has_the_pictures_that_are_asked_for_or_all(tmp_path: Path) -> None:
    run = RunFolder(log_run(tmp_path))
    every = pictures_of(run, ())
    assert {"loss", "throughput"} < set(every)
    assert list(pictures_of(run, ("loss",))) == ["loss"]
    with pytest.raises(ConfigError, match=f"there is no picture lost of .*; there are {', '.join(every)}$"):
        pictures_of(run, ("lost",))


@pytest.mark.full
@pytest.mark.slow
def test_the_examples_of_the_guide_run_in_their_order(tmp_path: Path) -> None:
    for file in NUMPY_STUDY.parent.glob("*.py"):
        (tmp_path / file.name).symlink_to(file)
    study = json.loads(NUMPY_STUDY.read_text())
    study["server"]["class"], study["study"]["simulations"] = "torch_server.py:TinyServer", 1
    (tmp_path / "study.json").write_text(json.dumps(study))
    # A second rank with torch would tell nothing more.
    code = "\n".join(CODE.findall((GUIDE / "python.md").read_text())).replace("ranks=2", "ranks=1")
    said = run(code + SAME_MODEL, cwd=tmp_path)
    assert "finished 0 finished" in said
    assert "('offset', 'slope')" in said
    assert (tmp_path / "loss.pdf").exists()
