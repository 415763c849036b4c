"""report.json tells the truth, in the agreed form, or not at all."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import RunStatus
from stream_server.messages.client import Reason
from stream_server.server.checkpoint.capture import versions
from stream_server.server.intake.account import RankAccount, Received, SimulationEnd
from stream_server.server.progress.changes import Changes
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopRequests
from stream_server.server.run.cores import Cores
from stream_server.server.study.closing import REFUSALS, summary
from stream_server.server.study.report import NO_ACCOUNT, Outcome, RankReport, build_report, write_report
from stream_server.server.study.set_up import StudyRank
from tests.support.timing import Clock

KEYS = [
    "format",
    "study",
    "exit_code",
    "exit_reason",
    "message",
    "balanced",
    "unbalanced",
    "warnings",
    "started",
    "wall_s",
    "restarts",
    "changes",
    "ranks",
    "versions",
    "cores",
    "simulations",
    "awaited",
    "security",
    "failures",
    "retried",
    "failed_later",
    "samples",
    "lonely_steps",
    "draws",
    "batches",
    "batches_per_rank",
    "updates",
    "rounds",
    "validation",
    "best_models",
    "best",
    "rollout",
    "throughput",
    "phases_s",
    "memory_bytes",
    "buffer",
]
FINISHED = Outcome(exit_code=0, reason="finished")


def rank_report(*, drawn: int = 10, **values: Any) -> RankReport:
    return RankReport(account=RankAccount(intake={0: Received(accepted=10)}, drawn=drawn), **values)


NO_RESULTS = {"validation": [], "best_models": [], "best": {}, "rollout": None}
ENDED = {0: SimulationEnd(state="finished", num_steps=20)}


def study_of(
    *,
    is_set_up: bool = True,
    simulations: Mapping[int, SimulationEnd] = ENDED,
    learned: Mapping[str, int] = MappingProxyType({"samples": 20}),
    updates: int = 5,
    training_s: float = 10.0,
    restarts: int = 0,
    writes_files: bool = False,
    has_changed_nothing: bool = False,
    results: Mapping[str, Any] = MappingProxyType({}),
    changes: Changes | None = None,
    **of_simulations: Any,
) -> StudyRank:
    """The parts of a finished study of two ranks that a report reads."""
    progress = Progress(2, Clock(training_s))
    counts = {"batches": 5, "batches_per_rank": [5, 4], "updates": updates, "draws": 40, "_start": 0.0}
    vars(progress).update({**counts, **learned})
    nothing = {"num_survived": 0, "awaited": "", "failures": [], "failing": [], "retried": [], "failed_later": []}
    of = {**NO_RESULTS, **results}
    study: Any = SimpleNamespace(
        config=SimpleNamespace(
            study=SimpleNamespace(name="heat"),
            buffer=SimpleNamespace(capacity=100),
            network=SimpleNamespace(security="curve"),
            offline=SimpleNamespace(write_files=writes_files),
            num_samples_of=int,
        ),
        continuation=SimpleNamespace(
            identity=SimpleNamespace(started="2025-01-01T00:00:00+00:00", incarnation=restarts + 1)
        ),
        progress=progress,
        changes=changes or Changes(),
        ranks=SimpleNamespace(size=2, mpi_version=""),
        cores=Cores(),
        stops=StopRequests(),
        wall_s=lambda: 12.34567,
        is_set_up=is_set_up,
        untrained=SimpleNamespace(are_all=has_changed_nothing),
        source=SimpleNamespace(simulations=SimpleNamespace(ends=simulations, **{**nothing, **of_simulations})),
        validation=SimpleNamespace(history=of["validation"], best=of["best"], rollout=of["rollout"]),
        best_models=SimpleNamespace(best=of["best_models"]),
    )
    return study  # type: ignore[no-any-return]


def report(outcome: Outcome = FINISHED, **values: Any) -> dict[str, Any]:
    return build_report(outcome, study_of(**values), [rank_report(), rank_report()])


def test_a_report_has_the_agreed_keys_in_their_order() -> None:
    assert list(report()) == KEYS


def test_what_restarts_have_changed_is_in_report_and_summary_with_its_batch() -> None:
    changes = Changes(batch=1200)
    changes.note("learning rate", before=1e-3, now=3e-4, source="server.py", note="optimizer state kept")
    found = report(changes=changes)
    assert found["changes"] == [
        {
            "name": "learning rate",
            "before": 0.001,
            "now": 0.0003,
            "source": "server.py",
            "batch": 1200,
            "note": "optimizer state kept",
        }
    ]
    told = "from batch 1,200: learning rate 0.001 → 0.0003, from server.py; optimizer state kept"
    assert told in summary(found).plain
    for number in range(6):
        changes.note(f"user.n{number}", before=0, now=1, source="study.json")
    shown = summary(report(changes=changes)).plain
    assert "2 earlier changes, and" in shown
    assert [name for name in ("learning rate", "user.n0", "user.n1", "user.n5") if name in shown] == [
        "user.n1",
        "user.n5",
    ]


def test_a_finished_study_that_balances_ends_with_exit_code_0() -> None:
    found = report()
    assert (found["exit_code"], found["exit_reason"]) == (0, "finished")
    assert (found["balanced"], found["unbalanced"]) == (True, [])
    assert found["samples"]["expected"] == found["samples"]["accepted"] == found["samples"]["trained"] == 20


def test_a_study_that_writes_files_has_trained_nothing() -> None:
    found = report(writes_files=True)
    assert (found["balanced"], found["samples"]["recorded"]) == (True, 20)
    assert "trained" not in found["samples"]
    told = str(summary(found))
    assert "20 expected, 20 accepted, 20 recorded" in told
    assert not any(word in told for word in ("trained", "batches", "draws"))
    assert ("files", "20 samples recorded in 0:00:12") in RunStatus(
        run=RunFolder(Path("runs/heat")), state="finished", detail="", report=found
    ).rows()


@pytest.mark.parametrize(
    ("ends", "said"),
    [
        ([SimulationEnd(state="finished", num_steps=20, num_sent=20)] * 2, ""),
        ([SimulationEnd(state="finished", num_steps=20, num_sent=10)], "of 1, 1 sent fewer than study.time_steps says"),
        ([SimulationEnd(state="stopped_early", num_steps=20)] * 3, "of 3, the study stopped 3"),
        (
            [
                SimulationEnd(state="stopped_early", num_steps=None),
                SimulationEnd(state="finished", num_steps=20, num_sent=1),
            ],
            "of 2, the study stopped 1 and 1 sent fewer than study.time_steps says",
        ),
        (
            [
                SimulationEnd(state="stopped_early", num_steps=20),
                SimulationEnd(state="finished", num_steps=20, num_sent=20),
            ],
            "",
        ),
        ([SimulationEnd(state="finished", num_steps=None, num_sent=7)], ""),
        ([SimulationEnd(state="finished", num_steps=20, num_sent=10, held_out=True)], ""),
        ([SimulationEnd(state="given_up", num_steps=20)], ""),
    ],
)
def test_a_study_of_which_no_simulation_came_to_its_end_warns(ends: list[SimulationEnd], said: str) -> None:
    expected = [f"no simulation came to its last time step: {said}"] if said else []
    failed = Outcome(exit_code=5, reason="failed")
    assert report(failed, simulations=dict(enumerate(ends)))["warnings"] == expected
    assert report(Outcome(exit_code=75, reason="saved"), simulations=dict(enumerate(ends)))["warnings"] == []


def test_a_study_that_does_not_balance_never_ends_with_exit_code_0() -> None:
    found = build_report(FINISHED, study_of(), [rank_report(), rank_report(drawn=9)])
    assert (found["exit_code"], found["exit_reason"], found["balanced"]) == (5, "failed", False)
    assert "rank 1 accepted 10 samples, but 9 are accounted for" in found["message"]


def test_a_study_that_ends_well_with_time_steps_missing_says_so_first() -> None:
    missing = {0: SimulationEnd(state="finished", num_steps=20), 1: SimulationEnd(state="given_up", num_steps=10)}
    found = report(simulations=missing)
    assert found["exit_code"] == 0
    first = shown(found).splitlines()[0]
    assert first.endswith("finished: 10 time steps of 30 never came: 1 of 2 simulations failed for good")
    assert report(Outcome(exit_code=0, reason="max_batches"), simulations=missing)["message"] == ""
    asked = Outcome(exit_code=0, reason="finished", message="an operator asked for it")
    assert report(asked, simulations=missing)["message"] == "an operator asked for it"


@pytest.mark.parametrize("reason", ["finished", "early_stop", "max_batches", "max_s"])
def test_a_study_without_an_update_of_what_came_has_failed(reason: str) -> None:
    learned = {"samples": 0, "skipped": 20}
    found = report(Outcome(exit_code=0, reason=reason), updates=0, learned=learned)
    assert (found["exit_code"], found["exit_reason"], found["balanced"]) == (5, "failed", True)
    said = "nothing was learned: no update was made, though 20 time steps came, of which 20 were skipped. "
    assert found["message"].startswith(said)
    assert "updates       0\n" in shown(found)


@pytest.mark.parametrize("reason", ["finished", "early_stop", "max_batches", "max_s"])
def test_a_study_whose_updates_have_changed_nothing_has_failed(reason: str) -> None:
    found = report(Outcome(exit_code=0, reason=reason), has_changed_nothing=True)
    assert (found["exit_code"], found["exit_reason"], found["balanced"]) == (5, "failed", True)
    assert found["message"].startswith("nothing was learned: no parameter changed in 5 updates, not by one bit. ")


def test_so_has_one_whose_time_steps_were_all_rejected() -> None:
    account = RankAccount(intake={0: Received(accepted=0, rejected={"nonfinite": 20})})
    found = build_report(FINISHED, study_of(updates=0, learned={}), [RankReport(account=account)])
    assert (found["exit_code"], found["balanced"]) == (5, True)
    assert "of which 20 were rejected" in found["message"]


def test_one_to_which_nothing_came_or_that_goes_on_later_has_not() -> None:
    nothing = study_of(updates=0, learned={}, simulations={})
    assert build_report(FINISHED, nothing, [RankReport(account=RankAccount(intake={}))])["exit_code"] == 0
    assert report(Outcome(exit_code=75, reason="saved"), updates=0)["exit_reason"] == "saved"


@pytest.mark.parametrize("num", [0, 1, 3])
def test_more_than_a_small_part_that_is_skipped_or_rejected_is_a_warning(num: int) -> None:
    account = RankAccount(intake={0: Received(accepted=200, rejected={"nonfinite": num})}, drawn=200, dropped=num)
    found = build_report(
        FINISHED,
        study_of(
            learned={"samples": 200 - 2 * num, "skipped": num},
            simulations={0: SimulationEnd(state="finished", num_steps=200 + num)},
        ),
        [RankReport(account=account)],
    )
    assert (found["exit_code"], found["balanced"]) == (0, True)
    assert found["warnings"] == (
        [
            "3 of 203 time steps were rejected (nonfinite)",
            "3 of 197 samples were in batches that no update has used: training_step skipped them, or their gradient "
            "was not finite",
            "3 of 200 samples were in no batch: a loader dropped them, process_simulation_data returned None, or "
            "numbers were too large for training.precision",
        ]
        if num > 1
        else []
    )


def test_the_cause_of_a_failed_study_is_not_hidden_by_its_account() -> None:
    failed = Outcome(exit_code=3, reason="failed", message="HeatServer.training_step raised KeyError: 'lr'")
    found = build_report(failed, study_of(), [rank_report(), rank_report(drawn=9)])
    assert (found["exit_code"], found["message"]) == (3, failed.message)
    assert (found["balanced"], found["ranks"], found["batches_per_rank"]) == (False, 2, [5, 4])


def test_of_ranks_that_did_not_come_together_there_is_no_account_rather_than_zeros() -> None:
    failed = Outcome(exit_code=3, reason="failed", message="HeatServer.training_step raised KeyError: 'lr'")
    found = build_report(failed, study_of(is_set_up=False), [])
    assert (found["exit_code"], found["message"], found["ranks"]) == (3, failed.message, 2)
    assert (found["balanced"], found["unbalanced"]) == (False, [NO_ACCOUNT])
    text = shown(found)
    assert f"none: {NO_ACCOUNT}" in text
    assert "requested" not in text
    assert "expected" not in text


def test_simulations_are_counted_by_how_they_ended() -> None:
    states = [
        "finished",
        "finished",
        "given_up",
        "invalid",
        "stopped",
        "waiting",
        "running",
        "waiting",
        "stopped_early",
    ]
    ends = {i: SimulationEnd(state=state, num_steps=None) for i, state in enumerate(states)}
    failures = [{"id": simulation, "attempts": 1, "reason": "crashed", "log": ""} for simulation in (2, 7)]
    failed = Outcome(exit_code=4, reason="failed")
    found = report(failed, simulations=ends, num_survived=2, failures=failures)["simulations"]
    assert found == {
        "requested": 9,
        "finished": 2,
        "given_up": 1,
        "stopped_early": 1,
        "failed": 1,
        "invalid": 1,
        "stopped": 3,
        "survived_restarts": 2,
    }


def test_throughput_is_over_the_time_of_training() -> None:
    assert report()["throughput"] == {"samples_per_s": 4.0, "batches_per_s": 0.5}
    assert report(training_s=0.0)["throughput"] == {"samples_per_s": 0.0, "batches_per_s": 0.0}


def test_phases_are_means_over_the_ranks_and_memory_is_a_sum() -> None:
    ranks = [
        rank_report(phases_s={"step": 1.0}, memory_bytes={"buffer": 100}),
        rank_report(phases_s={"step": 2.0, "receive": 1.0}, memory_bytes={"buffer": 200}),
    ]
    found = build_report(FINISHED, study_of(), ranks)
    assert found["phases_s"] == {"receive": 0.5, "step": 1.5}
    assert found["memory_bytes"] == {"buffer": 300}


def test_the_report_of_a_rank_survives_json() -> None:
    one = rank_report(phases_s={"step": 0.1}, memory_bytes={"buffer": 1}, warnings=["a checkpoint failed"])
    assert msgspec.json.decode(msgspec.json.encode(one), type=RankReport) == one


def test_a_warning_names_its_rank_and_changes_nothing_else() -> None:
    found = build_report(FINISHED, study_of(), [rank_report(), rank_report(warnings=["1 of the checkpoints failed"])])
    assert found["warnings"] == ["rank 1: 1 of the checkpoints failed"]
    assert (found["exit_code"], found["balanced"]) == (0, True)


def test_a_written_report_is_read_back_as_it_was(tmp_path: Path) -> None:
    found = report(results={"validation": [{"batch": 100, "loss": 2.5}], "best": {"batch": 100, "loss": 2.5}})
    write_report(found, tmp_path / "runs" / "report.json")
    assert json.loads((tmp_path / "runs" / "report.json").read_text()) == found


def test_a_number_that_is_not_finite_is_written_as_null(tmp_path: Path) -> None:
    history = [{"batch": 1, "loss": math.nan}, {"batch": 2, "loss": -math.inf}]
    write_report(report(results={"validation": history}), tmp_path / "r.json")
    losses = [entry["loss"] for entry in json.loads((tmp_path / "r.json").read_text())["validation"]]
    assert losses == [None, None]


def test_a_report_that_cannot_be_written_leaves_the_old_one_and_no_rubbish(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    write_report(report(), path)
    before = path.read_text()
    path_as_folder = tmp_path / "folder" / "report.json"
    path_as_folder.mkdir(parents=True)
    with pytest.raises(OSError, match=r"report\.json"):
        write_report(report(), path_as_folder)
    with pytest.raises(TypeError):
        write_report({"study": object()}, path)
    assert path.read_text() == before
    assert sorted(it.name for it in tmp_path.rglob("*.tmp")) == []


def test_versions_are_found_without_importing_the_packages() -> None:
    found = versions(mpi="MPICH 4.3.0")
    assert {"python", "stream-server", "numpy", "torch", "mpi"} <= set(found)


def test_versions_are_looked_up_once_since_every_checkpoint_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    before = versions()
    monkeypatch.setattr("stream_server.server.checkpoint.capture.version", None)
    assert versions() == before


def shown(
    report: Mapping[str, Any],
    *,
    width: int = 140,
    places: Sequence[tuple[str, str]] = (),
    hands_over: bool = False,
) -> str:
    console = Console(width=width)
    with console.capture() as capture:
        console.print(summary(report, places, width, hands_over=hands_over), soft_wrap=True)
    return capture.get()


def test_the_summary_shows_what_a_person_asks_first() -> None:
    history = [{"batch": 0, "loss": 9.0}, {"batch": 5, "loss": 2.5}]
    text = shown(report(results={"validation": history, "best": history[1]}))
    assert text.splitlines()[0] == "heat: finished"
    for expected in ("1 requested, 1 finished", "20 expected, 20 accepted, 20 trained", "9 -> 2.5", "balanced"):
        assert expected in text
    assert "failed" not in text


def test_the_summary_names_what_failed_and_what_does_not_balance() -> None:
    failure = {"id": 3, "attempts": 3, "reason": "exit code 1 [core dumped]", "log": "simulations/3/output.log"}
    found = build_report(FINISHED, study_of(failures=[failure]), [rank_report(), rank_report(drawn=9)])
    text = shown(found)
    assert "3 after 3 attempts: exit code 1 [core dumped] (simulations/3/output.log)" in text
    assert "NOT BALANCED: rank 1 accepted 10 samples" in text


def test_the_summary_says_in_words_what_messages_were_refused() -> None:
    assert set(REFUSALS) == set(Reason)
    found = report()
    found["samples"]["refused"] = {"not_open": 1, "wrong_blocks": 8}
    text = shown(found)
    assert "refused       1 message on a connection that was lost or never opened (not_open)" in text
    assert "8 messages with blocks that do not make up the fields (wrong_blocks)" in text


def test_the_summary_names_failed_attempts_that_were_followed_by_another() -> None:
    killed = {"id": 8, "attempts": 1, "reason": "was killed by SIGKILL", "log": "simulations/8/attempt-0/output.log"}
    text = shown(report(retried=[killed]))
    assert "tried again   8 after 1 attempt: was killed by SIGKILL (simulations/8/attempt-0/output.log)" in text
    assert "tried again" not in shown(report(retried=[killed], failures=[killed]))


def test_the_summary_names_failures_after_the_last_time_step() -> None:
    later = {"id": 2, "attempts": 1, "reason": "ended with exit code 1", "log": "simulations/2/output.log"}
    text = shown(report(failed_later=[later]))
    assert "failed later  2 after its last time step: ended with exit code 1 (simulations/2/output.log)" in text


def test_a_failed_study_says_so_first_and_why_and_never_that_it_is_balanced() -> None:
    ends = {i: SimulationEnd(state="waiting" if i < 3 else "stopped", num_steps=30) for i in range(7)}
    failing = [{"id": i, "attempts": 1, "reason": "ended with exit code 1", "log": ""} for i in range(3)]
    failed = Outcome(
        exit_code=4, reason="failed", message="rank 0, training: none sent a sample\nend of the log\x1b[2J"
    )
    text = shown(report(failed, simulations=ends, failures=failing, learned={}))
    assert text.splitlines()[0] == "heat: FAILED with exit code 4: rank 0, training: none sent a sample"
    assert "7 requested, 0 finished, 3 failed, 4 stopped with the study" in text
    assert "failed        0, 1, 2 after 1 attempt each: ended with exit code 1\n" in text
    assert "120 of simulations 3, 4, 5, 6: stopped\n" in text
    assert " balanced" not in text


def test_a_saved_study_says_how_to_go_on() -> None:
    saved = Outcome(exit_code=75, reason="saved", message="SIGTERM")
    assert shown(report(saved)).splitlines()[0] == (
        "heat: saved: run the same command again to go on (exit code 75), SIGTERM"
    )


def test_a_study_that_goes_on_in_the_next_job_asks_nobody_to_run_it() -> None:
    saved = Outcome(exit_code=75, reason="saved", message="saved before the time limit")
    assert shown(report(saved), hands_over=True).splitlines()[0] == (
        "heat: saved: stream-launcher goes on in the next job (exit code 75), saved before the time limit"
    )
    failed = Outcome(exit_code=5, reason="failed", message="no checkpoint")
    assert shown(report(failed), hands_over=True).startswith("heat: FAILED with exit code 5: no checkpoint")


def test_phases_below_one_percent_are_left_out() -> None:
    ranks = [rank_report(phases_s={"step": 9.0, "wait_for_data": 0.93, "log": 0.07}) for _ in range(2)]
    text = shown(build_report(FINISHED, study_of(), ranks))
    assert "12.3 s: step 90%, wait for data 9%" in text
    assert "log" not in text


def test_the_time_is_that_of_the_main_threads() -> None:
    text = shown(build_report(FINISHED, study_of(), [rank_report(phases_s={"step": 8.0, "receive": 2.0})]))
    assert "12.3 s: step 100%" in text
    assert "receive" not in text


def test_the_advice_on_the_bottleneck_is_for_a_training_while_simulations_run() -> None:
    waited = build_report(FINISHED, study_of(), [rank_report(phases_s={"wait_for_data": 9.0, "step": 1.0})])
    assert "run more simulations at once" in str(summary(waited))
    assert "bottleneck" not in str(summary(waited, is_online=False))


def test_the_hint_at_the_capacity_is_for_a_training_while_simulations_run() -> None:
    times = {"open_s": 10.0, "waited_s": 4.0, "full_s": 2.0, "num_first": 80, "num_turns": 4}
    hinted = build_report(FINISHED, study_of(), [rank_report(buffer=times) for _ in range(2)])
    # A fifth of the time without room, beside four fifths that brought 20 samples for each wait.
    assert hinted["buffer"] == {"seconds": 10.0, "waiting": 0.4, "full": 0.2, "enough": 105}
    assert "buffer        a buffer.capacity of 105 or more would have helped" in shown(hinted)
    assert "buffer.capacity" not in str(summary(hinted, is_online=False))


def test_the_summary_ends_with_the_command_for_each_result_in_one_piece() -> None:
    command = f"stream-study plot runs/{'long' * 40}"
    text = shown(report(), width=40, places=[("pictures", command), ("report", "less runs/heat/report.json")])
    assert max(map(len, text.splitlines()[1:-2])) <= 40
    assert text.splitlines()[-2:] == [f"  pictures      {command}", "  report        less runs/heat/report.json"]


def test_failures_of_many_simulations_in_one_way_are_one_line_each_way() -> None:
    failures = [{"id": i, "attempts": 3, "reason": "crashed", "log": f"{i}.log"} for i in range(200)]
    failures.append({"id": 777, "attempts": 1, "reason": "was killed", "log": ""})
    text = shown(report(failures=failures))
    assert "0, 1, 2, 3, 4 and 195 more after 3 attempts each: crashed (0.log)\n" in text
    assert "777 after 1 attempt: was killed\n" in text


def test_foreign_text_in_the_summary_cannot_move_the_cursor() -> None:
    failure = {"id": 3, "attempts": 3, "reason": "\x1b[2Jgone\r", "log": "a.log"}
    text = shown(build_report(FINISHED, study_of(failures=[failure]), [rank_report(), rank_report()]))
    assert "\\x1b[2Jgone\\x0d" in text
    assert "\x1b[2J" not in text


def test_simulations_of_one_fate_are_one_line_of_the_summary() -> None:
    stopped = SimulationEnd(state="stopped", num_steps=30, reason="asked")
    given_up = SimulationEnd(state="given_up", num_steps=30, reason="exit code 3")
    finished = SimulationEnd(state="finished", num_steps=20)
    ends = {0: finished, 1: stopped, 2: given_up, 3: stopped, 4: stopped, 5: stopped, 7: stopped}
    lines = [it.strip() for it in summary(report(simulations=ends)).plain.splitlines()]
    start = next(number for number, it in enumerate(lines) if it.startswith("never produced"))
    assert [it.removeprefix("never produced").strip() for it in lines[start : start + 2]] == [
        "150 of simulations 1, 3, 4, 5, 7: stopped (asked)",
        "30 of simulation 2: given up (exit code 3)",
    ]


def test_a_later_start_is_no_incident_and_simulations_that_went_on_are_counted() -> None:
    assert "starts " not in summary(report()).plain
    again = summary(report(restarts=1)).plain
    assert re.search(r"^  starts +2 of the server$", again, re.MULTILINE)
    survived = summary(report(restarts=1, num_survived=1)).plain
    assert re.search(r"^  starts +2 of the server, 1 running simulation went on$", survived, re.MULTILINE)
