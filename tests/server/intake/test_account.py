"""The closing account adds up, or says what does not."""

from dataclasses import replace

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from stream_server.server.intake.account import (
    UNEVEN_STOP,
    Account,
    RankAccount,
    Received,
    SimulationEnd,
    TrainedCounts,
    close_account,
)

NUM_STEPS = 10


def one_rank(*, accepted: int = 10, **counts: int) -> RankAccount:
    return RankAccount(intake={0: Received(accepted=accepted)}, **{"drawn": accepted, **counts})


def close(
    *ranks: RankAccount,
    end: SimulationEnd | None = None,
    trained: int = 10,
    reason: str = "",
    complete: bool = True,
) -> Account:
    end = end or SimulationEnd(state="finished", num_steps=NUM_STEPS)
    return close_account(ranks, {0: end}, TrainedCounts(trained=trained, untrained_reason=reason), complete=complete)


Study = tuple[list[RankAccount], dict[int, SimulationEnd], TrainedCounts]


@st.composite
def honest_studies(draw: st.DrawFn) -> Study:
    """Studies in which every step was followed on its way: the account must balance."""
    num_ranks = draw(st.integers(1, 3))
    ends: dict[int, SimulationEnd] = {}
    intake: list[dict[int, Received]] = [{} for _ in range(num_ranks)]
    fates = [dict.fromkeys(("withdrawn", "left", "drawn"), 0) for _ in range(num_ranks)]
    for simulation in range(draw(st.integers(0, 3))):
        held_out = draw(st.booleans())
        state = draw(st.sampled_from(["finished", "given_up", "invalid", "stopped"]))
        arrived = 0
        for rank in range(num_ranks):
            rejected = {"nonfinite": draw(st.integers(1, 5))} if draw(st.booleans()) else {}
            accepted = draw(st.integers(0, 20))
            intake[rank][simulation] = Received(accepted=accepted, rejected=rejected)
            arrived += accepted + sum(rejected.values())
            if not held_out:
                withdrawn = draw(st.integers(0, accepted))
                left = draw(st.integers(0, accepted - withdrawn))
                for fate, num in zip(fates[rank], (withdrawn, left, accepted - withdrawn - left), strict=True):
                    fates[rank][fate] += num
        missing = 0 if state == "finished" else draw(st.integers(0, 9))
        known = state == "finished" or draw(st.booleans())
        num_steps = arrived + missing if known else None
        ends[simulation] = SimulationEnd(state=state, num_steps=num_steps, held_out=held_out)
    ranks = [RankAccount(intake=intake[rank], **fate) for rank, fate in enumerate(fates)]
    drawn = sum(account.drawn for account in ranks)
    trained = draw(st.integers(0, drawn))
    skipped = draw(st.integers(0, drawn - trained))
    return ranks, ends, TrainedCounts(trained=trained, skipped=skipped, untrained_reason="early_stop")


@given(honest_studies())
def test_the_account_of_an_honest_study_balances(study: Study) -> None:
    account = close_account(*study, complete=False)
    assert account.problems == []
    assert sum(account.rejected_of.values()) == sum(account.rejected.values())
    assert account.expected == account.accepted + sum(account.rejected.values()) + sum(account.never_produced.values())
    assert account.accepted == account.trained + account.skipped + account.withdrawn + account.untrained


@given(honest_studies(), st.sampled_from(["drawn", "withdrawn", "left"]), st.sampled_from([-1, 1]), st.data())
def test_one_sample_too_many_or_too_few_on_any_rank_is_noticed(
    study: Study, what: str, by: int, data: st.DataObject
) -> None:
    ranks, ends, learned = study
    rank = data.draw(st.integers(0, len(ranks) - 1))
    ranks[rank] = replace(ranks[rank], **{what: getattr(ranks[rank], what) + by})
    problems = close_account(ranks, ends, learned, complete=False).problems
    assert any(f"rank {rank} accepted" in problem for problem in problems)


@given(honest_studies(), st.integers(1, 5))
def test_a_step_that_a_finished_simulation_lost_is_noticed(study: Study, num_steps: int) -> None:
    ranks, ends, learned = study
    ends[99] = SimulationEnd(state="finished", num_steps=num_steps)
    problems = close_account(ranks, ends, learned, complete=False).problems
    assert any("simulation 99 is finished" in problem for problem in problems)


@given(honest_studies())
def test_the_account_of_a_rank_survives_the_way_to_rank_0(study: Study) -> None:
    for account in study[0]:
        assert msgspec.json.decode(msgspec.json.encode(account), type=RankAccount) == account


def test_samples_left_over_need_an_end_before_time() -> None:
    left_over = one_rank(drawn=7, left=3)
    account = close(left_over, trained=7, reason="max_batches", complete=False)
    assert (account.problems, account.untrained_reasons) == ([], {"max_batches": 3})
    assert close(left_over, trained=7, reason="max_batches").problems == [
        "3 accepted samples were not trained although the study came to its normal end"
    ]


def test_samples_left_over_need_a_reason() -> None:
    account = close(one_rank(drawn=7, left=3), trained=7, complete=False)
    assert account.problems == ["3 accepted samples were not trained, and nothing says why"]


def test_samples_left_over_because_the_study_chose_uneven_stop_balance() -> None:
    assert close(one_rank(drawn=7, left=3), trained=7, reason=UNEVEN_STOP).balanced


def test_a_sample_that_was_drawn_but_in_no_step_is_untrained() -> None:
    assert close(one_rank(), trained=8, reason="stopped", complete=False).untrained == 2
    assert not close(one_rank(), trained=8).balanced


def test_more_trained_than_drawn_is_a_problem() -> None:
    assert close(one_rank(), trained=11).problems == [
        "11 samples were trained, skipped or dropped, but the ranks drew only 10"
    ]


def test_never_produced_names_the_simulation_and_why() -> None:
    end = SimulationEnd(state="given_up", num_steps=10, reason="exit code 3\nTraceback")
    account = close(one_rank(accepted=4), end=end, trained=4)
    assert account.never_produced == {"simulation 0: given up (exit code 3)": 6}
    assert account.balanced


def test_a_long_reason_is_cut_visibly() -> None:
    end = SimulationEnd(state="given_up", num_steps=10, reason="no time step had come, " * 10)
    (label,) = close(one_rank(accepted=4), end=end, trained=4).never_produced
    assert label.endswith("no time step had come, no t…)")


def test_a_simulation_that_ended_early_never_produced_the_rest() -> None:
    end = SimulationEnd(state="finished", num_steps=10, num_sent=4)
    account = close(one_rank(accepted=4), end=end, trained=4)
    assert account.never_produced == {"simulation 0: ended early": 6}
    assert account.balanced
    assert close(one_rank(accepted=3), end=end, trained=3).problems == [
        "simulation 0 is finished, but only 3 of its 4 steps came"
    ]


def test_a_given_up_simulation_of_unknown_length_expects_only_what_came() -> None:
    account = close(one_rank(accepted=4), end=SimulationEnd(state="given_up", num_steps=None), trained=4)
    assert (account.expected, account.never_produced, account.balanced) == (4, {}, True)


def test_held_out_samples_are_counted_apart() -> None:
    end = SimulationEnd(state="finished", num_steps=10, held_out=True)
    account = close(one_rank(drawn=0), end=end, trained=0)
    assert account.balanced
    assert (account.expected, account.accepted) == (0, 0)
    assert account.held_out == {"expected": 10, "accepted": 10, "rejected": 0, "never_produced": 0}


def test_a_simulation_that_still_runs_after_the_end_is_a_problem() -> None:
    account = close(one_rank(), end=SimulationEnd(state="running", num_steps=10))
    assert account.problems == ["simulation 0 is running although the study has ended"]


def test_more_steps_than_a_simulation_has_are_a_problem() -> None:
    assert close(one_rank(accepted=12), trained=12).problems == [
        "simulation 0 has 10 steps, but 12 were accepted or rejected"
    ]


def test_samples_of_simulations_that_rank_0_does_not_know_are_one_problem() -> None:
    stranger = RankAccount(intake={i: Received(accepted=1) for i in range(7)}, drawn=7)
    account = close_account([stranger], {}, TrainedCounts(trained=7), complete=True)
    assert account.problems == [
        "7 simulations have samples on server ranks, but rank 0 does not know them: 0, 1, 2, 3, 4, …"
    ]
