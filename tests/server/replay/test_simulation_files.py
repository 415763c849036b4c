"""Files of simulations: those of a study without training, and those that somebody else wrote."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import h5py
import numpy as np
import pytest

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError, DamagedRecord, SamplesNotWritten
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.replay.export import export_record
from stream_server.server.replay.file_recording import FilesRecord
from stream_server.server.replay.record_format import EntryKind
from stream_server.server.replay.share import ReplayShare
from stream_server.server.replay.simulation_file import load_h5py
from tests.fakes.thread_ranks import on_ranks
from tests.server.replay.test_source import ALL_WINDOWS, WINDOWS, Batches, Player, Saved, played
from tests.support.recorded import PARAMETERS, has_v, interleave, parameters_of, record, small_study, u_of, v_of
from tests.support.studies import Changes, StudyFolder

FIFO: Changes = {"buffer.policy": "fifo"}
ALL = set(range(10))


def exported(config: StudyConfig, *, num_ranks: int = 1, num_steps: int = 12, **options: Any) -> Path:
    """The files of all simulations of a study, out of its record."""
    record(config, interleave(range(10), num_steps), num_ranks=num_ranks)
    files = config.output_dir / "samples"
    assert export_record(
        SoloRanks(), config.output_dir / "record", files, **{"finished": ALL, "invalid": (), **options}
    )
    return files


def handwritten(folder: Path, simulation: int) -> Path:
    """A file as somebody writes it who has read docs/guide/offline.md, and nothing of ours."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"run{simulation}.h5"
    with h5py.File(path, "w") as file:
        file.attrs["simulation"] = simulation
        file.create_group("parameters").attrs.update({"left": -simulation, "initial": simulation / 3, "unused": 1.0})
        file["time_step"] = np.arange(12)
        file["fields/u"] = np.stack([u_of((simulation, step)) for step in range(12)]).astype(">f8")
        file["fields/v"] = [v_of((simulation, step)) for step in range(12)]
        file["fields/unused"] = np.zeros((12, 5))
        file["present/v"] = [has_v((simulation, step)) for step in range(12)]
    return path


def opened(config: StudyConfig, folder: Path, stack: ExitStack) -> ReplayShare:
    return ReplayShare(config, SoloRanks(), folder, PARAMETERS, stack)


def test_a_file_has_every_sample_of_its_simulation_in_the_order_of_time(folder: StudyFolder) -> None:
    files = exported(small_study(folder), num_ranks=3)
    assert sorted(path.name for path in files.iterdir()) == [f"simulation-{i:06d}.h5" for i in range(10)]
    for simulation in range(10):
        with h5py.File(files / f"simulation-{simulation:06d}.h5") as file:
            assert dict(file.attrs) == {"format": 1, "study": "heat", "simulation": simulation, "finished": True}
            assert dict(file["parameters"].attrs) == dict(zip(PARAMETERS, parameters_of(simulation), strict=True))
            keys = [(simulation, step) for step in range(12)]
            assert file["time_step"][:].tolist() == list(range(12))
            assert file["fields/u"].dtype == np.float32
            assert np.array_equal(file["fields/u"][:], [u_of(key) for key in keys])
            assert file["fields/v"][:].tolist() == [v_of(key) if has_v(key) else 0 for key in keys]
            assert file["present/v"][:].tolist() == [has_v(key) for key in keys]
            assert "present/u" not in file
            assert file["fields/u"].dims[0][0] == file["time_step"]


def test_invalid_simulations_have_no_file_and_unfinished_ones_say_so(folder: StudyFolder) -> None:
    files = exported(small_study(folder), finished=ALL - {4}, invalid={5})
    assert not (files / "simulation-000005.h5").exists()
    with h5py.File(files / "simulation-000004.h5") as file:
        assert not file.attrs["finished"]


def test_files_that_are_there_are_not_written_again_and_the_missing_ones_are(folder: StudyFolder) -> None:
    config = small_study(folder)
    files = exported(config)
    kept, lost = files / "simulation-000003.h5", files / "simulation-000004.h5"
    before, content = kept.stat().st_ino, lost.read_bytes()
    lost.unlink()
    (files / "simulation-000004.h5.0a1b.tmp").write_bytes(b"half a file")
    assert export_record(SoloRanks(), config.output_dir / "record", files, finished=ALL, invalid=())
    assert kept.stat().st_ino == before
    assert lost.read_bytes() == content
    assert not list(files.glob("*.tmp"))


def test_ranks_share_the_files_and_leave_together_when_one_of_them_must(folder: StudyFolder) -> None:
    config = small_study(folder)
    record(config, interleave(range(10)), num_ranks=2)
    files = config.output_dir / "samples"

    def export(ranks: Ranks, *, leaving: int | None) -> bool:
        return export_record(
            ranks,
            config.output_dir / "record",
            files,
            finished=ALL,
            invalid=(),
            must_leave=lambda: ranks.rank == leaving and len(list(files.glob("*.h5"))) > 3,
        )

    assert on_ranks(2, lambda ranks: export(ranks, leaving=1)) == [False, False]
    assert 3 < len(list(files.glob("*.h5"))) < 10
    assert on_ranks(2, lambda ranks: export(ranks, leaving=None)) == [True, True]
    assert len(list(files.glob("*.h5"))) == 10


def test_a_full_disk_is_told_and_leaves_no_half_of_a_file(folder: StudyFolder) -> None:
    """No file may be larger than 4 KiB, which stands in for a full disk."""
    config = small_study(folder)
    record(config, interleave(range(10)))
    script = (
        "import resource, signal; from pathlib import Path; "
        "from stream_server.server.replay.export import export_record; "
        "from stream_server.server.ranks.communicator import SoloRanks\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        f"export_record(SoloRanks(), Path({str(config.output_dir / 'record')!r}), "
        f"Path({str(config.output_dir / 'samples')!r}), finished=(), invalid=())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert SamplesNotWritten.__name__ in last
    assert "File too large" in last
    assert "Make room" in last
    assert list((config.output_dir / "samples").iterdir()) == []


@pytest.mark.parametrize("num_ranks", [1, 3])
def test_each_epoch_has_every_training_sample_once_in_another_order(folder: StudyFolder, num_ranks: int) -> None:
    config = small_study(folder, {**FIFO, "offline.epochs": 3})
    files = exported(config)
    played_by_ranks: list[Batches] = on_ranks(num_ranks, lambda ranks: played(config, files, ranks))
    for epochs in zip(*(_in_epochs(batches, 3) for batches in played_by_ranks), strict=True):
        assert sorted(key for of_rank in epochs for key in of_rank) == [
            (i, step) for i in range(2, 10) for step in range(12)
        ]
    first, second, third = _in_epochs(played_by_ranks[0], 3)
    assert first != second != third


def _in_epochs(batches: Batches, num: int) -> list[list[tuple[int, int]]]:
    keys = [key for batch in batches for key in batch]
    size = len(keys) // num
    return [keys[epoch * size : (epoch + 1) * size] for epoch in range(num)]


def test_without_shuffling_files_give_the_samples_as_a_record_in_their_order(folder: StudyFolder) -> None:
    """A buffer that is given the same samples in the same order gives the same draws."""
    config = small_study(folder, {"offline.shuffle": False})
    record(config, [(simulation, step) for simulation in range(10) for step in range(12)])
    files = config.output_dir / "samples"
    assert export_record(SoloRanks(), config.output_dir / "record", files, finished=ALL, invalid=())
    assert played(config, files) == played(config, config.output_dir / "record")


def test_a_training_from_files_that_was_saved_goes_on_with_the_same_draws(folder: StudyFolder) -> None:
    config = small_study(folder, {"offline.epochs": 2})
    files = exported(config)
    whole = played(config, files)
    player = Player(config, files)
    with player.source:
        before = list(islice(player.batches(), len(whole) // 2))
        saved = Saved.of(player.source.snapshot())
    resumed = Player(config, files, saved=saved)
    with resumed.source:
        assert [*before, *resumed.batches()] == whole
    (files / "simulation-000009.h5").unlink()
    with pytest.raises(ConfigError, match="is not what this run began with"), Player(config, files, saved=saved).source:
        pass


def test_files_of_somebody_else_are_trained_from(folder: StudyFolder) -> None:
    """They have no checksums, other types and other names, and more than is asked for."""
    config = small_study(folder, FIFO)
    for simulation in range(10):
        handwritten(folder.path / "theirs", simulation)
    keys = sorted(key for batch in played(config, folder.path / "theirs") for key in batch)
    assert keys == [(i, step) for i in range(2, 10) for step in range(12)]


def test_held_out_simulations_of_files_are_validated_with_and_not_trained_on(folder: StudyFolder) -> None:
    config = small_study(folder, {"offline.epochs": 2})
    player = Player(config, exported(config))
    with player.source:
        held_out = player.source.validation_store.complete_rows()
    assert held_out.simulation_ids.tolist() == [0] * 12 + [1] * 12
    assert held_out.take("u", np.array([13])).tolist() == [u_of((1, 1)).tolist()]


def test_simulations_without_a_file_and_those_that_are_not_whole_are_named(folder: StudyFolder) -> None:
    config = small_study(folder)
    files = exported(config, finished=ALL - {0, 7})
    (files / "simulation-000003.h5").unlink()
    (files / "simulation-000004.h5").rename(files / "simulation-000004.h5.half.tmp")
    with ExitStack() as stack:
        assert opened(config, files, stack).warnings == [
            "there is no file of simulation 3, 4",
            "not all time steps are there of simulation 0, 7",
            "not all is there of the held-out simulations 0: they are left out of the validation",
        ]


def _change(path: Path, change: Callable[[Any], None]) -> None:
    with h5py.File(path, "a") as file:
        change(file)


def _another_u(values: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file["fields/u"]
        file["fields/u"] = values

    return change


def _another_step(file: Any) -> None:
    file["time_step"][3] = 40


def _same_step(file: Any) -> None:
    file["time_step"][3] = 2


def _no_left(file: Any) -> None:
    del file["parameters"].attrs["left"]


def _no_u(file: Any) -> None:
    del file["fields/u"]


def _no_simulation(file: Any) -> None:
    del file.attrs["simulation"]


def _newer(file: Any) -> None:
    file.attrs["format"] = 2


def _another_simulation(file: Any) -> None:
    file.attrs["simulation"] = 5


def _again(name: str, values: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        del file[name]
        file[name] = values

    return change


def _half_written(file: Any) -> None:
    del file["fields/u"]
    file.create_dataset("fields/u", (12, 2, 3), "f4", chunks=(5, 2, 3))[:5] = 1.0


def _unwritten(file: Any) -> None:
    del file["fields/u"]
    file.create_dataset("fields/u", (12, 2, 3), "f4")


def _virtual(file: Any) -> None:
    """HDF5 reads zeros, since there is no other file."""
    layout = h5py.VirtualLayout((12, 2, 3), "f4")
    layout[:] = h5py.VirtualSource("elsewhere.h5", "u", (12, 2, 3))
    del file["fields/u"]
    file.create_virtual_dataset("fields/u", layout)


def _nowhere(file: Any) -> None:
    del file["fields/u"]
    file["fields/u"] = h5py.ExternalLink("elsewhere.h5", "u")


def _group(file: Any) -> None:
    del file["fields/u"]
    file.create_group("fields/u/values")


def _attribute(name: str, value: Any) -> Callable[[Any], None]:
    def change(file: Any) -> None:
        *groups, last = name.split("/")
        file["/".join(groups) or "/"].attrs[last] = value

    return change


MISTAKES = {
    "half": (_half_written, "/fields/u has rows that were never written"),
    "unwritten": (_unwritten, "/fields/u has rows that were never written"),
    "virtual": (_virtual, "/fields/u is a virtual dataset"),
    "nowhere": (_nowhere, "run4.h5: /fields/u is a link to another place or file: copy the values"),
    "group": (_group, "run4.h5 is no file of samples, or is damaged"),
    "nothing": (_another_u(h5py.Empty("f4")), "run4.h5 is no file of samples, or is damaged"),
    "structured": (_another_u(np.zeros((12, 2, 3), "i4,f4")), "which is not converted to float32"),
    "halves": (_again("time_step", np.arange(12) + 0.5), "/time_step must be whole numbers"),
    "texts": (_again("time_step", [str(step) for step in range(12)]), "/time_step must be whole numbers"),
    "present rows": (_again("present/v", [True]), "/present/v must be true or false of the shape [12]"),
    "present numbers": (_again("present/v", np.arange(12)), "/present/v must be true or false of the shape [12]"),
    "parameter text": (_attribute("parameters/left", "4"), "left of /parameters must be a finite number"),
    "parameter nan": (_attribute("parameters/left", np.nan), "left of /parameters must be a finite number"),
    "parameters": (_attribute("parameters/left", [1.0, 2.0]), "left of /parameters must be a finite number"),
    "simulation half": (_attribute("simulation", 4.5), "simulation must be whole numbers of the shape []"),
    "simulation text": (_attribute("simulation", "4"), "simulation must be whole numbers of the shape []"),
    "finished text": (_attribute("finished", "false"), "finished must be true or false of the shape []"),
    "shape": (_another_u(np.zeros((12, 3, 2))), "u must have the shape [2, 3] in each time step, but has [3, 2]"),
    "rows": (
        _another_u(np.zeros((11, 2, 3))),
        "must have 12 rows, one for each of /time_step, but has the shape (11, 2, 3)",
    ),
    "dtype": (_another_u(np.zeros((12, 2, 3), complex)), "u is complex128, which is not converted to float32"),
    "text": (_another_u([["x"] * 6] * 12), "u must have the shape [2, 3]"),
    "field": (_no_u, "/fields/u is missing; there are unused, v"),
    "parameter": (_no_left, "/parameters lacks the attribute left"),
    "label": (_another_step, "the time step 40 is none of study.time_steps (first 0, every 1, 12)"),
    "twice": (_same_step, "/time_step has a label twice"),
    "simulation": (_no_simulation, 'must have the attribute "simulation"'),
    "format": (_newer, "expected format 1, found 2"),
    "both": (_another_simulation, "run5.h5 and run4.h5 are both of simulation 5"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_files_that_do_not_fit_are_refused_and_told_why(folder: StudyFolder, mistake: str) -> None:
    files = folder.path / "theirs"
    for simulation in range(10):
        handwritten(files, simulation)
    change, told = MISTAKES[mistake]
    _change(files / "run4.h5", change)
    with ExitStack() as stack, pytest.raises(ConfigError) as raised:
        opened(small_study(folder), files, stack)
    assert told in str(raised.value)
    assert "run4.h5" in str(raised.value)


@pytest.mark.parametrize("size", [0, 100, 4000])
def test_half_a_file_is_never_taken_for_a_whole_one(folder: StudyFolder, size: int) -> None:
    config = small_study(folder)
    files = exported(config)
    os.truncate(files / "simulation-000004.h5", size)
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"simulation-000004\.h5 is no file of"):
        opened(config, files, stack)


def test_a_byte_that_has_changed_is_noticed(folder: StudyFolder) -> None:
    config = small_study(folder)
    path = exported(config) / "simulation-000004.h5"
    data = path.read_bytes()
    value = np.float32(u_of((4, 5))[1, 1]).tobytes()
    assert data.count(value) == 1
    path.write_bytes(data.replace(value, bytes(4)))
    with pytest.raises(DamagedRecord, match=r"simulation-000004\.h5: time step"):
        played(config, path.parent)


def test_a_bit_that_has_changed_anywhere_is_noticed_or_changes_nothing(folder: StudyFolder) -> None:
    """The bytes of a file that mean nothing are many."""
    config = small_study(folder, {**FIFO, "study.simulations": 1, "validation.simulations": 0, "study.time_steps": 4})
    record(config, interleave([0], 4))
    export_record(
        SoloRanks(), config.output_dir / "record", files := config.output_dir / "samples", finished=[0], invalid=()
    )
    [path] = files.iterdir()
    data = path.read_bytes()
    whole = contents(config, files)
    outcomes = set()
    for place in range(0, len(data), 17):
        damaged = bytearray(data)
        damaged[place] ^= 1 << place % 8
        path.write_bytes(damaged)
        try:
            outcomes.add("same" if contents(config, files) == whole else f"the bit at {place} is not noticed")
        except ConfigError:
            outcomes.add("noticed")
    assert outcomes == {"same", "noticed"}


def contents(config: StudyConfig, folder: Path) -> list[Any]:
    """All that a training is given of the files in a folder."""
    with ExitStack() as stack:
        share = opened(config, folder, stack)
        entries = [
            (it.simulation, it.time_step, {**it.fields}) for it in share.samples() if it and it.kind is EntryKind.SAMPLE
        ]
        plain = [(*key, {name: value.tobytes() for name, value in fields.items()}) for *key, fields in entries]
        return [plain, share.counts.parameters, share.warnings, share.counts.finished]


def test_compressed_files_in_other_chunks_and_without_rows_are_read(folder: StudyFolder) -> None:
    config = small_study(folder, {**FIFO, "study.simulations": 1, "validation.simulations": 1})
    files = folder.path / "theirs"
    for simulation in range(2):
        path = handwritten(files, simulation)
        with h5py.File(path, "a") as file:
            del file["fields/u"]
            values = np.stack([u_of((simulation, step)) for step in range(12)])
            file.create_dataset("fields/u", data=values, chunks=(5, 1, 2), compression="gzip", shuffle=True)
            if simulation == 0:
                file["fields/v"].attrs["units"] = "m/s"
                file["parameters"].attrs["comment"] = "by hand"
    keys = sorted(key for batch in played(config, files) for key in batch)
    assert keys == [(1, step) for step in range(12)]
    with h5py.File(path, "a") as file:
        for name in ("time_step", "fields/u", "fields/v", "present/v", "fields/unused"):
            _again(name, file[name][:0])(file)
    with ExitStack() as stack:
        assert opened(config, files, stack).warnings == ["there is no time step of simulation 1"]


@pytest.mark.parametrize(
    ("value", "dtype", "told"),
    [
        (1e300, "float32", "NaN or infinity, or values too large for float32, in time step 3"),
        (2**40, "int32", "values in time step 3 that int32, the dtype in study.json, does not have"),
    ],
)
def test_values_that_do_not_fit_into_the_type_of_the_study_are_refused(
    folder: StudyFolder, value: float, dtype: str, told: str
) -> None:
    config = small_study(folder, {**FIFO, "study.fields": {"u": {"shape": [2, 3], "dtype": dtype}}})
    values = np.zeros((12, 2, 3), type(value))
    values[3, 1, 1] = value
    path = handwritten(folder.path / "theirs", 4)
    _change(path, _another_u(values))
    with pytest.raises(ConfigError, match=rf"run4\.h5: /fields/u has {told}"):
        played(config, path.parent)


def test_nan_in_a_file_is_refused_unless_the_study_keeps_it(folder: StudyFolder) -> None:
    values = np.zeros((12, 2, 3))
    values[3, 0, 0] = np.nan
    path = handwritten(folder.path / "theirs", 4)
    _change(path, _another_u(values))
    with pytest.raises(ConfigError, match=r"run4\.h5: /fields/u has NaN or infinity in time step 3"):
        played(small_study(folder, FIFO), path.parent)
    kept = Player(small_study(folder, {**FIFO, "training.nonfinite": "keep"}), path.parent)
    with kept.source:
        kept.source.before_draw()
        assert kept.source.num_received == 12


def test_a_folder_without_files_is_refused(folder: StudyFolder) -> None:
    config = small_study(folder)
    with ExitStack() as stack, pytest.raises(ConfigError, match=r"or a folder with files of simulations \(\*\.h5\)"):
        opened(config, folder.path, stack)


def files_of(*lengths: int, finished: set[int]) -> list[Any]:
    """Files of so many time steps each, that of simulation i at i."""
    return [
        SimpleNamespace(
            simulation=i,
            time_steps=np.arange(num),
            trajectory_ends=np.arange(i == len(lengths) - 1),
            finished=i in finished,
        )
        for i, num in enumerate(lengths)
    ]


def entries(record: FilesRecord) -> list[tuple[int, int, int]]:
    """The kind of each entry, its simulation and its time step."""
    return [head.item()[:3] for _, heads in record.heads() for head in heads]


def test_numbers_go_through_parameters_held_out_samples_epochs_and_ends(folder: StudyFolder) -> None:
    config = small_study(folder, {"validation.simulations": 1, "offline.epochs": 2, "offline.shuffle": False})
    order = FilesRecord(files_of(2, 3, finished={1}), config)
    found = [order.place(number) for number in range(len(order))]
    assert found == [
        (EntryKind.PARAMETERS, 0),
        (EntryKind.PARAMETERS, 1),
        *((EntryKind.HELD_OUT, row) for row in (0, 1)),
        *((EntryKind.SAMPLE, row) for row in (2, 3, 4, 2, 3, 4)),
        (EntryKind.FINISHED, 1),
        (EntryKind.TRAJECTORY_END, 0),
    ]
    simulations = [0, 1, 0, 0, *[1] * 8]
    steps = [0, 0, 0, 1, 0, 1, 2, 0, 1, 2, 0, 0]
    assert entries(order) == [(kind, *rest) for (kind, _), *rest in zip(found, simulations, steps, strict=True)]


def test_of_windows_the_rows_of_a_file_follow_each_other_and_the_order_of_the_files_is_random(
    folder: StudyFolder,
) -> None:
    orders = []
    for seed in range(3):
        config = small_study(folder, WINDOWS | {"validation.simulations": 1, "study.data_seed": seed})
        order = FilesRecord(files_of(5, 3, 4, 4, 2, finished={1, 2, 3, 4}), config)
        found = [key for kind, *key in entries(order) if kind == EntryKind.SAMPLE]
        files = list(dict.fromkeys(simulation for simulation, _ in found))
        assert found == [[file, step] for file in files for step in range([5, 3, 4, 4, 2][file])]
        begins = np.cumsum([0, 5, 3, 4, 4, 2])
        rows = [(EntryKind.SAMPLE, begins[file] + step) for file, step in found]
        assert [order.place(number) for number in range(10, 23)] == rows
        orders.append(files)
    assert len(set(map(tuple, orders))) > 1


@pytest.mark.parametrize("shuffle", [True, False])
def test_windows_are_made_of_files_whose_steps_are_in_any_order(folder: StudyFolder, shuffle: bool) -> None:
    config = small_study(folder, WINDOWS | {"offline.shuffle": shuffle})
    files = exported(config, num_steps=30)
    for path in files.iterdir():
        with h5py.File(path, "r+") as file:
            mixed = np.random.default_rng(0).permutation(30)
            for name in ("time_step", "fields/u", "fields/v", "present/v"):
                file[name][()] = file[name][()][mixed]
    batches = played(config, files)
    assert Counter(key for batch in batches for key in batch) == ALL_WINDOWS
    simulations = [simulation for batch in batches for simulation, _ in batch]
    in_order = simulations == sorted(simulations)
    assert in_order is not shuffle


def test_without_h5py_the_command_that_installs_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ConfigError, match=r"pip install '\.\[hdf5\]'"):
        load_h5py()
