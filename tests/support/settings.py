"""The part of a study's config that training reads, for tests without a study.json."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from stream_server.config import StudyConfig
from stream_server.config.training_sections import Sharding
from stream_server.server.progress.length import TrainingLength
from stream_server.server.run.build import make_policy


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
        "device": "auto",
        "early_stop": None,
        "optimizer": None,
        "lr_scheduler": None,
        "criterion": None,
        "train_dataloader": None,
        "uneven": "drain",
        "nonfinite": "reject",
        "max_batches": None,
        "max_s": None,
        "log_every_batches": 10,
        "sharding": None,
    }
    if training.get("sharding") is not None:
        training = {**training, "sharding": Sharding.model_validate(training["sharding"])}
    return SimpleNamespace(
        training=SimpleNamespace(**{**defaults, **training}),
        study=SimpleNamespace(seed=0, data_seed=0),
        validation=SimpleNamespace(val_dataloader=None),
        server=SimpleNamespace(class_="server.py:Net"),
        load=SimpleNamespace(hyperparameters="new"),
        output_dir=Path(),
        network=SimpleNamespace(interface=None),
        normalization=SimpleNamespace(fields=(), parameters=False, per="field", every_batches=10, freeze_after=None),
        checkpoint=SimpleNamespace(allow_pickle=False, exclude=()),
        user={},
    )


def length_of(config: StudyConfig, num_ranks: int, samples_of_ranks: Sequence[int] | None = None) -> TrainingLength:
    """The length of a study with the policy that its config names."""
    draws_per_sample = make_policy(config, 0).draws_per_sample
    return TrainingLength.of(config, num_ranks, samples_of_ranks, draws_per_sample=draws_per_sample)
