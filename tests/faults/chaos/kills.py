"""Whom to kill, and when."""

import random
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

WEIGHTS = {"rank": 4.0, "mpirun": 2.0, "launcher": 1.5, "client": 3.0, "shell": 0.5, "sampler": 1.5}
MEAN_WAIT_S = 2.5
# Some kills follow the last one soon, while the study comes back, and some lie in wait for a short moment.
SOON_S = (0.1, 1.5)
SHARE_SOON = 0.3
AIMS = {None: 0.55, "commit": 0.3, "reconnect": 0.15}
SHARE_STOPPED = 0.3
SHARE_CONTINUED = 0.7
PAUSE_S = (0.1, 3.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Blow:
    """The next blow: wait, then, with an `aim`, until the study commits or a client reconnects, and strike.

    `pause_s` is None for a kill; a process that is stopped is continued after it, or never if it is infinite.
    """

    wait_s: float
    aim: str | None
    pause_s: float | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Kill:
    """A process was killed, or stopped; `moment` is what the study was doing, `name` that of its program."""

    kind: str
    name: str
    pid: int
    number: signal.Signals
    moment: str
    time: float


def next_blow(draw: random.Random, *, stops: bool) -> Blow:
    """Drawn from the seed alone, whatever the study does."""
    soon = draw.random() < SHARE_SOON
    wait_s = draw.uniform(*SOON_S) if soon else draw.expovariate(1 / MEAN_WAIT_S)
    (aim,) = draw.choices([*AIMS], [*AIMS.values()])
    is_stop = draw.random() < SHARE_STOPPED
    pause_s = draw.uniform(*PAUSE_S) if draw.random() < SHARE_CONTINUED else float("inf")
    return Blow(wait_s=wait_s, aim=aim, pause_s=pause_s if stops and is_stop else None)


def victim(
    draw: random.Random, processes: Mapping[str, Sequence[psutil.Process]], spared: frozenset[str]
) -> tuple[str, psutil.Process] | None:
    """One of the processes that run, its kind first; None when there is none that is not spared."""
    kinds = [kind for kind in WEIGHTS if processes[kind] and kind not in spared]
    if not kinds:
        return None
    (kind,) = draw.choices(kinds, [WEIGHTS[kind] for kind in kinds])
    return kind, draw.choice(processes[kind])
