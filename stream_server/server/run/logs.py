"""The log file of each rank, and what of it is shown on the screen."""

import logging
import sys
from pathlib import Path
from typing import Self, TextIO

from stream_server.machine.screen import LogFile, PlainFormatter
from stream_server.storage.disk import make_folder

FILE_FORMAT = "%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s"
SCREEN_FORMAT = "%(levelname)s: %(message)s"


class Logs:
    """Sends all logging of this process to `logs/server-<rank>.log`; rank 0 shows warnings on the screen too.

    A context manager, entered once in the main thread. User code and libraries that use `logging` or
    `warnings` are recorded as well. Leaving the block restores what was set before.
    """

    def __init__(self, output_dir: Path, rank: int) -> None:
        self.path = output_dir / "logs" / f"server-{rank}.log"
        self._show = rank == 0
        self._level_before = logging.WARNING
        self._handlers: list[logging.Handler] = []

    def __enter__(self) -> Self:
        make_folder(self.path.parent)
        file = LogFile(self.path)
        file.setFormatter(PlainFormatter(FILE_FORMAT))
        self._handlers = [file]
        if self._show:
            screen = ScreenHandler(logging.WARNING)
            screen.setFormatter(PlainFormatter(SCREEN_FORMAT))
            self._handlers.append(screen)
        root = logging.getLogger()
        self._level_before = root.level
        root.setLevel(logging.INFO)
        for handler in self._handlers:
            root.addHandler(handler)
        logging.captureWarnings(True)
        return self

    def __exit__(self, *exc_info: object) -> None:
        logging.captureWarnings(False)
        root = logging.getLogger()
        root.setLevel(self._level_before)
        for handler in self._handlers:
            root.removeHandler(handler)
            handler.close()


class ScreenHandler(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time, so that lines go above a live display, not through it."""

    def __init__(self, level: int) -> None:
        logging.Handler.__init__(self, level)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr
