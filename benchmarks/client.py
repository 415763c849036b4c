"""The cost of the C client to a simulation: the sender of a step, and a whole run of a solver.

`client.c` is steps per second of CPU time of the simulation's own thread, beside a loop that copies the step and gives
the copy to ZeroMQ on the same kind of socket. The receivers are processes that acknowledge at once. Steps go in bursts
of 16 MiB, each of which has arrived before the next one, so that a sender never waits. As in a study without a
checkpoint nothing becomes durable, so that the client keeps the last 64 MiB. It packs small steps as it likes.

`client.overhead` is the wall time of the heat solver of configs/heat-c on N × N nodes, as one process, with the study
and without; `client.cpu` is the CPU time of all its threads in the same runs.

A receiver of `.segment` reads large messages from the client's memory, as a server on the same node does.

    python -m benchmarks.client
"""

import math
import os
import resource
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import product
from pathlib import Path

import numpy as np

from benchmarks.measure import Result, alternated, result, show
from stream_server.client_api import data_connection
from stream_server.messages import wire
from stream_server.messages.client import Away, FieldSpec, Opened, Routing, TimeSteps, Welcome
from stream_server.messages.connection import ALONE, ENVIRONMENT_VARIABLE, ConnectionFile

ROOT = Path(__file__).parents[1]
STUDY = "benchmark"
SIZES = {"4kB": 4_000, "40kB": 40_000, "1MB": 1_000_000}
BURST_BYTES = 16 * 2**20
NUM_BURSTS = 8
WINDOW_BYTES = 64 * 2**20
NUM_STEPS = 100_000_000

NUM_SOLVED_STEPS = {100: 300, 200: 100, 500: 15}
WAYS = ("", ".segment")
TEMPERATURES = (317, 120, 180, 430, 490)


def results() -> Iterator[Result]:
    """client.c.{4kB,40kB,1MB}, client.overhead.{100,200,500} and client.cpu.{100,200,500}, and those of `.segment`."""
    with programs() as folder:
        for (size, sample_bytes), way in product(SIZES.items(), WAYS):
            with ExitStack() as stack:
                field = FieldSpec(name="field", shape=(sample_bytes // 4,), dtype="<f4")
                ours = Receiver(stack, folder, "ours", field, credit=2 * BURST_BYTES // sample_bytes, way=way)
                bare = Receiver(stack, folder, "bare", field, credit=1)
                held_back = data_connection.MESSAGE_BYTES // sample_bytes
                client = Sender(stack, folder, ours, ["client", sample_bytes], sample_bytes, held_back)
                reference = Sender(stack, folder, bare, ["bare", sample_bytes, bare.address], sample_bytes, 0)
                yield alternated(f"client.c.{size}{way}", "steps/s", client.one_round, reference.one_round)
        for (nodes, num_steps), way in product(NUM_SOLVED_STEPS.items(), WAYS):
            with ExitStack() as stack:
                field = FieldSpec(name="temperature", shape=(nodes, nodes), dtype="<f8")
                receiver = Receiver(stack, folder, f"heat-{nodes}", field, credit=num_steps, way=way)
                streaming, alone = (Solver(folder, nodes, where) for where in (receiver.connection, ALONE))
                yield alternated(f"client.overhead.{nodes}{way}", "s", streaming.one_round, alone.one_round)
                yield result(
                    f"client.cpu.{nodes}{way}", "s", list(zip(streaming.cpu_s[1:], alone.cpu_s[1:], strict=True))
                )


@contextmanager
def programs() -> Iterator[Path]:
    """A folder with the programs of benchmarks/native."""
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        for argv in (["-S", str(ROOT / "benchmarks/native"), "-B", folder], ["--build", folder]):
            done = subprocess.run(["cmake", *argv], capture_output=True, text=True)  # noqa: S607 (of the PATH)
            if done.returncode:
                raise RuntimeError(f"cmake {' '.join(argv)} failed:\n{done.stdout}{done.stderr}")
        yield Path(folder)


class Receiver:
    """A process that agrees to everything and acknowledges at once. Its connection file is at `connection`."""

    def __init__(
        self, stack: ExitStack, folder: Path, name: str, field: FieldSpec, *, credit: int, way: str = ""
    ) -> None:
        self.address = f"ipc://{folder / name}-{field.name}.socket"
        self.connection = str(folder / f"{name}-{field.name}.json")
        welcome, opened = folder / f"{name}.welcome", folder / f"{name}.opened"
        welcome.write_bytes(wire.encode(self._welcome(field))[0])
        answer = Opened(incarnation=0, credit=credit, known="", segment=way == ".segment")
        opened.write_bytes(wire.encode(answer)[0])
        ConnectionFile(
            study=STUDY, incarnation=0, host=socket.gethostname(), control=(self.address,), simulation=0
        ).write(self.connection)
        step_bytes = math.prod(field.shape) * np.dtype(field.dtype).itemsize
        self._process = _start(stack, [folder / "receiver", self.address, welcome, opened, step_bytes])
        self.wait_for(0)

    def wait_for(self, num_steps: int) -> None:
        """Wait until so many steps have come in all; 0: until it listens."""
        _tell(self._process, num_steps)
        _line(self._process)

    def _welcome(self, field: FieldSpec) -> Welcome:
        return Welcome(
            study=STUDY,
            simulation=0,
            attempt=0,
            incarnation=0,
            endpoints=((self.address,),),
            parameters={},
            time_steps=TimeSteps(num=NUM_STEPS),
            fields=(field,),
            routing=Routing.STEPS,
            window_bytes=WINDOW_BYTES,
            if_server_away=Away.STOP,
            wait_s=60.0,
        )


class Sender:
    """A process that sends bursts of samples, of which it may hold back the last `held_back`."""

    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        receiver: Receiver,
        arguments: Sequence[object],
        sample_bytes: int,
        held_back: int,
    ) -> None:
        self._receiver = receiver
        self._process = _start(stack, [folder / "sender", *arguments], {ENVIRONMENT_VARIABLE: receiver.connection})
        self._burst = BURST_BYTES // sample_bytes
        self._held_back = held_back
        self._num_sent = 0

    def one_round(self) -> float:
        """Steps per second of the sender's CPU time."""
        cpu_s = 0.0
        for _ in range(NUM_BURSTS):
            _tell(self._process, self._burst)
            cpu_s += float(_line(self._process))
            self._num_sent += self._burst
            self._receiver.wait_for(max(1, self._num_sent - self._held_back))
        return NUM_BURSTS * self._burst / cpu_s


class Solver:
    """The heat solver with the study of a connection file, or alone; a round is a run of it."""

    def __init__(self, folder: Path, nodes: int, connection: str) -> None:
        self.cpu_s: list[float] = []
        self._argv = [str(folder / "heat"), *map(str, (nodes, NUM_SOLVED_STEPS[nodes], *TEMPERATURES))]
        self._environment = os.environ | {ENVIRONMENT_VARIABLE: connection}

    def one_round(self) -> float:
        """Seconds from its start to its end; `cpu_s` gets those of all its threads."""
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start_s = time.perf_counter()
        subprocess.run(self._argv, env=self._environment, check=True, stdout=subprocess.DEVNULL)
        took_s = time.perf_counter() - start_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.cpu_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        return took_s


def _start(
    stack: ExitStack, argv: Sequence[object], variables: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    process = stack.enter_context(
        subprocess.Popen(
            list(map(str, argv)),
            env=os.environ | (variables or {}),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
    )
    stack.callback(process.kill)
    return process


def _tell(process: "subprocess.Popen[str]", number: int) -> None:
    assert process.stdin is not None
    print(number, file=process.stdin, flush=True)


def _line(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("a program of the benchmark has ended before its time; what it says is above")
    return line


if __name__ == "__main__":
    show(results())
