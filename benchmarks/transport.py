"""CPU time of the transport in µs per MB, by thread, for real clients and one rank.

Each client sends steps of one float32 field as fast as it may while the main thread of the rank draws, looks whether
each is the step that it should be, and lets it go. Each line is a round; in the first ones clients fill their windows
with memory that the system has just handed out. `faults` are pages for each MB.

    python -m benchmarks.transport [--clients 16] [--bytes 400000] [--steps 90] [--tcp] [--plain] [--sockets]
        [--io-threads 1]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zmq

from benchmarks.reception import DEADLINE_S, Reception, reception
from stream_server.buffers import Fifo
from stream_server.client_api import connect
from stream_server.server.intake.credit import credit_per_simulation

WINDOW_BYTES = 64 * 2**20
BUFFER_BYTES = 400_000_000
MAX_CAPACITY = 2000
DRAW = 10
SETTLE_S = 0.3
MIN_US = 1.0


class Thread(NamedTuple):
    """Resources used by a thread so far: CPU seconds and page faults."""

    name: str
    cpu_s: float
    faults: int


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transport", description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--bytes", type=int, default=400_000, help="of a step")
    parser.add_argument("--steps", type=int, default=90, help="of each client in a round")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tcp", action="store_true", help="as from other nodes, with keys")
    parser.add_argument("--plain", action="store_true", help="without keys")
    parser.add_argument("--sockets", action="store_true", help="clients may make no memory that the rank reads")
    parser.add_argument("--io-threads", type=int, default=1, help="of ZeroMQ, in each process")
    options = parser.parse_args()
    with_io_threads(options.io_threads)
    capacity = max(64, min(MAX_CAPACITY, BUFFER_BYTES // options.bytes))
    credit = credit_per_simulation(
        retained_bytes=WINDOW_BYTES, sample_bytes=options.bytes, capacity=capacity, max_simulations=options.clients
    )
    with reception(
        Fifo(capacity=capacity),
        sample_bytes=options.bytes,
        credit=credit,
        num_simulations=options.clients,
        window_bytes=WINDOW_BYTES,
        encrypts=not options.plain,
    ) as study:
        files = [study.write_connection(number, over_tcp=options.tcp) for number in range(options.clients)]
        argv = [sys.executable, "-m", "benchmarks.transport", "client"]
        words = [str(options.bytes), str(options.io_threads), *(["sockets"] if options.sockets else [])]
        clients = [subprocess.Popen([*argv, str(file), *words], stdin=subprocess.PIPE, text=True) for file in files]
        try:
            one_round(study, clients, DRAW, options.bytes)
            for _ in range(options.rounds):
                print(json.dumps(one_round(study, clients, options.steps, options.bytes)), flush=True)
        finally:
            for client in clients:
                client.kill()
                client.wait()


def one_round(
    study: Reception, clients: "list[subprocess.Popen[str]]", num_steps: int, step_bytes: int
) -> dict[str, Any]:
    """Have each client send so many steps, and take them."""
    time.sleep(SETTLE_S)
    before = [threads(client.pid) for client in clients], threads(os.getpid())
    start_s = time.perf_counter()
    for client in clients:
        assert client.stdin is not None
        print(num_steps, file=client.stdin, flush=True)
    for _ in range(len(clients) * num_steps // DRAW):
        draw = study.buffer.draw(DRAW, DEADLINE_S)
        assert draw is not None, "nothing came for a minute"
        rows, steps = study.buffer.slots.arrays["field"], study.buffer.slots.time_steps
        assert all(rows[slot, 1] == rows[slot, -1] == steps[slot] for slot in draw.slots)
        study.buffer.release(draw)
    wall_s = time.perf_counter() - start_s
    time.sleep(SETTLE_S)
    after = [threads(client.pid) for client in clients], threads(os.getpid())
    megabytes = len(clients) * num_steps * step_bytes / 1e6
    of_rank = used(after[1], before[1], megabytes, lambda thread: "main" if thread == str(os.getpid()) else "receiver")
    of_clients: dict[str, dict[str, float]] = {}
    for one, earlier in zip(*(side[0] for side in (after, before)), strict=True):
        for name, it in used(one, earlier, megabytes, lambda _: "main").items():
            total = of_clients.setdefault(name, dict.fromkeys(it, 0.0))
            for kind, value in it.items():
                total[kind] = round(total[kind] + value, 1)
    cpu_us = {
        name: round(sum(it["us"] for it in of.values()), 1) for name, of in (("clients", of_clients), ("rank", of_rank))
    }
    return {"wall_us": round(wall_s / megabytes * 1e6, 1), **cpu_us, "of_clients": of_clients, "of_rank": of_rank}


def threads(pid: int) -> dict[str, Thread]:
    """The threads of a process by their numbers."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        head, _, fields = (task / "stat").read_text().rpartition(")")
        cpu_s = int((task / "schedstat").read_text().split()[0]) / 1e9
        found[task.name] = Thread(head.partition("(")[2], cpu_s, int(fields.split()[7]))
    return found


def used(
    after: dict[str, Thread], before: dict[str, Thread], megabytes: float, name_of: Callable[[str], str]
) -> dict[str, dict[str, float]]:
    """What threads have used between two looks, for each MB; `name_of` names those of Python."""
    found: dict[str, dict[str, float]] = {}
    for number, thread in after.items():
        earlier = before.get(number, Thread(thread.name, 0.0, 0))
        us = (thread.cpu_s - earlier.cpu_s) / megabytes * 1e6
        name = thread.name if thread.name.startswith("ZMQ") else name_of(number)
        total = found.setdefault(name, {"us": 0.0, "faults": 0.0})
        total["us"] += us
        total["faults"] += (thread.faults - earlier.faults) / megabytes
    return {name: {kind: round(value, 1) for kind, value in it.items()} for name, it in found.items()}


def with_io_threads(num: int) -> None:
    """Have contexts of ZeroMQ that are made from now on use so many threads."""
    make = zmq.Context

    def context() -> "zmq.Context[Any]":
        made = make()
        made.set(zmq.IO_THREADS, num)
        return made

    if num != 1:
        zmq.Context = context  # type: ignore[misc, assignment]


def send(connection_file: str, step_bytes: int) -> None:
    """Be a client: each line of the input says how many steps to send."""
    simulation = connect(connection_file)
    field = np.full(step_bytes // 4, os.getpid(), np.float32)
    time_step = 0
    for line in sys.stdin:
        for _ in range(int(line)):
            field[1] = field[-1] = time_step
            simulation.send(time_step, field=field)
            time_step += 1
        assert simulation._session is not None
        simulation._session._flush()


if __name__ == "__main__":
    if sys.argv[1:2] == ["client"]:
        with_io_threads(int(sys.argv[4]))
        if sys.argv[5:] == ["sockets"]:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
        send(sys.argv[2], int(sys.argv[3]))
    else:
        main()
