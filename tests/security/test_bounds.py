"""Files of others take no more memory or time than those that a study writes itself."""

import io
import tracemalloc
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from stream_server.analysis import follow
from stream_server.analysis.reading import RunFolder

MIB = 1 << 20


def peak_of(action: Callable[[], object]) -> int:
    """The most memory that it takes, in bytes."""
    tracemalloc.start()
    try:
        action()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("content", "num"), [(b"a", 8 * MIB), (b"\xff", 4 * MIB), (b"\r", MIB), (b"a\r", MIB // 4)])
@pytest.mark.parametrize("simulation", [None, 0])
def test_a_log_of_one_long_line_is_read_in_pieces(
    tmp_path: Path, content: bytes, num: int, simulation: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(follow, "PIECE_BYTES", 1 << 16)
    log = tmp_path / ("logs/server-0.log" if simulation is None else "simulations/0/attempt-0/output.log")
    log.parent.mkdir(parents=True)
    log.write_bytes(content * num)

    def show(num_lines: int | None) -> None:
        follow.show(RunFolder(tmp_path), simulation, num_lines=num_lines, follows=False, runs=lambda: False)

    with redirect_stdout(io.StringIO()):
        # In a piece each state of a progress bar may be one byte, and is some eighty times as large in memory.
        assert peak_of(lambda: show(2)) < 12 * MIB
    with redirect_stdout(io.StringIO()) as shown:
        show(None)
    if len(content) == 1 and content != b"\r":
        assert shown.getvalue().count(content.decode(errors="replace")) >= num
