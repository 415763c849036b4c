"""The end of a log, for a person to read in a message."""

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from stream_server.machine.screen import escaped
from stream_server.storage.disk import by_own_links

MAX_BYTES = 2000
# A program in C whose output goes into a file writes its error first, and its progress bar when it ends.
READ_BYTES = 1 << 18


def log_end(log: Path, max_bytes: int = MAX_BYTES) -> str:
    """The last whole lines of `log`, `max_bytes` of them at most, without control characters; "" if there are none.

    Of a progress bar its last state is shown.
    """
    return _cut([text for line in _last_lines(log) for text in shown_lines(line)], max_bytes)


def words_at_end(log: Path, max_bytes: int = MAX_BYTES) -> str:
    """The same without progress bars, unless there is nothing else."""
    words = [text for line in _last_lines(log) for text, is_repeated in _states(line) if text and not is_repeated]
    return _cut(words, max_bytes) or log_end(log, max_bytes)


def shown_lines(line: str) -> Iterator[str]:
    """The visible lines of a line with carriage returns: of the overwritten ones, those unlike the rest.

    A progress bar writes one line over and over; an error may come before, within or behind it.
    """
    return (text for text, _ in _states(line))


def _states(line: str) -> Iterator[tuple[str, bool]]:
    """The last of all states of a line that differ in digits and signs alone, and whether there were others."""
    states = [state for state in line.split("\r") if state.strip()] or [""]
    kinds = ["".join(sorted(filter(str.isalpha, state))) for state in states]
    counts, last = Counter(kinds), {kind: place for place, kind in enumerate(kinds)}
    return (
        (state, counts[kind] > 1)
        for place, (state, kind) in enumerate(zip(states, kinds, strict=True))
        if last[kind] == place
    )


def _last_lines(log: Path) -> list[str]:
    try:
        with open(log, "rb", opener=by_own_links) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - READ_BYTES))
            text = file.read(READ_BYTES).decode(errors="replace")
    except OSError:
        return []
    if size > READ_BYTES:
        text = text.partition("\n")[2] or text
    return text.rstrip().replace("\r\n", "\n").split("\n")


def _cut(lines: list[str], max_bytes: int) -> str:
    content = "\n".join(lines).rstrip().encode()
    text = content[-max_bytes:].decode(errors="ignore")
    if len(content) > max_bytes:
        text = text.partition("\n")[2] or text
    return escaped(text)
