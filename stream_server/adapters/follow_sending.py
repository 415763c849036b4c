"""The sending of followed time steps; without a study it says what the first one has."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from stream_server.adapters.fields import FieldsOfFiles
from stream_server.client_api import Simulation
from stream_server.errors import ConfigError


class Follower(ABC):
    """Sends the steps that are whole; `is_wanted` is False once the study wants nothing more.

    `look_s` is the time of this thread that the last look for them took, without reading and sending. `names` are
    options FIELD=NAME.

    Raises:
        ConfigError: the names do not fit the study.
    """

    def __init__(self, names: Sequence[str], simulation: Simulation) -> None:
        self.is_wanted = True
        self.look_s = 0.0
        self.num_sent = 0
        self.simulation = simulation
        self.fields = FieldsOfFiles(names, simulation.fields)
        self.has_told = False

    @abstractmethod
    def turn(self, *, has_ended: bool) -> None:
        """Send what is finished, which all is once the solver `has_ended` well.

        Raises:
            ConfigError: what the solver writes does not fit the study.
            Unreadable: what is finished cannot be read.
            SimulationError: as for `Simulation.send`.
        """

    def delete_durable(self) -> None:
        """Delete the files whose steps are in a checkpoint, if that is asked for."""
        return

    @abstractmethod
    def check(self) -> None:
        """Find what went wrong without a sign, once the solver has ended well.

        Raises:
            ConfigError: nothing was sent, a file was never finished, vanished before it was sent, or changed after.
        """

    def step_at(self, position: int) -> int | None:
        known = self.simulation.time_steps
        if known is None:
            return position
        return known[position] if position < len(known) else None

    def send(self, step: int, statics: Mapping[str, Any], values: Mapping[str, Any], path: Path) -> None:
        if not self.num_sent and not self.simulation.fields:
            self.tell(values, path)
        try:
            self.simulation.send_static(**statics)
            self.is_wanted = self.simulation.send(step, **values)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{path}: {error}") from error
        self.num_sent += 1

    def tell(self, values: Mapping[str, Any], path: Path) -> None:
        told = ", ".join(f"{name or 'an array'} {it.dtype.name} {it.shape}" for name, it in values.items())
        print(f"stream-follow: without a study; {path} has {told}", file=sys.stderr)
        self.has_told = True
