"""The trained model as files that anybody can read."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import numpy as numpy_files
from safetensors import torch as torch_files
from torch import nn

from stream_server.config import load
from stream_server.errors import UserCodeError
from stream_server.server.model.model_export import ModelExport, export_model
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.tensor_file import flattened, nested, read_tensors, write_tensors
from tests.support.saved_models import Net, config_of, set_up, train

CONFIG = load(Path(__file__).parents[2] / "study" / "numpy_study" / "study.json")
FILES = ["README.txt", "SHA256SUMS", "model.safetensors", "study.json"]


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def nothing() -> Normalization:
    return Normalization(SoloRanks())


def exported(
    folder: Path, server: Any, *, num_steps: int = 1, normalization: Normalization | None = None
) -> ModelExport:
    with set_up(server) as step:
        train(step, num_steps) if num_steps else None
        export = ModelExport(folder / "model", step=step, config=CONFIG, normalization=normalization or nothing())
        export.on_train_end(server)
    return export


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_model_is_there_with_the_study_and_how_to_load_it(tmp_path: Path) -> None:
    server = Net(config_of())
    export = exported(tmp_path, server)
    assert names_in(tmp_path) == ["model"]
    assert names_in(tmp_path / "model") == FILES
    assert export.warnings == []
    loaded = torch_files.load_file(tmp_path / "model" / "model.safetensors")
    expected = server.model.state_dict()
    assert loaded.keys() == expected.keys()
    assert all(torch.equal(loaded[name], value) for name, value in expected.items())
    assert json.loads((tmp_path / "model" / "study.json").read_text()) == json.loads(json.dumps(CONFIG.resolved()))


def run_readme(folder: Path, before: str = "", after: str = "") -> str:
    """Run the examples of a README.txt in a process to which this package does not exist."""
    lines = (folder / "README.txt").read_text().splitlines()
    code = [line for line in lines if "import" in line or "(" in line]
    script = "\n".join(["import sys", "sys.modules['stream_server'] = None", before, *code, after])
    return subprocess.check_output([sys.executable, "-W", "error", "-c", script], text=True, cwd=folder)


@pytest.mark.slow
def test_three_lines_load_the_model_without_this_package(tmp_path: Path) -> None:
    server = Net(config_of())
    exported(tmp_path, server)
    make = "from torch import nn; model = nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))"
    text = run_readme(tmp_path / "model", make, "print(model[0].weight.sum().item())")
    assert float(text) == pytest.approx(server.model[0].weight.sum().item(), rel=1e-6)


def test_statistics_are_beside_the_model(tmp_path: Path) -> None:
    normalization = Normalization(SoloRanks(), {"u": (2,), "v": ()}, num_parameters=1)
    normalization.observe({"u": np.array([[1.0, 2.0], [3.0, 2.0]]), "v": np.array([5.0, 9.0])}, np.ones((2, 1)))
    normalization.sync()
    exported(tmp_path, Learner(config_of()), num_steps=0, normalization=normalization)
    assert names_in(tmp_path / "model") == [
        "README.txt",
        "SHA256SUMS",
        "model.safetensors",
        "normalization.safetensors",
        "study.json",
    ]
    statistics = numpy_files.load_file(tmp_path / "model" / "normalization.safetensors")
    assert statistics["fields.u.mean"].tolist() == [2, 2]
    assert statistics["fields.u.std"].tolist() == [1, 0]
    assert statistics["parameters.count"].tolist() == [2]
    assert statistics["fields.v.mean"] == 7
    assert "[2. 2.] [1. 0.]" in run_readme(tmp_path / "model")


class Tied(Net):
    """One matrix with two names."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
        model[1].weight = model[0].weight
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


def test_tied_weights_are_under_both_names_so_that_strict_loading_works(tmp_path: Path) -> None:
    server = Tied(config_of())
    exported(tmp_path, server)
    other = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    other.load_state_dict(torch_files.load_file(tmp_path / "model" / "model.safetensors"))
    assert torch.equal(other[0].weight, other[1].weight)
    assert torch.equal(other[0].weight, server.model[0].weight)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.complex64, torch.bool, torch.int64])
def test_types_that_numpy_lacks_are_written_all_the_same(tmp_path: Path, dtype: torch.dtype) -> None:
    values = torch.arange(6).reshape(2, 3).to(dtype).T
    write_tensors(tmp_path / "t.safetensors", {"a": values})
    assert torch.equal(torch_files.load_file(tmp_path / "t.safetensors")["a"], values)
    assert torch.equal(read_tensors(tmp_path / "t.safetensors", as_torch=True)["a"], values)


class Compiled(Net):
    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(torch.compile(nn.Linear(2, 2), backend="eager"), nn.Linear(2, 1))
        return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.slow
def test_names_are_those_of_the_module_that_was_compiled(tmp_path: Path) -> None:
    exported(tmp_path, Compiled(config_of()), num_steps=0)
    loaded = torch_files.load_file(tmp_path / "model" / "model.safetensors")
    assert set(loaded) == {"0.weight", "0.bias", "1.weight", "1.bias"}


class Learner(StreamServer):
    """Arrays in lists and dicts, a number, and a word."""

    def state_dict(self) -> Any:
        return {"layers": [{"w": np.arange(3.0)}, {"w": np.ones((2, 2), ">f4")}], "scale": 0.5, "kind": "mlp"}


def test_the_arrays_of_a_learner_are_there_by_path(tmp_path: Path) -> None:
    export = exported(tmp_path, Learner(config_of()), num_steps=0)
    loaded = numpy_files.load_file(tmp_path / "model" / "model.safetensors")
    assert {name: array.tolist() for name, array in loaded.items()} == {
        "layers.0.w": [0, 1, 2],
        "layers.1.w": [[1, 1], [1, 1]],
        "scale": 0.5,
    }
    assert export.warnings == ["model.safetensors is without kind, of types that such a file does not have"]
    assert "'layers.0.w': (3,)" in run_readme(tmp_path / "model")


class Raising(Learner):
    def state_dict(self) -> Any:
        raise KeyError("layers")


def test_a_state_dict_that_raises_is_the_users_error(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError, match=r"Raising\.state_dict raised KeyError"):
        exported(tmp_path, Raising(config_of()), num_steps=0)


def test_an_array_of_another_type_is_told(tmp_path: Path) -> None:
    class Texts(Learner):
        def state_dict(self) -> Any:
            return {"w": np.zeros(2), "z": np.zeros(2, complex), "names": np.array(["a"])}

    export = exported(tmp_path, Texts(config_of()), num_steps=0)
    assert list(numpy_files.load_file(tmp_path / "model" / "model.safetensors")) == ["w"]
    assert "is without z, names" in export.warnings[0]


def test_a_newer_model_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    for number in range(3):
        folder = tmp_path / "model"
        export_model(folder, {"w": np.full(2, number)}, owner="L", config=CONFIG, normalization=nothing())
        (folder / "mine").touch()
    assert numpy_files.load_file(tmp_path / "model" / "model.safetensors")["w"].tolist() == [2, 2]
    assert names_in(tmp_path) == ["model"]


def test_what_a_crash_left_is_no_hindrance(tmp_path: Path) -> None:
    for name in ("model.tmp", "model.old"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"half")
    exported(tmp_path, Learner(config_of()), num_steps=0)
    assert names_in(tmp_path) == ["model"]


@pytest.mark.parametrize("nth", [1, 2])
def test_a_disk_that_fails_costs_the_new_model_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, nth: int) -> None:
    exported(tmp_path, Learner(config_of()), num_steps=0)
    renamed = []
    rename = os.rename

    def failing(old: Path, new: Path) -> None:
        renamed.append(new)
        if len(renamed) == nth:
            raise OSError(errno.EIO, "Input/output error")
        rename(old, new)

    monkeypatch.setattr("os.rename", failing)
    export = exported(tmp_path, Net(config_of()))
    assert "could not be written to" in export.problem
    assert names_in(tmp_path) == ["model"]
    assert "scale" in numpy_files.load_file(tmp_path / "model" / "model.safetensors")


def test_only_rank_0_writes(tmp_path: Path) -> None:
    server = Learner(config_of())
    server.rank = 1
    exported(tmp_path, server, num_steps=0)
    assert names_in(tmp_path) == []


def test_nested_is_the_opposite_of_flattened() -> None:
    state = {"a": [{"b": np.array(1)}, {"b": np.array(2)}], "c": {"1": np.array(3), "x": np.array(4)}}
    arrays, others = flattened(state)
    assert others == []
    assert nested(arrays) == state
    assert flattened({"a.b": np.ones(1), "a": {"b": np.ones(2)}})[1] == ["a.b"]
