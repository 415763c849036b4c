"""Runs of a stranger below a folder are shown as far as they can be read, and keep nobody from his own."""

import ast
import json
import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest
from bokeh.document import Document

from stream_server.analysis import live, run_status, runs
from stream_server.analysis.follow import server_logs
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import account_rows, status_of
from stream_server.analysis.runs import runs_below
from stream_server.analysis.simulations import simulations_of
from stream_server.commands.cli import main
from stream_server.dashboard.page import Page
from stream_server.dashboard.watch import Watch, _WatchedRun
from stream_server.errors import NotRunning
from stream_server.launcher.journal.records import AttemptStarting
from stream_server.machine.log_end import log_end
from stream_server.machine.study_lock import RUN_LOCK
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.launcher_link import Failed
from stream_server.messages.operator import AskStop, StopAccepted
from stream_server.server.replay.record_reader import Recording
from stream_server.storage.checksums import checksummed_json
from stream_server.studies.run import Run
from tests.analysis.conftest import fonts
from tests.dashboard.made_runs import add_to_journal, make_run
from tests.security.stranger import Stranger
from tests.support.recorded import record, small_study
from tests.support.studies import StudyFolder
from tests.support.timing import until

__all__ = ["fonts"]

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


def test_what_a_run_is_named_and_says_makes_no_row_of_another_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "theirs\n/home/me/runs/heat  finished"
    write(run / "study.json", {})
    write(run / "report.json", {"exit_code": 3, "message": "no\n/home/me/runs/heat  finished"})
    assert main(["list", str(tmp_path)]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["status", str(run)]) == 0
    assert "\n/home" not in capsys.readouterr().out


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
    status = status_of(RunFolder(run))
    assert status.rows()
    account_rows(status.report)
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
            until(lambda path=tmp_path / what: watch.snapshot(path) is not None)
            page.update()
            assert what in page._status.text


def test_names_that_are_no_letters_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    # No study writes into such a folder, but others may rename one.
    run = make_run(tmp_path / "run").rename(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\x1b[2J"))
    assert main(["list", str(tmp_path)]) == 0
    assert "\\udcff\\x1b[2J" in capsys.readouterr().out
    with Watch(tmp_path, look_s=0.2) as watch:
        until(lambda: watch.runs() is not None)
        page = Page(Document(), watch)
        page.open()
        assert page._run.value == "\\udcff\\x1b[2J"
        until(lambda: watch.snapshot(run) is not None)
        page.update()
        assert "\\udcff\\x1b[2J" in page._status.text


def test_links_are_not_followed_again_and_again(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs" / "heat")
    for number in range(12):
        (tmp_path / "runs" / f"loop-{number}").symlink_to(".")
    found = runs_below(tmp_path, print)
    assert [it.path.resolve() for it in found] == [run]
    # But one's own links are.
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "linked").symlink_to(tmp_path / "runs")
    assert [it.path for it in runs_below(tmp_path / "mine", print)] == [tmp_path / "mine" / "linked" / "heat"]


LINK = "os.symlink(sys.argv[1], sys.argv[2])"
LIST = "print({run.path.name: status_of(run).state for run in runs_below(Path(sys.argv[1]), print)})"


def test_links_of_a_stranger_lead_nowhere(shared: Path, tmp_path: Path, stranger: Stranger) -> None:
    make_run(tmp_path / "secret")
    shared.chmod(0o777)
    stranger.run(LINK, tmp_path, shared / "link")
    assert runs_below(shared, print) == []


MARK = "the-secret"


def private_run(folder: Path) -> Path:
    """A run of ours, each file of which would be shown, with a word in it that nobody else is to see."""
    run = make_run(folder, num_simulations=1)
    write(run / "study.json", {"study": {"name": MARK}})
    write(run / "report.json", {"exit_code": 3, "message": MARK, "versions": {MARK: "1"}})
    write(run / "exit.json", {"exit_code": 3, "message": MARK})
    metrics(run, **{MARK: 1.0})
    for name in ("rank-0", "histograms"):
        write(run / "metrics" / f"{name}.jsonl", (run / "metrics" / "metrics.jsonl").read_text())
    write(run / "parameters.csv", f"simulation,{MARK}\n0,1\n")
    begun = AttemptStarting(simulation=0, attempt=0, folder="/runs/0", public_key=None)
    add_to_journal(run, [begun, Failed(simulation=0, attempt=0, reason=MARK)])
    manifest(run, batches=987_654_321)
    for log in ("logs/server-0.log", "simulations/0/attempt-0/output.log"):
        write(run / log, f"{MARK}\n")
    return run


COMMANDS = [
    ["status"],
    ["status", "--json"],
    ["simulations"],
    ["logs"],
    ["logs", "0"],
    ["list"],
    ["plot", "--html", "{to}.html"],
    ["export", "--to", "{to}.csv"],
    ["export", "--per-rank", "--to", "{to}.csv"],
]


def said_of(run: Path, to: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """All that is shown of a run, and what is written of it."""
    for command, *options in COMMANDS:
        main([command, str(run), *(option.format(to=to) for option in options)])
    snapshot = _WatchedRun(RunFolder(run)).look()
    said = [*capsys.readouterr(), repr(snapshot), repr(snapshot.status.to_json())]
    said += [log_end(log) for log in server_logs(RunFolder(run))]
    for simulation in (None, 0):
        with suppress(NotRunning, OSError):
            said.append(Run.open(run).log(simulation))
    return "\n".join([*said, *(file.read_text() for file in to.parent.glob(f"{to.name}.*"))])


@pytest.mark.parametrize("linked", ["files", "folders"])
def test_links_in_a_run_of_a_stranger_show_nothing_of_ours(
    shared: Path, tmp_path: Path, stranger: Stranger, linked: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pictures and tables of his run may be sent to him."""
    ours, theirs = private_run(tmp_path / "ours"), shared / "theirs"
    theirs.mkdir()
    assert said_of(ours, tmp_path / "of-ours", capsys).count(MARK) > 20
    for path in sorted(ours.rglob("*") if linked == "files" else ours.iterdir()):
        place = theirs / path.relative_to(ours)
        if linked == "files" and path.is_dir():
            place.mkdir()
        else:
            place.symlink_to(path)
            stranger.owns(place)
    said = said_of(theirs, tmp_path / "of-theirs", capsys)
    assert MARK not in said
    assert "which is not followed: write what it leads to instead" in said
    assert "unless study.share_with says more" not in said
    assert "987,654,321" not in said


ROOMS = ("analysis", "commands", "dashboard", "studies")
READERS = {"open", "read_text", "read_bytes", "read_file", "read_state", "ordinary"}


def opened_otherwise(source: str) -> list[str]:
    """The calls in a source that open a file by the links of others, too."""
    calls = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return [
        ast.unparse(call)
        for call in calls
        if ast.unparse(call.func).rpartition(".")[2] in READERS
        and not any(
            word.arg == "opener" and ast.unparse(word.value) in ("by_own_links", "open_output")
            for word in call.keywords
        )
    ]


def test_whatever_looks_at_runs_opens_their_files_by_own_links() -> None:
    package = Path(sys.modules["stream_server"].__file__ or "").parent
    files = [file for room in ROOMS for file in (package / room).glob("*.py")]
    assert len(files) > 30
    found = {file.name: calls for file in files if (calls := opened_otherwise(file.read_text()))}
    # A page is no file.
    assert found == {"serving.py": ["Page(document, watch).open()"]}


def test_a_stop_does_not_go_to_the_study_whose_address_a_stranger_has_linked(
    shared: Path, tmp_path: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An order for his run would end one of ours."""
    file = ConnectionFile(study="heat", incarnation=1, host="node", control=("tcp://127.0.0.1:1",))
    file.write(tmp_path / live.OPERATOR_FILE)
    link = shared / live.OPERATOR_FILE
    link.symlink_to(tmp_path / live.OPERATOR_FILE)
    stranger.owns(link)
    asked: list[ConnectionFile] = []
    monkeypatch.setattr(live, "_ask_once", lambda file, question, timeout_s: asked.append(file))
    with pytest.raises(NotRunning, match="has ended meanwhile"):
        live.ask(shared, AskStop(finish=False), StopAccepted, timeout_s=5.0, runs=lambda: False)
    assert asked == []


def test_the_record_of_a_stranger_puts_no_file_of_ours_into_a_log(shared: Path, stranger: Stranger) -> None:
    folder = StudyFolder(shared)
    recorded = record(small_study(folder), [(0, 1)])
    marker = recorded / "rank-0.incomplete"
    marker.write_text("No room. " * 100_000)
    with closing(Recording(recorded)) as recording:
        assert len(recording.warnings[0]) < 400
    marker.unlink()
    (shared / "secret").write_text(MARK)
    marker.symlink_to(shared / "secret")
    stranger.owns(marker)
    with pytest.raises(PermissionError, match="It is a link of user"):
        Recording(recorded)


def test_a_run_that_a_user_names_by_the_link_of_somebody_else_is_read(
    shared: Path, stranger: Stranger, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(shared / "runs" / "heat")
    link = shared / "latest"
    link.symlink_to(shared / "runs")
    stranger.owns(link)
    assert main(["logs", str(link / "heat")]) == 0
    assert main(["list", str(link)]) == 0
    shown = capsys.readouterr().out
    assert "rank 0 <b>begins</b>" in shown
    assert f"{shared / 'runs' / 'heat'}  killed" in shown
    with Watch(link, look_s=0.2) as watch:
        until(lambda: watch.runs() is not None)
        page = Page(Document(), watch)
        page.open()
        assert page._run.value == "heat"


def test_folders_of_a_stranger_without_number_keep_nobody_from_his_own_runs(
    shared: Path, stranger: Stranger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_run(shared / "ours" / "runs" / "heat")
    shared.chmod(0o777)
    folders = """
for number in range(300):
    os.makedirs(f"{sys.argv[1]}/{number // 20}/{number}/below")
"""
    for name in ("a-first", "z-last"):
        stranger.run(folders, shared / name)
    told: list[str] = []
    monkeypatch.setattr(runs, "MAX_FOLDERS", 50)
    assert [it.path.name for it in runs_below(shared, told.append)] == ["heat"]
    assert told == [
        f"{shared} has more than 50 folders below it, and no run was looked for in those that are furthest down: name "
        "a folder nearer to yours"
    ]
    assert main(["list", "--json", str(shared)]) == 0
    listed, said = capsys.readouterr()
    assert [Path(it["run"]).name for it in json.loads(listed)] == ["heat"]
    assert said == f"{told[0]}\n"
    with Watch(shared, look_s=0.2) as watch:
        until(lambda: watch.runs() is not None)
        page = Page(Document(), watch)
        page.open()
        assert "1 run, " in page._title.text
        assert "has more than 50 folders below it" in page._title.text


def test_a_folder_is_not_read_further_than_its_folders_may_be_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(30):
        (tmp_path / str(number)).mkdir()
    monkeypatch.setattr(runs, "MAX_FOLDERS", 10)
    read: list[Path] = []
    monkeypatch.setattr(runs, "_may_have_runs", lambda entry: read.append(entry) or True)
    told: list[str] = []
    assert runs_below(tmp_path, told.append) == []
    assert (len(read), len(told)) == (11, 1)


def test_of_damaged_checkpoints_without_number_the_newest_are_looked_at(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    manifest(run)
    for number in range(2, 2 + run_status.MAX_MANIFESTS):
        write(run / "checkpoints" / f"{number:06}" / "manifest.json", "")
    assert run_status.newest_checkpoint(RunFolder(run)) is None
    (run / "checkpoints" / "000002").rename(run / "checkpoints" / "aside")
    assert run_status.newest_checkpoint(RunFolder(run)) is not None


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
    before = (
        "from stream_server.analysis.run_status import Path, status_of\n"
        "from stream_server.analysis.runs import runs_below"
    )
    assert ast.literal_eval(stranger.run(LIST, shared, before=before)) == {
        "open": "killed",
        "run-checkpoints": "unreadable",
        "run-metrics": "finished",
        "run-report.json": "killed",
        f"run-{RUN_LOCK}": "unknown",
    }
