import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from stream_server.config import StudyConfig, load, samples
from stream_server.config.values import size_in_bytes
from stream_server.errors import ConfigError
from stream_server.messages import client as messages
from tests.support.studies import SMALLEST, StudyFolder


def error_of(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path)
    return str(caught.value)


def test_the_smallest_study_loads_with_every_default_resolved(folder: StudyFolder) -> None:
    config = folder.load()
    assert config.study_dir == folder.path
    assert config.study.name == "heat"
    assert config.output_dir == folder.path / "runs" / "heat"
    assert config.study.time_steps is not None
    assert config.study.time_steps.labels == range(100)
    assert config.study.fields["temperature"].shape == (100, 100)
    assert config.study.fields["temperature"].dtype is None
    assert config.parameters.bounds is not None
    assert (config.parameters.bounds["left"].low, config.parameters.bounds["left"].high) == (100.0, 500.0)
    assert config.simulation.command is not None
    assert config.simulation.command[:3] == ("python", str(folder.path / "heat.py"), "--initial")
    assert config.server.class_ == f"{folder.path}/server.py:HeatServer"
    assert config.client.window == 64 * 2**20
    assert (config.buffer.policy, config.buffer.watermark) == ("reservoir", 500)
    assert config.validation.batch_size == 10
    assert config.max_simulations_at_once == 1 + 4
    assert config.user == {}


def test_the_models_alone_resolve_the_same_defaults(folder: StudyFolder) -> None:
    assert StudyConfig.model_validate({**SMALLEST, "study_dir": str(folder.path)}) == folder.load()


def test_a_study_is_immutable(folder: StudyFolder) -> None:
    with pytest.raises(ValueError, match="frozen"):
        folder.load().buffer.capacity = 3


def test_the_resolved_study_loads_to_an_equal_one_from_any_folder(folder: StudyFolder, tmp_path: Path) -> None:
    folder.write("input.txt", "{initial} ${HOME}")
    config = folder.load(
        {
            "study.time_steps": {"first": 10, "last": 100, "every": 10},
            "study.fields": {"u": {"shape": [], "dtype": ">f4", "optional": True}},
            "parameters.bounds.initial": [1, 10, "log"],
            "simulation.templates": ["input.txt"],
            "simulation.job": {"environment": {"OMP_NUM_THREADS": "1"}},
            "buffer.capacity": "400B",
            "network.ports": [5000, 6000],
            "user.layers": [1, {"two": None}],
        }
    )
    resolved = tmp_path / "elsewhere" / "study.json"
    resolved.parent.mkdir()
    resolved.write_text(json.dumps(config.resolved()))
    assert load(resolved) == config


def test_another_seed_of_a_resolved_study_is_that_of_its_data_unless_they_have_their_own(folder: StudyFolder) -> None:
    for settings, data_seed in (({"study.seed": 3}, 5), ({"study.seed": 3, "study.data_seed": 4}, 4)):
        resolved = folder.write("resolved.json", json.dumps(folder.load(settings).resolved()))
        study = load(resolved, ["study.seed=5"]).study
        assert (study.seed, study.data_seed) == (5, data_seed)


@pytest.mark.parametrize(("max_failed", "num"), [(3.0, 3), (1.0, 1), (3, 3), (0.0, 0), (0.1, 0.1)])
def test_a_number_of_failures_may_be_written_with_a_point(folder: StudyFolder, max_failed: float, num: float) -> None:
    resolved = folder.load({"simulation.max_failed": max_failed}).resolved()["simulation"]["max_failed"]
    assert (resolved, type(resolved)) == (num, type(num))


def test_comments_are_skipped_but_not_within_text(folder: StudyFolder) -> None:
    text = json.dumps(SMALLEST).replace("{", "{ // the study\n", 1).replace('"python"', '"http://host//path"')
    config = load(folder.write("study.json", text))
    assert config.simulation.command is not None
    assert config.simulation.command[0] == "http://host//path"


def test_the_name_of_a_schema_is_allowed(folder: StudyFolder) -> None:
    assert folder.load({"$schema": "../study.schema.json"}) == folder.load()


def test_overrides_are_json_or_else_text(folder: StudyFolder) -> None:
    overrides = ["training.batch_size=32", "buffer.policy=fifo", 'user.a.b={"c": [1]}', "study.name=007"]
    config = folder.load({}, *overrides)
    assert config.training.batch_size == 32
    assert config.buffer.policy == "fifo"
    assert config.user == {"a": {"b": {"c": [1]}}}
    assert config.study.name == "007"


@pytest.mark.parametrize("override", ["buffer", "=3", "buffer.=3", ".capacity=3"])
def test_an_override_without_key_and_value_is_refused(folder: StudyFolder, override: str) -> None:
    [problem] = folder.problems({}, override)
    assert problem == f"--set {override}: not of the form KEY=VALUE. Write it like training.batch_size=32."


def test_an_override_below_something_that_has_no_keys_is_refused(folder: StudyFolder) -> None:
    [problem] = folder.problems({}, "study.fields.temperature.dtype=float32")
    assert "study.fields.temperature is [100, 100], which has no keys. Set study.fields.temperature" in problem


@pytest.mark.parametrize(
    ("policy", "capacity", "watermark"),
    [("reservoir", 101, 20), ("firo", 101, 20), ("reservoir", 15, 3), ("fifo", 99, 1)],
)
def test_the_watermark_is_a_fifth_of_the_capacity(
    folder: StudyFolder, policy: str, capacity: int, watermark: int
) -> None:
    config = folder.load({"buffer.policy": policy, "buffer.capacity": capacity})
    assert config.buffer.watermark == watermark


@pytest.mark.parametrize(
    ("fields", "capacity"),
    [
        ({"u": {"shape": [100], "dtype": "float32"}}, 1000),
        ({"u": [100]}, 500),
        ({"u": [50], "v": {"shape": [], "dtype": "float64"}, "w": {"shape": [3], "dtype": "int8"}}, 973),
    ],
)
def test_a_capacity_in_bytes_becomes_samples(folder: StudyFolder, fields: dict[str, object], capacity: int) -> None:
    assert folder.load({"study.fields": fields, "buffer.capacity": "400kB"}).buffer.capacity == capacity


# Packages such as ml_dtypes add types of their own, in whichever process has loaded them.
@pytest.mark.parametrize(
    "scalar",
    sorted({it for it in np.sctypeDict.values() if it.__module__ == "numpy"}, key=lambda scalar: scalar.__name__),
)
def test_the_types_of_a_field_are_the_numbers_of_numpy_but_those_that_differ_from_machine_to_machine(
    folder: StudyFolder, scalar: type[np.generic]
) -> None:
    dtype = np.dtype(scalar)
    fields = {"study.fields": {"u": {"shape": [5], "dtype": dtype.name}}}
    if dtype.kind in "biufc" and dtype.char not in "gG":
        assert folder.load(fields).study.fields["u"].num_bytes == 5 * dtype.itemsize
        assert folder.load({"study.fields": {"u": {"shape": [5], "dtype": dtype.str}}}) == folder.load(fields)
    else:
        with pytest.raises(ConfigError, match="is not a numeric type"):
            folder.load(fields)


@pytest.mark.parametrize(
    ("text", "size"),
    [("512B", 512), ("64MiB", 64 * 2**20), ("1.5 kB", 1500), ("2KiB", 2048), ("4GB", 4 * 10**9), ("1TiB", 2**40)],
)
def test_a_size_has_a_unit(text: str, size: int) -> None:
    assert size_in_bytes(text) == size


@pytest.mark.parametrize("text", ["64", "MiB", "64 M", "64MX", "-1MB", "1e3MB", ""])
def test_a_size_without_a_unit_that_is_known_is_none(text: str) -> None:
    assert size_in_bytes(text) is None


def test_an_element_of_the_command_that_names_no_file_stays_as_it_is(folder: StudyFolder) -> None:
    folder.write("data/mesh.txt", "")
    config = folder.load(
        {"simulation.command": ["./heat.py", "data", "data/mesh.txt", "--out=heat.py", "", "x" * 5000]}
    )
    path = folder.path
    assert config.simulation.command == (
        f"{path}/heat.py", "data", f"{path}/data/mesh.txt", "--out=heat.py", "", "x" * 5000,
    )  # fmt: skip


def test_paths_start_at_study_dir(folder: StudyFolder, tmp_path: Path) -> None:
    folder.study()
    text = json.dumps({**SMALLEST, "study_dir": "../heat"})
    other = tmp_path / "other" / "study.json"
    other.parent.mkdir()
    other.write_text(text)
    assert load(other) == folder.load()


@pytest.mark.parametrize(
    ("text", "place", "instead"),
    [
        ('{\n  "study": 1,\n}', "column", "Remove the comma"),
        ('{\n  "study": 1\n  "user": 2}', "line 3, column 3", "Write a comma"),
        ('{"study": [1, 2}', "line 1, column 16", "Write a comma or a closing bracket"),
        ("{'study': 1}", "line 1, column 2", "Write \" instead of '"),
        ('{"study": // nothing\n', "line 2, column 1", "Write what is missing"),
        ("", "line 1, column 1", "Write what is missing"),
    ],
)
def test_a_mistake_in_the_json_is_told_with_line_and_column(
    folder: StudyFolder, text: str, place: str, instead: str
) -> None:
    error = error_of(folder.write("study.json", text))
    assert place in error
    assert instead.lower() in error.lower()


def test_a_key_written_twice_is_refused(folder: StudyFolder) -> None:
    assert "user: the key is written twice" in error_of(folder.write("study.json", '{"user": {}, "user": {}}'))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "must hold one object"),
        ('{"user": NaN}', "NaN is not JSON"),
        ('{"user": {"lr": 1e999}}', "user.lr: the number does not fit 64 bits"),
        ("[" * 100_000, "is not a study"),
    ],
)
def test_json_that_is_no_study_is_refused(folder: StudyFolder, text: str, message: str) -> None:
    assert message in error_of(folder.write("study.json", text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    assert "there is no file" in error_of(tmp_path / "study.json")
    assert f"write {tmp_path / 'study.json'}" in error_of(tmp_path)


def test_loading_imports_neither_torch_nor_scipy_nor_mpi4py(folder: StudyFolder) -> None:
    code = "import sys; from stream_server.config import load; load(sys.argv[1]); print(*sys.modules)"
    loaded = subprocess.check_output([sys.executable, "-c", code, folder.study()], text=True).split()
    assert {"torch", "scipy", "mpi4py", "zmq"} & set(loaded) == set()


def test_the_limits_are_those_of_the_protocol() -> None:
    assert samples.MAX_FIELDS == messages.MAX_FIELDS
    assert samples.MAX_DIMENSIONS == messages.MAX_DIMENSIONS


def test_a_file_that_is_not_utf_8_is_refused_with_the_line(tmp_path: Path) -> None:
    file = tmp_path / "study.json"
    file.write_bytes('{"study":\n  {"name": "café"}}'.encode("latin-1"))
    assert error_of(file) == f"{file}: byte 0xe9 in line 2 is not UTF-8; save the file with the encoding UTF-8"
