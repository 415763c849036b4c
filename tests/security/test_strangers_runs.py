"""Runs of a stranger below a folder are shown as far as they can be read, and keep nobody from his own."""

import ast
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document

from stream_server.analysis.operating import status_facts, status_rows
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_state import runs_below, simulations_of, state_of
from stream_server.commands.cli import main
from stream_server.dashboard.columns import account_rows
from stream_server.dashboard.facts import RunFacts
from stream_server.dashboard.page import Page
from stream_server.dashboard.watch import Watch
from stream_server.machine.study_lock import RUN_LOCK
from stream_server.storage.checksums import checksummed_json
from tests.dashboard.made_runs import make_run
from tests.security.stranger import Stranger
from tests.support.timing import until

HUGE = 10**400


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))


def manifest(run: Path, **values: Any) -> None:
    path = run / "checkpoints" / "000001" / "manifest.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(checksummed_json({"checkpoint": 1, "batches": 1, "incarnation": 1} | values))


def metrics(run: Path, **values: Any) -> None:
    with (run / "metrics" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"batch": 60, "update": 1, "sample": 1, "wall_s": 1.0} | values) + "\n")


HOSTILE: dict[str, Callable[[Path], object]] = {
    "words for numbers in a manifest": lambda run: manifest(run, batches="many"),
    "a list for numbers in a manifest": lambda run: manifest(run, checkpoint=[1]),
    "numbers without end in a manifest": lambda run: manifest(run, incarnation=HUGE),
    "a report of lists": lambda run: write(run / "report.json", {"exit_code": 0, "simulations": [1], "samples": []}),
    "a report of words": lambda run: write(run / "report.json", {"exit_code": 0, "samples": {"expected": "all"}}),
    "an account of words": lambda run: write(
        run / "report.json", {"exit_code": 75, "samples": {"windows": {"a": "b"}}}
    ),
    "a report without end": lambda run: write(run / "report.json", {"exit_code": 0, "wall_s": HUGE, "ranks": HUGE}),
    "a time without end": lambda run: write(run / "report.json", '{"exit_code": 0, "wall_s": 1e300}'),
    "a time that is none": lambda run: write(run / "report.json", '{"exit_code": 0, "wall_s": NaN}'),
    "a report too deep": lambda run: write(run / "report.json", "[" * 100_000),
    "a long message": lambda run: write(run / "report.json", {"exit_code": 3, "message": "a" * 1_000_000}),
    "a study of lists": lambda run: write(run / "study.json", {"study": [], "checkpoint": {"dir": "\0"}}),
    "a report that is a folder": lambda run: (run / "report.json").mkdir(),
    "a log point without a place": lambda run: write(
        run / "metrics" / "metrics.jsonl", '{"batch": 1, "train/loss": 1}\n'
    ),
    "a value without end": lambda run: metrics(run, **{"train/loss": HUGE}),
    "thousands of curves": lambda run: metrics(run, **{f"val/{i}/loss": 1.0 for i in range(10_000)}),
    "a parameter without a name": lambda run: write(run / "parameters.csv", "simulation\n0,1,2\n"),
    "a cell without end": lambda run: write(run / "parameters.csv", "simulation,a\n0," + "1" * 200_000 + "\n"),
}


@pytest.mark.parametrize("what", HOSTILE)
def test_list_and_status_show_all_runs_beside_a_hostile_one(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(tmp_path / "ours")
    run = make_run(tmp_path / "theirs")
    HOSTILE[what](run)
    assert main(["list", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "ours" in shown
    assert "theirs" in shown
    assert len(shown) < 10_000
    state = state_of(RunFolder(run))
    assert status_rows(status_facts(RunFolder(run)))
    account_rows(RunFacts(run=RunFolder(run), at_s=0.0, state=state))
    simulations_of(RunFolder(run))


def test_the_page_shows_all_runs_and_can_be_led_from_a_hostile_one_to_others(tmp_path: Path) -> None:
    for what, harm in HOSTILE.items():
        harm(make_run(tmp_path / what))
    with Watch(tmp_path, look_s=0.2) as watch:
        until(lambda: watch.runs() is not None)
        page = Page(Document(), watch)
        page.open()
        for what in HOSTILE:
            page._run.value = what
            until(lambda path=tmp_path / what: watch.facts(path) is not None)
            page.update()
            assert what in page._status.text


def test_names_that_are_no_letters_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = make_run(Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[2J")))
    assert main(["list", str(tmp_path)]) == 0
    assert "\\udcff\\x1b[2J" in capsys.readouterr().out
    with Watch(tmp_path, look_s=0.2) as watch:
        until(lambda: watch.runs() is not None)
        page = Page(Document(), watch)
        page.open()
        assert page._run.value == "\\udcff\\x1b[2J"
        until(lambda: watch.facts(run) is not None)
        page.update()
        assert "\\udcff\\x1b[2J" in page._status.text


def test_links_are_not_followed_again_and_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "heat")
    for number in range(12):
        (tmp_path / "runs" / f"loop-{number}").symlink_to(".")
    found = runs_below(tmp_path)
    assert [it.path.resolve() for it in found] == [run]
    # But one's own links are.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "runs")
    assert [it.path for it in runs_below(tmp_path / "mine")] == [tmp_path / "mine" / "linked" / "heat"]


LINK = "os.symlink(sys.argv[1], sys.argv[2])"
LIST = "print({run.path.name: state_of(run).state for run in runs_below(Path(sys.argv[1]))})"


def test_links_of_a_stranger_lead_nowhere(shared: Path, tmp_path: Path, stranger: Stranger) -> None:
    make_run(tmp_path / "secret")
    shared.chmod(0o777)
    stranger.run(LINK, tmp_path, shared / "link")
    assert runs_below(shared) == []


def test_what_one_may_not_read_keeps_nobody_from_the_rest(shared: Path, stranger: Stranger) -> None:
    """Here he is the user, and we are who has closed folders, runs and files of them to him."""
    make_run(shared / "open")
    for closed in ("run", "run/checkpoints", "run/report.json", "run/metrics", f"run/{RUN_LOCK}"):
        run = make_run(shared / closed.replace("/", "-"))
        (run / "checkpoints").mkdir()
        (run / "report.json").write_text('{"exit_code": 0}')
        (run / closed.partition("/")[2]).chmod(0)
    for folder, folders, files in os.walk(shared):
        for name in (*folders, *files):
            path = Path(folder, name)
            if path.stat().st_mode & 0o777:
                path.chmod(0o755)
    before = "from stream_server.analysis.run_state import Path, runs_below, state_of"
    assert ast.literal_eval(stranger.run(LIST, shared, before=before)) == {
        "open": "killed",
        "run-checkpoints": "unreadable",
        "run-metrics": "finished",
        "run-report.json": "killed",
        f"run-{RUN_LOCK}": "unknown",
    }
