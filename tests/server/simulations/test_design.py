import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.config import StudyConfig, load
from stream_server.config.parameters import Bounds
from stream_server.errors import ConfigError, UserCodeError
from stream_server.samplers.unit_cube import UnitCube
from stream_server.server.commands.check import describe
from stream_server.server.simulations.design import DesignWarnings, ParameterDesign, write_csv

BOUNDS = {"a": [0, 1], "b": [-10, 10], "c": [1e-6, 1, "log"]}
SAMPLERS = ["uniform", "lhs", "halton", "sobol", "sampler.py:Grid"]
GRID = """
import numpy as np

class Grid:
    def __init__(self, bounds, seed):
        self.bounds, self.random = bounds, np.random.default_rng(seed)

    def suggest(self, num):
        return [{name: self.random.uniform(*limits) for name, limits in self.bounds.items()} for _ in range(num)]
"""


def study(folder: Path, *, num: int = 64, validation: int = 8, seed: int = 7, **parameters: Any) -> StudyConfig:
    (folder / "server.py").write_text("class Server: ...")
    (folder / "sampler.py").write_text(GRID)
    file = folder / "study.json"
    file.write_text(
        json.dumps(
            {
                "study": {"simulations": num, "fields": {"u": [1]}, "seed": seed},
                "parameters": parameters or {"bounds": BOUNDS},
                "server": {"class": "server.py:Server"},
                "buffer": {"capacity": 100},
                "training": {"batch_size": 1},
                "validation": {"simulations": validation},
            }
        )
    )
    return load(file)


def table(config: StudyConfig, first: int, last: int) -> np.ndarray:
    design = ParameterDesign(config)
    return np.array([list(design.parameters(simulation).values()) for simulation in range(first, last)])


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_parameters_lie_within_their_bounds_in_the_order_of_the_study(tmp_path: Path, sampler: str) -> None:
    design = ParameterDesign(study(tmp_path, bounds=BOUNDS, sampler=sampler))
    assert design.names == ("a", "b", "c")
    assert design.is_suggested == sampler.endswith(":Grid")
    for simulation in range(90):
        parameters = design.parameters(simulation)
        assert list(parameters) == ["a", "b", "c"]
        assert all(type(value) is float for value in parameters.values())
        assert 0 <= parameters["a"] <= 1
        assert -10 <= parameters["b"] <= 10
        assert 1e-6 <= parameters["c"] <= 1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_parameters_are_a_function_of_seed_and_id_in_any_order_of_asking(tmp_path: Path, sampler: str) -> None:
    config = study(tmp_path, bounds=BOUNDS, sampler=sampler)
    forward, backward = ParameterDesign(config), ParameterDesign(config)
    ids = range(90)
    expected = {simulation: forward.parameters(simulation) for simulation in ids}
    assert {simulation: backward.parameters(simulation) for simulation in reversed(ids)} == expected
    assert len({tuple(parameters.values()) for parameters in expected.values()}) == len(ids)
    other_seed = ParameterDesign(study(tmp_path, bounds=BOUNDS, sampler=sampler, seed=8))
    assert other_seed.parameters(20) != expected[20]


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_the_number_of_validation_simulations_does_not_change_the_training_parameters(
    tmp_path: Path, sampler: str
) -> None:
    few = table(study(tmp_path, bounds=BOUNDS, sampler=sampler, validation=0), 0, 64)
    many = table(study(tmp_path, bounds=BOUNDS, sampler=sampler, validation=8), 8, 72)
    np.testing.assert_array_equal(few, many)


@pytest.mark.parametrize("sampler", ["uniform", "halton", "sobol"])
def test_the_number_of_simulations_does_not_change_the_first_ones(tmp_path: Path, sampler: str) -> None:
    few = table(study(tmp_path, bounds=BOUNDS, sampler=sampler, num=20), 0, 28)
    many = table(study(tmp_path, bounds=BOUNDS, sampler=sampler, num=50), 0, 28)
    np.testing.assert_array_equal(few, many)


def test_a_latin_hypercube_has_one_point_in_each_of_its_strata(tmp_path: Path) -> None:
    training = table(study(tmp_path, bounds=BOUNDS, sampler="lhs"), 8, 72)
    assert sorted(np.floor(training[:, 0] * 64)) == list(range(64))
    assert sorted(np.floor((training[:, 1] + 10) / 20 * 64)) == list(range(64))


@pytest.mark.parametrize("sampler", ["halton", "sobol"])
def test_a_low_discrepancy_sequence_is_more_even_than_chance(tmp_path: Path, sampler: str) -> None:
    training = table(study(tmp_path, bounds=BOUNDS, sampler=sampler), 8, 72)
    counts, _ = np.histogram(training[:, 0], bins=8, range=(0, 1))
    assert np.abs(counts - 8).max() <= 2


def test_a_logarithmic_parameter_is_even_in_its_logarithm(tmp_path: Path) -> None:
    training = table(study(tmp_path, bounds=BOUNDS, sampler="sobol"), 8, 72)
    counts, _ = np.histogram(np.log10(training[:, 2]), bins=6, range=(-6, 0))
    assert np.abs(counts - 64 / 6).max() < 3


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_study_may_have_no_parameters(tmp_path: Path, sampler: str) -> None:
    assert ParameterDesign(study(tmp_path, bounds={}, sampler=sampler)).parameters(3) == {}


def test_a_file_gives_row_i_to_simulation_i(tmp_path: Path) -> None:
    (tmp_path / "design.csv").write_text("x,y\n0,0.5\n1,1.5\n2,2.5\n3,3.5\n")
    design = ParameterDesign(study(tmp_path, num=2, validation=1, file="design.csv"))
    assert design.names == ("x", "y")
    assert design.parameters(2) == {"x": 2.0, "y": 2.5}
    assert design.has(3)
    assert not design.has(4)
    with pytest.raises(ConfigError, match="has 4 rows, but simulation 4 needs one"):
        design.parameters(4)


def test_a_sampler_never_ends(tmp_path: Path) -> None:
    assert ParameterDesign(study(tmp_path)).has(10**9)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_what_is_written_as_csv_reads_back_exactly(tmp_path: Path, sampler: str) -> None:
    design = ParameterDesign(study(tmp_path, bounds=BOUNDS, sampler=sampler))
    write_csv(tmp_path / "parameters.csv", {i: design.parameters(i) for i in range(72)})
    again = ParameterDesign(study(tmp_path, file="parameters.csv"))
    assert [again.parameters(simulation) for simulation in range(72)] == [
        design.parameters(simulation) for simulation in range(72)
    ]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("def suggest(self, num): return []", r"suggest\(64\) must return 64 dicts, but returned 0"),
        ("def suggest(self, num): return [{'a': 2}] * num", r"a in \[0, 1\], but returned {'a': 2}"),
        ("def suggest(self, num): return [{'b': 1}] * num", "but returned {'b': 1}"),
        ("def suggest(self, num): return [{'a': 1, 'b': 1}] * num", "but returned"),
        ("def suggest(self, num): return [{'a': None}] * num", "but returned"),
        ("def suggest(self, num): return 1 / 0", r"suggest\(64\) raised ZeroDivisionError"),
        ("def __init__(self, bounds, seed): 1 / 0", "raised ZeroDivisionError"),
    ],
)
def test_a_sampler_class_that_goes_wrong_is_told(tmp_path: Path, body: str, message: str) -> None:
    config = study(tmp_path, bounds={"a": [0, 1]}, sampler="sampler.py:Grid")
    (tmp_path / "sampler.py").write_text(f"class Grid:\n    def __init__(self, bounds, seed): ...\n    {body}\n")
    with pytest.raises(UserCodeError, match=message):
        ParameterDesign(config).parameters(20)


MIXED = {
    "n": [1, 4, "integer"],
    "grid": [8, 512, "log", "integer"],
    "scheme": ["upwind", "central", "weno"],
    "modes": {"range": [-1, 1], "size": 300},
}


@pytest.mark.parametrize("sampler", ["uniform", "lhs", "halton", "sobol"])
def test_whole_numbers_categories_and_vectors_are_drawn_evenly(tmp_path: Path, sampler: str) -> None:
    config = study(tmp_path, num=600, validation=0, bounds=MIXED, sampler=sampler)
    assert ParameterDesign(config).names == ("n", "grid", "scheme", *(f"modes_{i}" for i in range(300)))
    rows = table(config, 0, 600)
    for column, values in ((0, 4), (2, 3)):
        numbers, counts = np.unique(rows[:, column], return_counts=True)
        assert numbers.tolist() == list(range(1 - (column == 2), 1 - (column == 2) + values))
        assert np.abs(counts / 600 - 1 / values).max() < 0.07
    grid = rows[:, 1]
    assert (grid == np.rint(grid)).all()
    assert grid.min() >= 8
    assert grid.max() <= 512
    # On a logarithmic scale half of them lie below the geometric mean, which is 64.
    assert abs((grid < 64).mean() - 0.5) < 0.07
    modes = rows[:, 3:]
    assert np.abs(modes).max() <= 1
    assert abs(modes.mean()) < 0.02
    assert abs(modes.var() - 1 / 3) < 0.02


def test_a_table_with_hundreds_of_columns_is_the_design_of_another_study(tmp_path: Path) -> None:
    config = study(tmp_path, bounds=MIXED)
    design = ParameterDesign(config)
    write_csv(tmp_path / "design.csv", {i: design.parameters(i) for i in range(72)})
    read = ParameterDesign(study(tmp_path, file="design.csv"))
    assert read.names == design.names
    assert all(read.parameters(i) == design.parameters(i) for i in range(72))


@given(
    low=st.integers(-50, 50),
    num=st.integers(1, 60),
    place=st.floats(0, 1),
    scales=st.sampled_from([[], ["integer"], ["log"], ["log", "integer"]]),
)
def test_a_value_has_the_place_from_which_it_comes(low: int, num: int, place: float, scales: list[str]) -> None:
    low = abs(low) + 1 if "log" in scales else low
    cube = UnitCube([Bounds.model_validate([low, low + num, *scales])])
    value = cube.values([place])
    assert low <= value[0] <= low + num
    back = cube.places(value)
    assert 0 <= back[0] <= 1
    # A whole number lies in the middle of its piece or, on a logarithmic scale, somewhere in it.
    np.testing.assert_allclose(cube.values(back), value, rtol=1e-12, atol=1e-12)
    if "integer" not in scales:
        np.testing.assert_allclose(back, [place], atol=1e-9)


def warnings_of(config: StudyConfig) -> list[str]:
    """Warnings about the design of a study at its start."""
    design = ParameterDesign(config)
    warnings = DesignWarnings(config, design.names)
    for simulation in range(config.validation.simulations + config.study.simulations):
        warnings.note([(simulation, design.parameters(simulation).values())])
    if not design.is_suggested:
        assert design.warnings == warnings.texts
    return warnings.texts


def test_held_out_rows_of_a_file_that_are_trained_too_are_counted(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("a\n1.3\n1.1\n1.4\n1.0\n1.1\n1.2\n1.3\n1.1\n")
    [text] = warnings_of(study(tmp_path, num=5, validation=3, file="p.csv"))
    assert text.startswith("2 of 3 held-out simulations have the same parameters as simulations that are trained on (")
    assert "(simulation 1 those of 4)" in text
    assert "the first 3 rows of parameters.file are held out" in text


SERVER = """
from stream_server import StreamServer

class Server(StreamServer):
    process_simulation_data = training_step = validation_step = lambda self, *args: None
"""
UNSEEDED = GRID.replace("default_rng(seed)", "default_rng(0)")
LEARNING = UNSEEDED + "    def ingest(self, results): ...\n"
MADE = "\ndef make(bounds, seed):\n    return Grid(bounds, seed)\n"


def test_check_warns_of_a_design(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("a\n1\n1\n2\n")
    config = study(tmp_path, num=2, validation=1, file="p.csv")
    (tmp_path / "server.py").write_text(SERVER)
    assert "WARNING: 1 of 1 held-out simulation has the same parameters as simulations that" in describe(config)


@pytest.mark.parametrize(
    ("source", "name", "is_told"),
    [
        (UNSEEDED, "Grid", True),
        (LEARNING, "Grid", False),
        # Only what a function makes tells whether it learns.
        (LEARNING + MADE, "make", True),
    ],
)
def test_check_asks_a_class_that_does_not_learn_for_the_design(
    source: str, name: str, is_told: bool, tmp_path: Path
) -> None:
    (tmp_path / "points.py").write_text(source)
    config = study(tmp_path, num=8, validation=3, bounds=BOUNDS, sampler={"class": f"points.py:{name}"})
    (tmp_path / "server.py").write_text(SERVER)
    said = "WARNING: 3 of 3 held-out simulations have the same parameters as simulations that"
    assert (said in describe(config)) == is_told


def test_check_refuses_a_class_that_suggests_what_is_no_point(tmp_path: Path) -> None:
    config = study(tmp_path, bounds={"a": [0, 1]}, sampler="sampler.py:Grid")
    (tmp_path / "server.py").write_text(SERVER)
    (tmp_path / "sampler.py").write_text(GRID.replace("self.random.uniform(*limits)", "7.0"))
    with pytest.raises(UserCodeError, match=r"suggest must return dicts with a in \[0, 1\]"):
        describe(config)


def test_a_class_that_ignores_its_seed_holds_out_what_is_trained(tmp_path: Path) -> None:
    config = study(tmp_path, num=8, validation=3, bounds=BOUNDS, sampler={"class": "sampler.py:Grid"})
    (tmp_path / "sampler.py").write_text(UNSEEDED)
    [text] = warnings_of(config)
    assert text.startswith("3 of 3 held-out simulations have the same parameters")
    assert "let sampler.py:Grid draw its points with the argument `seed`" in text


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_nothing_is_told_of_a_sound_design(sampler: str, tmp_path: Path) -> None:
    assert warnings_of(study(tmp_path, num=8, validation=3, bounds=BOUNDS, sampler={"class": sampler})) == []


def test_a_parameter_whose_values_are_one_in_single_precision_is_named(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("a,t0,flag\n" + "".join(f"0.{i},{1.7e9 + i},{i % 2}\n" for i in range(8)))
    config = study(tmp_path, num=8, validation=0, file="p.csv")
    [text] = warnings_of(config)
    assert text.startswith(
        "parameter 't0' is between 1700000000.0 and 1700000007.0, where float32 has 1 different value:"
    )
    normalized = config.normalization.model_copy(update={"parameters": True})
    assert warnings_of(config.model_copy(update={"normalization": normalized})) == []
    precise = config.training.model_copy(update={"precision": "64-true"})
    assert warnings_of(config.model_copy(update={"training": precise})) == []
