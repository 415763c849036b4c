"""How fast samples get into the buffer while a holder of a key floods the same port with Hello, and without that.

Samples per second of CPU time of the thread that receives, over TCP with keys: what the flood costs the rank. The
flooder, a process of its own on the same machine, says Hello as fast as its connection takes it, and connects again
whenever it is cut off. A round is longer than the penalty, at the end of which the flooder is let in once more; in the
rounds without a flood it is stopped by a signal.

    python -m benchmarks.flood
"""

import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import zmq

from benchmarks.intake import SIZES, ours_of
from benchmarks.measure import Result, alternated, show
from benchmarks.reception import STUDY
from stream_server.messages import wire
from stream_server.messages.client import Hello
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.connection_guard import PENALTY_S

SIZE = "40kB.packed"
ROUND_S = PENALTY_S + 1
NUM_PAIRS = 9


def results() -> Iterator[Result]:
    """intake.flood.40kB.packed."""
    with ours_of(*SIZES[SIZE], over_tcp=True, num_simulations=2) as (study, one_round), flooder(study.files[1]) as pid:
        undisturbed = lasting(one_round)
        yield alternated(f"intake.flood.{SIZE}", "samples/s", flooded(undisturbed, pid), undisturbed, NUM_PAIRS)


def lasting(one_round: Callable[[], float]) -> Callable[[], float]:
    """As many rounds as fit into ROUND_S: their mean, each being of as many samples."""

    def rounds() -> float:
        end_s = time.monotonic() + ROUND_S
        rates = []
        while time.monotonic() < end_s:
            rates.append(one_round())
        return statistics.harmonic_mean(rates)

    return rounds


def flooded(rounds: Callable[[], float], pid: int) -> Callable[[], float]:
    """Rounds during which this process is not stopped."""

    def beside_it() -> float:
        os.kill(pid, signal.SIGCONT)
        try:
            return rounds()
        finally:
            os.kill(pid, signal.SIGSTOP)

    return beside_it


@contextmanager
def flooder(file: ConnectionFile) -> Iterator[int]:
    """The number of a process that floods the control port of a study with the key of a simulation; it is stopped."""
    security = file.security
    assert security is not None
    keys = (security.server_public_key, security.client_public_key, security.client_secret_key)
    argv = [sys.executable, "-m", "benchmarks.flood", file.control[1], *keys]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            process.send_signal(signal.SIGSTOP)
            yield process.pid
        finally:
            process.kill()


def flood(address: str, server_key: str, public_key: str, secret_key: str) -> None:
    """Say Hello for ever."""
    [hello] = wire.encode(Hello(study=STUDY, simulation=1, attempt=0, rank=0, num_ranks=1))
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.curve_serverkey = server_key.encode()
        dealer.curve_publickey, dealer.curve_secretkey = public_key.encode(), secret_key.encode()
        dealer.connect(address)
        dealer.send(hello)
        print("floods", flush=True)
        while True:
            if dealer.poll(100, zmq.POLLOUT):
                with suppress(zmq.Again):
                    dealer.send(hello, zmq.NOBLOCK)
            # Whoever does not read is held back by libzmq, and does not see that he was cut off.
            while dealer.poll(0):
                dealer.recv()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        flood(*sys.argv[1:])
    else:
        show(results())
