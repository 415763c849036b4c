"""The command line of the server, and where its programs are."""

import math
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.errors import ConfigError


@dataclass(frozen=True, kw_only=True, slots=True)
class ServerCommand:
    """What the server gets at each start: of stream-launcher's own command line, and, beside it, of environment."""

    config: Path
    overrides: Sequence[str]
    resume: bool
    ranks: int
    environment: Mapping[str, str]

    def start(self, *, link: str, alive: str, time_limit_s: float) -> list[str]:
        """Start the server; it is to leave by itself after `time_limit_s`, if that is not infinite.

        Raises:
            ConfigError: a program is missing.
        """
        limit = [] if time_limit_s == math.inf else ["--time-limit", clock(time_limit_s)]
        hidden = ["--link", link, "--alive", alive]
        return [*_mpirun(self.ranks), *self._server, *(["--resume"] if self.resume else []), *limit, *hidden]

    def check(self) -> int:
        """Let the server tell what the study would do; returns its exit code.

        Raises:
            ConfigError: the program is missing.
        """
        return subprocess.run([*self._server, "--check"]).returncode

    @property
    def _server(self) -> list[str]:
        overrides = [f"--set={override}" for override in self.overrides]
        # With our own interpreter: that of the script's first line may belong to another environment, with another MPI.
        return [sys.executable, program("stream-server"), "--config", str(self.config), *overrides]


def clock(seconds: float) -> str:
    """A duration as HH:MM:SS, rounded down to whole seconds, of which there is at least one."""
    minutes, s = divmod(max(1, int(seconds)), 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{s:02d}"


def program(name: str) -> str:
    """The program of our own environment, or else the one on PATH.

    Raises:
        ConfigError: there is none.
    """
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ConfigError(f"{name} was found neither beside {sys.executable} nor on PATH; install it or mend PATH")
    return found


def _mpirun(ranks: int) -> list[str]:
    return [] if ranks == 1 else [program("mpirun"), "-n", str(ranks)]
