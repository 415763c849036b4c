"""Metrics that were logged before a restart are still there when the power fails during it."""

from pathlib import Path
from random import Random

import pytest

from stream_server.server.metrics.log_record import AXES
from stream_server.server.metrics.writers import CsvWriter, JsonLinesWriter
from tests.disk.recording import recorded
from tests.disk.scratch import put, taken
from tests.disk.states import Moment

BEFORE: dict[str, bytes] = {
    "m.jsonl": b"".join(b'{"batch": %d, "loss": 1.0}\n' % number for number in range(60)),
    "m.csv": ",".join((*AXES, "loss\n")).encode() + b"".join(b"%d,1,1,1,1.0\n" % number for number in range(60)),
}


@pytest.mark.parametrize(("writer", "name"), [(JsonLinesWriter, "m.jsonl"), (CsvWriter, "m.csv")])
def test_cutting_off_what_is_logged_again_costs_nothing_else(
    tmp_path: Path, writer: type[JsonLinesWriter] | type[CsvWriter], name: str
) -> None:
    put(dict(BEFORE), str(tmp_path / "metrics"))
    with recorded(tmp_path / "metrics", taken(tmp_path / "metrics")) as history:
        writer(tmp_path / "metrics" / name, after=39).close()
    after = taken(tmp_path / "metrics")
    content = after[name]
    assert isinstance(content, bytes)
    assert (b"39" in content, b"40" in content) == (True, False)
    assert Moment(history, len(history.steps)).whole().tree == after
    random = Random(3)
    for num_steps in range(len(history.steps) + 1):
        for _ in range(20):
            assert Moment(history, num_steps).drawn(random).tree[name] in (BEFORE[name], content)
