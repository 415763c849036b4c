"""Metrics that were logged before a restart are still there when the power fails during it."""

from pathlib import Path
from random import Random

from stream_server.server.metrics.writers import JsonLinesWriter
from tests.faults.disk.recording import recorded
from tests.faults.disk.scratch import put, taken
from tests.faults.disk.states import Moment

BEFORE: dict[str, bytes] = {
    "m.jsonl": b"".join(b'{"batch": %d, "loss": 1.0}\n' % number for number in range(60)),
}


def test_cutting_off_what_is_logged_again_costs_nothing_else(tmp_path: Path) -> None:
    put(dict(BEFORE), str(tmp_path / "metrics"))
    with recorded(tmp_path / "metrics", taken(tmp_path / "metrics")) as history:
        JsonLinesWriter(tmp_path / "metrics" / "m.jsonl", after=39).close()
    after = taken(tmp_path / "metrics")
    content = after["m.jsonl"]
    assert isinstance(content, bytes)
    assert (b"39" in content, b"40" in content) == (True, False)
    assert Moment(history, len(history.steps)).whole().tree == after
    random = Random(3)
    for num_steps in range(len(history.steps) + 1):
        for _ in range(20):
            assert Moment(history, num_steps).drawn(random).tree["m.jsonl"] in (BEFORE["m.jsonl"], content)
