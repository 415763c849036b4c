"""Fields that are sent once per simulation, in records, replays and files: alone, in windows, beside ragged fields.

One of them has another size in each simulation. What a sample must have is computed from its simulation.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from numpy.typing import NDArray

from stream_server.buffers import Buffer, Slots, num_slots_to_load
from stream_server.buffers.statics import FrozenStatics
from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord, SamplesNotWritten
from stream_server.server.intake.source import ReceptionSnapshot
from stream_server.server.progress.phases import Phases
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.replay import recorder as recorder_module
from stream_server.server.replay.export import export_record
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.record_reader import RankRecord
from stream_server.server.replay.recorder import Recorder
from stream_server.server.replay.simulation_file import SimulationFile
from stream_server.server.replay.source import ReplaySource
from stream_server.server.run import build
from stream_server.server.run.plan import make_plan
from stream_server.server.training.stream import BatchStream
from stream_server.server.training.validation.validation_batches import HeldOutSamples
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.simulation_data import SimulationBatch
from stream_server.server.user.stream_server import StreamServer
from tests.fakes.thread_ranks import ThreadRanks, on_ranks
from tests.support.recorded import PARAMETERS, Key, interleave, parameters_of, recorder, samples_file, small_study
from tests.support.studies import Changes, StudyFolder

FIELDS: dict[str, Any] = {
    "mesh": {"shape": [5, 3], "dtype": "float32", "per": "simulation"},
    "u": {"shape": [2]},
    "points": {"shape": [{"max": 3}, 2]},
    "gravity": {"shape": [], "per": "simulation"},
    "edges": {"shape": [{"max": 12}, 2], "dtype": "int32", "per": "simulation"},
}
BASE: Changes = {"study.fields": FIELDS, "buffer.policy": "fifo"}
KINDS: dict[str, Changes] = {
    "steps": {},
    "windows": {"samples": {"window": {"length": 3, "spacing": 2}}, "buffer.routing": "simulations"},
    "reservoir": {"buffer.policy": "reservoir", "training.draws_per_sample": 2},
}
NUM_STEPS = 12
KEYS = interleave(range(10), NUM_STEPS)
Rows = list[tuple[Any, ...]]


def mesh_of(parameters: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.sin(np.outer(np.arange(1, 6), [*parameters, parameters.sum()])).astype(np.float32)


def gravity_of(parameters: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(9.81 + parameters[0])


def edges_of(simulation: int) -> NDArray[np.int32]:
    num = [5, 12, 0][simulation % 3]
    return np.arange(simulation, simulation + 2 * num, dtype=np.int32).reshape(num, 2)


def statics_of(simulation: int) -> dict[str, NDArray[Any]]:
    parameters = parameters_of(simulation)
    return {"mesh": mesh_of(parameters), "gravity": gravity_of(parameters), "edges": edges_of(simulation)}


def u_of(key: Key) -> NDArray[np.float64]:
    return np.array([key[0] + 0.25, key[1] / 7])


def points_of(key: Key) -> NDArray[np.float64]:
    return np.full((sum(key) % 4, 2), 10.0 * key[0] + key[1])


def slots_with(keys: Sequence[Key]) -> Slots:
    statics = {"mesh": (5, 3), "gravity": (), "edges": (12, 2)}
    slots = Slots({"u": (2,), "points": (3, 2)}, max(1, len(keys)), statics, ragged=["points", "edges"])
    slots.allocate({"u": np.float64, "points": np.float64})
    for slot, key in enumerate(keys):
        slots.simulation_ids[slot], slots.time_steps[slot] = key
        slots.set_value("u", slot, u_of(key))
        slots.set_value("points", slot, points_of(key))
        slots.statics.put(key[0], statics_of(key[0]))
    return slots


def recorded(config: StudyConfig, *, num_ranks: int = 1, keys: Sequence[Key] = KEYS) -> Path:
    """A record of these samples, of which all simulations have finished."""
    for rank in range(num_ranks):
        mine = [key for key in keys if (key[0] if config.window else sum(key)) % num_ranks == rank]
        with recorder(config, slots_with(mine), rank=rank, num_ranks=num_ranks) as it:
            for slot, (simulation, _) in enumerate(mine):
                (it.append_held_out if simulation < config.validation.simulations else it.append)([slot])
            for simulation in range(10):
                it.finish(simulation)
    return config.output_dir / "record"


def exported(config: StudyConfig) -> Path:
    recorded(config)
    files = config.output_dir / "samples"
    assert export_record(SoloRanks(), config.output_dir / "record", files, finished=range(10), invalid=())
    return files


class Vectorised(StreamServer):
    """Keeps the batch."""

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        self.batch = batch
        return batch


class Saved:
    """A checkpoint in memory."""

    def __init__(self, taken: ReceptionSnapshot, server: StreamServer) -> None:
        frozen = taken.buffer
        self.state = taken.state
        self.buffer = dict(frozen.state())
        self.rows = {name: frozen.rows(name, 0, len(frozen)).copy() for name in frozen.fields}
        self.statics: FrozenStatics = frozen.statics
        self.normalization = server.normalization.observed.state_dict()

    def load(self, parts: Mapping[str, Any]) -> None:
        for name, part in parts.items():
            part.load_state_dict(self.state[name])

    def into_buffer(self, buffer: Buffer) -> None:
        for name in buffer.slots.arrays:
            buffer.slots.set_values(name, slice(len(self.rows[name])), self.rows[name])
        for simulation, arrays, observed in zip(
            self.statics.simulations, self.statics.arrays, self.statics.observed, strict=True
        ):
            buffer.slots.statics.put(simulation, arrays, observed=observed)
        buffer.load(self.buffer)


class Player:
    """A replay that forms batches and observes their statistics."""

    def __init__(
        self, config: StudyConfig, folder: Path, ranks: Ranks | None = None, saved: Saved | None = None
    ) -> None:
        self.config, ranks = config, ranks or SoloRanks()
        plan = make_plan(config)
        num_slots = plan.num_slots
        if saved is not None:
            num_slots = num_slots_to_load(saved.buffer, capacity=plan.capacity, planned=num_slots)
        policy = build.make_policy(config, ranks.rank)
        self.buffer = build.make_buffer(config, policy, num_slots, spare=plan.spare, most_kept=plan.most_kept)
        self.source = ReplaySource(config, ranks, folder, parameters=PARAMETERS, buffer=self.buffer, restored=saved)
        self.server = Vectorised()
        self.server.normalization = Normalization(SoloRanks(), {"mesh": (5, 3), "edges": (2,)})
        if saved is not None:
            self.server.normalization.observed.load_state_dict(saved.normalization)
        self.most_kept = 0

    def batches(self) -> Iterator[Rows]:
        """The rows of each batch, every one compared with what it must be."""
        self.server.prepare_training_attributes()
        stream = BatchStream(
            self.buffer,
            self.server,
            parameters_of=self.source.parameters_of,
            batch_size=self.config.training.batch_size,
            phases=Phases(),
            before_draw=self.source.before_draw,
        )
        for drawn in stream:
            assert drawn is not None
            self.most_kept = max(self.most_kept, len(self.buffer.slots.statics))
            rows = [compared(data) for data in self.server.batch.samples()]
            stream.release()
            yield rows


def compared(data: Any) -> tuple[Any, ...]:
    """The simulation and time steps of a sample that has the values of its simulation, to the last bit."""
    parameters = parameters_of(data.simulation_id)
    assert data.parameters.tolist() == parameters.tolist()
    for name, expected in statics_of(data.simulation_id).items():
        assert data.fields[name].dtype == expected.dtype
        assert data.fields[name].shape == expected.shape
        assert data.fields[name].tobytes() == expected.tobytes()
    if data.fields["u"].ndim == 1:
        keys, u, points = [(data.simulation_id, data.time_step)], [data.fields["u"]], [data.fields["points"]]
    else:
        keys = [(data.simulation_id, step) for step in data.time_steps.tolist()]
        u, points = data.fields["u"], data.fields["points"]
    for key, one, some in zip(keys, u, points, strict=True):
        assert one.tolist() == u_of(key).tolist()
        assert some.tolist() == points_of(key).tolist()
    return tuple(keys)


def kinds_in(record: RankRecord) -> list[EntryKind]:
    return [EntryKind(record.head(number).kind) for number in range(len(record))]


def played(config: StudyConfig, folder: Path, ranks: Ranks | None = None) -> list[Rows]:
    player = Player(config, folder, ranks)
    with player.source:
        return list(player.batches())


@pytest.fixture(params=KINDS)
def config(folder: StudyFolder, request: pytest.FixtureRequest) -> StudyConfig:
    return small_study(folder, {**BASE, **KINDS[request.param]})


@pytest.fixture
def plain(folder: StudyFolder) -> StudyConfig:
    return small_study(folder, BASE)


def test_they_are_in_the_record_once_before_the_first_sample(
    plain: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Larger than a block as other entries fill it."""
    monkeypatch.setattr(recorder_module, "BLOCK_BYTES", 100)
    recorded(plain, keys=[(3, 0), (4, 0), (3, 1)])
    record = RankRecord(plain.output_dir / "record", 0)
    try:
        kinds = kinds_in(record)
        of_first_sample = [EntryKind.PARAMETERS, EntryKind.STATICS, EntryKind.SAMPLE]
        assert kinds == [*of_first_sample * 2, EntryKind.SAMPLE, *[EntryKind.FINISHED] * 10]
        for number, simulation in ((1, 3), (4, 4)):
            found = record.read(number).fields
            assert list(found) == ["mesh", "gravity", "edges"]
            for name, expected in statics_of(simulation).items():
                assert (found[name].shape, found[name].tobytes()) == (expected.shape, expected.tobytes())
    finally:
        record.close()


def test_what_is_told_before_any_of_them_has_come_waits_for_their_types(plain: StudyConfig) -> None:
    slots = slots_with([])
    with recorder(plain, slots) as it:
        it.withdraw(4)
        slots.simulation_ids[0] = 3
        slots.statics.put(3, statics_of(3))
        it.append([0])
    record = RankRecord(plain.output_dir / "record", 0)
    try:
        assert kinds_in(record) == [EntryKind.WITHDRAWN, EntryKind.PARAMETERS, EntryKind.STATICS, EntryKind.SAMPLE]
        assert list(record.read(2).fields) == ["mesh", "gravity", "edges"]
    finally:
        record.close()


@pytest.mark.parametrize(("num_recorded", "num_ranks"), [(1, 1), (2, 2), (1, 2), (3, 2), (2, 1)])
def test_each_replayed_sample_has_them_on_any_number_of_ranks(
    config: StudyConfig, num_recorded: int, num_ranks: int
) -> None:
    path = recorded(config, num_ranks=num_recorded)
    first, again = (on_ranks(num_ranks, lambda ranks: played(config, path, ranks)) for _ in range(2))
    assert first == again
    rows = [row for batches in first for batch in batches for row in batch]
    starts = range(NUM_STEPS - (4 if config.window else 0))
    assert {row[0] for row in rows} == {(simulation, step) for simulation in range(2, 10) for step in starts}


def test_a_replay_stopped_between_any_two_batches_goes_on_with_the_same_batches_and_statistics(
    config: StudyConfig,
) -> None:
    path = recorded(config)
    whole = Player(config, path)
    with whole.source:
        expected = list(whole.batches())
    done: list[Rows] = []
    saved: Saved | None = None
    while True:
        player = Player(config, path, saved=saved)
        with player.source:
            batch = next(player.batches(), None)
            if batch is None:
                break
            done.append(batch)
            saved = Saved(player.source.snapshot(), player.server)
    assert done == expected
    whole.server.normalization.sync()
    player.server.normalization.sync()
    meshes = [mesh_of(parameters_of(simulation)).astype(np.float64) for simulation in range(2, 10)]
    for normalization in (whole.server.normalization, player.server.normalization):
        np.testing.assert_allclose(normalization.mean["mesh"], np.mean(meshes, axis=0), rtol=1e-6)
        np.testing.assert_allclose(normalization.std["mesh"], np.std(meshes, axis=0), rtol=1e-6)
        rows = np.concatenate([edges_of(simulation) for simulation in range(2, 10)])
        np.testing.assert_allclose(normalization.mean["edges"], rows.mean(axis=0), rtol=1e-12)
        np.testing.assert_allclose(normalization.std["edges"], rows.std(axis=0), rtol=1e-12)


def test_held_out_samples_of_a_replay_have_them(config: StudyConfig) -> None:
    path = recorded(config, num_ranks=2)

    def held_out(ranks: ThreadRanks) -> Rows:
        player = Player(config, path, ranks)
        with player.source as source:
            found = HeldOutSamples(
                store=source.validation_store,
                parameters_of=source.parameters_of,
                window_shape=build.window_shape(config),
                statics=player.buffer.slots.statics,
            )()
            return [] if found is None else [compared(it) for it in found.batch().samples()]

    rows = [row for of_rank in on_ranks(3, held_out) for row in of_rank]
    starts = range(NUM_STEPS - (4 if config.window else 0))
    assert sorted(row[0] for row in rows) == [(simulation, step) for simulation in range(2) for step in starts]


def test_a_replay_lets_go_of_what_no_sample_needs_and_reads_it_again(folder: StudyFolder) -> None:
    """Each simulation has two steps, the second behind the first ones of all others; it counts once all the same."""
    num = 60
    config = small_study(
        folder,
        {
            **BASE,
            "study.simulations": num,
            "study.time_steps": 2,
            "buffer.capacity": 10,
            "training.batch_size": 4,
            "validation.simulations": 0,
        },
    )
    keys = [(simulation, step) for step in range(2) for simulation in range(num)]
    path = recorded(config, keys=keys)
    player = Player(config, path)
    with player.source:
        batches = player.batches()
        assert sum(len(next(batches)) for _ in range(num // 4)) == num
        saved = Saved(player.source.snapshot(), player.server)
    assert player.most_kept < 40
    player = Player(config, path, saved=saved)
    with player.source:
        assert sum(map(len, player.batches())) == num
    player.server.normalization.sync()
    assert player.server.normalization.arrays()["fields.mesh.count"].tolist() == [[num] * 3] * 5


def test_a_record_that_ends_within_them_is_read_up_to_there(
    plain: StudyConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder_module, "MOST_ENTRIES", 1)
    path = samples_file(recorded(plain, keys=[(3, 0), (4, 0)]))
    record = RankRecord(path.parent, 0)
    number = kinds_in(record).index(EntryKind.STATICS, 3)
    begin = record.parts[0].offsets[number]
    record.close()
    path.write_bytes(path.read_bytes()[: begin + 95])
    assert played(plain, path.parent) == [[((3, 0),)]]


def test_a_bit_that_has_changed_in_them_is_noticed(plain: StudyConfig) -> None:
    path = samples_file(recorded(plain, keys=[(3, 0), (0, 0), (4, 0)]))
    record = RankRecord(path.parent, 0)
    numbers = [number for number, kind in enumerate(kinds_in(record)) if kind is EntryKind.STATICS]
    assert len(numbers) == 3
    places = [(record._find(number).starts[number], record.head(number).num_bytes) for number in numbers]
    record.close()
    sound = path.read_bytes()
    for start, num_bytes in places:
        for at in range(start, start + num_bytes, 5):
            data = bytearray(sound)
            data[at] ^= 1 << at % 8
            path.write_bytes(data)
            with pytest.raises(ConfigError, match=r"not as it was written|were expected in it"):
                played(plain, path.parent)


def test_a_sample_that_became_one_of_them_is_noticed(plain: StudyConfig) -> None:
    path = samples_file(recorded(plain, num_ranks=2), 1)
    data = path.read_bytes()
    head = np.array([EntryKind.SAMPLE, 4, 9], "<i8").tobytes()
    assert data.count(head) == 1
    path.write_bytes(data.replace(head, np.array([EntryKind.STATICS, 4, 9], "<i8").tobytes()))

    def refused(ranks: ThreadRanks) -> bool:
        try:
            played(plain, path.parent, ranks)
        except ConfigError as error:
            return "is not as it was written" in str(error)
        return False

    assert any(on_ranks(3, refused))


def test_a_record_of_another_kind_of_field_is_refused(folder: StudyFolder, plain: StudyConfig) -> None:
    path = recorded(plain)
    other = small_study(folder, {**BASE, "study.fields": FIELDS | {"gravity": {"shape": []}}})
    with pytest.raises(ConfigError, match=r'gravity\.per: expected "simulation", as recorded, but found "step"'):
        played(other, path)


def test_each_file_has_them_once(plain: StudyConfig) -> None:
    files = exported(plain)
    for simulation in range(10):
        with h5py.File(files / f"simulation-{simulation:06d}.h5") as file:
            parameters = parameters_of(simulation)
            assert sorted(file["static"]) == ["edges", "gravity", "mesh"]
            assert np.array_equal(file["static/edges"][()], edges_of(simulation))
            assert file["static/edges"].fletcher32
            assert file["static/mesh"].dtype == np.float32
            assert file["static/mesh"].fletcher32
            assert file["static/mesh"][()].tobytes() == mesh_of(parameters).tobytes()
            assert file["static/gravity"][()] == gravity_of(parameters)
            assert sorted(file["fields"]) == ["points", "u"]


@pytest.mark.parametrize("num_ranks", [1, 2])
def test_what_is_trained_from_files_has_them(config: StudyConfig, num_ranks: int) -> None:
    files = exported(config)
    ranks = on_ranks(num_ranks, lambda ranks: played(config, files, ranks))
    rows = [row for batches in ranks for batch in batches for row in batch]
    starts = range(NUM_STEPS - (4 if config.window else 0))
    assert {row[0] for row in rows} == {(simulation, step) for simulation in range(2, 10) for step in starts}


def test_a_training_from_files_that_was_saved_goes_on_with_the_same_batches(folder: StudyFolder) -> None:
    config = small_study(folder, {**BASE, "offline.epochs": 2})
    files = exported(config)
    expected = played(config, files)
    first = Player(config, files)
    with first.source:
        batches = first.batches()
        done = [next(batches) for _ in range(9)]
        saved = Saved(first.source.snapshot(), first.server)
    second = Player(config, files, saved=saved)
    with second.source:
        assert done + list(second.batches()) == expected


def test_a_bit_that_has_changed_in_a_file_is_noticed(plain: StudyConfig) -> None:
    path = exported(plain) / "simulation-000004.h5"
    sound = path.read_bytes()
    with h5py.File(path) as file:
        mesh = file["static/mesh"]
        start = mesh.id.get_chunk_info(0).byte_offset
        places = range(start, start + mesh.nbytes)
    scalar = sound.index(gravity_of(parameters_of(4)).tobytes())
    for at in [*places, *range(scalar, scalar + 8)]:
        data = bytearray(sound)
        data[at] ^= 1 << at % 8
        path.write_bytes(data)
        with pytest.raises(DamagedRecord, match=r"/static cannot be read|is damaged"):
            read_statics(path)
    path.write_bytes(sound)
    assert read_statics(path)["mesh"].tobytes() == mesh_of(parameters_of(4)).tobytes()


def read_statics(path: Path) -> dict[str, NDArray[Any]]:
    file = SimulationFile(path)
    file.open()
    try:
        return file.read_statics()
    finally:
        file.close()


def test_the_files_of_somebody_else_are_trained_from(folder: StudyFolder) -> None:
    """As docs/guide/offline.md says, with h5py alone."""
    config = small_study(folder, {**BASE, "study.fields": {name: FIELDS[name] for name in ("u", "mesh", "edges")}})
    files = config.output_dir / "theirs"
    files.mkdir(parents=True)
    for simulation in range(10):
        with h5py.File(files / f"{simulation}.h5", "w") as file:
            file.attrs["simulation"] = simulation
            file.create_group("parameters").attrs.update(zip(PARAMETERS, parameters_of(simulation), strict=True))
            file["time_step"] = np.arange(NUM_STEPS)
            file["fields/u"] = [u_of((simulation, step)) for step in range(NUM_STEPS)]
            file["static/mesh"] = mesh_of(parameters_of(simulation)).astype(np.float64)
            file["static/edges"] = edges_of(simulation)
    player = Player(config, files)
    with player.source:
        for _ in BatchStream(
            player.buffer,
            player.server,
            parameters_of=player.source.parameters_of,
            batch_size=7,
            phases=Phases(),
            before_draw=player.source.before_draw,
        ):
            for data in player.server.batch.samples():
                np.testing.assert_array_equal(data.fields["mesh"], mesh_of(parameters_of(data.simulation_id)))
                np.testing.assert_array_equal(data.fields["edges"], edges_of(data.simulation_id))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda file: file.__delitem__("static/mesh"), r"/static/mesh is missing, which is sent once per simulation"),
        (lambda file: file.__delitem__("static"), r"/static/mesh is missing"),
        (
            lambda file: [file.__delitem__("static/mesh"), file.__setitem__("static/mesh", np.zeros((3, 5), "f4"))],
            r"/static/mesh must have the shape \[5, 3\], but has \[3, 5\]",
        ),
        (
            lambda file: [file.__delitem__("static/edges"), file.__setitem__("static/edges", np.zeros((3, 3), "i4"))],
            r"/static/edges must have the shape \[0 to 12, 2\], but has \[3, 3\]",
        ),
        (
            lambda file: [file.__delitem__("static/edges"), file.__setitem__("static/edges", np.zeros((13, 2), "i4"))],
            r"/static/edges has 13 rows, but study.json allows 12",
        ),
        (
            lambda file: [file.__delitem__("static/mesh"), file.__setitem__("static/mesh", np.zeros((5, 3), "c8"))],
            r"/static/mesh is complex64, which is not converted to float32",
        ),
        (lambda file: file["static/mesh"].__setitem__((0, 0), np.nan), r"/static/mesh has NaN.*Leave the simulation"),
        (
            lambda file: [
                file.__delitem__("static/mesh"),
                file.__setitem__("static/mesh", h5py.ExternalLink("other.h5", "mesh")),
            ],
            r"/static/mesh is a link to another place or file",
        ),
    ],
)
def test_files_that_do_not_fit_are_refused(plain: StudyConfig, change: Any, message: str) -> None:
    files = exported(plain)
    with h5py.File(files / "simulation-000004.h5", "r+") as file:
        change(file)
    with pytest.raises(ConfigError, match=message):
        played(plain, files)


def test_files_are_not_written_of_a_record_that_lacks_them(plain: StudyConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_them(it: Recorder, simulation: int) -> None:
        it._add(EntryKind.PARAMETERS, simulation, values=parameters_of(simulation).tobytes())

    monkeypatch.setattr(Recorder, "_add_simulation", without_them)
    path = recorded(plain)
    with pytest.raises(SamplesNotWritten, match="what simulation 0 sent once was expected in it"):
        export_record(SoloRanks(), path, path / "files", finished=range(10), invalid=())
