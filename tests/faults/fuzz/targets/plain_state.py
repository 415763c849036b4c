"""Saved state, as in rank.state and study.state: plain values that are saved alike again, or `DamagedCheckpoint`."""

from collections import Counter, OrderedDict, defaultdict

import numpy as np

from stream_server.errors import DamagedCheckpoint
from stream_server.server.intake.ledger import Ledger
from stream_server.storage.plain_state import MAGIC, from_bytes, to_bytes
from tests.faults.fuzz.target import Target

LENGTH_BYTES = 8
EVERYTHING = {
    "numbers": [0, -1, 2**70, 0.5, True, None, 1 + 2j],
    ("a", 1): {"set": {1, 2}, "frozen": frozenset("x"), "bytes": b"\0\1"},
    "arrays": (np.arange(6, dtype="<f4").reshape(2, 3), np.zeros((2, 0), "|b1"), np.array(["ab", "c"]), np.float64(1)),
    "fortran": np.asfortranarray(np.arange(4, dtype=">i2").reshape(2, 2)),
    "dates": np.array([0, 1], "<M8[ns]"),
    "others": [Counter("aab"), OrderedDict(a=1), defaultdict(int, a=1)],
}


def run(data: bytes) -> None:
    """Read the bytes, and their text with a length in front that fits."""
    _read(data)
    start = len(MAGIC) + LENGTH_BYTES
    end = data.find(b"\n", start)
    if end >= 0:
        text = data[start:end]
        _read(MAGIC + len(text).to_bytes(LENGTH_BYTES, "little") + text + data[end + 1 :])


def _read(data: bytes) -> None:
    try:
        state = from_bytes(data)
    except DamagedCheckpoint:
        return
    written = to_bytes(state)
    assert to_bytes(from_bytes(written)) == written


def _with_newline(state: object) -> bytes:
    """With the end of the text marked, whose length the fuzzer then need not guess."""
    data = to_bytes(state)
    num_text = int.from_bytes(data[len(MAGIC) :][:LENGTH_BYTES], "little")
    end = len(MAGIC) + LENGTH_BYTES + num_text
    return data[:end] + b"\n" + data[end:]


def _ledger() -> object:
    ledger = Ledger()
    ledger[0].accept(range(0, 12, 2))
    ledger[3].reject(range(1, 3), "nonfinite")
    return {"reception": {"intake": {"ledger": ledger.state_dict(), "dtypes": {"u": "<f8"}}}}


TARGET = Target(
    run=run,
    seeds=tuple(
        encoded for state in (EVERYTHING, _ledger(), [], 0) for encoded in (to_bytes(state), _with_newline(state))
    ),
    max_bytes=4096,
)
