"""Whatever trains in a plain loop of torch trains on several ranks to the same weights, or is refused."""

import json
from typing import Any

import numpy as np
import pytest

from tests.mpi.running import run

Job = dict[str, Any]

UNEVEN = [[3, 3], [3, 1], [0, 4], [2, 0], [1, 1], [3, 4]]
SHORT_LAST = [[4, 4], [4, 2], [2, 4], [2, 2]]
DRAINED = [[4, 4], [2, 4], [2, 2], [1, 0]]
LATE = [[3, 0], [3, 0], [0, 4], [2, 2]]

JOBS: dict[str, Job] = {
    "submodules": {"kind": "Submodules", "steps": UNEVEN},
    "never used": {"kind": "NeverUsed", "steps": UNEVEN},
    "sometimes used, short batches last": {"kind": "SometimesUsed", "steps": SHORT_LAST},
    "sometimes used, one rank drained": {"kind": "SometimesUsed", "steps": DRAINED},
    "sometimes used, accumulated": {"kind": "SometimesUsed", "steps": DRAINED, "training": {"accumulate": 3}},
    "not in the optimizer": {"kind": "NotInTheOptimizer", "steps": UNEVEN},
    "only in the optimizer": {"kind": "OnlyInTheOptimizer", "steps": UNEVEN},
    "shared out": {"kind": "SharedOut", "steps": UNEVEN, "restarts": [1, 4]},
    "shared out, accumulated": {
        "kind": "SharedOut",
        "steps": DRAINED,
        "training": {"accumulate": 2, "clip_norm": 0.3},
        "restarts": [2],
    },
    "unfrozen": {"kind": "Unfrozen", "steps": UNEVEN},
    "frozen": {"kind": "Frozen", "steps": UNEVEN},
    "complex": {"kind": "Fourier", "steps": UNEVEN},
    "complex, clipped": {"kind": "Fourier", "steps": UNEVEN, "training": {"clip_norm": 0.3, "accumulate": 2}},
    "lazy": {"kind": "Lazy", "steps": UNEVEN},
    "lazy, one rank late": {"kind": "Lazy", "steps": LATE},
    "experts": {"kind": "Experts", "steps": UNEVEN},
    "averaged": {"kind": "Averaged", "steps": UNEVEN},
    "some without loss": {"kind": "SomeWithoutLoss", "steps": UNEVEN},
    "some without loss, accumulated": {"kind": "SomeWithoutLoss", "steps": UNEVEN, "training": {"accumulate": 2}},
    "adversarial": {"kind": "Adversarial", "steps": UNEVEN},
    "adversarial, one rank late": {"kind": "Adversarial", "steps": LATE},
    "adversarial, averaged": {"kind": "AveragedAdversarial", "steps": LATE},
    "manually accumulated": {"kind": "Accumulating", "steps": UNEVEN},
    "line search": {"kind": "LineSearch", "steps": UNEVEN},
    "line search, one rank late": {"kind": "LineSearch", "steps": LATE},
}
REFUSED: dict[str, tuple[Job, str]] = {
    "frozen on one rank": (
        {"kind": "FrozenOnOneRank", "steps": UNEVEN},
        "the parameter b.bias requires a gradient on 1 of the 2 ranks that had a batch",
    ),
    "backward without us": (
        {"kind": "OwnBackward", "steps": UNEVEN},
        "must call self.manual_backward(loss) for loss.backward()",
    ),
    "nothing is returned": (
        {"kind": "WithoutReturn", "steps": UNEVEN},
        "must return the mean loss of its batch, but returned None for batch 0",
    ),
    "a loop of its own": (
        {"kind": "OwnLoop", "steps": UNEVEN},
        "steps its optimizer itself, but automatic_optimization",
    ),
    "sparse": ({"kind": "Sparse", "steps": UNEVEN}, "the gradient of table.weight is sparse"),
    "other models": ({"kind": "OtherModels", "steps": UNEVEN}, "rank 0 has no further parameter where rank 1 has more"),
    "shared out, manually": (
        {"kind": "SharedOutManually", "steps": UNEVEN},
        "training.uneven must be stop for an optimizer that the ranks share out",
    ),
    "shared out, overlapping": (
        {"kind": "Overlapping", "steps": UNEVEN},
        "ZeroRedundancyOptimizer with overlap_with_ddp=True, which steps within DDP only",
    ),
    "norm of all ranks": ({"kind": "NormOfAllRanks", "steps": UNEVEN}, "training.uneven must be stop for a model with"),
}
NOT_TRAINED = 14


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of each job."""
    jobs = JOBS | {name: {**job, "is_refused": True} for name, (job, _) in REFUSED.items()}
    # Not standard output, of which Open MPI's mpirun loses a part when lines are very long.
    found = tmp_path_factory.mktemp("any_model") / "found.json"
    arguments = [json.dumps([*jobs.values()]), str(found)]
    ran = run("any_model", 2, arguments, implementation="openmpi", deadline_s=40)
    assert (ran.returncode, ran.stderr) == (0, "")
    return dict(zip(jobs, json.loads(found.read_text()), strict=True))


@pytest.mark.parametrize("name", JOBS)
def test_a_model_of_any_kind_learns_what_it_learns_in_a_plain_loop(name: str, results: dict[str, Any]) -> None:
    found = results[name]
    first, second = found["ranks"]
    assert first["error"] == ""
    assert first["weights"] == second["weights"]
    assert first["counts"] == second["counts"]
    np.testing.assert_allclose(first["weights"], found["plain"], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("name", "num_updates"), [("some without loss", 3), ("some without loss, accumulated", 2)])
def test_samples_without_loss_are_counted_and_a_step_without_any_loss_is_no_update(
    name: str, num_updates: int, results: dict[str, Any]
) -> None:
    num_samples = sum(map(sum, UNEVEN))
    for rank in results[name]["ranks"]:
        assert rank["counts"] == [num_updates, num_samples - NOT_TRAINED, NOT_TRAINED]


@pytest.mark.parametrize("name", REFUSED)
def test_what_ranks_cannot_train_together_is_refused(name: str, results: dict[str, Any]) -> None:
    for rank in results[name]["ranks"]:
        assert REFUSED[name][1] in rank["error"]
