"""The logged lines of a study as stream-study reads them: records, histograms, or `ConfigError`."""

import json

from stream_server.analysis.reading import RunFolder, names_in, read_histograms, read_records, records_of_ranks
from stream_server.errors import ConfigError
from stream_server.server.metrics.writers import HistogramsWriter, JsonLinesWriter
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

RUN = RunFolder(scratch.folder())
RUN.metrics.mkdir()
FILES = ("metrics.jsonl", "histograms.jsonl", "rank-0.jsonl")
WRITERS = {"metrics.jsonl": JsonLinesWriter, "histograms.jsonl": HistogramsWriter}
LINES = b"".join(
    json.dumps(line).encode() + b"\n"
    for line in (
        {"batch": 10, "update": 10, "sample": 100, "wall_s": 1.5, "train/loss": 0.25},
        {"batch": 20, "update": 20, "sample": 200, "wall_s": 2.5, "train/loss": None, "val/loss": 0.5},
        {"batch": 20, "name": "weights", "intervals": [[0.0, 0.5, 3], [0.5, 1.0, 4]]},
    )
)


def run(data: bytes) -> None:
    """Read what each file would be with these bytes, and continue it as a server does that was started again."""
    for name in FILES:
        (RUN.metrics / name).write_bytes(data)
    _analyse()
    for name, writer in WRITERS.items():
        writer(RUN.metrics / name, 10).close()
    for name in FILES[:2]:
        assert all(json.loads(line)["batch"] <= 10 for line in (RUN.metrics / name).read_bytes().splitlines())


def _analyse() -> None:
    try:
        records = read_records(RUN)
        assert {"batch"} <= set(records[0])
        assert "batch" not in names_in(records)
        assert next(records_of_ranks(RUN))[0] == 0
    except ConfigError:
        return
    for name in {line["name"] for line in records if isinstance(line.get("name"), str)} | {"weights"}:
        try:
            histograms = read_histograms(RUN, name)
        except ConfigError:
            return
        assert all("intervals" in line for line in histograms)


CSV = b"batch,update,sample,wall_s,train/loss\n10,10,100,1.5,0.25\n20,20,200,2.5,\n"
TARGET = Target(run=run, seeds=(LINES, LINES[:-3], CSV), is_json=True)
