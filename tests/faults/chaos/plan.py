"""The plan of one study of a campaign: everything that its seed decides."""

import random
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from stream_server.buffers import WindowShape

STUDY = Path(__file__).parent / "study" / "study.json"
POLICIES = ("fifo", "firo", "reservoir")
LEARNERS = {
    "number": "server.py:AuditServer",
    "experts": "torch_servers.py:ExpertsServer",
    "adversaries": "torch_servers.py:AdversariesServer",
    "shards": "torch_servers.py:ShardsServer",
}
SHARDED = {"training.precision": "64-true", "training.sharding": {"kind": "full", "blocks": ["Block", "Linear"]}}
# The first is quicker than its simulations, the second slower: its buffer fills up.
STEPS_S = (0.02, 0.12)
EVERY_BATCHES = (3, 5, 10)
SHARE_STEERED = 0.5
SHARE_MIXED = 0.5
SHARE_LARGE = 0.5
SHARE_WITH_WINDOWS = 0.3
PREFETCH = (0, 0, 2)
MIXED = {
    "wave": [256],
    "mesh": {"shape": [8], "per": "simulation"},
    "edges": {"shape": [{"max": 6}], "per": "simulation"},
    "particles": [{"max": 4}],
}
# So that a step goes through the memory of its client, which a ragged field would keep it from.
LARGE = {"wave": [256], "volume": {"shape": [64, 256], "dtype": "float32"}}
WINDOWS = (WindowShape(length=2), WindowShape(length=3, spacing=2, stride=2), WindowShape(length=5, stride=3))


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """One study. `seed` is all that its kills are drawn from.

    Besides the wave `mixed` has fields of each kind, and `large` one that is large.
    """

    seed: str
    policy: str = "fifo"
    num_ranks: int = 2
    num_simulations: int = 24
    num_steps: int = 60
    simulation_step_s: float = 0.05
    step_s: float = 0.02
    every_batches: int = 5
    pseudo_epochs: int = 1
    record: bool = False
    learner: str = "number"
    window: WindowShape | None = None
    prefetch: int = 0
    is_steered: bool = False
    mixed: bool = False
    large: bool = False

    @classmethod
    def drawn(cls, campaign_seed: int, number: int, *, num_ranks: int, learner: str = "number") -> "Plan":
        """Study `number` of a campaign; the policies take turns; every fourth has windows, and some others."""
        seed = f"{campaign_seed}/{number}"
        draw = random.Random(seed)
        policy = (*POLICIES, "reservoir")[number % (len(POLICIES) + 1)]
        has_windows = number % (len(POLICIES) + 1) == len(POLICIES) and learner == "number"
        plan = cls(
            seed=seed,
            policy=policy,
            num_ranks=num_ranks,
            learner=learner,
            step_s=draw.choice(STEPS_S),
            every_batches=draw.choice(EVERY_BATCHES),
            pseudo_epochs=draw.choice((1, 2)) if policy == "firo" else 1,
            window=draw.choice(WINDOWS) if has_windows else None,
            is_steered=draw.random() < SHARE_STEERED,
            mixed=draw.random() < SHARE_MIXED,
            prefetch=draw.choice(PREFETCH),
        )
        if learner == "number" and draw.random() < SHARE_WITH_WINDOWS:
            plan = replace(plan, window=draw.choice(WINDOWS))
        return replace(plan, large=not plan.mixed and draw.random() < SHARE_LARGE)

    @property
    def keys(self) -> frozenset[tuple[int, int]]:
        """Every sample: the simulation and the time step, of a window the first."""
        firsts = range(self.num_steps)
        if self.window is not None:
            firsts = range(0, self.num_steps - self.window.span, self.window.stride)
        return frozenset((i, j) for i in range(self.num_simulations) for j in firsts)

    @property
    def num_sent(self) -> int:
        """Time steps of all simulations."""
        return self.num_simulations * self.num_steps

    def settings(self) -> dict[str, Any]:
        """The keys of study.json that differ from tests/faults/chaos/study."""
        firo = {"buffer.pseudo_epochs": self.pseudo_epochs} if self.policy == "firo" else {}
        windows: dict[str, Any] = {}
        if self.window is not None:
            window = {name: getattr(self.window, name) for name in ("length", "spacing", "stride")}
            windows = {"samples": {"window": window}}
        sampler = {"class": "steering.py:Wandering", "lookahead": 2, "timeout_s": 20}
        steering = {"parameters.sampler": sampler} if self.is_steered else {}
        fields = {"study.fields": MIXED if self.mixed else LARGE} if self.mixed or self.large else {}
        words = [word for word, is_given in (("mixed", self.mixed), ("large", self.large)) if is_given]
        sharded = SHARDED if self.learner == "shards" else {}
        return (
            firo
            | windows
            | steering
            | fields
            | sharded
            | {
                "study.simulations": self.num_simulations,
                "study.time_steps": self.num_steps,
                "simulation.command": ["python", "wave.py", str(self.simulation_step_s), *words],
                "server.class": LEARNERS[self.learner],
                "server.ranks": self.num_ranks,
                "launcher.restarts": 1000,
                "buffer.policy": self.policy,
                "checkpoint.every_batches": self.every_batches,
                "checkpoint.record": self.record,
                "training.prefetch": self.prefetch,
                "user.step_s": self.step_s,
            }
        )
