from pathlib import Path

import pytest

from stream_server.launcher.simulations.attempt_folders import arguments, placeholders, render, simulation_seed

VALUES = placeholders({"initial": 100.0, "left": 1 / 3}, simulation=7, attempt=2, seed=0, study_dir=Path("/study"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{initial}", "100.0"),
        ("--left={left:.3f}", "--left=0.333"),
        ("{left}", "0.3333333333333333"),
        ("{simulation:05d}.{attempt}", "00007.2"),
        ("{study_dir}/mesh.h5", "/study/mesh.h5"),
        ('{"json": {initial}}', '{"json": 100.0}'),
        ("${initial} {unknown} { initial }", "${initial} {unknown} { initial }"),
    ],
)
def test_placeholders_are_filled_in_and_other_braces_stay(text: str, expected: str) -> None:
    assert render(text, VALUES) == expected


def test_a_parameter_is_written_so_that_it_reads_back_exactly() -> None:
    assert float(render("{left}", VALUES)) == 1 / 3


def test_the_seed_of_a_simulation_is_its_own_and_the_same_in_every_attempt() -> None:
    seeds = [simulation_seed(123, simulation) for simulation in range(1000)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**31 for seed in seeds)
    assert seeds[5] == simulation_seed(123, 5) != simulation_seed(124, 5)


def test_a_file_of_the_study_becomes_absolute_and_a_template_the_rendered_file(tmp_path: Path) -> None:
    (tmp_path / "heat.py").touch()
    rendered = {tmp_path / "input.nml": Path("/attempt/input.nml")}
    command = ["python", "heat.py", "input.nml", str(tmp_path / "input.nml"), "other.txt", ""]
    assert arguments(command, VALUES, study_dir=tmp_path, rendered=rendered) == [
        "python",
        str(tmp_path / "heat.py"),
        "/attempt/input.nml",
        "/attempt/input.nml",
        "other.txt",
        "",
    ]
