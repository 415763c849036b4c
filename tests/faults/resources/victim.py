"""A real server, of which nobody is a client yet: what it holds, and where it can be reached."""

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from stream_server.client_api import connect
from stream_server.config import load
from stream_server.messages.connection import ConnectionFile
from stream_server.server.run.plan import RankPlan, make_plan
from tests.support.runs import LiveRun, Run, start_study

STUDY = Path(__file__).parent / "study" / "study.json"
NUM_SIMULATIONS = 4
NUM_STEPS = 40
SHAPE = (65536,)
DEADLINE_S = 100.0
# glibc sets this limit by itself after the first large block that is freed, and torch's studies have it from the start.
KEEPS_FREED_MEMORY = {"MALLOC_MMAP_THRESHOLD_": str(32 << 20)}
FIELDS = {"VmRSS": "rss", "VmHWM": "peak"}


@dataclass(frozen=True)
class Victim:
    """A study of one rank that waits for clients which attach by themselves."""

    live: LiveRun

    @property
    def pid(self) -> int:
        return self.live.ranks[0].pid

    @cached_property
    def connection(self) -> ConnectionFile:
        self.live.wait_until(self.live.connection.exists)
        return ConnectionFile.read(self.live.connection)

    @cached_property
    def plan(self) -> RankPlan:
        return make_plan(load(STUDY))

    @property
    def ipc(self) -> Path:
        """The folder of its sockets."""
        return Path(self.connection.control[0].removeprefix("ipc://")).parent

    @property
    def port(self) -> tuple[str, int]:
        """The host and port on which its control socket listens."""
        host, _, port = self.connection.control[1].removeprefix("tcp://").rpartition(":")
        return host, int(port)

    @cached_property
    def data_port(self) -> tuple[str, int]:
        """The host and port on which its data socket listens: the first that a rank binds, so its lowest descriptor."""
        process = psutil.Process(self.pid)
        listening = [it for it in process.net_connections("tcp") if it.status == psutil.CONN_LISTEN]
        return self.port[0], int(min(listening, key=lambda it: it.fd).laddr.port)

    @property
    def num_files(self) -> int:
        """How many descriptors it has open."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    @property
    def is_at_rest(self) -> bool:
        """No thread of it runs or waits for a core: it has dealt with what came."""
        states = []
        for thread in psutil.Process(self.pid).threads():
            # It may have ended meanwhile.
            with suppress(OSError):
                states.append(Path(f"/proc/{self.pid}/task/{thread.id}/stat").read_text().rpartition(") ")[2][0])
        return "R" not in states

    def memory(self) -> dict[str, int]:
        """Resident bytes now, and at their peak since `forget_peak`."""
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        found = (line.partition(":") for line in lines)
        return {FIELDS[key]: 1024 * int(text.split()[0]) for key, _, text in found if key in FIELDS}

    def forget_peak(self) -> None:
        """Count the peak of the memory from now on."""
        Path(f"/proc/{self.pid}/clear_refs").write_text("5")

    def wait_until(self, condition: Callable[[], object]) -> None:
        self.live.wait_until(condition, DEADLINE_S)

    def simulate(self, *simulations: int, file: Path | None = None) -> None:
        """Be the clients of some simulations, from beginning to end, by the study's connection file or another."""
        for simulation in simulations:
            with connect(file or self.live.connection, simulation_id=simulation) as client:
                for time_step in client.time_steps:
                    client.send(time_step, u=np.full(SHAPE, float(time_step)))

    def end(self) -> Run:
        """The study once all simulations were sent: nothing is lost, whatever was done to it meanwhile."""
        done = self.live.end(DEADLINE_S)
        assert done.exit_code == 0, done.output
        assert done.account["trained"] == NUM_SIMULATIONS * NUM_STEPS
        return done


@contextmanager
def victim(
    *, settings: Mapping[str, Any] | None = None, within: Sequence[str] = (), is_held: bool = False
) -> Iterator[Victim]:
    """Start one. While it `is_held`, simulation 0 has been sent as far as the credit goes, and Python is stuck."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="vic-")))
        live = stack.enter_context(
            start_study(
                STUDY,
                folder / "run",
                mpi=None,
                settings={"user.hold": is_held} | dict(settings or {}),
                within=within,
                environment={"TMPDIR": str(folder)} | KEEPS_FREED_MEMORY,
            )
        )
        it = Victim(live)
        it.connection  # noqa: B018
        yield it


def limited(option: str, value: int) -> list[str]:
    """Runs a command with a limit of its own, such as `limited("-n", 40)` for so many open files."""
    return ["sh", "-c", f'ulimit {option} {value} && exec "$@"', "limited"]
