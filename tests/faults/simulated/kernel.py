"""The stand-ins for the product's signals and for the module `os`, on the simulated machine."""

import os
import signal
from types import SimpleNamespace

from tests.faults.simulated.machine import Machine


class Signals:
    """`stream_server.machine.signals.Signals` of a simulated program."""

    def __init__(self, machine: Machine, *numbers: signal.Signals) -> None:
        self._machine = machine

    def __enter__(self) -> "Signals":
        self._program = self._machine.current
        self.readable, _ = self._machine.pipe()
        self._program.signal_pipe = self.readable
        return self

    def __exit__(self, *_: object) -> None:
        self._program.signal_pipe = None

    def take(self) -> set[signal.Signals]:
        self._machine.empty(self.readable, 1)
        taken, self._program.signals = self._program.signals, set()
        return taken


def os_of(machine: Machine) -> SimpleNamespace:
    """The stand-in for the module `os` where pipes wake a poller, or the environment is asked."""
    return SimpleNamespace(
        **{
            **vars(os),
            "pipe": machine.pipe,
            "set_blocking": lambda pipe, blocking: None,
            "write": machine.fill,
            "read": machine.empty,
            "close": lambda pipe: None,
            "getpid": lambda: machine.current.pid,
        }
    )
