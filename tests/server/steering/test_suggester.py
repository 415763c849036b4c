"""Parameters that a class of the user's suggests while the study runs: the real process, and every way to go wrong."""

import json
import os
import signal
from collections import UserDict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Event, Thread, current_thread
from typing import Any

import pytest

from stream_server.errors import ConfigError, UserCodeError
from stream_server.machine import processes
from stream_server.server.steering.suggester import _ready_ahead
from stream_server.server.steering.suggestion_log import SUGGESTIONS_FILE, Suggestion, SuggestionLog
from stream_server.storage import disk
from tests.server.steering.conftest import Suggesting
from tests.support.studies import StudyFolder
from tests.support.timing import until

Start = Callable[..., Suggesting]

TEN_LINES = """
import random

class Points:
    def __init__(self, vocs):
        self.domains = {name: it.domain for name, it in vocs.variables.items()}

    def suggest(self, num_points):
        return [{name: random.uniform(*ends) for name, ends in self.domains.items()} for _ in range(num_points)]

    def ingest(self, results): ...
"""
COUNTING = """
class Points:
    def __init__(self, bounds, seed):
        self.number = 0

    def suggest(self, num):
        print("asked for", num, flush=True)
        self.number += num
        return [{"x": (self.number - i) / 1000, "y": 2.0, "_score": float(self.number - i)} for i in range(num)]

    def ingest(self, results): ...
"""
LATER = """
import os, time

class Points:
    def __init__(self, bounds, seed):
        self.number = 0

    def suggest(self, num):
        self.number += 1
        points = [{"x": (self.number + i / 100) / 1000, "y": 2.0} for i in range(num)]
        if self.number == 1:
            return points
        BODY

    def ingest(self, results): ...
"""


def later(body: str) -> str:
    """A class whose answers are fine at first; each generator has a count of its own."""
    return LATER.replace("BODY", body)


def by(suggesting: Suggesting) -> list[str]:
    return [it.by for it in suggesting.suggester.suggestions]


def test_a_generator_of_ten_lines_by_the_protocol_of_gest_api_suggests_as_much_as_is_wanted(suggesting: Start) -> None:
    live = suggesting(TEN_LINES)
    assert len(live.first) == 2 + 4
    assert live.suggester.lookahead == 4
    delivered = live.next(10)
    assert list(delivered) == [6, 7, 8, 9]
    rows = [*live.first, *delivered.values()]
    assert all(0 <= row["x"] <= 1 and 1 <= row["y"] <= 100 for row in rows)
    assert len({tuple(row.values()) for row in rows}) == 10
    assert [each.by for each in live.suggester.suggestions] == [live.suggester.suggestions[0].by] * 10
    assert live.suggester.warnings == []


def test_as_many_are_ready_as_may_run_at_once_unless_the_study_says_otherwise(folder: StudyFolder) -> None:
    def ready(**changes: Any) -> int:
        return _ready_ahead(folder.load({key.replace("__", "."): value for key, value in changes.items()}))

    assert ready(launcher__max_running=1) == 1
    assert ready(launcher__max_running=7) == 7
    assert ready(launcher__max_running=7, parameters__sampler={"class": "points.py:Points", "lookahead": 3}) == 3


def test_a_class_that_does_not_learn_is_asked_for_all_at_once_as_it_was_before(
    suggesting: Start, folder: StudyFolder
) -> None:
    live = suggesting(COUNTING.replace("def ingest(self, results): ...", ""))
    assert len(live.first) == 22
    assert (folder.path / "run" / "logs" / "sampler.log").read_text().split("\n") == ["asked for 2", "asked for 20", ""]


def test_the_parameters_file_tells_who_proposed_them_and_by_what_score(suggesting: Start, folder: StudyFolder) -> None:
    live = suggesting(COUNTING)
    live.next(8)
    rows = [line.split(",") for line in (folder.path / "run" / "parameters.csv").read_text().splitlines()]
    assert [row[0] for row in rows] == ["6", "7"]
    for row, suggestion in zip(rows, live.suggester.suggestions[6:], strict=True):
        assert row[1:3] == [repr(value) for value in suggestion.values]
        assert row[3] == "points.py:Points"
        assert row[4] == suggestion.at
        assert float(row[5]) == round(1000 * suggestion.values[0])


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        ("raise RuntimeError('no idea')", "raised RuntimeError: no idea"),
        ("return []", "must return 3 dicts, but returned 0"),
        ("return points[:1]", "must return 3 dicts, but returned 1"),
        (
            "return points[:1] + [{'x': 2.0, 'y': 2.0}, {'x': 0.5, 'y': 0.5}]",
            "y in [1, 100], but returned",
        ),
        ("return [{'x': float('nan'), 'y': 2.0}] * num", "but returned {'x': nan"),
        ("return [{'x': 0.5, 'z': 2.0}] * num", "but returned {'x': 0.5, 'z': 2.0}"),
        ("return [{**it, 'mesh': 3} for it in points]", "but returned"),
        ("return [{**it, '_score': float('inf')} for it in points]", "but returned"),
        ("return [{'x': 0.5, 'y': 2.0}] * num", "gave points again that it had given before"),
        ("return 7", "TypeError"),
        ("return [7] * num", "but returned 7"),
        ("os._exit(9)", "ended with exit code 9"),
        ("os.kill(os.getpid(), 11)", "killed by SIGSEGV"),
    ],
)
def test_what_goes_wrong_later_costs_no_simulation_and_is_told(
    suggesting: Start, folder: StudyFolder, body: str, problem: str
) -> None:
    live = suggesting(later(body))
    delivered = live.next(9)
    assert list(delivered) == [6, 7, 8]
    num_good = 1 if "points[:1]" in body or "again" in problem else 0
    assert by(live) == ["points.py:Points"] * (6 + num_good) + ["sobol"] * (3 - num_good)
    assert all(0 <= row["x"] <= 1 and 1 <= row["y"] <= 100 for row in delivered.values())
    [warning] = live.suggester.warnings
    assert warning.startswith(f"{3 - num_good} of 9 simulations have parameters of the fallback (sobol)")
    assert problem in warning
    log = folder.path / "run" / "logs" / "sampler.log"
    assert ("logs/sampler.log has what the class wrote" in warning) == bool(log.read_text())
    assert len(live.next(11)) == 2


def test_a_class_that_hangs_is_killed_in_time_and_asked_anew_a_few_times(
    suggesting: Start, caplog: pytest.LogCaptureFixture
) -> None:
    live = suggesting(later("time.sleep(1000)"), sampler={"timeout_s": 6.0})
    for num in range(7, 13):
        assert list(live.next(num)) == [num - 1]
    assert by(live)[6:] == ["sobol"] * 6
    assert "switched off after 3 failures in a row" in live.suggester.warnings[0]
    assert "did not answer within parameters.sampler.timeout_s" in caplog.text


@pytest.mark.parametrize(
    ("code", "error", "message"),
    [
        ("class Points: ...", ConfigError, r"must have a method suggest\(num\)"),
        (
            "class Points:\n def suggest(self, n): ...\n def enough(self): ...",
            ConfigError,
            r"enough\(\) of .*points.py:Points would never be called, since it has no ingest",
        ),
        ("class Points:\n def __init__(self): 1 / 0\n def suggest(self, n): ...", UserCodeError, "ZeroDivisionError"),
        ("class Points:\n def suggest(self, n): return []", UserCodeError, "must return 2 dicts, but returned 0"),
        ("class Points:\n def suggest(self, n): 1 / 0", UserCodeError, "ZeroDivisionError"),
        ("class Points:\n def __init__(self, sigma): ...", ConfigError, "must have sigma, which Points needs"),
        (
            "import os\nos._exit(4)\nclass Points: ...",
            UserCodeError,
            "its process ended with exit code 4",
        ),
        ("raise ValueError('here')\nclass Points: ...", UserCodeError, "ValueError"),
        (COUNTING, ConfigError, "simulation.per_job is 2, but"),
        (COUNTING, ConfigError, r"simulation.per_worker would be ignored: while .* is 4, .* Write 9 or more there"),
        (COUNTING.replace("ingest", "other"), ConfigError, "lookahead would be ignored"),
    ],
)
def test_a_class_that_cannot_suggest_anything_is_refused_at_the_start(
    suggesting: Start, code: str, error: type[Exception], message: str
) -> None:
    changes: dict[str, Any] = {f"simulation.{key}": 2 for key in ("per_job", "per_worker") if key in message}
    changes |= {"sampler": {"lookahead": 2}} if "lookahead" in message else {}
    with pytest.raises(error, match=message) as raised:
        suggesting(code, **changes)
    assert raised.value.__cause__ is not raised.value


def test_a_later_start_suggests_nothing_twice_and_gives_nobody_other_parameters(suggesting: Start) -> None:
    """The class begins anew and suggests the same numbers again."""
    before = suggesting(COUNTING)
    before.next(9)
    known = before.suggester.parameters
    after = suggesting(COUNTING)
    assert after.first == known
    after.next(15)
    rows = after.suggester.parameters
    assert rows[:9] == known
    assert len({tuple(row.values()) for row in rows[2:]}) == 13
    assert set(by(after)) == {"points.py:Points"}


def test_a_class_that_cannot_begin_at_a_later_start_is_told_results_once_it_can(
    suggesting: Start, folder: StudyFolder
) -> None:
    """Also when it has suggested all: it may stop simulations, and redraws may come."""
    mark = folder.path / "mark"
    code = f"import os\nif os.path.exists({str(mark)!r}):\n    os.remove({str(mark)!r})\n    os._exit(3)\n{COUNTING}"
    code += "\n    def to_stop(self):\n        return [5]\n"
    suggesting(code).next(22)
    mark.touch()
    after = suggesting(code)
    assert not mark.exists()
    assert after.suggester.learns
    after.suggester.ingest({5: {**after.first[5], "loss": 1.0}})
    assert after.next_stopped() == 5


def test_a_later_start_has_other_random_numbers(suggesting: Start) -> None:
    code = TEN_LINES.replace("vocs):", "vocs, seed):\n        random.seed(seed)")
    before = suggesting(code, output="first").suggester.parameters
    assert suggesting(code, output="second").suggester.parameters == before
    again = suggesting(code, output="second")
    again.next(12)
    assert len({tuple(row.values()) for row in again.suggester.parameters[2:]}) == 10
    assert set(by(again)) == {"points.py:Points"}
    assert suggesting(code, output="third", **{"study.seed": 1}).suggester.parameters != before


def test_a_class_that_fails_at_a_later_start_leaves_the_study_alive(suggesting: Start) -> None:
    suggesting(COUNTING)
    live = suggesting("import no_such_package\nclass Points: ...")
    assert list(live.next(8)) == [6, 7]
    assert by(live)[6:] == ["sobol", "sobol"]
    assert "no_such_package" in live.suggester.warnings[0]


def test_a_torn_last_line_was_never_told_and_a_damaged_one_is_refused(suggesting: Start, folder: StudyFolder) -> None:
    suggesting(COUNTING).next(8)
    log = folder.path / "run" / SUGGESTIONS_FILE
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(lines) + lines[-1][:20])
    live = suggesting(COUNTING)
    assert len(live.first) == 8
    live.next(9)
    assert len(suggesting(COUNTING).first) == 9
    log.write_bytes(b"".join([lines[0].replace(b"2.0", b"3.0", 1), *lines[1:]]))
    with pytest.raises(ConfigError, match=r"suggestions\.jsonl, which has the parameters .* line 1"):
        suggesting(COUNTING)


def test_the_process_ends_with_the_suggester_also_while_the_class_computes(suggesting: Start) -> None:
    live = suggesting(later("time.sleep(1000)"))
    pid = live.suggester._process._process.pid  # type: ignore[union-attr]
    live.suggester.want(8)
    suggesting(COUNTING, output="other")
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_what_was_to_be_suggested_when_the_study_stopped_comes_from_the_class_at_the_next_start(
    suggesting: Start, folder: StudyFolder
) -> None:
    live = suggesting(later("print('computes', flush=True); time.sleep(1000)"))
    live.suggester.want(8)
    until(lambda: "computes" in (folder.path / "run" / "logs" / "sampler.log").read_text())
    again = suggesting(COUNTING)
    assert len(again.first) == 6
    again.next(8)
    assert set(by(again)) == {"points.py:Points"}


def test_a_process_that_cannot_be_started_again_costs_suggestions_and_not_the_study(
    suggesting: Start, folder: StudyFolder
) -> None:
    live = suggesting(later("os._exit(9)"))
    live.next(7)
    log = folder.path / "run" / "logs" / "sampler.log"
    log.unlink()
    log.mkdir()
    for num in range(8, 12):
        live.next(num)
    assert by(live)[6:] == ["sobol"] * 5
    assert "switched off after 3 failures in a row" in live.suggester.warnings[0]


def test_an_error_of_the_thread_is_there_for_the_main_thread(
    suggesting: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, error = suggesting(COUNTING), MemoryError()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(live.suggester._process, "ask", fail)
    live.suggester.want(7)
    until(lambda: live.suggester.error is error)


def test_results_that_come_while_the_process_starts_again_are_not_lost(
    suggesting: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the old news and the new ones, the class is to be told all anew."""
    live = suggesting(COUNTING)
    suggester, asked = live.suggester, list[Mapping[str, Any]]()
    is_ingesting, may_go_on = Event(), Event()

    class Results(UserDict[int, dict[str, float]]):
        """Its second reading, into the news, lasts until the other thread is at the lock."""

        num_read = 0

        def keys(self) -> Any:
            self.num_read += 1
            if self.num_read == 2:
                is_ingesting.set()
                may_go_on.wait(100)
            return super().keys()

    ingesting = Thread(target=suggester.ingest, args=[Results({6: {"x": 0.5, "loss": 2.0}})])

    class Lock:
        """That of the suggester."""

        def __enter__(self) -> None:
            if current_thread() is not ingesting:
                may_go_on.set()
            condition.__enter__()

        def __exit__(self, *_: object) -> None:
            condition.__exit__(None, None, None)

    def start() -> bool:
        ingesting.start()
        assert is_ingesting.wait(100)
        return True

    def ask(request: Mapping[str, Any], _: float) -> dict[str, Any]:
        asked.append(request)
        return {"stop": []}

    suggester.ingest({7: {"x": 0.25, "loss": 1.0}})
    suggester._news = {}
    condition = suggester._condition
    suggester._process.close()
    monkeypatch.setattr(suggester._process, "_connection", None)
    monkeypatch.setattr(suggester._process, "ask", ask)
    monkeypatch.setattr(suggester, "_start_process", start)
    monkeypatch.setattr(suggester, "_condition", Lock())
    suggester._ask({"do": "suggest"}, 0.0)
    monkeypatch.setattr(suggester, "_condition", condition)
    ingesting.join()
    assert asked[0] == {
        "do": "ingest",
        "results": [
            {"simulation": 6, "held_out": 0.0, "x": 0.5, "loss": 2.0},
            {"simulation": 7, "held_out": 0.0, "x": 0.25, "loss": 1.0},
        ],
    }


def test_a_class_is_told_the_results_of_simulations_as_they_are(suggesting: Start, folder: StudyFolder) -> None:
    code = COUNTING.replace("(self, results): ...", "(self, results): print('told', results, flush=True)")
    live = suggesting(code)
    live.suggester.ingest({6: {"x": 0.125, "y": 3.0, "loss": 2.0}, 0: {"x": 0.5, "y": 2.0, "validation_loss": 2.0}})
    live.next(7)
    log = (folder.path / "run" / "logs" / "sampler.log").read_text()
    held_out = {"simulation": 0, "held_out": 1.0, "x": 0.5, "y": 2.0, "validation_loss": 2.0}
    trained = {"simulation": 6, "held_out": 0.0, "x": 0.125, "y": 3.0, "loss": 2.0}
    assert f"told {[held_out, trained]}\n" in log


STOPPING = """
    def ingest(self, results):
        self.known = [row["simulation"] for row in results if row["loss"] < 0.5]

    def to_stop(self):
        return self.known
"""


def test_a_class_that_stops_simulations_hears_of_results_although_nothing_is_wanted(suggesting: Start) -> None:
    code = COUNTING.replace("    def ingest(self, results): ...", STOPPING)
    assert "to_stop" in code
    live = suggesting(code)
    for loss, simulation in ((1.0, 4), (0.25, 5), (0.25, 6)):
        live.suggester.ingest({simulation: {"x": 0.125, "y": 3.0, "loss": loss}})
    assert [live.next_stopped() for _ in range(2)] == [5, 6]
    assert live.suggester.warnings == []


def test_a_class_that_dies_of_results_is_not_started_for_them_for_ever(suggesting: Start) -> None:
    code = COUNTING.replace(
        "    def ingest(self, results): ...", STOPPING.replace("self.known =", "import os; os._exit(3)  #")
    )
    live = suggesting(code)
    live.suggester.ingest({5: {"x": 0.125, "y": 3.0, "loss": 1.0}})
    until(lambda: "ended with exit code 3" in live.suggester._problem)
    assert len(live.next(7)) == 1


def test_parameters_named_like_results_are_refused_where_the_class_learns(suggesting: Start) -> None:
    bounds = {"parameters.bounds": {"x": [0, 1], "loss": [0, 1], "failed": [0, 1]}}
    with pytest.raises(ConfigError, match=r"parameters\.bounds: failed, loss is what .*points\.py:Points is told"):
        suggesting(TEN_LINES, **bounds)
    assert len(suggesting(TEN_LINES.replace("ingest", "other"), **bounds).first) == 22


def test_the_class_is_told_to_finalize_at_the_end(suggesting: Start, folder: StudyFolder) -> None:
    code = COUNTING + "\n    def finalize(self):\n        open(__file__ + '.done', 'a').write('done ')\n"
    suggesting(code)
    suggesting(COUNTING, output="other")
    assert (folder.path / "points.py.done").read_text() == "done done "


HELPED = """
import subprocess, threading, time
helper = subprocess.Popen(["sleep", "1000"])
open(__file__ + ".helper", "w").write(str(helper.pid))
threading.Thread(target=time.sleep, args=(1000,)).start()
"""


def test_processes_of_a_class_go_with_its_own(suggesting: Start, folder: StudyFolder) -> None:
    live = suggesting(HELPED + later("os._exit(9)"))
    helper = int((folder.path / "points.py.helper").read_text())
    live.next(9)
    until(lambda: processes.Leader.of(helper) is None)


LOCKED = "import re; re.match('(a+)+$', 'a' * 64 + 'b')"


@pytest.mark.parametrize(
    ("num_wanted", "does"),
    [(90, "time.sleep(1000)"), (90, LOCKED), (0, "")],
    ids=["computing", "holding the interpreter lock", "idle"],
)
def test_a_process_whose_rank_0_was_killed_ends_by_itself_with_all_that_it_has_begun(
    folder: StudyFolder, num_wanted: int, does: str
) -> None:
    (folder.path / "points.py").write_text(HELPED + later(does or "pass"))
    changes: dict[str, Any] = {"parameters": {"bounds": {"x": [0, 1], "y": [1, 2]}, "sampler": "points.py:Points"}}
    study = folder.study({**changes, "simulation.command": ["true"]})
    script = (
        "import os, sys, json; from pathlib import Path; from stream_server.config import load\n"
        "from stream_server.server.steering.suggester import Suggester\n"
        f"out = Path({str(folder.path)!r})\n"
        f"s = Suggester(load(Path({str(study)!r})), out, parameters_csv=out / 'p.csv').__enter__()\n"
        f"s.start(print); s.want({num_wanted}); print(s._process._process.pid, flush=True); sys.stdin.read()\n"
    )
    import subprocess
    import sys

    with subprocess.Popen([sys.executable, "-c", script], stdin=-1, stdout=-1, text=True) as rank_0:
        assert rank_0.stdout is not None
        pid = int(rank_0.stdout.readline())
        helper = int((folder.path / "points.py.helper").read_text())
        rank_0.send_signal(signal.SIGKILL)
        rank_0.wait()
        until(lambda: processes.Leader.of(pid) is None)
        until(lambda: processes.Leader.of(helper) is None)


def test_an_older_rank_0_that_wakes_up_adds_nothing_to_what_a_newer_one_goes_on_with(tmp_path: Path) -> None:
    def suggestion(simulation: int) -> Suggestion:
        return Suggestion(simulation=simulation, values=(0.5 + simulation,), by="p", at="t")

    with SuggestionLog(tmp_path, 1) as old:
        old.append([suggestion(0)])
        with SuggestionLog(tmp_path, 1) as new:
            with pytest.raises(OSError, match="Another process goes on with it"):
                old.append([suggestion(1)])
            new.append([suggestion(1), suggestion(2)])
    with SuggestionLog(tmp_path, 1) as last:
        assert [it.simulation for it in last.suggestions] == [0, 1, 2]


def test_what_an_older_rank_0_has_told_until_its_log_is_taken_over_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = disk.replace_file
    with SuggestionLog(tmp_path, 0) as old:

        def replace_late(path: Path, data: bytes) -> None:
            monkeypatch.undo()
            old.append([Suggestion(simulation=0, values=(), by="p", at="t")])
            replace(path, data)

        monkeypatch.setattr(disk, "replace_file", replace_late)
        with SuggestionLog(tmp_path, 0) as new:
            assert len(new.suggestions) == 1
            new.append([Suggestion(simulation=1, values=(), by="p", at="t")])
    with SuggestionLog(tmp_path, 0) as last:
        assert len(last.suggestions) == 2


def test_the_log_has_all_that_was_told(suggesting: Start, folder: StudyFolder) -> None:
    live = suggesting(COUNTING)
    live.next(7)
    lines = (folder.path / "run" / SUGGESTIONS_FILE).read_text().splitlines()
    rows = [row for line in lines for row in json.loads(line)["suggestions"]]
    assert [dict(zip("xy", row[1], strict=True)) for row in rows] == live.suggester.parameters


def test_nobody_is_told_of_a_suggestion_before_it_is_on_disk(
    suggesting: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    live, append, told_before = suggesting(COUNTING), SuggestionLog.append, list[bool]()

    def append_and_look(self: SuggestionLog, suggested: Sequence[Suggestion]) -> None:
        told_before.append(not live.is_silent)
        append(self, suggested)

    monkeypatch.setattr(SuggestionLog, "append", append_and_look)
    live.next(7)
    assert told_before == [False]


ENOUGH = """
    def ingest(self, results):
        self.known = [row["simulation"] for row in results]

    def enough(self):
        print("asked whether it has enough", flush=True)
        return 5 in self.known
"""


def test_a_class_that_has_enough_is_asked_no_more_and_no_fallback_takes_its_place(suggesting: Start) -> None:
    live = suggesting(COUNTING.replace("    def ingest(self, results): ...", "    known = ()\n" + ENOUGH))
    assert live.next(8)
    live.suggester.ingest({5: {"x": 0.125, "y": 3.0, "loss": 1.0}})
    live.suggester.want(10)
    assert live.next_finish() == "points.py:Points has enough: no further simulation is suggested"
    live.suggester.want(12)
    assert len(live.suggester.suggestions) == 8
    assert live.suggester.warnings == []


def test_all_parameters_of_a_round_are_suggested_together(suggesting: Start) -> None:
    rounds = {"study.simulations": ..., "study.rounds": {"simulations": 10, "number": 2}}
    live = suggesting(COUNTING, **rounds)
    assert (len(live.first), live.suggester.lookahead) == (12, 10)
