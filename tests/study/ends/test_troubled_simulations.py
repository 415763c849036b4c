"""Simulations that crash, hang or send nonsense: they are counted and named, and the study lives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.runs import NUMPY_STUDY, Run, run_here

NUM_SIMULATIONS = 3
VICTIM = 3  # of the simulations 0 for validation and 1 to 3 for training


def troubled(trouble: str, *others: str, **more: Any) -> dict[str, Any]:
    command = ["python", "troubled.py", trouble, str(VICTIM), *others]
    return {"study.simulations": NUM_SIMULATIONS, "simulation.command": command} | more


def assert_given_up(run: Run) -> dict[str, Any]:
    """The victim alone was given up and the rest of the study is complete; returns its failure."""
    assert run.exit_code == 0, run.output
    report, account = run.report, run.account
    assert report["balanced"] is True
    assert report["simulations"]["finished"] == NUM_SIMULATIONS
    assert report["simulations"]["given_up"] == 1
    assert account["accepted"] + sum(account["rejected"].values()) + sum(account["never_produced"].values()) == 60
    assert account["untrained"] == 0
    (failure,) = report["failures"]
    assert failure["id"] == VICTIM
    return failure  # type: ignore[no-any-return]


def test_a_simulation_that_always_crashes_is_given_up_and_named_and_its_folders_alone_are_kept_if_so_chosen(
    tmp_path: Path,
) -> None:
    settings = troubled("crash", **{"simulation.keep_folders": "failed"})
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    failure = assert_given_up(done)
    assert failure["attempts"] == 2
    assert f"simulation {VICTIM}" in done.output
    kept = sorted((done.output_dir / "simulations").glob("*/attempt-*"))
    assert [(path.parent.name, path.name) for path in kept] == [(str(VICTIM), "attempt-0"), (str(VICTIM), "attempt-1")]
    for attempt in (0, 1):
        assert "the solver diverged" in done.log(VICTIM, attempt)


def test_a_mistake_in_a_simulation_is_told_at_its_own_send(tmp_path: Path) -> None:
    told = {
        "wrong_shape": "ValueError",
        "wrong_dtype": "TypeError",
        "unknown_field": "energy",
        "missing_field": "signal",
        "unknown_step": "20",
    }
    victims = {name: victim for victim, name in enumerate(told, start=2)}
    troubles = {"invalid_at_the_end": 0, "one_more": 1, **victims}
    command = ["python", "troubled.py", *(str(word) for pair in troubles.items() for word in pair)]
    settings = {"simulation.command": command, "simulation.retries": 0, "simulation.max_failed": 0.9}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=settings)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert (done.report["simulations"]["finished"], done.report["simulations"]["given_up"]) == (2, 5)
    assert sorted(failure["id"] for failure in done.report["failures"]) == sorted(victims.values())
    for name, victim in victims.items():
        log = done.log(victim)
        assert "troubled.py" in log
        assert told[name] in log.splitlines()[-1]
    later = {it["id"]: it["reason"] for it in done.report["failed_later"]}
    assert later.keys() == {0, 1}
    assert "Refused: simulation 0 rank 0 could not be invalidated" in later[0]
    assert later[1].endswith("ValueError: the study has the time steps 0 to 19, but not 20")
    assert any("simulation 0" in it and "the energy drifts" in it for it in done.report["warnings"])


@pytest.mark.parametrize("num_ranks", [pytest.param(1, marks=pytest.mark.full), 2])
def test_steps_that_are_not_finite_sent_twice_or_never_produced_are_counted(
    run: Callable[..., Run], num_ranks: int
) -> None:
    """Beside one that is killed, one that hangs, and one that sends junk as well."""
    troubles = ("twice", "not_finite", "2", "early", "4", "kill", "5", "hang", "6", "junk", "1")
    settings = troubled(*troubles, **{"study.simulations": 6, "simulation.timeout_s": 5, "simulation.retries": 5})
    done = run(num_ranks=num_ranks, settings=settings)
    assert done.exit_code == 0, done.output
    account = done.account
    assert done.report["balanced"] is True
    assert done.report["simulations"]["finished"] == 7
    assert account["rejected"] == {"nonfinite": 1}
    assert account["rejected_of"] == {"2": 1}
    assert f"nonfinite: 1; of\n{'':16}simulation 2: 1" in done.output
    # Further attempts send again what was received of the first.
    assert account["duplicates"] >= 2
    # These are no fault of a program's.
    (repeated,) = (it for it in done.report["warnings"] if "more than once" in it)
    assert repeated.startswith("rank 0: simulation 3, attempt 0 sent a time step more than once")
    assert account["never_produced"] == {"simulation 4: ended early": 10}
    early = "rank 0: simulation 4 finished early: it sent 10 of the 20 steps of study.time_steps"
    assert early in done.report["warnings"]
    assert (account["expected"], account["accepted"], account["untrained"]) == (120, 109, 0)
    # Any other is started again, too, where the machine lets it stand still for as long.
    assert set(done.attempts) == set(range(7))
    assert min(done.attempts[5], done.attempts[6]) >= 2


def test_simulations_that_lack_their_input_stop_the_study_and_show_the_end_of_a_log(run: Callable[..., Run]) -> None:
    done = run(mpi=None, settings={"simulation.command": ["python", "-c", "open('inptu.txt')"]})
    assert done.exit_code != 0
    assert done.report["exit_code"] == 4, done.output
    assert "No such file or directory: 'inptu.txt'" in done.output


@pytest.mark.full
def test_a_simulation_that_is_given_up_can_be_redrawn_and_samples_that_are_not_finite_kept(tmp_path: Path) -> None:
    others = {"simulation.on_failure": "redraw", "simulation.retries": 0}
    others |= {"training.nonfinite": "keep", "training.max_nonfinite": 100}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=troubled("crash", "not_finite", "2", **others))
    assert done.exit_code == 0, done.output
    simulations, account = done.report["simulations"], done.account
    assert (simulations["requested"], simulations["finished"], simulations["given_up"]) == (5, 4, 1)
    assert account["trained"] == account["accepted"] == 70
    assert account["rejected"] == {}
    assert list(account["never_produced"].values()) == [10]
    assert done.report["balanced"] is True
    assert (done.output_dir / "simulations" / "4").is_dir()


@pytest.mark.full
def test_a_study_can_end_with_the_first_simulation_that_is_given_up(run: Callable[..., Run]) -> None:
    settings = {"simulation.on_failure": "stop", "simulation.max_failed": 0.1, "simulation.retries": 0}
    done = run(mpi=None, settings=troubled("crash", **settings))
    assert done.exit_code != 0
    assert done.report["exit_code"] == 4, done.output
    assert "simulation.on_failure is stop" in done.report["message"]
    assert "the solver diverged" in done.output


def test_what_an_invalid_simulation_has_sent_is_withdrawn(tmp_path: Path) -> None:
    """The buffer opens only when everything has come, so that nothing of it has been trained."""
    settings = {"buffer.policy": "firo", "buffer.capacity": 100, "buffer.watermark": 55}
    done = run_here(NUMPY_STUDY, tmp_path / "run", settings=troubled("invalid", "twice", "2", **settings))
    assert done.exit_code == 0, done.output
    account = done.account
    assert done.report["simulations"]["invalid"] == 1
    assert done.report["failures"] == []
    # It may say so before the last of its ten steps are on their way.
    assert 0 < account["withdrawn"] <= 10
    assert (account["accepted"], account["trained"]) == (40 + account["withdrawn"], 40)
    assert account["duplicates"] == 1
    missing = {f"simulation {VICTIM}: invalid (energy is not conserved)": 20 - account["withdrawn"]}
    assert account["never_produced"] == missing
    assert not (done.output_dir / "simulations" / str(VICTIM) / "attempt-1").exists()


@pytest.mark.full
def test_a_study_can_end_with_the_first_sample_that_is_not_finite(run: Callable[..., Run]) -> None:
    done = run(mpi=None, settings=troubled("not_finite", **{"training.nonfinite": "stop"}))
    assert done.exit_code != 0
    assert done.report["exit_code"] != 0
    assert f"simulation {VICTIM} sent NaN or infinity in time step 10" in done.report["message"]
