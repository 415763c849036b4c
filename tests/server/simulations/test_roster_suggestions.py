"""Simulations whose parameters are suggested later: the decisions of rank 0."""

from stream_server.messages import launcher_link, notices
from stream_server.messages.client import ATTACHING, Reason, Refusal
from stream_server.server.simulations.roster import Roster
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.server.simulations.test_roster import FACTS, begun, finish, hello, replies, told


def roster_of(*known: float, num: int = 6, num_planned: int = 5, lookahead: int = 2) -> Roster:
    """A study of one held-out simulation and some others, of which the first have their parameters."""
    parameters = [*({"x": value} for value in known), *[None] * (num - len(known))]
    return Roster(
        FACTS, parameters, names=["x"], lookahead=lookahead, num_planned=num_planned, num_held_out=1, num_ranks=2
    )


def suggest(roster: Roster, *simulations: int) -> list[object]:
    return list(roster.suggested({i: {"x": float(i)} for i in simulations}))


def test_the_launcher_is_told_of_a_simulation_once_it_has_its_parameters() -> None:
    roster = roster_of(0.0, 1.0)
    assert [it.simulation for it in roster.plan] == [0, 1]
    assert suggest(roster, 2) == [launcher_link.AddSimulation(simulation=2, parameters={"x": 2.0})]
    assert [it.simulation for it in roster.plan] == [0, 1, 2]
    assert suggest(roster, 2) == []


def test_as_many_are_wanted_as_are_to_be_ready() -> None:
    roster = roster_of(0.0, 1.0)
    assert roster.table.num_wanted == 0
    roster.launched(begun(0))
    assert roster.table.num_wanted == 3
    roster.launched(begun(1))
    assert roster.table.num_wanted == 4
    suggest(roster, 2, 3)
    assert roster.table.num_wanted == 0
    finish(roster, 2)
    assert roster.table.num_wanted == 5
    suggest(roster, 4)
    assert roster.table.num_wanted == 0


def test_a_simulation_that_is_tried_again_is_not_ready_for_others() -> None:
    roster = roster_of(0.0, 1.0)
    roster.launched(begun(1))
    roster.failed(1, 0)
    assert roster.table.num_wanted == 3


def test_a_redraw_waits_for_its_parameters() -> None:
    roster = roster_of(0.0, 1.0, 2.0, 3.0, 4.0)
    roster.launched(begun(1))
    actions = roster.gave_up(launcher_link.GaveUp(simulation=1, attempts=1, reason="", log="", redraw=True))
    assert not any(isinstance(it, launcher_link.AddSimulation) for it in actions)
    for i in (0, 2, 3, 4):
        finish(roster, i)
    assert roster.table.num_wanted == 6
    assert suggest(roster, 5) == [launcher_link.AddSimulation(simulation=5, parameters={"x": 5.0})]
    assert any(isinstance(it, notices.AllTerminal) for it in told(finish(roster, 5)))


def test_a_study_that_is_told_to_finish_lets_go_of_what_was_never_suggested() -> None:
    roster = roster_of(0.0, 1.0)
    finish(roster, 0)
    actions = roster.dropped(launcher_link.Dropped(simulations=(1,), reason="enough"))
    assert any(isinstance(it, notices.AllTerminal) for it in told(actions))
    assert roster.table.num_wanted == 0
    assert suggest(roster, 2) == []


def test_what_was_never_suggested_ends_with_the_order_to_finish() -> None:
    roster = roster_of(0.0, 1.0)
    finish(roster, 0)
    roster.launched(begun(1))
    order = launcher_link.FinishSimulations(reason="enough")
    actions = roster.finish(order)
    assert order in actions
    assert not any(isinstance(it, notices.AllTerminal) for it in actions)
    assert roster.table.num_wanted == 0
    assert suggest(roster, 2) == []
    assert {roster.ends[i].state for i in (2, 3, 4)} == {"stopped"}
    # What fails now is not redrawn either.
    actions = roster.gave_up(launcher_link.GaveUp(simulation=1, attempts=1, reason="", log="", redraw=True))
    assert any(isinstance(it, notices.AllTerminal) for it in told(actions))
    assert 5 not in roster.entries


def test_a_suggestion_for_a_simulation_that_a_smaller_study_lacks_is_for_nobody() -> None:
    before = roster_of(0.0, 1.0, 2.0, 3.0, 4.0, num=6)
    before.launched(begun(1))
    before.gave_up(launcher_link.GaveUp(simulation=1, attempts=1, reason="", log="", redraw=True))
    after = roster_of(0.0, 1.0, 2.0, num_planned=3)
    after.load_state_dict(from_bytes(to_bytes(before.state_dict())), {})
    assert list(after.entries) == [0, 1, 2, 5]
    assert suggest(after, 3, 4, 5) == [launcher_link.AddSimulation(simulation=5, parameters={"x": 5.0})]


def test_results_come_with_the_parameters_that_a_client_brought() -> None:
    roster = roster_of(0.0, 1.0, 2.0)
    roster.handshake.hello(b"peer", hello(1, ATTACHING, parameters={"x": 7.0}))
    roster.attached(0, 1, 0)
    results = {1: {"loss": 0.5}, 2: {"loss": 0.25}, 99: {"loss": 1.0}}
    assert roster.table.with_parameters(results) == {1: {"x": 7.0, "loss": 0.5}, 2: {"x": 2.0, "loss": 0.25}}


def test_nothing_is_wanted_once_the_study_has_ended() -> None:
    roster = roster_of(0.0)
    roster.launched(begun(0))
    assert roster.table.num_wanted == 3
    roster.stop(launcher_link.StopSimulations(reason="over", grace_s=1.0))
    assert roster.table.num_wanted == 0


def test_a_client_that_attaches_waits_for_parameters() -> None:
    roster = roster_of(0.0)
    [refusal] = replies(roster.handshake.hello(b"peer", hello(3, ATTACHING)))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.BUSY
    roster.handshake.hello(b"other", hello(None, ATTACHING))
    none_left = launcher_link.NoneLeft(token=0, text="every simulation is running or done", busy=False)
    [refusal] = replies(roster.handshake.none_left(none_left))
    assert isinstance(refusal, Refusal)
    assert refusal.reason is Reason.BUSY


def test_a_restarted_study_has_what_was_suggested_after_its_checkpoint() -> None:
    before = roster_of(0.0, 1.0)
    before.launched(begun(1))
    state = from_bytes(to_bytes(before.state_dict()))
    after = roster_of(0.0, 9.0, 2.0, 3.0)
    after.load_state_dict(state, {})
    assert [(it.simulation, it.parameters) for it in after.plan] == [
        (0, {"x": 0.0}),
        (1, {"x": 1.0}),
        (2, {"x": 2.0}),
        (3, {"x": 3.0}),
    ]
    # Simulation 1 has begun before, and is started again by the launcher.
    assert after.table.num_wanted == 0
    after.launched(begun(0))
    after.launched(begun(2))
    assert after.table.num_wanted == 5


def in_rounds(num_released: int = 3) -> Roster:
    """A study of one held-out simulation and two rounds of two, whose parameters are known."""
    parameters = [{"x": float(i)} for i in range(5)]
    return Roster(FACTS, parameters, num_planned=5, num_held_out=1, num_ranks=2, num_released=num_released)


def round_is_over(actions: list[object]) -> bool:
    return notices.AllTerminal(states={}, round_over=True) in actions


def test_the_next_round_is_released_once_the_one_before_is_trained() -> None:
    roster = in_rounds()
    assert [it.simulation for it in roster.plan] == [0, 1, 2]
    assert not round_is_over(told(finish(roster, 0)))
    roster.launched(begun(2))
    assert not round_is_over(told(finish(roster, 1)))
    assert round_is_over(told(finish(roster, 2)))
    assert roster.ended()["final"] is False
    known = roster.begin_round(5)
    assert known == {3: {"x": 3.0}, 4: {"x": 4.0}}
    assert [it.simulation for it in roster.suggested(known)] == [3, 4]
    assert not round_is_over(told(finish(roster, 3)))
    assert told(finish(roster, 4))[-1] == notices.AllTerminal(states=dict.fromkeys(range(5), "finished"))


def test_no_parameters_are_wanted_of_a_round_that_has_not_begun() -> None:
    parameters = [{"x": 0.0}, {"x": 1.0}, {"x": 2.0}, None, None]
    roster = Roster(
        FACTS, parameters, names=["x"], lookahead=2, num_planned=5, num_held_out=1, num_ranks=2, num_released=3
    )
    for i in range(3):
        finish(roster, i)
    assert roster.table.num_wanted == 3
    assert roster.begin_round(5) == {}
    assert roster.table.num_wanted == 5


def test_a_simulation_of_a_later_round_that_began_after_the_checkpoint_waits_for_its_round() -> None:
    roster = in_rounds()
    assert roster.launched(begun(3)) == []
    # It gives up its place in the launcher; a client that attaches has none, and may ask again.
    assert replies(roster.hello(b"peer", hello(3, 0)))[0].reason is Reason.STALE_ATTEMPT
    assert not roster.fails_later(launcher_link.FailedLater(simulation=3, attempt=0, reason="exit code 1"))
    assert replies(roster.hello(b"peer", hello(3, ATTACHING)))[0].reason is Reason.BUSY
    roster.hello(b"any", hello(None, ATTACHING))
    assert (
        replies(roster.handshake.none_left(launcher_link.NoneLeft(token=0, text="", busy=False)))[0].reason
        is Reason.BUSY
    )


def test_a_restored_study_has_the_rounds_that_have_begun() -> None:
    before = in_rounds()
    for i in range(3):
        finish(before, i)
    state = from_bytes(to_bytes(before.state_dict()))
    for num_released, over in ((3, True), (5, False)):
        after = in_rounds(num_released)
        after.load_state_dict(state, {0: None, 1: None, 2: None})
        assert round_is_over(told(after.begin())) == over
        assert [it.simulation for it in after.plan] == list(range(3, num_released))


def test_where_enough_is_suggested_what_has_parameters_goes_on_and_nothing_is_redrawn() -> None:
    parameters = [{"x": 0.0}, {"x": 1.0}, None, None]
    roster = Roster(FACTS, parameters, names=["x"], lookahead=1, num_planned=3, num_held_out=0, num_ranks=2)
    roster.launched(begun(0))
    assert [it.simulation for it in told(roster.enough("it has enough"))] == [2]
    assert roster.entries[2].reason == "it has enough"
    assert roster.finish_order is None
    assert [it.simulation for it in roster.plan] == [0, 1]
    gave_up = launcher_link.GaveUp(simulation=0, attempts=1, reason="exit code 1", redraw=True)
    assert not any(isinstance(it, launcher_link.AddSimulation) for it in roster.gave_up(gave_up))
    assert isinstance(told(finish(roster, 1))[-1], notices.AllTerminal)


def test_nobody_is_awaited_for_simulations_of_later_rounds() -> None:
    roster = in_rounds()
    roster.starts_jobs = False
    finish(roster, 0)
    assert roster.awaited == "somebody to attach for 2 simulations, since simulation.command starts none"
    roster.begin_round(5)
    assert roster.awaited.startswith("somebody to attach for 4 simulations")


def test_a_study_that_is_told_to_finish_has_no_further_rounds() -> None:
    roster = in_rounds()
    for i in range(3):
        finish(roster, i)
    actions = told(roster.finish(launcher_link.FinishSimulations(reason="enough")))
    assert any(isinstance(it, notices.AllTerminal) and not it.round_over for it in actions)
    assert roster.begin_round(5) == {}
