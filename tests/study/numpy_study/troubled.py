"""The same simulation, but `python troubled.py TROUBLE ID …` goes wrong at step 10 if it is one of these."""

import os
import signal as signals
import socket
import sys
from pathlib import Path

import numpy as np
import zmq
from ripple import ripple

from stream_server.client_api import connect
from stream_server.messages.connection import ConnectionFile

STEP = 10
JUNK = ([b""], [b"junk"], [bytes(range(256)) * 8], [b"\xff" * 64, b"more"], [b"a"] * 40)


def kill(simulation, signal):
    # With a window of two steps to each rank, most of the ten before this one have been received.
    if simulation.attempt == 0:
        os.kill(os.getpid(), signals.SIGKILL)
    return signal


def crash(simulation, signal):
    raise RuntimeError("the solver diverged")


def hang(simulation, signal):
    if simulation.attempt == 0:
        signals.pause()
    return signal


def wrong_shape(simulation, signal):
    return np.zeros(9)


def wrong_dtype(simulation, signal):
    return np.array(["a"] * 8)


def unknown_field(simulation, signal):
    simulation.send(STEP, signal=signal, enrgy=np.zeros(1))


def missing_field(simulation, signal):
    simulation.send(STEP, energy=np.zeros(1))


def unknown_step(simulation, signal):
    simulation.send(20, signal=signal)


def one_more(simulation, signal):
    """The rest, and a time step that the study does not have."""
    for time_step in range(STEP, 21):
        simulation.send(time_step, signal=signal)


def not_finite(simulation, signal):
    return np.full(8, np.nan)


def twice(simulation, signal):
    simulation.send(STEP, signal=signal)
    return signal


def invalid(simulation, signal):
    simulation.invalidate("energy is not conserved")
    return signal


def invalid_at_the_end(simulation, signal):
    """The rest, and only then a look at the result."""
    for time_step in range(STEP, 20):
        simulation.send(time_step, signal=signal)
    simulation.finish()
    simulation.invalidate("the energy drifts")


def early(simulation, signal):
    """The end, half-way."""
    return None


def junk(simulation, signal):
    """Bytes that are no messages, to the control socket and past ZeroMQ to its TCP port."""
    connection = ConnectionFile.read(Path(os.environ["STREAM_CONNECTION"]))
    with zmq.Context() as context, context.socket(zmq.DEALER) as control:
        control.connect(next(address for address in connection.control if address.startswith("ipc://")))
        for frames in JUNK:
            control.send_multipart(frames)
    for address in connection.control:
        if address.startswith("tcp://"):
            host, _, port = address.removeprefix("tcp://").rpartition(":")
            with socket.create_connection((host, int(port))) as raw:
                raw.sendall(os.urandom(4096))
    return signal


def main():
    troubles = {int(victim): globals()[name] for name, victim in zip(sys.argv[1::2], sys.argv[2::2], strict=True)}
    with connect() as simulation:
        for time_step, signal in enumerate(ripple(simulation.parameters)):
            if simulation.id in troubles and time_step == STEP:
                signal = troubles[simulation.id](simulation, signal)
                if signal is None:
                    break
            if not simulation.send(time_step, signal=signal):
                break


if __name__ == "__main__":
    main()
