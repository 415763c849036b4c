"""The watch: what it knows of the runs that somebody looks at."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from stream_server.analysis import live
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import RUNNING, RunStatus
from stream_server.dashboard import watch as watching
from stream_server.dashboard.watch import LOOK_S, SILENCE_S, RunSnapshot, Watch, _WatchedRun
from stream_server.errors import NotRunning
from tests.analysis.logged_run import log_run
from tests.dashboard.made_runs import make_run
from tests.support.timing import Clock, until


@pytest.fixture
def heat(tmp_path: Path) -> Path:
    return make_run(tmp_path / "heat")


@pytest.fixture
def watch(heat: Path) -> Iterator[Watch]:
    with Watch(heat.parent, look_s=0.01) as watch:
        yield watch


def of(watch: Watch, path: Path) -> RunSnapshot:
    """The snapshot of a run that somebody looks at."""
    found = until(lambda: watch.snapshot(path))
    assert found is not None
    return found


def test_a_run_is_read_while_somebody_looks_at_it(watch: Watch, heat: Path) -> None:
    assert [path.name for path in until(watch.runs) or ()] == ["heat"]
    assert watch.unread_folders() == ""
    assert watch.snapshot(heat) is None
    for page in ("one", "other"):
        watch.choose(page, frozenset({heat}))
    found = of(watch, heat)
    assert [it["batch"] for it in found.records if "train/loss" in it] == [10, 20, 30, 40, 50]
    assert {rank: it["batch"] for rank, it in found.ranks.items()} == {0: 50}
    assert [it.simulation for it in found.simulations] == list(range(6))
    assert [(it.simulation, it.attempt) for it in found.attempts][-2:] == [(4, 1), (5, 0)]
    assert (found.problems, found.answer) == ([], "")
    watch.choose("one", frozenset())
    log_run(heat, range(60, 70, 10), after=50)
    until(lambda: of(watch, heat).records[-1]["batch"] == 60)
    wave = make_run(heat.parent / "wave")
    watch.choose("other", frozenset({wave}))
    of(watch, wave)
    assert watch.snapshot(heat) is None


def test_a_damaged_file_is_named_and_costs_neither_the_run_nor_others(watch: Watch, heat: Path) -> None:
    wave = make_run(heat.parent / "wave")
    watch.choose("page", frozenset({heat, wave}))
    whole = of(watch, heat)
    with (heat / "metrics" / "metrics.jsonl").open("ab") as file:
        file.write(b"{\n")
    until(lambda: of(watch, heat).problems)
    assert "metrics.jsonl" in of(watch, heat).problems[0]
    assert of(watch, heat).records == whole.records
    assert of(watch, heat).attempts == whole.attempts
    assert of(watch, wave).problems == []


def test_a_run_that_does_not_run_answers_that_it_cannot_be_stopped(watch: Watch, heat: Path) -> None:
    watch.choose("page", frozenset({heat}))
    of(watch, heat)
    watch.stop(heat, finish=False)
    until(lambda: "is not running" in of(watch, heat).answer)


def test_a_server_is_asked_for_its_table_now_and_then_and_left_alone_once_it_is_silent(
    heat: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, asked = Clock(100.0), list[str]()
    monkeypatch.setattr(watching, "time", clock)
    monkeypatch.setattr(live, "ask_server", lambda *_: asked.append("status"))
    monkeypatch.setattr(live, "ask_simulations", lambda *_: asked.append("table") or [])
    watched = _WatchedRun(RunFolder(heat))
    status = RunStatus(run=watched.run, state=RUNNING, detail="")

    def asked_after(seconds: float) -> list[str]:
        asked.clear()
        clock.now += seconds
        watched._ask(status)
        return list(asked)

    assert [asked_after(it) for it in (0, LOOK_S, LOOK_S)] == [["status", "table"], ["status"], ["status", "table"]]

    def silent(*_: object) -> None:
        asked.append("status")
        raise NotRunning("no word")

    monkeypatch.setattr(live, "ask_server", silent)
    assert [asked_after(it) for it in (LOOK_S, LOOK_S, SILENCE_S)] == [["status"], [], ["status"]]
