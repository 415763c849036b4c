"""The trained model as files that are read without this package."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.failpoints import failpoint
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.framework import Step
from stream_server.server.user.normalization import Normalization
from stream_server.storage.checksums import write_sums
from stream_server.storage.disk import write_file
from stream_server.storage.folders import replace_folder
from stream_server.storage.tensor_file import can_be_written, flattened, is_torch, write_tensors
from stream_server.user_code import call_user

if TYPE_CHECKING:
    from stream_server.config import StudyConfig

MODEL_FILE = "model.safetensors"
NORMALIZATION_FILE = "normalization.safetensors"
STUDY_FILE = "study.json"
README_FILE = "README.txt"

_TORCH = """\
from safetensors.torch import load_file
model = ...  # as prepare_training_attributes of {owner} makes it
model.load_state_dict(load_file("model.safetensors"))
"""
_NUMPY = """\
from safetensors.numpy import load_file
state = load_file("model.safetensors")  # the arrays of state_dict of {owner}, by path
print({{name: array.shape for name, array in state.items()}})
"""
_STATISTICS = """
normalization.safetensors has mean, std and count of what the study kept statistics of:

from safetensors.numpy import load_file
statistics = load_file("normalization.safetensors")
print({names})
"""

_log = logging.getLogger(__name__)


class ModelExport(Callback):
    """Writes the model into a folder when the training ends, and not when it is only saved. Rank 0 writes.

    What such files do not hold is in `warnings`, and in `problem` why a failing disk took nothing: the model is in the
    last checkpoint all the same.
    """

    def __init__(self, folder: Path, *, step: Step, config: "StudyConfig", normalization: Normalization) -> None:
        self.warnings: list[str] = []
        self.problem = ""
        self._folder = folder
        self._step = step
        self._config = config
        self._normalization = normalization

    def on_train_end(self, server: Any) -> None:
        with self._step.lending():
            if server.rank == 0:
                self._export(server)

    def _export(self, server: Any) -> None:
        model = self._step.exported()
        tensors, left_out = _of_model(model) if model is not None else _of_plain_server(server)
        if left_out:
            text = f"{MODEL_FILE} is without {', '.join(left_out)}, of types that such a file does not have"
            self.warnings.append(text)
            _log.warning("%s", text)
        owner = type(server).__name__
        try:
            export_model(self._folder, tensors, owner=owner, config=self._config, normalization=self._normalization)
        except OSError as error:
            self.problem = f"the model could not be written to {self._folder}: {error}"
            _log.error("%s", self.problem)


def export_model(
    folder: Path, tensors: Mapping[str, Any], *, owner: str, config: "StudyConfig", normalization: Normalization
) -> None:
    """Write the folder of a model, in place of an older one; `owner` is the name of the server class.

    Raises:
        OSError: the disk is full or fails; an older folder is as it was.
    """
    with replace_folder(folder) as writer:
        _write_files(writer.folder, tensors, owner, config, normalization)
        failpoint("model.before_rename")
    failpoint("model.renamed")


def _write_files(
    folder: Path, tensors: Mapping[str, Any], owner: str, config: "StudyConfig", normalization: Normalization
) -> None:
    as_torch = is_torch(tensors)
    # Frameworks look here for whose arrays these are.
    write_tensors(folder / MODEL_FILE, tensors, {"format": "pt" if as_torch else "np"})
    write_file(folder / STUDY_FILE, (json.dumps(config.resolved(), indent=2) + "\n").encode())
    readme = f"The model of the study {config.study.name}. To load it:\n\n"
    readme += (_TORCH if as_torch else _NUMPY).format(owner=owner)
    statistics = normalization.arrays()
    if statistics:
        notes = {"num_samples": str(normalization.num_samples), "frozen": str(normalization.frozen)}
        write_tensors(folder / NORMALIZATION_FILE, statistics, notes)
        shown = list(statistics)[:2]
        readme += _STATISTICS.format(names=", ".join(f'statistics["{name}"]' for name in shown))
    write_file(folder / README_FILE, readme.encode())
    write_sums(folder)


def _of_model(model: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """The tensors of a model by the names that the user's own module gives them."""
    return _writable({bare_name(name): tensor for name, tensor in model.items()})


def _of_plain_server(server: Any) -> tuple[dict[str, Any], list[str]]:
    """The arrays of a plain server's `state_dict` by path."""
    arrays, others = flattened(call_user(f"{type(server).__name__}.state_dict", server.state_dict))
    tensors, left_out = _writable(arrays)
    return tensors, others + left_out


def bare_name(name: str) -> str:
    """The name of a tensor without what `torch.compile` puts into it."""
    return name.replace("_orig_mod.", "")


def _writable(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    tensors = {name: value for name, value in values.items() if can_be_written(value)}
    return tensors, [name for name in values if name not in tensors]
