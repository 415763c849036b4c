"""Mutants: their form, the judgement of tests, and the counts of their fates."""

import ast
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests import figures
from tests.campaigns import Tally
from tests.mutants import scores
from tests.mutants.campaign import Mutants, all_rooms, mutants_of
from tests.mutants.mutations import Mutant, mutants
from tests.mutants.native import FORTRAN
from tests.mutants.native_mutations import functions
from tests.mutants.trial import GRACE_S, Catchers, Workshop
from tests.native.building import NATIVE

SOURCE = '''
"""Text."""
log = getLogger()

class Few:
    """Text."""
    limit: int = 3

    def __repr__(self) -> str:
        return "1" + "2"

    def add(self, it: int) -> bool:
        """Text."""
        assert it > 0
        log.warning("%d", it + 1)
        if it < self.limit and not self.full:
            raise ValueError(f"{it - 1}")
        self.sum = self.sum + it
        return True
'''


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "few.py"
    path.write_text(SOURCE)
    return path


def test_a_mutant_differs_in_one_place_and_is_python(file: Path) -> None:
    found = mutants(file, room="", module="few")
    assert {it.name for it in found} == {
        "few:Few: 3 -> 4",
        "few:Few.add: it < self.limit and (not self.full) -> True",
        "few:Few.add: it < self.limit and (not self.full) -> False",
        "few:Few.add: it < self.limit and (not self.full) -> (it < self.limit or not self.full)",
        "few:Few.add: it < self.limit -> (it <= self.limit)",
        "few:Few.add: not self.full -> (self.full)",
        "few:Few.add: raise ValueError(f'{it - 1}') -> pass",
        "few:Few.add: self.sum = self.sum + it -> pass",
        "few:Few.add: self.sum + it -> (self.sum - it)",
        "few:Few.add: return True -> return None",
    }
    for it in found:
        ast.parse(it.text)
        old, new = SOURCE.splitlines(), it.text.splitlines()
        assert [number for number, (a, b) in enumerate(zip(old, new, strict=True), 1) if a != b] == [it.line]


def test_two_changes_of_the_same_words_have_names_of_their_own(tmp_path: Path) -> None:
    file = tmp_path / "twice.py"
    file.write_text("a = 1\nb = 1\n")
    assert [it.name for it in mutants(file, room="", module="twice")] == ["twice:: 1 -> 2", "twice:: 1 -> 2 #2"]


def test_the_sample_of_a_room_follows_from_the_seed_alone(tmp_path: Path) -> None:
    def drawn(only: str, seed: int) -> list[str]:
        return [it.name for _, it in Mutants(folder=tmp_path, only=only, seed=seed, number=5).sample("storage")]

    assert drawn("storage", 1) == drawn("config,storage", 1) != drawn("storage", 2)
    assert len(drawn("storage", 1)) == 5


def test_every_room_has_mutants_and_each_reason_is_of_one(tmp_path: Path) -> None:
    names = {it.name for room in all_rooms() for _, it in mutants_of(room)}
    assert [room for room in all_rooms() if not mutants_of(room)] == []
    assert [name for name in scores.reasons() if name not in names and not name.startswith("native")] == []


def test_each_reason_of_a_client_in_c_or_fortran_is_of_a_function_that_is_there() -> None:
    files = {it.stem: it for it in (*(NATIVE / "src").glob("*.c"), FORTRAN)}
    places = [name.split(": ")[0].removeprefix("native.").split(":") for name in scores.reasons() if "native." in name]
    assert places
    assert [(file, it) for file, it in places if file not in files or it not in ("", *functions(files[file]))] == []


def test_a_room_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no room kitchen"):
        Mutants(folder=tmp_path, only="kitchen")


def test_the_tests_of_a_line_are_those_that_run_it_fastest_first() -> None:
    tests = Catchers(
        marks="",
        lines={"a": {"file": {1, 2}}, "b": {"file": {2}}, "c": {"file": {9}}, "d": {"other": {2}}},
        seconds={"a": 2.0, "b": 1.0, "c": 0.5, "d": 0.1, "tests/test_file.py::e": 4.0},
    )
    assert tests.running("file", 2, 3) == ["b", "a"]
    assert tests.running("file", 5, 5) == ["c", "b", "a", "tests/test_file.py::e"]
    assert tests.running("unseen", 5, 5) == ["d", "c", "b", "a", "tests/test_file.py::e"]


class BusyMachine(Workshop):
    """Tests end as it is told: with the mutant, and without it."""

    def __init__(self, folder: Path, with_it: list[dict[str, Any]], without: list[dict[str, Any]]) -> None:
        super().__init__(folder)
        self.with_it, self.without = with_it, without

    def _try(self, mutant: Mutant, arguments: Sequence[str], tests: list[str] | None, limit_s: float) -> dict[str, Any]:
        return self.with_it.pop(0)

    def _run(self, *arguments: Any, **more: Any) -> dict[str, Any]:
        return self.without.pop(0)


def passed(wall_s: float = 1.0, **more: Any) -> dict[str, Any]:
    return {"exit_code": 0, "wall_s": wall_s, "failed": {}, **more}


def failed(after_s: float) -> dict[str, Any]:
    return {"exit_code": 1, "wall_s": after_s, "failed": {"test": after_s}}


def ended() -> dict[str, Any]:
    return {"exit_code": None, "wall_s": GRACE_S}


@pytest.mark.parametrize(
    ("with_it", "without", "how"),
    [
        ([failed(after_s=0.5)], [], "test"),
        ([failed(after_s=30), failed(after_s=30)], [passed()], "test"),
        ([failed(after_s=30)], [passed(seconds={"test": 1.0})], "test"),
        ([failed(after_s=30), passed(), passed()], [passed(seconds={"test": 20.0})], ""),
        ([failed(after_s=30), passed()], [failed(after_s=30)], ""),
        ([ended()], [passed()], "takes too long"),
        ([ended(), passed()], [passed(wall_s=100)], ""),
    ],
)
def test_no_mutant_is_caught_because_the_machine_is_busy(
    tmp_path: Path, with_it: list[dict[str, Any]], without: list[dict[str, Any]], how: str
) -> None:
    machine = BusyMachine(tmp_path, with_it, without)
    mutant = Mutant(room="", name="", file=tmp_path, line=1, last_line=1, text="")
    assert machine._noticed(mutant, [], None, {"test": 0.2}, 2 * GRACE_S) == how
    assert (machine.with_it, machine.without) == ([], [])


def test_no_test_that_fails_without_a_mutant_catches_it(tmp_path: Path) -> None:
    machine = BusyMachine(tmp_path, [failed(after_s=0.1), passed()], [failed(after_s=0.1)])
    mutant = Mutant(room="", name="", file=tmp_path, line=1, last_line=1, text="")
    assert machine.notices(mutant, [], limit_s=GRACE_S) == ""


@pytest.mark.slow
def test_a_mutant_that_a_test_notices_is_caught_and_one_that_none_does_is_told(tmp_path: Path) -> None:
    names = ["wording:counted: num == 1", "wording:listed: return"]
    tally = Tally.of(Mutants(folder=tmp_path, seed=1, only="package", names=names).run())
    assert tally.num_rounds == 4
    assert tally.cases[scores.CAUGHT] >= 3
    assert len(tally.violations) == tally.cases[scores.MATTERS]


def test_rooms_that_did_not_run_keep_their_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "FILE", tmp_path / "figures.json")
    monkeypatch.setattr(figures, "PAGE", tmp_path / "page.md")
    figures.PAGE.write_text(figures.BEGIN + figures.END + scores.BEGIN + scores.END)
    for room, caught in (("a", 3), ("b", 8), ("a", 9)):
        kinds = [scores.CAUGHT] * caught + [scores.UNPROMISED] * 2 + [scores.MATTERS]
        scores.record({f"{room}{i}": (room, it) for i, it in enumerate(kinds)}, wall_s=1, seed=7)
    found = figures.recorded()[scores.FIGURE]
    assert found["cases"] == {scores.CAUGHT: 17, scores.UNPROMISED: 4, scores.MATTERS: 2}
    assert found["violations"] == 2
    page = figures.PAGE.read_text()
    assert "| a | 12 | 9 | 2 | 1 | 90% | 7 |" in page
    assert "| b | 11 | 8 | 2 | 1 | 89% | 7 |" in page
    assert scores.open_ones("b") == ["b10"]
    scores.record({"b10": ("b", scores.CAUGHT)}, wall_s=1, seed=7, again=True)
    assert scores.open_ones("b") == []
    assert "| b | 11 | 9 | 2 | 0 | 100% | 7 |" in figures.PAGE.read_text()
    scores.record({"c": ("b", scores.MATTERS), "d": ("b", scores.CAUGHT)}, wall_s=1, seed=8, more=True)
    assert scores.open_ones("b") == ["c"]
    assert "| b | 13 | 10 | 2 | 1 | 91% | 7, 8 |" in figures.PAGE.read_text()
