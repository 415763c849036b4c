"""The fields of a study in the files of a solver."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stream_server.adapters.fields import FieldsOfFiles
from stream_server.errors import ConfigError
from stream_server.messages.client import PER_SIMULATION, FieldSpec

PATH = Path("step_1.npz")
SPECS = {
    it.name: it
    for it in (
        FieldSpec(name="velocity", shape=(2, 3, 2)),
        FieldSpec(name="p", shape=(2, 3), optional=True),
        FieldSpec(name="mesh", shape=(6, 3), per=PER_SIMULATION),
    )
}
U, P, MESH = np.arange(12.0).reshape(6, 2), np.arange(6.0), np.zeros((6, 3))
FILE = {"U": lambda: U, "p": lambda: P, "mesh": lambda: MESH, "other": lambda: MESH}


def take(*options: str, arrays: Any = FILE, is_first: bool = True, specs: Any = SPECS) -> tuple[Any, Any]:
    return FieldsOfFiles(options, specs).take(arrays, PATH, is_first=is_first)


def test_fields_are_found_by_their_names_and_take_the_shape_of_the_study() -> None:
    statics, values = take("velocity=U")
    assert list(statics) == ["mesh"]
    assert list(values) == ["velocity", "p"]
    assert np.array_equal(values["velocity"], U.reshape(2, 3, 2))
    assert np.array_equal(values["p"], P.reshape(2, 3))


def test_what_is_sent_once_is_of_the_first_step() -> None:
    statics, values = take("velocity=U", is_first=False)
    assert not statics
    assert "mesh" not in values
    assert FieldsOfFiles(["velocity=U"], SPECS).of_steps == ["U", "p"]


def test_a_field_that_is_not_there_names_those_that_are() -> None:
    expected = (
        r"step_1\.npz has no 'velocity', which field 'velocity' .* it has U, p, mesh, other. --field velocity=NAME"
    )
    with pytest.raises(ConfigError, match=expected):
        take()
    without = {name: it for name, it in FILE.items() if name != "p"}
    assert "p" not in take("velocity=U", arrays=without)[1]


def test_openpmd_has_a_field_in_whatever_iteration_there_is() -> None:
    for name in ("data/20/meshes/U", "/data/meshes/U"):
        arrays = {name: lambda: U, "mesh": lambda: MESH}
        assert np.array_equal(take("velocity=meshes/U", arrays=arrays)[1]["velocity"], U.reshape(2, 3, 2))
    two = {"data/20/meshes/U": lambda: U, "data/30/meshes/U": lambda: U}
    with pytest.raises(ConfigError, match="has no 'meshes/U'"):
        take("velocity=meshes/U", arrays=two)


@pytest.mark.parametrize("option", ["velocity=", "speed=U", "=U"])
def test_an_option_without_a_name_or_that_names_no_field_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=r"must be FIELD=NAME, such as .* the study has the fields velocity, p, mesh"):
        take(option)


def test_a_file_with_one_array_without_a_name_has_the_only_field() -> None:
    specs = {"u": FieldSpec(name="u", shape=(6,))}
    assert take(arrays={"": lambda: P}, specs=specs)[1]["u"] is P
    with pytest.raises(ConfigError, match="it has one array without a name"):
        take(arrays={"": lambda: P})


def test_without_a_study_all_is_taken_or_what_is_named() -> None:
    assert list(take(specs={})[1]) == ["U", "p", "mesh", "other"]
    assert list(take("velocity=U", specs={})[1]) == ["velocity"]


def test_other_shapes_are_left_to_the_client_to_refuse() -> None:
    specs = {"u": FieldSpec(name="u", shape=(3, 2))}
    assert take(arrays={"u": lambda: P.reshape(2, 3)}, specs=specs)[1]["u"].shape == (2, 3)
    assert take(arrays={"u": lambda: P[:5]}, specs=specs)[1]["u"].shape == (5,)
