"""The zoo itself: every bug can be put back, its catchers are there, and one of them is tried at each run."""

import difflib
import random
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.unmarked import unmarked
from tests.zoo.bug import Bug, Form, all_bugs
from tests.zoo.tree import ROOT, DoesNotApply, NotTheCopy, Tree, apply, touched_files
from tests.zoo.trial import FAILED, try_bug

BUGS = all_bugs()
LISTING = "python -m tests.campaigns"


@pytest.fixture(scope="module")
def seed(request: pytest.FixtureRequest) -> int:
    return int(request.config.option.hypothesis_seed)


def is_there(catcher: str) -> bool:
    """Whether `make test` has such a test, or there is such a campaign."""
    path, _, name = catcher.partition("::")
    if path.startswith("tests/"):
        return (ROOT / path).is_file() and name.partition("[")[0] in unmarked(ROOT / path)
    _, option, module, *_ = catcher.split()
    return option == "-m" and find_spec(module) is not None


def made_up(folder: Path, path: str, old: str, new: str, catcher: str) -> Bug:
    """A bug that is not in the zoo: the words `old` of a file become `new`."""
    before = (ROOT / path).read_text()
    assert before.count(old) == 1
    after = before.replace(old, new)
    diff = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}", n=2)
    file = folder / "made_up.patch"
    file.write_text(f"Something is wrong.\n\nbreaks: G2\nform: short\ncaught by: {catcher}\n\n" + "".join(diff))
    return Bug.read(file)


def comment_only(folder: Path) -> Bug:
    """A bug that is none."""
    test = "tests/buffers/test_fifo.py::test_a_full_fifo_has_no_room_until_something_is_drawn"
    return made_up(
        folder, "stream_server/buffers/fifo.py", "\n\n\nclass Fifo(Policy):", "\n\n# Nothing.\nclass Fifo:", test
    )


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_every_bug_can_be_put_back_and_its_catchers_are_there(bug: Bug) -> None:
    apply(bug.file, ROOT, check=True)
    assert touched_files(bug.file)
    assert [catcher for catcher in bug.catchers if not is_there(catcher)] == []


def test_there_are_many_bugs_and_most_are_caught_without_a_campaign() -> None:
    assert len(BUGS) >= 24
    assert sum(bug.form is Form.LONG for bug in BUGS) < len(BUGS) // 4


def test_a_quick_one_is_caught(seed: int) -> None:
    bug = random.Random(seed).choice([bug for bug in BUGS if bug.form is Form.QUICK])
    verdict = try_bug(bug, seed=seed)
    assert verdict.is_caught, f"{bug.name}: {verdict.problem}"


@pytest.mark.full
def test_a_change_of_nothing_but_a_comment_is_not_caught(tmp_path: Path, seed: int) -> None:
    verdict = try_bug(comment_only(tmp_path), seed=seed)
    assert not verdict.is_caught
    assert "1 passed" in verdict.problem


def test_a_patch_whose_sources_have_moved_is_told(tmp_path: Path, seed: int) -> None:
    bug = comment_only(tmp_path)
    bug.file.write_text(bug.file.read_text().replace("\n ", "\n another line, "))
    with pytest.raises(DoesNotApply):
        apply(bug.file, ROOT, check=True)
    assert try_bug(bug, seed=seed).problem.startswith("does not apply")


@pytest.mark.full
@pytest.mark.parametrize(("exit_code", "is_caught"), [(1, True), (2, False)])
def test_a_campaign_notices_a_bug_by_exit_code_1_alone(
    tmp_path: Path, seed: int, exit_code: int, is_caught: bool
) -> None:
    place = "console.print(listing())\n        return "
    bug = made_up(tmp_path, "tests/campaigns.py", f"{place}0", f"{place}{exit_code}", LISTING)
    assert try_bug(bug, seed=seed).is_caught == is_caught


@pytest.mark.full
def test_processes_that_would_run_another_tree_than_the_copy_are_noticed() -> None:
    with Tree() as tree:
        tree.check()
        del tree.environment["PYTHONPATH"]
        with pytest.raises(NotTheCopy):
            tree.check()


def test_a_bug_must_say_what_it_is(tmp_path: Path) -> None:
    file = tmp_path / "silent.patch"
    file.write_text("form: short\n\n--- a/x\n+++ b/x\n")
    with pytest.raises(ValueError, match="must say what is wrong and breaks and caught by"):
        Bug.read(file)


def test_a_failed_test_is_known_by_its_whole_name() -> None:
    output = "part 0: FAILED tests/a.py::test_b[one, two]\npart 1: FAILED tests/c.py::test_d\n"
    assert FAILED.findall(output) == ["tests/a.py::test_b[one, two]", "tests/c.py::test_d"]
