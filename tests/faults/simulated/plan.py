"""The plan of one schedule: a study, a machine, and what goes wrong."""

from dataclasses import dataclass, field
from typing import Any

from stream_server.buffers import WindowShape

NUM_ATTACHED = 1
MESH_SIZE = 6
MOST_EDGES = 9
MOST_PARTICLES = 3


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """Something bad. It happens at `at` seconds, or when a program passes a failpoint for the `passage`-th time.

    `kind` is kill, stop, cut or stall, `target` what it happens to; `lasts_s` is for stops and stalls.
    """

    kind: str
    target: str
    at: float = 0.0
    failpoint: str = ""
    passage: int = 1
    lasts_s: float = 0.0

    def __str__(self) -> str:
        when = f"at {self.failpoint}@{self.passage}" if self.failpoint else f"at {self.at:.3f} s"
        lasts = f" for {self.lasts_s:.1f} s" if self.lasts_s else ""
        return f"{self.kind} {self.target} {when}{lasts}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """A study, the machine that it runs on, and what goes wrong.

    `crasher` is a simulation that never gets beyond its first steps; `crash` the probability that another attempt
    crashes by itself. The `client_ranks` of a simulation go on to the next step together. A study with `statics` has a
    mesh besides, whose messages hold a part of it, one that is `ragged` particles, whose number differs from step to
    step, and one that is both edges, whose number differs by simulation. Of one that `is_steered` a class suggests
    the parameters, which is told of results every `log_every_batches`, and wants nothing more of a simulation once it
    has `enough` losses of it.
    """

    seed: str
    policy: str = "fifo"
    num_ranks: int = 2
    num_simulations: int = 3
    num_steps: int = 8
    client_ranks: int = 1
    max_running: int = 2
    per_worker: int = 1
    pseudo_epochs: int = 1
    batch_size: int = 2
    every_batches: int = 3
    capacity: int = 16
    window_bytes: int = 1 << 20
    simulation_step_s: float = 0.3
    step_s: float = 0.2
    retries: int = 1000
    crasher: int | None = None
    crash: float = 0.0
    duplicates: float = 0.0
    delay_s: float = 1e-3
    linger: float = 0.8
    mpirun_notices: bool = True
    window: WindowShape | None = None
    statics: bool = False
    ragged: bool = False
    is_steered: bool = False
    lookahead: int | None = None
    log_every_batches: int = 1
    enough: int | None = None
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    @property
    def possible(self) -> frozenset[tuple[int, int]]:
        """Every sample that may be trained: some of the crasher, too."""
        return frozenset((i, j) for i in range(self.num_simulations) for j in self.firsts)

    @property
    def firsts(self) -> range:
        """The first time step of each sample of a simulation."""
        if self.window is None:
            return range(self.num_steps)
        return range(0, self.num_steps - self.window.span, self.window.stride)

    @property
    def keys(self) -> frozenset[tuple[int, int]]:
        """Every sample that is to be trained: the simulation and the time step, of a window the first."""
        complete = (i for i in range(self.num_simulations) if i != self.crasher)
        return frozenset((i, j) for i in complete for j in self.firsts)

    def settings(self) -> dict[str, Any]:
        """The study.json."""
        buffer: dict[str, Any] = {"pseudo_epochs": self.pseudo_epochs} if self.policy == "firo" else {}
        samples: dict[str, Any] = {}
        fields: dict[str, Any] = {"u": {"shape": [2]}}
        if self.statics:
            fields["mesh"] = {"shape": [MESH_SIZE], "per": "simulation"}
        if self.statics and self.ragged:
            fields["edges"] = {"shape": [{"max": MOST_EDGES}], "per": "simulation"}
        if self.ragged:
            fields["particles"] = {"shape": [{"max": MOST_PARTICLES}]}
        if len(fields) > 1 and self.client_ranks > 1:
            # Ranks with different fields of unknown types may wait for each other when the server dies early.
            fields = {name: {**field, "dtype": "float64"} for name, field in fields.items()}
        steering: dict[str, Any] = {}
        if self.is_steered:
            lookahead = {} if self.lookahead is None else {"lookahead": self.lookahead}
            name, args = ("Wandering", {}) if self.enough is None else ("Demanding", {"enough": self.enough})
            sampler = {"class": f"tests.support.generators:{name}", "args": args, "timeout_s": 5}
            steering = {"sampler": sampler | lookahead}
        if self.window is not None:
            window = {name: getattr(self.window, name) for name in ("length", "spacing", "stride")}
            samples = {"samples": {"window": window}}
        return samples | {
            "study": {"name": "simulated", "simulations": self.num_simulations, "time_steps": self.num_steps}
            | {"fields": fields},
            "parameters": {"bounds": {"phase": [0, 1]}, **steering},
            "simulation": {
                "command": ["python", "none.py"],
                "retries": self.retries,
                "per_worker": self.per_worker,
                "timeout_s": 20,
                "max_failed": 100,
            },
            "server": {"class": "learner.py:Learner", "ranks": self.num_ranks},
            "launcher": {"max_running": self.max_running, "restarts": 1000},
            "buffer": {"policy": self.policy, "capacity": self.capacity, **buffer},
            "training": {"batch_size": self.batch_size}
            | ({"log_every_batches": self.log_every_batches} if self.is_steered else {}),
            "checkpoint": {"every_batches": self.every_batches},
            "client": {"window": self.window_bytes, "max_attached": NUM_ATTACHED},
            "network": {"security": "none"},
        }
