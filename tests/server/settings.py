"""The part of a study's config that training reads, for tests without a study.json."""

from types import SimpleNamespace
from typing import Any


def settings(**training: Any) -> Any:
    """A config with defaults for all keys but those of `training` that are given."""
    defaults = {
        "precision": "64-true",
        "accumulate": 1,
        "clip_norm": None,
        "clip_value": None,
        "max_nonfinite": 10,
        "lr_clock": "updates",
        "compile": False,
        "matmul_precision": "highest",
        "deterministic": False,
        "strategy": "ddp",
        "early_stop": None,
        "uneven": "drain",
        "nonfinite": "reject",
        "max_batches": None,
        "max_s": None,
        "log_every_batches": 10,
    }
    return SimpleNamespace(
        training=SimpleNamespace(**{**defaults, **training}),
        study=SimpleNamespace(seed=0),
        network=SimpleNamespace(interface=None),
        normalization=SimpleNamespace(fields=(), parameters=False, per="field", every_batches=10, freeze_after=None),
        checkpoint=SimpleNamespace(allow_pickle=False, exclude=()),
        user={},
    )
