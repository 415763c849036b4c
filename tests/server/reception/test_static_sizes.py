"""Fields that are sent once per simulation, and whose size differs between simulations."""

from collections.abc import Sequence
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Fifo, Slots
from stream_server.buffers.statics import StaticFields
from stream_server.client_api import connect, session, watch
from stream_server.messages.client import Block, FieldSpec, Open, Refusal, Routing, TimeSteps
from stream_server.server.intake import mailbox
from stream_server.server.intake.attempts import Connection
from stream_server.server.intake.layout import BlockLayout
from tests.fakes.intakes import ClientIntake, answer_to, make
from tests.fakes.intakes import data as data_of
from tests.server.reception.test_static_fields import flush, wait_for_steps
from tests.support.examples import examples
from tests.support.intake_ranks import Frames
from tests.support.reception import DEADLINE_S, INCARNATION, Crew, Rank, Reception, StudyShape, reception

MOST_NODES, MOST_EDGES, NUM_STEPS = 9, 20, 4
NODES = FieldSpec(name="nodes", shape=(MOST_NODES, 2), dtype="<f4", per="simulation", ragged=True)
EDGES = FieldSpec(name="edges", shape=(MOST_EDGES, 2), dtype="<i4", per="simulation", ragged=True)
AREA = FieldSpec(name="area", shape=(3,), per="simulation")
U = FieldSpec(name="u", shape=(MOST_NODES,), dtype="<f8", ragged=True)
FIELDS = (U, NODES, EDGES, AREA)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients look for a new server soon."""
    monkeypatch.setattr(watch, "LOOK_S", 0.01)
    monkeypatch.setattr(session, "PING_S", 0.05)
    monkeypatch.setattr(session, "REOPEN_S", 0.05)


def size_of(simulation: int, rank: int = 0, num_ranks: int = 1) -> int:
    """How many nodes a client rank has; the first simulation has the most that there may be, the second none."""
    most = MOST_NODES // num_ranks
    return [most, 0, 1, 3, 2][(simulation + rank) % 5] if simulation < 2 or num_ranks > 1 else simulation


def part_of(simulation: int, rank: int, num_ranks: int) -> dict[str, NDArray[Any]]:
    """The static fields of a client rank."""
    random = np.random.default_rng((simulation, rank))
    num = size_of(simulation, rank, num_ranks)
    parts = {"nodes": random.normal(size=(num, 2)), "edges": random.integers(0, 9, (2 * num, 2))}
    return parts | ({"area": np.arange(3.0) + simulation} if rank == 0 else {})


def step_of(simulation: int, step: int, rank: int, num_ranks: int) -> NDArray[np.float64]:
    return np.arange(float(size_of(simulation, rank, num_ranks))) + 10 * rank + 100 * step + 1000 * simulation


def expected(simulation: int, step: int, num_ranks: int) -> dict[str, NDArray[Any]]:
    """A sample as it must be, from what all client ranks have in their order."""
    parts = [part_of(simulation, rank, num_ranks) for rank in range(num_ranks)]
    return {
        "nodes": np.concatenate([part["nodes"] for part in parts]).astype("<f4"),
        "edges": np.concatenate([part["edges"] for part in parts]).astype("<i4"),
        "area": np.arange(3.0) + simulation,
        "u": np.concatenate([step_of(simulation, step, rank, num_ranks) for rank in range(num_ranks)]),
    }


def simulate(study: Reception, simulation: int, rank: int, num_ranks: int) -> None:
    with study.run(simulation, rank=rank, num_ranks=num_ranks) as run:
        run.send_static(**part_of(simulation, rank, num_ranks))
        for step in range(NUM_STEPS):
            assert run.send(step, u=step_of(simulation, step, rank, num_ranks))


def check(rank: Rank, num_ranks: int) -> None:
    for (simulation, step), row in rank.rows.items():
        for name, values in expected(simulation, step, num_ranks).items():
            np.testing.assert_array_equal(row[name], values)
            assert row[name].dtype == values.dtype


@pytest.mark.parametrize(("routing", "num_ranks"), [(Routing.STEPS, 1), (Routing.SIMULATIONS, 3), (Routing.STEPS, 3)])
def test_each_sample_has_the_mesh_of_its_simulation_whatever_its_size(routing: Routing, num_ranks: int) -> None:
    shape = StudyShape(
        fields=FIELDS,
        num_ranks=2,
        num_simulations=5,
        at_once=5,
        routing=routing,
        time_steps=TimeSteps(num=NUM_STEPS),
    )
    with reception(shape) as study:
        crew = Crew()
        for rank in study.ranks:
            crew.start(rank.drain)
        for simulation in range(5):
            study.launch(simulation)
            for client_rank in range(num_ranks):
                crew.start(simulate, study, simulation, client_rank, num_ranks)
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        drawn = sorted(key for rank in study.ranks for key in rank.drawn)
        assert drawn == [(simulation, step) for simulation in range(5) for step in range(NUM_STEPS)]
        for rank in study.ranks:
            check(rank, num_ranks)


@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 1)])
def test_a_restored_study_has_the_mesh_of_each_simulation(before: int, after: int, tmp_path: Path) -> None:
    old, new = (
        StudyShape(fields=FIELDS, num_ranks=num, num_simulations=3, time_steps=TimeSteps(num=NUM_STEPS))
        for num in (before, after)
    )
    path, goes_on, crew = tmp_path / "connection.json", Event(), Crew()

    def simulate_slowly() -> None:
        with connect(path, timeout_s=DEADLINE_S, **part_of(2, 0, 1)) as run:
            for step in range(NUM_STEPS):
                if step == 2:
                    flush(run)
                    assert goes_on.wait(DEADLINE_S)
                assert run.send(step, u=step_of(2, step, 0, 1))

    with reception(old) as study:
        for simulation in range(2):
            study.launch(simulation)
            simulate(study, simulation, 0, 1)
        study.launch(2).write(path)
        crew.start(simulate_slowly)
        wait_for_steps(study, 2 * NUM_STEPS + 2)
        for rank in study.ranks:
            rank.draw()
        saved = study.save(tmp_path / "1")
    with reception(new, incarnation=INCARNATION + 1, saved=saved) as study:
        study.launch(2, goes_on=True).write(path)
        goes_on.set()
        for rank in study.ranks:
            while (draw := rank.buffer.take_restored()) is not None:
                rank.buffer.release(draw)
            crew.start(rank.drain)
        for rank in study.ranks:
            rank.wait_for(mailbox.ReceptionEnded)
        crew.join()
        drawn = [*saved.drawn, *(key for rank in study.ranks for key in rank.drawn)]
        assert sorted(drawn) == [(simulation, step) for simulation in range(3) for step in range(NUM_STEPS)]
        for rank in study.ranks:
            check(rank, 1)


class Sender:
    """A client rank of an attempt, which says one message after the other, and anew after it lost its connection."""

    def __init__(self, intake: ClientIntake, attempt: int, rank: int, parts: Sequence[dict[str, NDArray[Any]]]) -> None:
        self.intake, self.rank = intake, rank
        mine, num_ranks = parts[rank], len(parts)
        self.arrays = [mine[name] for name in ("nodes", "edges", "area") if name in mine and mine[name].size]
        names = [name for name in ("nodes", "edges", "area") if name in mine and mine[name].size]
        specs = {spec.name: spec for spec in FIELDS}
        self.opening = Open(
            study="s",
            simulation=0,
            attempt=attempt,
            incarnation=0,
            rank=rank,
            num_ranks=num_ranks,
            blocks=(Block(field="u", dtype="<f8", shape=U.shape, offset=(0,), count=U.shape),),
            static_blocks=tuple(
                Block(
                    field=name,
                    dtype=array.dtype.str,
                    shape=specs[name].shape,
                    offset=(0,) * array.ndim,
                    count=array.shape,
                )
                for name, array in zip(names, self.arrays, strict=True)
            ),
        )
        self.num_lost = 0
        self.refusals: list[Refusal] = []
        self.lose()

    def lose(self) -> None:
        """Have lost the connection, if there was one."""
        if self.num_lost and self.connection is not None:
            self.intake.assembly.lose(self.connection)
        self.num_lost += 1
        self.connection: Connection | None = None
        self.left = [
            *((number, at) for number, array in enumerate(self.arrays) for at in range(0, array.nbytes, PART_BYTES)),
            "step",
        ]

    def go_on(self) -> None:
        """Say the next thing, if one is left; it hears late that something was refused."""
        if self.connection is None:
            if self.refusals:
                return

            peer = f"{self.opening.attempt}.{self.rank}.{self.num_lost}".encode()
            answer = answer_to(self.intake, peer, self.opening)
            self.connection = self.intake.dispatcher.connections.get(peer)
            self.note(answer if isinstance(answer, Refusal) else None)
            return
        if not self.left:
            return
        place = self.left.pop(0)
        if isinstance(place, str):
            rows = step_of(0, 0, self.rank, 1)[: self.rank + 1].tobytes()
            self.note(self.intake.assembly.take(self.connection, data_of(self.connection, 0), b"", Frames([rows])))
            return
        number, at = place
        message = data_of(
            self.connection,
            0,
            present=(1 << len(self.arrays)) - 1,
            field=number,
            offset=at,
            last=len(self.left) == 1,
            static=True,
        )
        payload = Frames([self.arrays[number].tobytes()[at : at + PART_BYTES]])
        self.note(self.intake.assembly.take(self.connection, message, b"", payload))

    def note(self, refusal: Refusal | None) -> None:
        if refusal is not None:
            self.refusals.append(refusal)


PART_BYTES = 16


def make_intake() -> ClientIntake:
    slots = Slots({"u": U.shape}, 20, {spec.name: spec.shape for spec in FIELDS[1:]}, ragged={"u", "nodes", "edges"})
    return make(fields=FIELDS, num=1, buffer=Buffer(Fifo(capacity=4), slots))


def parts_of(nodes: Sequence[int], seed: int) -> list[dict[str, NDArray[Any]]]:
    random = np.random.default_rng(seed)
    parts: list[dict[str, NDArray[Any]]] = [
        {"nodes": random.normal(size=(num, 2)).astype("<f4"), "edges": random.integers(0, 9, (2 * num, 2), "<i4")}
        for num in nodes
    ]
    parts[-1]["area"] = random.normal(size=3)
    return parts


def play(senders: Sequence[Sender], data: st.DataObject, *, num_losses: int) -> None:
    """Let client ranks go on in any order, and lose their connections in between."""
    for number in range(num_losses + 1):
        for rank in data.draw(st.lists(st.sampled_from(range(len(senders))), max_size=25)):
            senders[rank].go_on()
        if number < num_losses:
            senders[data.draw(st.sampled_from(range(len(senders))))].lose()
    order = data.draw(st.permutations(range(len(senders))))
    while any(sender.left if sender.connection else not sender.refusals for sender in senders):
        for rank in order:
            senders[rank].go_on()


def kept(intake: ClientIntake) -> dict[str, NDArray[Any]]:
    statics: StaticFields = intake.slots.statics
    return statics[0]


@given(nodes=st.lists(st.integers(0, 3), min_size=1, max_size=3), num_losses=st.integers(0, 2), data=st.data())
@settings(max_examples=examples(60), deadline=None)
def test_rows_of_client_ranks_are_one_mesh_whenever_they_come(
    nodes: list[int], num_losses: int, data: st.DataObject
) -> None:
    """Whatever the order, whoever loses a connection in the middle, and whatever the second attempt does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_server.server.intake.filling.MAX_PART_BYTES", PART_BYTES)
        intake, parts = make_intake(), parts_of(nodes, seed=1)
        intake.begin_attempt(0, 0)
        senders = [Sender(intake, 0, rank, parts) for rank in range(len(nodes))]
        play(senders, data, num_losses=num_losses)
        intake.dispatcher.end_turn()
        assert not any(sender.refusals for sender in senders)
        for name, values in kept(intake).items():
            expected = np.concatenate([part[name] for part in parts if name in part])
            np.testing.assert_array_equal(values, expected)
        assert intake.num_received == 1
        draw = intake.settlement.buffer.draw(1, 0)
        assert draw is not None
        rows = [step_of(0, 0, rank, 1)[: rank + 1] for rank in range(len(nodes))]
        np.testing.assert_array_equal(intake.slots.value("u", int(draw.slots[0])), np.concatenate(rows))


@given(
    nodes=st.lists(st.integers(0, 3), min_size=1, max_size=3),
    changed=st.sampled_from(["nothing", "a value", "a row more", "rows of another rank"]),
    data=st.data(),
)
@settings(max_examples=examples(60), deadline=None)
def test_a_second_attempt_with_another_mesh_is_refused_and_none_of_its_steps_taken(
    nodes: list[int], changed: str, data: st.DataObject
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("stream_server.server.intake.filling.MAX_PART_BYTES", PART_BYTES)
        intake, first = make_intake(), parts_of(nodes, seed=1)
        intake.begin_attempt(0, 0)
        # The first attempt dies before its step is whole.
        senders = [Sender(intake, 0, rank, first) for rank in range(len(nodes))]
        for sender in senders:
            sender.left.pop()
        play(senders, data, num_losses=0)
        before = {name: values.copy() for name, values in kept(intake).items()}
        rank = data.draw(st.integers(0, len(nodes) - 1))
        second = parts_of(nodes, seed=1)
        if changed == "a row more":
            second[rank]["nodes"] = np.concatenate([second[rank]["nodes"], np.ones((1, 2), "<f4")])
        elif changed == "rows of another rank":
            second = second[::-1]
            for part in second:
                part.pop("area", None)
            second[-1]["area"] = first[-1]["area"]
        elif changed == "a value" and nodes[rank]:
            second[rank]["nodes"][-1, -1] += 1
        intake.begin_attempt(0, 1)
        again = [Sender(intake, 1, number, second) for number in range(len(nodes))]
        play(again, data, num_losses=0)
        intake.dispatcher.end_turn()
        made = {name: np.concatenate([it[name] for it in second if name in it]) for name in before}
        is_same = all(np.array_equal(made[name], before[name]) for name in before)
        refused = [refusal for sender in again for refusal in sender.refusals]
        assert bool(refused) is not is_same
        assert intake.num_received == int(is_same)
        if refused:
            assert "before, which samples in the study share" in refused[0].text
        for name, values in kept(intake).items():
            np.testing.assert_array_equal(values, before[name])


def test_a_step_waits_until_the_rows_of_its_attempt_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 1 has sent other rows and its step before rank 0 says how many rows it has."""
    monkeypatch.setattr("stream_server.server.intake.filling.MAX_PART_BYTES", PART_BYTES)
    intake, parts = make_intake(), parts_of([1, 1], seed=1)
    intake.begin_attempt(0, 0)
    for sender in [Sender(intake, 0, rank, parts) for rank in range(2)]:
        sender.left.pop()
        while sender.connection is None or sender.left:
            sender.go_on()
    other = [dict(part) for part in parts]
    other[1]["nodes"] = other[1]["nodes"] + 1
    intake.begin_attempt(0, 1)
    first, second = (Sender(intake, 1, rank, other) for rank in range(2))
    for sender in (second, first):
        while sender.connection is None or sender.left:
            sender.go_on()
    intake.dispatcher.end_turn()
    assert [len(sender.refusals) > 0 for sender in (first, second)] == [True, False]
    assert intake.num_received == 0


def test_blocks_of_rows_are_at_most_as_many_as_study_json_allows_and_as_samples_share() -> None:
    def block(num: int, offset: int = 0, width: int = 2) -> list[Block]:
        return [Block(field="nodes", dtype="<f4", shape=NODES.shape, offset=(offset, 0), count=(num, width))]

    def layout(**num_rows: int) -> BlockLayout:
        return BlockLayout(fields={"nodes": NODES}, num_ranks=2, num_rows=num_rows)

    of_two = layout()
    for wrong in (block(3, offset=2), block(3, width=1)):
        assert "its rows as a block that begins at 0" in str(of_two.add(0, wrong))
    assert of_two.add(0, block(5)) is None
    assert not of_two.complete
    too_many = 'client ranks send 10 rows of field nodes, and study.json allows 9: raise its "max" there'
    assert too_many in str(of_two.add(1, block(5)))
    assert of_two.add(1, block(4)) is None
    assert (of_two.complete, of_two.owners) == (True, {"nodes": 0b11})
    nobody, again = layout(), layout(nodes=5)
    assert (nobody.add(0, []), nobody.add(1, [])) == (None, None)
    assert again.add(0, block(5)) is None
    assert "sends 6 rows of field nodes, but has sent 5 before" in str(again.add(1, block(1)))
    assert again.add(1, []) is None
