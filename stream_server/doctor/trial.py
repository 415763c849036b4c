"""Programs that are tried in processes of their own: whatever they do, hang or crash, is output to be read.

Why: docs/decisions/0086-doctor-in-processes.md
"""

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from stream_server.launcher.backends.environment import scrubbed

_DECODER = json.JSONDecoder()


@dataclass(frozen=True, kw_only=True, slots=True)
class CommandOutput:
    """The output of a program until it ended or was killed."""

    output: str

    @property
    def answers(self) -> list[dict[str, Any]]:
        """The JSON objects among any other output; an mpirun may put those of two ranks into one line."""
        found, position = [], self.output.find("{")
        while position >= 0:
            try:
                answer, position = _DECODER.raw_decode(self.output, position)
                found.append(answer)
            except ValueError:
                position += 1
            position = self.output.find("{", position)
        return found

    @property
    def last_words(self) -> str:
        """The last line, and the first one, which tells the cause where others follow from it."""
        first = self._lines[0] if self._lines else self.last_line
        return first if first == self.last_line else f"{first} … {self.last_line}"

    @property
    def last_line(self) -> str:
        return self._lines[-1] if self._lines else "it ended without any output"

    @property
    def _lines(self) -> list[str]:
        """The lines that have words."""
        return [line.strip() for line in self.output.splitlines() if any(map(str.isalnum, line))]


def run(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> CommandOutput:
    """Run a program, by default without the environment variables of a rank.

    Whatever is left of it after the limit is killed.
    """
    with tempfile.TemporaryFile() as output:
        try:
            process = subprocess.Popen(
                command,
                env=scrubbed(os.environ) if environment is None else environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return CommandOutput(output=f"{command[0]} cannot be run: {error.strerror}")
        try:
            process.wait(limit_s)
            last = ""
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            last = f"\nit did not end within {limit_s:.0f} s"
        output.seek(0)
        return CommandOutput(output=output.read().decode(errors="replace") + last)
