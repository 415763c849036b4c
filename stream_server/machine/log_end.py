"""The end of a log, for a person to read in a message."""

import os
from pathlib import Path

from stream_server.machine.screen import escaped
from stream_server.storage.disk import ordinary

MAX_BYTES = 2000


def log_end(log: Path, max_bytes: int = MAX_BYTES) -> str:
    """The last whole lines of `log`, `max_bytes` of them at most, without control characters; "" if there are none."""
    try:
        with open(log, "rb", opener=ordinary) as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - max_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return ""
    if size > max_bytes:
        text = text.partition("\n")[2] or text
    return escaped(text).rstrip()
