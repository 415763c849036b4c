"""Drives the Python client by a script on standard input, one result for each line: see script.py."""

import sys
from collections.abc import Iterator
from typing import Any

from stream_server.client_api import connect, simulations
from stream_server.client_api.simulation import Simulation
from stream_server.errors import ConfigError, Refused, StepsLost, Unreachable
from tests.native.conformance.values import extents, laid_out

CODES = {
    ConfigError: "CONNECTION_FILE",
    Refused: "REFUSED",
    StepsLost: "STEPS_LOST",
    Unreachable: "UNREACHABLE",
    ValueError: "ARGUMENT",
    TypeError: "ARGUMENT",
}


class Driver:
    """Obeys one line after the other."""

    def __init__(self) -> None:
        self._simulation: Simulation | None = None
        self._others: Iterator[Simulation] = iter(())
        self._sample: dict[str, Any] = {}
        self._statics: list[dict[str, Any]] = []

    def obey(self, line: str) -> str:
        """The result of a line."""
        verb, *words = line.split()
        try:
            return getattr(self, verb)(*words)  # type: ignore[no-any-return]
        except tuple(CODES) as error:
            return f"error {next(code for cls, code in CODES.items() if isinstance(error, cls))}: {error}"

    def connect(self, rank: str, num_ranks: str, *options: str) -> str:
        settings = dict(it.split("=") for it in options if "=" in it)
        parameters = {name: float(value) for name, value in (it.split(":") for it in options if "=" not in it)}
        self._sample = {}
        self._simulation = connect(
            _path(settings),
            rank=int(rank),
            num_ranks=int(num_ranks),
            simulation_id=int(settings["simulation"]) if "simulation" in settings else None,
            parameters=parameters or None,
            timeout_s=float(settings.get("timeout", 60)),
        )
        # Nothing was sent yet: a study that has ended says so at once.
        return "stop" if self._simulation.stop_reason else "ok"

    def work(self, *options: str) -> str:
        self._sample = {}
        self._others = simulations(_path(dict(it.split("=") for it in options)))
        return self.next()

    def next(self) -> str:
        simulation = next(self._others, None)
        if simulation is None:
            return "stop"
        self._simulation = simulation
        return "ok"

    def declare(self, name: str, shape: str, offset: str, dtype: str, count: str) -> str:
        self.simulation.declare_field(name, shape=extents(shape), offset=None if offset == "-" else extents(offset))
        return "ok"

    def put(self, name: str, dtype: str, count: str, seed: str, layout: str = "contiguous") -> str:
        array = laid_out(dtype, extents(count), int(seed), layout)
        fields = self.simulation._fields
        if fields is not None and any(spec.name == name for spec in fields._static_specs):
            self._statics.append({name: array})
        else:
            self._sample[name] = array
        return "staged"

    def send(self, step: str) -> str:
        sample, self._sample = self._sample, {}
        statics, self._statics = self._statics, []
        for static in statics:
            self.simulation.send_static(**static)
        return "ok" if self.simulation.send(int(step), **sample) else "stop"

    def invalidate(self, *reason: str) -> str:
        self.simulation.invalidate(" ".join(reason))
        return "ok"

    def finish(self) -> str:
        simulation, self._simulation = self.simulation, None
        simulation.finish()
        return "stop" if simulation.stop_reason else "ok"

    def abandon(self) -> str:
        simulation, self._simulation = self.simulation, None
        simulation.__exit__(InterruptedError, None, None)
        return "ok"

    def id(self) -> str:
        return f"ok {self.simulation.id}"

    def attempt(self) -> str:
        return f"ok {self.simulation.attempt}"

    def stop_reason(self) -> str:
        return f"ok {self.simulation.stop_reason}".rstrip()

    def parameter(self, name: str) -> str:
        return f"ok {self.simulation.parameters[name]:.3f}"

    def time_steps(self) -> str:
        labels = self.simulation.time_steps
        return "ok -1" if labels is None else f"ok {len(labels)} {labels.start} {labels.step}"

    @property
    def simulation(self) -> Simulation:
        assert self._simulation is not None
        return self._simulation


def _path(settings: dict[str, str]) -> str | None:
    path = settings["connection"]
    return None if path == "-" else path


if __name__ == "__main__":
    driver = Driver()
    for line in sys.stdin:
        print(driver.obey(line), flush=True)
