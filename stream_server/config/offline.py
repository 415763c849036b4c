"""The study that writes the samples of its ensemble to files, in the place of the training that it describes."""

from stream_server.config.study import StudyConfig

NO_TRAINING = "stream_server.server.user.no_training:NoTraining"

TRAINING_KEYS = ("batch_size", "nonfinite")
VALIDATION_KEYS = ("simulations",)
CHECKPOINT_KEYS = ("every_batches", "every_s", "keep", "dir")


def without_training(config: StudyConfig) -> StudyConfig:
    """The same ensemble and samples, each recorded once as it comes; what only a training needs is left out."""
    study = config.resolved()
    study["server"]["class"] = NO_TRAINING
    study["buffer"] = {"policy": "fifo", "capacity": config.buffer.capacity}
    for section, keys in (
        ("training", TRAINING_KEYS),
        ("validation", VALIDATION_KEYS),
        ("checkpoint", CHECKPOINT_KEYS),
    ):
        study[section] = {key: study[section][key] for key in keys}
    study["checkpoint"]["record"] = True
    for section in ("load", "normalization", "samples"):
        del study[section]
    return StudyConfig.model_validate(study)
