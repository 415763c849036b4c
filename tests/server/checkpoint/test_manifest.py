"""The manifest: every byte of it counts."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stream_server.errors import DamagedCheckpoint, OtherFormat
from stream_server.server.checkpoint.folder import FORMAT, Manifest
from stream_server.storage.checksums import FileRecord, checksummed_json
from tests.support.checkpoint_stores import manifest_of

XXH3 = "0123456789abcdef0123456789abcdef"
FILES = {"rank-0/samples.rows": FileRecord(num_bytes=12, xxh3=XXH3), "study.state": FileRecord(num_bytes=0, xxh3=XXH3)}
MANIFEST = manifest_of(42, FILES, incarnation=3, base=40)


def test_a_manifest_comes_back_as_it_was() -> None:
    assert Manifest.from_bytes(MANIFEST.to_bytes()) == MANIFEST


def test_people_can_read_it() -> None:
    plain = json.loads(MANIFEST.to_bytes())
    assert (plain["checkpoint"], plain["incarnation"], plain["files"]["study.state"]) == (42, 3, [0, XXH3])


def test_every_flipped_bit_is_noticed() -> None:
    data = MANIFEST.to_bytes()
    for place in range(len(data)):
        for bit in range(8):
            with pytest.raises(DamagedCheckpoint):
                Manifest.from_bytes(data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])


def test_every_truncation_is_noticed() -> None:
    data = MANIFEST.to_bytes()
    for size in range(len(data)):
        with pytest.raises(DamagedCheckpoint):
            Manifest.from_bytes(data[:size])


@given(st.binary() | st.text().map(str.encode))
def test_junk_is_damage(junk: bytes) -> None:
    with pytest.raises(DamagedCheckpoint):
        Manifest.from_bytes(junk)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda it: st.lists(it) | st.dictionaries(st.text(), it),
)


@given(JSON)
def test_json_that_is_no_manifest_is_damage(plain: object) -> None:
    sealed = checksummed_json(plain if isinstance(plain, dict) else {"manifest": plain})
    for data in (json.dumps(plain).encode(), sealed):
        with pytest.raises(DamagedCheckpoint):
            Manifest.from_bytes(data)


def test_deeply_nested_junk_is_damage() -> None:
    with pytest.raises(DamagedCheckpoint):
        Manifest.from_bytes(b"[" * 1_000_000)


@pytest.mark.parametrize("other", [FORMAT - 1, FORMAT + 1])
def test_a_manifest_of_another_release_is_told_from_damage(other: int) -> None:
    with pytest.raises(OtherFormat, match=f"it has format {other}, and this release reads format {FORMAT}"):
        Manifest.from_bytes(replace(MANIFEST, format=other).to_bytes())


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "../x", "rank-0/../../x", "", "rank-0//x", "./x", "manifest.json", "a\nb"]
)
def test_a_file_outside_of_the_checkpoint_is_refused(path: str) -> None:
    with pytest.raises(DamagedCheckpoint, match=r"is no manifest: files cannot be|paths within its folder"):
        Manifest.from_bytes(replace(MANIFEST, files={path: FILES["study.state"]}).to_bytes())


@pytest.mark.parametrize(
    "wrong",
    [{"checkpoint": -1}, {"incarnation": "1"}, {"ranks": True}, {"created": 1}, {"versions": {"a": 1}}],
)
def test_entries_of_another_type_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(DamagedCheckpoint, match=f"is no manifest: .*{next(iter(wrong))}"):
        Manifest.from_bytes(replace(MANIFEST, **wrong).to_bytes())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "record", [None, [], [1], [1, 2], [-1, XXH3], [True, XXH3], [1, XXH3.upper()], [1, XXH3, 1], {"a": 1}]
)
def test_a_wrong_record_of_a_file_is_refused(record: object) -> None:
    with pytest.raises(DamagedCheckpoint, match="must be its size and checksum"):
        FileRecord.from_json(record)
