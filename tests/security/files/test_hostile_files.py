"""Files that somebody has made in order to do harm: checkpoints, models, records and files of samples.

Each is refused in one sentence, in little memory, and without a look at files beside it.
"""

import io
import json
import os
import pickle
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from xxhash import xxh3_64_intdigest

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import newest_checkpoint
from stream_server.analysis.validations import read_validation
from stream_server.config.loading import read_json
from stream_server.errors import ConfigError, DamagedCheckpoint, DamagedRecord, MalformedMessage, StreamServerError
from stream_server.machine.processes import PROC
from stream_server.messages import codec
from stream_server.messages.client import Hello
from stream_server.messages.connection import ConnectionFile
from stream_server.server.checkpoint.folder import MANIFEST_FILE, CheckpointFolder, Manifest, read_manifest
from stream_server.server.model.warm_start import warm_start
from stream_server.server.replay.record_format import FORMAT, HEAD, Segment
from stream_server.server.replay.record_reader import RankRecord, parts_of_rank
from stream_server.server.replay.simulation_file import SimulationFile
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.checksums import FileRecord, checksummed_json, record_of
from stream_server.storage.disk import remove_tree
from stream_server.storage.plain_state import MAGIC as STATE
from stream_server.storage.plain_state import from_bytes, read_state
from stream_server.storage.tensor_file import read_tensors
from tests.server.replay.test_simulation_files import handwritten
from tests.support.checkpoint_stores import manifest_of
from tests.support.saved_models import Net, config_of, set_up

MOST_WORDS = 2000
MOST_BYTES = 256 << 20
XXH3 = "0123456789abcdef0123456789abcdef"


@pytest.fixture(autouse=True)
def _little_memory() -> Iterator[None]:
    """The peak of this process hardly grows, whatever a file says of sizes."""
    (PROC / "self" / "clear_refs").write_text("5")
    before = peak_bytes()
    yield
    assert peak_bytes() < before + MOST_BYTES


def peak_bytes() -> int:
    lines = (PROC / "self" / "status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def assert_is_short(error: BaseException) -> None:
    assert len(str(error)) < MOST_WORDS


JSON_BOMBS = {
    "depth": b"[" * 1_000_000,
    "objects": b'{"a":' * 1_000_000,
    "digits": b'{"checkpoint": ' + b"9" * 1_000_000 + b"}",
    "not a number": b'{"checkpoint": NaN}',
    "a key twice": b'{"study": 1, "study": 2}',
    "a long key": b'{"' + b"k" * 1_000_000 + b'": 1}',
    "a long text": b'{"message": "' + b"t" * 1_000_000 + b'"}',
    "no object": b"1",
    "half a pair": b'{"study": "\\ud800"}',
}


@pytest.fixture(params=JSON_BOMBS.values(), ids=JSON_BOMBS.keys())
def bomb(request: pytest.FixtureRequest) -> bytes:
    found: bytes = request.param
    return found


def test_json_is_refused_wherever_it_is_read(tmp_path: Path, bomb: bytes) -> None:
    path = tmp_path / "file.json"
    path.write_bytes(bomb)
    path.chmod(0o600)
    refused: list[StreamServerError] = []
    for read in (ConnectionFile.read, read_json):
        try:
            read(path)
        except ConfigError as error:
            refused.append(error)
    with pytest.raises(DamagedCheckpoint) as of_manifest:
        Manifest.from_bytes(bomb)
    with pytest.raises(MalformedMessage) as of_message:
        codec.decoder(Hello)(bomb)
    assert refused, "a connection file at least"
    for error in (*refused, of_manifest.value, of_message.value):
        assert_is_short(error)


OUTSIDE = ["../../x", "/etc/passwd", "rank-0/../../x", "..", ".", "", "a//b", "a\\b", "a\nb", "a/./b"]


@pytest.mark.parametrize("name", OUTSIDE)
def test_a_manifest_names_nothing_outside_of_its_folder(name: str) -> None:
    data = manifest_of(1, {"in": FileRecord(num_bytes=1, xxh3=XXH3)}).to_bytes()
    plain = json.loads(data)
    del plain["xxh3"]
    with pytest.raises(DamagedCheckpoint, match="paths within its folder"):
        Manifest.from_bytes(checksummed_json({**plain, "files": {name: [1, XXH3]}}))


@pytest.mark.parametrize("record", [[-1, XXH3], [2**70, XXH3], [1.0, XXH3], [True, XXH3], [1, "x"], {}, None])
def test_a_file_of_a_manifest_has_a_size_and_a_checksum(tmp_path: Path, record: Any) -> None:
    plain = json.loads(manifest_of(1, {}).to_bytes())
    del plain["xxh3"]
    folder = tmp_path / "000001"
    folder.mkdir()
    (folder / MANIFEST_FILE).write_bytes(checksummed_json({**plain, "files": {"study.state": record}}))
    try:
        manifest = read_manifest(folder)
    except DamagedCheckpoint:
        return
    # No number is too large to be written down, and no file has so many bytes.
    assert CheckpointFolder(tmp_path).verify(manifest, manifest.files) != {}


def test_a_part_that_is_a_link_is_read_if_its_bytes_are_right_and_what_it_leads_to_is_never_removed(
    tmp_path: Path,
) -> None:
    """Whoever planted it must have known the bytes."""
    theirs, folder = tmp_path / "theirs", tmp_path / "checkpoints" / "000001"
    theirs.mkdir()
    folder.mkdir(parents=True)
    (theirs / "secret").write_bytes(b"secret")
    (folder / "study.state").symlink_to(theirs / "secret")
    (folder / "rank-0").symlink_to(theirs)
    files = dict.fromkeys(("study.state", "rank-0/other"), record_of(theirs / "secret"))
    manifest = manifest_of(1, files)
    (folder / MANIFEST_FILE).write_bytes(manifest.to_bytes())
    store = CheckpointFolder(folder.parent)
    problems = store.verify(manifest, manifest.files)
    assert problems == {"rank-0/other": "rank-0/other cannot be read: No such file or directory"}
    remove_tree(folder)
    assert (theirs / "secret").read_bytes() == b"secret"
    assert not folder.exists()


@pytest.mark.parametrize("name", ["000001.tmp", "000001.old"])
def test_a_link_in_the_place_of_what_an_earlier_start_left_is_not_followed(tmp_path: Path, name: str) -> None:
    theirs, checkpoints = tmp_path / "theirs", tmp_path / "checkpoints"
    theirs.mkdir()
    checkpoints.mkdir()
    (theirs / "thesis").touch()
    (checkpoints / name).symlink_to(theirs)
    assert CheckpointFolder(checkpoints).sweep() == [name]
    assert (theirs / "thesis").exists()
    assert list(checkpoints.iterdir()) == []


def state(tree: Any, arrays: list[Any]) -> bytes:
    text = json.dumps([tree, arrays]).encode()
    return STATE + len(text).to_bytes(8, "little") + text


STATES = {
    "more bytes than there are": state({"__array__": 0}, [["<f8", [2**40], "C"]]),
    "extents that overflow": state({"__array__": 0}, [["<f8", [2**62, 2**62], "C"]]),
    "nothing, very often": state({"__array__": 0}, [["<f8", [0, 2**62, 2**62], "C"]]),
    "a negative extent": state({"__array__": 0}, [["<f8", [-1], "C"]]),
    "many dimensions": state({"__array__": 0}, [["<f8", [1] * 100, "C"]]),
    "objects": state({"__array__": 0}, [["|O", [1], "C"]]),
    "a program": state({"__array__": 0}, [["(2**40)f8", [1], "C"]]),
    "depth": state(None, []).replace(b"null", b"[" * 100_000 + b"]" * 100_000),
    "one array again and again": state([{"__array__": 0}] * 100, [["<f8", [], "C"]]) + bytes(8),
    "a text longer than the file": STATE + (2**62).to_bytes(8, "little"),
    "a pickle": pickle.dumps(print),
    "an unknown tag": state({"__call__": "os.system"}, []),
}


@pytest.mark.parametrize("data", STATES.values(), ids=STATES.keys())
def test_a_state_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(DamagedCheckpoint) as refused:
        from_bytes(data)
    assert_is_short(refused.value)
    (tmp_path / "study.state").write_bytes(data)
    with pytest.raises(DamagedCheckpoint):
        read_state(tmp_path / "study.state")


def tensors(**described: Any) -> bytes:
    text = json.dumps({name.replace("__", "."): it for name, it in described.items()}).encode()
    return struct.pack("<Q", len(text)) + text + bytes(8)


def tensor(shape: list[int], dtype: str = "F32", offsets: tuple[int, int] = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": list(offsets)}


MODELS = {
    "5,000 parts": tensors(**{".".join("a" * 5000): tensor([2])}),
    "100 dimensions": tensors(w=tensor([1] * 99 + [2])),
    "a negative extent": tensors(w=tensor([-2])),
    "extents that overflow": tensors(w=tensor([2**62, 4])),
    "nothing, very often": tensors(w=tensor([0, 2**62, 2**62], offsets=(0, 0)), v=tensor([2])),
    "a type of a long name": tensors(w=tensor([2], dtype="X" * 1_000_000)),
    "a type that is none here": tensors(w=tensor([2], dtype="F8_E8M0")),
    "a name within another": tensors(a=tensor([1], offsets=(0, 4)), a__b=tensor([1], offsets=(4, 8))),
    "parts that overlap": tensors(a=tensor([2]), b=tensor([2])),
    "a head longer than the file": struct.pack("<Q", 2**62) + b"{}",
    "a pickle": pickle.dumps(print),
    "depth": struct.pack("<Q", 200_000) + b"[" * 100_000 + b"]" * 100_000,
}


class Learner(StreamServer):
    """A learner without torch, whose state is whatever it was given."""

    def train_batch(self, batch: Any, batch_idx: int) -> Mapping[str, float]:
        raise NotImplementedError

    def load_state_dict(self, state: Any) -> None:
        self.state = state


@pytest.mark.parametrize("data", MODELS.values(), ids=MODELS.keys())
def test_a_model_is_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    config = config_of(load={"checkpoint": str(path)})
    learner, network = Learner(config), Net(config)
    with pytest.raises(ConfigError) as by_learner:
        warm_start(config, learner, None, Normalization(None, {}))  # type: ignore[arg-type]
    with set_up(network) as step, pytest.raises(ConfigError) as by_network:
        warm_start(config, network, step, Normalization(None, {}))  # type: ignore[arg-type]
    for refused in (by_learner, by_network):
        assert refused.value.args[0].startswith("load.checkpoint")
        assert len(str(refused.value)) < 4000


def test_of_a_model_with_very_many_names_some_are_told(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    names = {f"{'n' * 100}{i}": tensor([0], offsets=(0, 0)) for i in range(10_000)}
    path.write_bytes(tensors(**names, last=tensor([2])))
    assert len(read_tensors(path, as_torch=True)) == 10_001
    config = config_of(load={"checkpoint": str(path)})
    network = Net(config)
    with set_up(network) as step, pytest.raises(ConfigError, match="and 9981 more") as refused:
        warm_start(config, network, step, Normalization(None, {}))  # type: ignore[arg-type]
    assert len(str(refused.value)) < 6000


def described(**changes: Any) -> bytes:
    """A file of a record with this description, whose checksum is right."""
    plain = {"format": FORMAT, "study": "s", "incarnation": 1, "begin": 0, "rank": 0, "fields": []}
    return checksummed_json({**plain, **changes}, indent=None)


RECORDS = {
    "another format": described(format=FORMAT - 1),
    "a field": described(fields=[{"name": "u", "shape": [2**40, 2**40], "dtype": "<f8"}]),
    "a dimension": described(fields=[{"name": "u", "shape": [1] * 100, "dtype": "<f8"}]),
    "an object": described(fields=[{"name": "u", "shape": [1], "dtype": "|O"}]),
    "no type": described(fields=[{"name": "u", "shape": [1]}]),
    "a field twice": described(fields=[{"name": "u", "shape": [], "dtype": "<f8"}] * 2),
}


@pytest.mark.parametrize("data", RECORDS.values(), ids=RECORDS.keys())
def test_a_record_is_refused(tmp_path: Path, data: bytes) -> None:
    segment = Segment(incarnation=1, begin=0, rank=0)
    (tmp_path / segment.name).write_bytes(data)
    with pytest.raises(DamagedRecord) as refused:
        parts_of_rank(tmp_path, segment.rank)
    assert_is_short(refused.value)


def sparse(folder: Path, *, num_entries: int, num_bytes: int) -> None:
    """A record of one large block that is almost all a hole, with checksums that fit as far as they are looked at."""
    segment, head = Segment(incarnation=1, begin=0, rank=0), np.zeros(1, HEAD)
    field = {"name": "u", "shape": [4], "dtype": "<f8"}
    head["num_bytes"] = num_bytes
    numbers = struct.pack("<4Q", 0, num_entries, num_bytes, xxh3_64_intdigest(head.tobytes()))
    data = described(fields=[field]) + struct.pack("<Q", xxh3_64_intdigest(numbers)) + numbers + head.tobytes()
    (folder / segment.name).write_bytes(data)
    os.truncate(folder / segment.name, len(data) + (num_entries - 1) * HEAD.itemsize + num_bytes)


@pytest.mark.parametrize(("num_entries", "num_bytes"), [(2**36, 0), (0, 48), (1, 2**42)])
def test_a_record_with_a_large_hole_is_refused(tmp_path: Path, num_entries: int, num_bytes: int) -> None:
    sparse(tmp_path, num_entries=num_entries, num_bytes=num_bytes)
    with pytest.raises(DamagedRecord):
        RankRecord(tmp_path, 0).read(0)


def compressed(member: bytes) -> bytes:
    memory = io.BytesIO()
    with zipfile.ZipFile(memory, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("facts.npy", member)
    return memory.getvalue()


def saved(**arrays: Any) -> bytes:
    memory = io.BytesIO()
    np.savez(memory, **arrays)
    return memory.getvalue()


FACTS = {"format": 1, "batch": 1, "rank": 0, "ranks": 1, "values": {}, "parameters": [], "pictures": [], "units": {}}
COLUMNS = {"simulations": np.zeros(1, np.int64), "time_steps": np.zeros(1, np.int64), "errors": np.zeros(1)}
NPY_HEAD = b"{'descr': '<f8', 'fortran_order': False, 'shape': (10000000000000,)}"
HUGE = b"\x93NUMPY\x01\x00v\x00" + NPY_HEAD.ljust(117) + b"\n"
VALIDATIONS = {
    "a bomb": compressed(bytes(16 << 20)),
    "an array of any size": compressed(HUGE),
    "a pickle": saved(facts=np.array([print], object)),
    "other facts": saved(facts=np.array(json.dumps({"format": 1})), **COLUMNS),
    "facts without end": saved(facts=np.array("[" * 100_000), **COLUMNS),
    "columns of other lengths": saved(facts=np.array(json.dumps(FACTS)), **{**COLUMNS, "errors": np.zeros(2)}),
    "columns of text": saved(facts=np.array(json.dumps(FACTS)), **{**COLUMNS, "errors": np.array(["x"])}),
    "pictures that are not there": saved(facts=np.array(json.dumps({**FACTS, "pictures": [{}]})), **COLUMNS),
    "a format of a long name": saved(facts=np.array(json.dumps({"format": "x" * 1_000_000})), **COLUMNS),
}


@pytest.mark.parametrize("data", VALIDATIONS.values(), ids=VALIDATIONS.keys())
def test_the_record_of_a_validation_is_refused(tmp_path: Path, data: bytes) -> None:
    folder = tmp_path / "validations"
    folder.mkdir()
    (folder / "batch-000001-rank-0.npz").write_bytes(data)
    with pytest.raises(ConfigError) as refused:
        read_validation(RunFolder(tmp_path))
    assert_is_short(refused.value)


def test_the_record_of_a_validation_is_read(tmp_path: Path) -> None:
    (tmp_path / "validations").mkdir()
    path = tmp_path / "validations" / "batch-000001-rank-0.npz"
    path.write_bytes(saved(facts=np.array(json.dumps(FACTS)), **COLUMNS))
    assert read_validation(RunFolder(tmp_path)) is not None


def test_values_of_a_file_of_samples_are_its_own(tmp_path: Path) -> None:
    """HDF5 would read what the user may read, wherever it is."""
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["values"] = np.arange(12)
    (tmp_path / "secret.raw").write_bytes(bytes(12 * 8))

    for name in ("time_step", "fields/u", "present/v"):
        path = handwritten(tmp_path / "samples", 0)
        with h5py.File(path, "a") as file:
            del file[name]
            file[name] = h5py.ExternalLink(str(secret), "values")
        with pytest.raises(ConfigError, match=f"/{name} is a link to another place or file: copy the values"):
            SimulationFile(path)
    for name in ("time_step", "parameters", "fields", "fields/u", "present"):
        path = handwritten(tmp_path / "samples", 0)
        with h5py.File(path, "a") as file:
            del file[name]
            file["elsewhere"] = h5py.ExternalLink(str(secret), "/")
            file[name] = h5py.SoftLink("/elsewhere/values")
        with pytest.raises(ConfigError, match=f"/{name} is a link to another place or file: copy the values"):
            SimulationFile(path)
    path = handwritten(tmp_path / "samples", 0)
    with h5py.File(path, "a") as file:
        del file["fields/u"]
        file.create_dataset("fields/u", (12,), "<i8", external=[(str(tmp_path / "secret.raw"), 0, 96)])
    with pytest.raises(ConfigError, match="/fields/u has its values in another file: copy them"):
        SimulationFile(path)


def test_a_file_of_samples_that_was_replaced_is_looked_at_again(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "secret.h5", "w") as secret:
        secret["values"] = np.arange(12)
    path = handwritten(tmp_path / "samples", 0)
    read = SimulationFile(path)
    with h5py.File(path, "a") as file:
        del file["fields/u"]
        file["fields/u"] = h5py.ExternalLink(str(tmp_path / "secret.h5"), "values")
    read.open()
    with pytest.raises(ConfigError, match="/fields/u is a link to another place or file: copy the values"):
        read.read(0)
    read.close()


def test_a_chunk_of_a_file_of_samples_has_hardly_more_than_is_read(tmp_path: Path) -> None:
    """Packed twice, as here, 10 kB are a chunk of 2 GiB."""
    path = handwritten(tmp_path, 0)
    with h5py.File(path, "a") as file:
        del file["fields/u"]
        settings = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        settings.set_chunk((2**26, 4))
        settings.set_deflate(9)
        settings.set_deflate(9)
        space = h5py.h5s.create_simple((12, 4), (h5py.h5s.UNLIMITED, 4))
        made = h5py.h5d.create(file["fields"].id, b"u", h5py.h5t.IEEE_F64LE, space, settings)
        made.write_direct_chunk((0, 0), zlib.compress(zlib.compress(bytes(2**20))))
    with pytest.raises(ConfigError, match=r"/fields/u has chunks of the shape \(67108864, 4\), which may have a row"):
        SimulationFile(path)


@pytest.mark.parametrize(("group", "name"), [("/", "simulation"), ("/", "finished"), ("parameters", "left")])
def test_an_attribute_that_is_no_number_is_not_read(tmp_path: Path, group: str, name: str) -> None:
    """Of a file with holes it may have more bytes than the disk."""
    path = tmp_path / "run.h5"
    with h5py.File(path, "w", libver=("v110", "v110")) as file:
        file.attrs["simulation"] = 0
        file.create_group("parameters")
        file["time_step"] = np.zeros(1, np.int64)
        file["fields/u"] = np.zeros(1)
        file[group].attrs[name] = np.zeros(2**20)
    tracemalloc.start()
    try:
        with suppress(ConfigError):
            SimulationFile(path)
        assert tracemalloc.get_traced_memory()[1] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", ["time_step", "present/v"])
def test_few_bytes_of_a_file_of_samples_stand_for_no_terabyte(tmp_path: Path, name: str) -> None:
    path = handwritten(tmp_path, 0)
    chunk = 2**28
    with h5py.File(path, "a") as file:
        del file[name]
        dataset = file.create_dataset(name, (chunk,), np.int8, chunks=(chunk,), compression="gzip")
        dataset.id.write_direct_chunk((0,), b"x")
    with pytest.raises((ConfigError, DamagedRecord)) as refused:
        SimulationFile(path)
    assert str(chunk) in str(refused.value) or name == "present/v"


def test_a_pipe_is_no_file_of_samples(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.h5")
    with pytest.raises(DamagedRecord, match="It is no ordinary file"):
        SimulationFile(tmp_path / "run.h5")


def test_a_manifest_of_many_files_that_are_not_there_is_told_of_in_few_words(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoints" / "000001"
    folder.mkdir(parents=True)
    names = {f"{'n' * 200}/{i}": FileRecord(num_bytes=1, xxh3=XXH3) for i in range(5_000)}
    (folder / MANIFEST_FILE).write_bytes(manifest_of(1, names).to_bytes())
    assert newest_checkpoint(RunFolder(tmp_path)) is not None
    config = config_of(load={"checkpoint": str(folder)})
    network = Net(config)
    with set_up(network) as step, pytest.raises(DamagedCheckpoint, match="and 4980 more") as refused:
        warm_start(config, network, step, Normalization(None, {}))  # type: ignore[arg-type]
    assert len(str(refused.value)) < 20 * 400


def test_torch_is_asked_for_no_pickle(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    torch.save({"w": torch.zeros(2)}, path)
    with pytest.raises(ValueError, match=r"is no \.safetensors file"):
        read_tensors(path, as_torch=True)
