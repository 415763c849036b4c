"""Makes records without a study: every sample is a function of its simulation and time step."""

from collections.abc import Iterable, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Slots
from stream_server.config import StudyConfig
from stream_server.server.replay.recorded_study import RecordedStudy
from stream_server.server.replay.recorder import Recorder
from tests.support.studies import Changes, StudyFolder

Key = tuple[int, int]

FIELDS: dict[str, Any] = {"u": {"shape": [2, 3], "dtype": "float32"}, "v": {"shape": [], "optional": True}}
PARAMETERS = ("initial", "left")
SMALL: Changes = {
    "study.simulations": 8,
    "study.time_steps": 12,
    "study.fields": FIELDS,
    "validation.simulations": 2,
    "buffer.capacity": 30,
    "training.batch_size": 7,
}


def small_study(folder: StudyFolder, changes: Changes | None = None) -> StudyConfig:
    """Two held-out and eight training simulations of twelve steps."""
    return folder.load(deepcopy({**SMALL, **(changes or {})}))


def parameters_of(simulation: int) -> NDArray[np.float64]:
    return np.array([simulation / 3, -simulation])


def has_v(key: Key) -> bool:
    """Whether a sample has the optional field."""
    return key[1] % 3 != 1


def u_of(key: Key) -> NDArray[Any]:
    simulation, time_step = key
    return np.arange(6, dtype=np.float32).reshape(2, 3) + np.float32(100 * simulation + time_step / 7)


def v_of(key: Key) -> float:
    return key[0] - key[1] / 8


def slots_with(keys: Sequence[Key]) -> Slots:
    """Slot i holds the sample of the i-th key."""
    slots = Slots({"u": (2, 3), "v": ()}, max(1, len(keys)))
    slots.allocate({"u": np.float32, "v": np.float64})
    for slot, key in enumerate(keys):
        slots.simulation_ids[slot], slots.time_steps[slot] = key
        slots.arrays["u"][slot], slots.arrays["v"][slot] = u_of(key), v_of(key)
        if not has_v(key):
            slots.leave_out("v", [slot])
    return slots


def recorder(config: StudyConfig, slots: Slots, **arguments: Any) -> Recorder:
    """A recorder of rank 0 of one rank that begins, unless `arguments` say otherwise."""
    folder = config.output_dir / "record"
    facts = RecordedStudy.of(config, PARAMETERS, arguments.pop("num_ranks", 1))
    defaults: dict[str, Any] = {"rank": 0, "incarnation": 1, "position": 0, "parameters_of": parameters_of}
    return Recorder(folder, facts, rows=slots, **{**defaults, **arguments})


def interleave(simulations: Iterable[int], num_steps: int = 12) -> list[Key]:
    """All steps of some simulations, as they come when all run at once, some faster than others."""
    keys = [(simulation, step) for simulation in simulations for step in range(num_steps)]
    return sorted(keys, key=lambda key: (key[1] * (3 + key[0] % 4), key[0]))


def record(config: StudyConfig, keys: Sequence[Key], *, num_ranks: int = 1) -> Path:
    """Record these samples, dealt to ranks by simulation + step, and say that all simulations have finished."""
    for rank in range(num_ranks):
        mine = [key for key in keys if sum(key) % num_ranks == rank]
        with recorder(config, slots_with(mine), rank=rank, num_ranks=num_ranks) as it:
            for slot, (simulation, _) in enumerate(mine):
                if simulation < config.validation.simulations:
                    it.append_held_out([slot])
                else:
                    it.append([slot])
            for simulation in sorted({simulation for simulation, _ in keys}):
                it.finish(simulation)
    return config.output_dir / "record"


def samples_file(folder: Path, rank: int = 0) -> Path:
    """The only file of a rank."""
    [path] = folder.glob(f"rank-{rank}.*.samples")
    return path
