"""Fields that are sent once per simulation: receivers, real clients and real sockets in one process."""

from collections.abc import Callable
from pathlib import Path
from threading import Event
from typing import Any, cast

import numpy as np
import pytest

from stream_server.client_api import connect, session, watch
from stream_server.client_api.simulation import Simulation
from stream_server.errors import NonFiniteData, Refused
from stream_server.messages.client import MAX_PART_BYTES, Data, FieldSpec, Routing, TimeSteps
from stream_server.server.intake import mailbox
from tests.support.reception import DEADLINE_S, INCARNATION, Crew, Rank, Reception, StudyShape, reception
from tests.support.timing import Deadline

MESH = FieldSpec(name="mesh", shape=(6, 2), per="simulation")
U = FieldSpec(name="u", shape=(4,), dtype="<f8")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look for a new server soon."""
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(session, "PING_S", 0.05)
    monkeypatch.setattr(session, "REOPEN_S", 0.05)


def mesh_of(simulation: int) -> np.ndarray:
    return np.random.default_rng(simulation).normal(size=MESH.shape)


def value(simulation: int, step: int) -> np.ndarray:
    return np.arange(4.0) + 10 * step + 1000 * simulation


def shape_of(**settings: Any) -> StudyShape:
    return StudyShape(fields=(U, MESH), **settings)


def simulate(study: Reception, simulation: int, num: int) -> None:
    with study.run(simulation) as run:
        run.send_static(mesh=mesh_of(simulation))
        for step in range(num):
            assert run.send(step, u=value(simulation, step))


def check(rank: Rank) -> None:
    for (simulation, step), row in rank.rows.items():
        np.testing.assert_array_equal(row["u"], value(simulation, step))
        np.testing.assert_array_equal(row["mesh"], mesh_of(simulation))


def flush(run: Simulation) -> None:
    """Send what waits for company."""
    assert run._session is not None
    run._session._flush()


def send_all(run: Simulation, steps: range) -> None:
    for step in steps:
        run.send(step, u=value(run.id, step))
    run.finish()


def wait_for_steps(study: Reception, num: int) -> None:
    """Wait until the ranks together have settled so many steps."""
    wait_until(study, lambda: sum(rank.receiver.num_received for rank in study.ranks) >= num)


def wait_until(study: Reception, is_so: Callable[[], bool]) -> None:
    """Wait for what the receivers do."""
    deadline = Deadline(DEADLINE_S)
    while not is_so():
        assert not deadline.has_passed
        study.launcher.wait(0.05)
        study.unread += study.launcher.receive()


@pytest.mark.parametrize("routing", Routing)
def test_each_sample_has_the_static_field_of_its_simulation(routing: Routing) -> None:
    shape = shape_of(num_ranks=2, num_simulations=4, at_once=4, routing=routing, time_steps=TimeSteps(num=7))
    with reception(shape) as study:
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        for simulation in range(4):
            study.launch(simulation)
            crew.start(simulate, study, simulation, 7)
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        assert sorted(key for rank in study.ranks for key in rank.drawn) == [(s, i) for s in range(4) for i in range(7)]
        for rank in study.ranks:
            check(rank)


def test_a_rank_that_gets_no_step_of_a_simulation_gets_no_static_field_of_it() -> None:
    shape = shape_of(num_ranks=2, num_simulations=2, time_steps=TimeSteps(num=1))
    with reception(shape) as study:
        crew = Crew()
        for simulation in range(2):
            study.launch(simulation)
            crew.start(simulate, study, simulation, 1)
        crew.join()
        for number, rank in enumerate(study.ranks):
            assert [simulation in rank.buffer.slots.statics for simulation in range(2)] == [number == 0, number == 1]


@pytest.mark.parametrize("has_part_of_steps", [True, False])
def test_the_ranks_of_a_simulation_send_their_blocks_in_parts(has_part_of_steps: bool) -> None:
    """The first rank may have a part of the mesh and none of any step, and come when the steps have come."""
    big = FieldSpec(name="mesh", shape=(3, MAX_PART_BYTES // 16 + 5), dtype="<f4", per="simulation")
    shape = StudyShape(fields=(U, big), num_ranks=2, time_steps=TimeSteps(num=4))
    whole = np.arange(np.prod(big.shape), dtype=np.float64).reshape(big.shape)

    def simulate_rank(study: Reception, rank: int) -> None:
        run = study.run(0, rank=rank, num_ranks=3)
        with run:
            run.send_static(mesh=whole[rank : rank + 1])
            for step in range(4):
                u = value(0, step)
                share = {0: u[:2], 1: u[2:3], 2: u[3:]} if has_part_of_steps else {0: None, 1: u[:2], 2: u[2:]}
                offset = {0: 0, 1: 2, 2: 3} if has_part_of_steps else {0: None, 1: 0, 2: 2}
                if step == 0 and share[rank] is not None:
                    run.declare_field("u", shape=(4,), offset=(offset[rank],))
                assert run.send(step, **({} if share[rank] is None else {"u": share[rank]}))
            flush(run)

    with reception(shape) as study:
        crew = Crew()
        study.launch(0)
        for rank in study.ranks:
            crew.start(rank.drain)
        for number in (1, 2):
            crew.start(simulate_rank, study, number)
        if not has_part_of_steps:
            wait_until(study, lambda: sum(it.receiver.intake.num_under_way for it in study.ranks) == 4)
            assert not any(rank.drawn for rank in study.ranks)
        crew.start(simulate_rank, study, 0)
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        for rank in study.ranks:
            assert len(rank.rows) == 2
            for (_, step), row in rank.rows.items():
                np.testing.assert_array_equal(row["u"], value(0, step))
                np.testing.assert_array_equal(row["mesh"], whole.astype(np.float32))


@pytest.mark.parametrize(("before", "after"), [(1, 1), (2, 2), (2, 1), (1, 2)])
def test_a_restored_study_has_them_for_what_it_had_received_and_for_what_still_comes(
    before: int, after: int, tmp_path: Path
) -> None:
    num_steps = 12
    old, new = (
        shape_of(num_ranks=num, num_simulations=2, time_steps=TimeSteps(num=num_steps)) for num in (before, after)
    )
    path, goes_on, crew = tmp_path / "connection.json", Event(), Crew()

    def simulate_slowly() -> None:
        with connect(path, mesh=mesh_of(1), timeout_s=DEADLINE_S) as run:
            for step in range(num_steps):
                if step == 6:
                    flush(run)
                    assert goes_on.wait(DEADLINE_S)
                assert run.send(step, u=value(1, step))

    with reception(old) as study:
        study.launch(0)
        simulate(study, 0, num_steps)
        study.launch(1).write(path)
        crew.start(simulate_slowly)
        wait_for_steps(study, num_steps + 6)
        for rank in study.ranks:
            rank.draw()
        saved = study.save(tmp_path / "1")
    with reception(new, incarnation=INCARNATION + 1, saved=saved) as study:
        study.launch(1, goes_on=True).write(path)
        goes_on.set()
        for rank in study.ranks:
            while (draw := rank.buffer.take_restored()) is not None:
                rank.buffer.release(draw)
            crew.start(rank.drain)
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        drawn = [*saved.drawn, *(key for rank in study.ranks for key in rank.drawn)]
        assert sorted(drawn) == [(s, i) for s in range(2) for i in range(num_steps)]
        for rank in study.ranks:
            check(rank)


@pytest.mark.parametrize("is_same", [True, False])
def test_a_second_attempt_must_send_what_the_first_one_sent(is_same: bool) -> None:
    with reception(shape_of()) as study:
        study.launch(0)
        first = study.run(0)
        first.send_static(mesh=mesh_of(0))
        for step in range(3):
            first.send(step, u=value(0, step))
        flush(first)
        wait_for_steps(study, 3)
        first.__exit__(InterruptedError, None, None)
        study.launch(0, 1)
        second = study.run(0, 1)
        second.send_static(mesh=mesh_of(0) if is_same else mesh_of(0) + 1e-16 * (np.arange(12) == 7).reshape(6, 2))
        if is_same:
            send_all(second, range(6))
            study.first.drain()
            check(study.first)
            assert sorted(study.first.drawn) == [(0, step) for step in range(6)]
            return
        with pytest.raises(Refused, match="has sent other values of field mesh before"):
            send_all(second, range(3, 6))
        assert study.first.receiver.num_received == 3


@pytest.mark.parametrize("is_same", [True, False])
def test_a_rank_that_needs_nothing_of_a_second_attempt_compares_what_it_shares_too(is_same: bool) -> None:
    """Rank 0 has its only step with the mesh of the first attempt, rank 1 has nothing yet."""
    with reception(shape_of(num_ranks=2, time_steps=TimeSteps(num=2))) as study:
        study.launch(0)
        first = study.run(0)
        first.send_static(mesh=mesh_of(0))
        first.send(0, u=value(0, 0))
        flush(first)
        wait_for_steps(study, 1)
        first.__exit__(InterruptedError, None, None)
        study.launch(0, 1)
        second = study.run(0, 1)
        second.send_static(mesh=mesh_of(0) + (not is_same))
        if not is_same:
            with pytest.raises(Refused, match=r"rank 0 .*has sent other values of field mesh before"):
                send_all(second, range(2))
            return
        send_all(second, range(2))
        for rank in study.ranks:
            rank.drain()
            check(rank)
        assert [sorted(rank.drawn) for rank in study.ranks] == [[(0, 0)], [(0, 1)]]


def test_what_a_finished_simulation_shares_may_come_once_more() -> None:
    """The last step may have come at another rank while it was on its way, and its samples may be gone."""
    with reception(shape_of(num_ranks=2, time_steps=TimeSteps(num=2))) as study:
        study.launch(0)
        simulate(study, 0, 2)
        for rank in study.ranks:
            rank.drain()
            rank.wait_for(mailbox.ReceptionEnded)
        receiver = study.ranks[0].receiver
        [connection] = [it for it in receiver.dispatcher.connections.values() if it.attempt.simulation == 0]
        part = Data(
            simulation=0,
            attempt=0,
            incarnation=INCARNATION,
            sequence=connection.next_sequence,
            index=0,
            num_steps=1,
            present=1,
            field=0,
            static=True,
        )
        study.ranks[0].buffer.slots.statics._of.clear()
        assert receiver.dispatcher.assembly.statics.take(connection, part, payload=cast(Any, None)) is None


def give_mesh(run: Simulation) -> None:
    """As a rank that has all of the mesh and nothing of any step."""
    run.send_static(mesh=mesh_of(run.id))
    run.send(0)
    run.finish()


def test_a_torn_step_that_waited_for_a_static_field_is_refused() -> None:
    """One of two client ranks leaves its half of a field out in step 1; the mesh comes last, from a rank of its own."""
    halves = FieldSpec(name="v", shape=(2,), dtype="<f8", optional=True)
    with reception(StudyShape(fields=(U, halves, MESH), time_steps=TimeSteps(num=2))) as study:
        study.launch(0)
        *of_steps, of_mesh = (study.run(0, rank=rank, num_ranks=3) for rank in range(3))
        for rank, run in enumerate(of_steps):
            run.declare_field("u", shape=(4,), offset=(2 * rank,))
            run.declare_field("v", shape=(2,), offset=(rank,))
            for step in range(2):
                v = None if rank and step else np.ones(1)
                run.send(step, u=value(0, step)[2 * rank : 2 * rank + 2], v=v)
            flush(run)
        wait_until(study, lambda: study.first.receiver.intake.num_under_way == 2)
        with pytest.raises(Refused, match="only some client ranks sent field v in time step 1"):
            give_mesh(of_mesh)
        assert study.first.receiver.num_received == 0
        for run in of_steps:
            run.__exit__(ValueError, None, None)


@pytest.mark.parametrize("nonfinite", ["reject", "keep", "stop"])
def test_a_static_field_with_nan_is_refused_kept_or_ends_the_study(nonfinite: str) -> None:
    with reception(shape_of(nonfinite=nonfinite)) as study:
        study.launch(0)
        run = study.run(0)
        run.send_static(mesh=np.full(MESH.shape, np.nan))
        if nonfinite == "stop":
            run.send(0, u=value(0, 0))
            study.first.receiver._thread.join(DEADLINE_S)
            assert isinstance(study.first.receiver.error, NonFiniteData)
            run.__exit__(ValueError, None, None)
            return
        if nonfinite == "keep":
            send_all(run, range(6))
            return
        with pytest.raises(Refused, match=r'NaN or infinity in field mesh.*"nonfinite": "keep"'):
            send_all(run, range(1))


def test_what_is_stored_follows_the_simulations_that_have_samples() -> None:
    num = 120
    with reception(shape_of(num_simulations=num, time_steps=TimeSteps(num=2), at_once=2)) as study:
        most = 0
        for simulation in range(num):
            study.launch(simulation)
            crew = Crew()
            crew.start(simulate, study, simulation, 2)
            study.first.draw(2)
            crew.join()
            most = max(most, len(study.first.buffer.slots.statics))
        check(study.first)
        assert most < 24


@pytest.mark.parametrize(
    ("give", "message"),
    [
        (
            lambda run: run.send(0, u=np.zeros(4)),
            "'mesh' is missing: it is sent once per simulation, and must be",
        ),
        (
            lambda run: run.send(0, u=np.zeros(4), mesh=np.zeros((6, 2))),
            "'mesh' is missing: it is sent once",
        ),
        (lambda run: run.send_static(u=np.zeros(4)), "'u' belongs to each time step: pass it to send"),
        (lambda run: run.send_static(mesh=np.zeros((6, 3))), r"'mesh' must have the shape \(6, 2\), but has \(6, 3\)"),
        (lambda run: run.send_static(mesh=None), "'mesh' must be an array, but is None"),
        (lambda run: run.send_static(mesh="mesh.vtk"), "'mesh' must be numeric"),
        (lambda run: run.send_static(mash=np.zeros((6, 2))), "no field 'mash'.* did you mean 'mesh'"),
        (lambda run: [run.send_static(mesh=np.zeros((6, 2))) for _ in range(2)], "'mesh' was given before"),
        (
            lambda run: [
                run.send_static(mesh=np.zeros((6, 2))),
                run.declare_field("mesh", shape=[6, 2], offset=[0, 0]),
            ],
            "'mesh' must be declared before it is given",
        ),
    ],
)
def test_mistakes_are_told_before_anything_is_sent(give: Any, message: str) -> None:
    with reception(shape_of()) as study:
        study.launch(0)
        run = study.run(0)
        with pytest.raises((ValueError, TypeError), match=message):
            give(run)
        run.__exit__(ValueError, None, None)
        assert study.first.receiver.num_received == 0


def test_nothing_is_given_once_steps_were_sent() -> None:
    with reception(shape_of()) as study:
        study.launch(0)
        with study.run(0) as run:
            run.send_static(mesh=mesh_of(0))
            for step in range(6):
                run.send(step, u=value(0, step))
            with pytest.raises(ValueError, match="'mesh' was given before"):
                run.send_static(mesh=mesh_of(0))


def test_one_that_runs_alone_takes_them_for_nothing() -> None:
    with connect("none", mesh=np.zeros(3)) as run:
        run.send_static(anything=1)
        assert run.send(0, u=1)
