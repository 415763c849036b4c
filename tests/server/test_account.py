"""The closing account adds up, or says what does not."""

import json
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from stream_server.server.account import UNEVEN_STOP, Account, Intake, RankAccount, SimulationEnd, close_account

NUM_STEPS = 10


def one_rank(*, accepted: int = 10, **counts: object) -> RankAccount:
    return RankAccount(intake={0: Intake(accepted=accepted)}, **{"trained": accepted, **counts})  # type: ignore[arg-type]


def close(*ranks: RankAccount | None, end: SimulationEnd | None = None, complete: bool = True) -> Account:
    end = end or SimulationEnd(state="finished", num_steps=NUM_STEPS)
    return close_account(ranks, {0: end}, complete=complete)


@st.composite
def honest_studies(draw: st.DrawFn) -> tuple[list[RankAccount], dict[int, SimulationEnd]]:
    """Studies in which every step was followed on its way: the account must balance."""
    num_ranks = draw(st.integers(1, 3))
    ends: dict[int, SimulationEnd] = {}
    intake: list[dict[int, Intake]] = [{} for _ in range(num_ranks)]
    fates = [dict.fromkeys(("trained", "skipped", "withdrawn", "left"), 0) for _ in range(num_ranks)]
    for simulation in range(draw(st.integers(0, 3))):
        held_out = draw(st.booleans())
        state = draw(st.sampled_from(["finished", "given_up", "invalid", "stopped"]))
        arrived = 0
        for rank in range(num_ranks):
            rejected = {"nonfinite": draw(st.integers(1, 5))} if draw(st.booleans()) else {}
            accepted = draw(st.integers(0, 20))
            intake[rank][simulation] = Intake(accepted=accepted, rejected=rejected)
            arrived += accepted + sum(rejected.values())
            if not held_out:
                for fate in ("trained", "skipped", "withdrawn"):
                    num = draw(st.integers(0, accepted))
                    fates[rank][fate] += num
                    accepted -= num
                fates[rank]["left"] += accepted
        missing = 0 if state == "finished" else draw(st.integers(0, 9))
        known = state == "finished" or draw(st.booleans())
        num_steps = arrived + missing if known else None
        ends[simulation] = SimulationEnd(state=state, num_steps=num_steps, held_out=held_out)
    ranks = [
        RankAccount(
            intake=intake[rank],
            trained=fate["trained"],
            skipped=fate["skipped"],
            withdrawn=fate["withdrawn"],
            untrained={"early_stop": fate["left"]} if fate["left"] else {},
        )
        for rank, fate in enumerate(fates)
    ]
    return ranks, ends


@given(honest_studies())
def test_the_account_of_an_honest_study_balances(study: tuple[list[RankAccount], dict[int, SimulationEnd]]) -> None:
    account = close_account(*study, complete=False)
    assert account.problems == []
    assert account.expected == account.accepted + sum(account.rejected.values()) + sum(account.never_produced.values())
    assert account.accepted == account.trained + account.skipped + account.withdrawn + account.untrained


@given(honest_studies(), st.sampled_from(["trained", "skipped", "withdrawn"]), st.data())
def test_one_sample_too_many_or_too_few_on_any_rank_is_noticed(
    study: tuple[list[RankAccount], dict[int, SimulationEnd]], what: str, data: st.DataObject
) -> None:
    ranks, ends = study
    rank = data.draw(st.integers(0, len(ranks) - 1))
    by = data.draw(st.sampled_from([-1, 1]))
    ranks[rank] = replace(ranks[rank], **{what: getattr(ranks[rank], what) + by})
    assert any(f"rank {rank} accepted" in problem for problem in close_account(ranks, ends, complete=False).problems)


@given(honest_studies(), st.data())
def test_a_step_that_a_finished_simulation_lost_is_noticed(
    study: tuple[list[RankAccount], dict[int, SimulationEnd]], data: st.DataObject
) -> None:
    ranks, ends = study
    ends[99] = SimulationEnd(state="finished", num_steps=data.draw(st.integers(1, 5)))
    assert any("simulation 99 is finished" in p for p in close_account(ranks, ends, complete=False).problems)


@given(honest_studies())
def test_the_account_of_a_rank_survives_json(study: tuple[list[RankAccount], dict[int, SimulationEnd]]) -> None:
    for account in study[0]:
        assert RankAccount.from_json(json.loads(json.dumps(account.to_json()))) == account


def test_samples_left_over_need_an_end_before_time() -> None:
    left_over = one_rank(trained=7, untrained={"max_batches": 3})
    assert close(left_over, complete=False).balanced
    assert close(left_over, complete=True).problems == [
        "3 accepted samples were not trained although the study came to its normal end"
    ]


def test_samples_left_over_because_the_study_chose_uneven_stop_balance() -> None:
    assert close(one_rank(trained=7, untrained={UNEVEN_STOP: 3}), complete=True).balanced


def test_never_produced_names_the_simulation_and_why() -> None:
    end = SimulationEnd(state="given_up", num_steps=10, reason="exit code 3")
    account = close(one_rank(accepted=4), end=end)
    assert account.never_produced == {"simulation 0: given up (exit code 3)": 6}
    assert account.balanced


def test_a_given_up_simulation_of_unknown_length_expects_only_what_came() -> None:
    account = close(one_rank(accepted=4), end=SimulationEnd(state="given_up", num_steps=None))
    assert (account.expected, account.never_produced, account.balanced) == (4, {}, True)


def test_held_out_samples_are_counted_apart() -> None:
    end = SimulationEnd(state="finished", num_steps=10, held_out=True)
    account = close(one_rank(trained=0), end=end)
    assert account.balanced
    assert (account.expected, account.accepted) == (0, 0)
    assert account.held_out == {"expected": 10, "accepted": 10, "rejected": 0, "never_produced": 0}


def test_a_lost_rank_never_balances() -> None:
    problems = close(one_rank(), None, complete=False).problems
    assert problems == ["rank 1 was lost, and its account with it"]


def test_a_simulation_that_still_runs_after_the_end_is_a_problem() -> None:
    account = close(one_rank(), end=SimulationEnd(state="running", num_steps=10))
    assert account.problems == ["simulation 0 is running although the study has ended"]


def test_more_steps_than_a_simulation_has_are_a_problem() -> None:
    assert close(one_rank(accepted=12)).problems == ["simulation 0 has 10 steps, but 12 were accepted or rejected"]


def test_samples_of_a_simulation_that_is_not_in_the_study_are_a_problem() -> None:
    account = close_account([one_rank(trained=0)], {}, complete=True)
    assert account.problems == ["simulation 0 has samples on a server rank, but is not in the study"]
