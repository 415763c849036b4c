from dataclasses import replace

import pytest

from stream_server.launcher.supervision.server_restart import MAX_PAUSE_S, Restart, Restarts, ServerEnd

LOST = ServerEnd(exit_code=7, message="the server was lost")


def raised(batch: int | None, code: int = 3) -> ServerEnd:
    return ServerEnd(exit_code=code, message="user code raised", batch=batch)


def exit_code(decision: Restart | ServerEnd) -> int | None:
    """None for a restart."""
    return decision.exit_code if isinstance(decision, ServerEnd) else None


def test_a_lost_server_is_started_again_at_once_and_then_after_growing_pauses() -> None:
    restarts = Restarts(5)
    decisions = [restarts.decide(LOST, stopping=False) for _ in range(6)]
    assert [it.pause_s for it in decisions if isinstance(it, Restart)] == [0, 1, 2, 4, 8]
    assert exit_code(decisions[-1]) == 7


def test_a_server_whose_nodes_may_be_away_is_given_more_time() -> None:
    restarts = Restarts(5)
    away = replace(LOST, has_begun=False)
    decisions = [restarts.decide(end, stopping=False) for end in (LOST, away, away, away, LOST)]
    assert [it.pause_s for it in decisions if isinstance(it, Restart)] == [0, 20, 40, MAX_PAUSE_S, 8]
    assert "again in 40 s, when its nodes may be there (restart 3 of 5" in decisions[2].message


def test_a_server_that_is_refused_at_its_first_start_is_not_started_again() -> None:
    refused = replace(LOST, why_refused="mpirun started no rank")
    assert Restarts(5).decide(refused, stopping=False) == replace(
        refused, exit_code=2, message="mpirun started no rank"
    )


def test_a_server_that_is_refused_after_others_have_run_is_started_again() -> None:
    restarts = Restarts(5)
    ends = (LOST, replace(LOST, why_refused="mpirun started no rank"))
    assert [exit_code(restarts.decide(end, stopping=False)) for end in ends] == [None, None]


def test_no_pause_is_longer_than_a_minute() -> None:
    restarts = Restarts(10_000, num_in_a_row=5000)
    assert restarts.decide(LOST, stopping=False) == Restart(
        pause_s=MAX_PAUSE_S,
        message="the server was lost; it is started again (restart 5001 of 10000 without a new checkpoint)",
    )


def test_progress_gives_all_restarts_back() -> None:
    restarts = Restarts(1)
    restarts.decide(LOST, stopping=False)
    restarts.progressed()
    assert restarts.decide(LOST, stopping=False) == Restart(
        pause_s=0.0, message="the server was lost; it is started again (restart 1 of 1 without a new checkpoint)"
    )


def test_without_restarts_the_first_loss_ends_the_study() -> None:
    assert exit_code(Restarts(0).decide(LOST, stopping=False)) == 7


@pytest.mark.parametrize("code", [0, 2, 4, 5, 6, 75])
def test_what_a_restart_would_not_mend_is_final(code: int) -> None:
    assert exit_code(Restarts(9).decide(ServerEnd(exit_code=code, message=""), stopping=False)) == code


@pytest.mark.parametrize("end", [LOST, raised(5)])
def test_nothing_is_started_again_once_the_study_is_to_stop(end: ServerEnd) -> None:
    assert exit_code(Restarts(9).decide(end, stopping=True)) == end.exit_code


def test_user_code_that_raised_before_training_began_is_not_tried_again() -> None:
    assert exit_code(Restarts(9).decide(raised(None), stopping=False)) == 3


def test_user_code_that_raises_twice_at_one_batch_is_not_tried_again_whatever_lies_between() -> None:
    restarts = Restarts(9)
    assert exit_code(restarts.decide(raised(5), stopping=False)) is None
    assert exit_code(restarts.decide(LOST, stopping=False)) is None
    restarts.progressed()
    assert exit_code(restarts.decide(raised(5), stopping=False)) == 3


@pytest.mark.parametrize("code", [8, 70])
def test_ranks_that_diverge_and_errors_of_ours_are_tried_again_at_another_batch_only(code: int) -> None:
    restarts = Restarts(9)
    assert exit_code(restarts.decide(raised(5, code), stopping=False)) is None
    assert exit_code(restarts.decide(raised(6, code), stopping=False)) is None
    assert exit_code(restarts.decide(raised(6, code), stopping=False)) == code


@pytest.mark.parametrize("code", [8, 70])
def test_outside_of_training_they_take_from_the_budget_of_restarts(code: int) -> None:
    restarts = Restarts(1)
    assert exit_code(restarts.decide(raised(None, code), stopping=False)) is None
    assert exit_code(restarts.decide(raised(None, code), stopping=False)) == code


def test_user_code_that_raises_at_another_batch_takes_from_the_same_budget() -> None:
    restarts = Restarts(2)
    assert exit_code(restarts.decide(raised(5), stopping=False)) is None
    assert exit_code(restarts.decide(raised(6), stopping=False)) is None
    assert exit_code(restarts.decide(raised(7), stopping=False)) == 3
