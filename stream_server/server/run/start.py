"""The options with which a study was started."""

import math
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from stream_server.machine.run_folder import STUDY_FILE

if TYPE_CHECKING:
    from stream_server.messages.curve import KeyPair
    from stream_server.messages.launcher_endpoint import LauncherEndpoint

# Ranks that find the same mistake give rank 0 so long to report it: Open MPI ends all as soon as one leaves.
RANK_0_REPORTS_S = 2.0
LARGEST_MARGIN_S = 120.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StartOptions:
    """The options of the command line beside the study itself.

    `overrides` are those of `--set`. `fresh` starts over, `resume` insists on an earlier run. `retry` tries these
    simulations again that were given up, or all of them if it is empty. `replay` is a record to train from instead of
    simulations.
    After `time_limit_s`, counted from `began_s` of the monotonic clock, the job ends whatever we do. `link` and `alive`
    are the addresses of a launcher that has started us, which asks for `launcher_keys` where we come from another node:
    rank 0 starts one of its own otherwise.
    `is_followed`: that launcher starts another server when this one has saved and left by itself.
    """

    overrides: Sequence[str] = ()
    fresh: bool = False
    resume: bool = False
    retry: Sequence[int] | None = None
    replay: Path | None = None
    time_limit_s: float | None = None
    began_s: float = field(default_factory=time.monotonic)
    link: str | None = None
    alive: str | None = None
    launcher_keys: "KeyPair | None" = None
    is_followed: bool = False

    @property
    def leave_at_s(self) -> float:
        """The time to save and leave, with a margin for the last checkpoint and the end of the simulations."""
        if self.time_limit_s is None:
            return math.inf
        return self.began_s + self.time_limit_s - min(LARGEST_MARGIN_S, self.time_limit_s / 4)

    def source_of(self, path: str) -> str:
        """The file or option that gives a key of the study its value."""
        keys = [override.partition("=")[0].strip() for override in self.overrides]
        return "--set" if any(f"{path}.".startswith(f"{key}.") for key in keys) else STUDY_FILE

    def to_launcher_at(self, endpoint: "LauncherEndpoint") -> Self:
        """The same, but the launcher is reached over the network unless it has started us on its own node."""
        if self.link is not None and endpoint.host == socket.gethostname():
            return self
        return replace(self, link=endpoint.link, alive=endpoint.alive, launcher_keys=endpoint.keys)
