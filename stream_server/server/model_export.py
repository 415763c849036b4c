"""The trained model as files that are read without this package."""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stream_server.disk import make_folder, remove_tree, rename_folder, sync_folder, write_file
from stream_server.failpoints import failpoint
from stream_server.server.array_tree import flattened
from stream_server.server.normalization import Normalization
from stream_server.server.sums import write_sums
from stream_server.server.tensor_file import can_be_written, write_tensors
from stream_server.server.training.callbacks import Callback, call_user
from stream_server.server.training.step import Step

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

    What a failing disk makes impossible is in `warnings`, and the model is in the last checkpoint all the same.
    """

    def __init__(self, folder: Path, *, step: Step, config: "StudyConfig", normalization: Normalization) -> None:
        self.warnings: list[str] = []
        self._folder = folder
        self._step = step
        self._config = config
        self._normalization = normalization

    def on_train_end(self, server: Any) -> None:
        state = self._step.model_state()
        model = state.get("evaluated", state.get("model"))
        if server.rank != 0:
            return
        tensors, left_out = _of_learner(server) if model is None else _of_torch(model)
        if left_out:
            self._warn(f"{MODEL_FILE} is without {', '.join(left_out)}, of types that such a file does not have")
        owner = type(server).__name__
        try:
            export_model(self._folder, tensors, owner=owner, config=self._config, normalization=self._normalization)
        except OSError as error:
            self._warn(f"the model could not be written to {self._folder}: {error}")

    def _warn(self, text: str) -> None:
        self.warnings.append(text)
        _log.warning("%s", text)


def export_model(
    folder: Path, tensors: Mapping[str, Any], *, owner: str, config: "StudyConfig", normalization: Normalization
) -> None:
    """Put the folder of a model on disk, in the place of an older one; `owner` is the name of the server class.

    Raises:
        OSError: the disk is full or fails; an older folder is as it was.
    """
    temporary, old = folder.with_name(f"{folder.name}.tmp"), folder.with_name(f"{folder.name}.old")
    if old.exists() and not folder.exists():
        # An earlier export was killed before the new model had its name.
        rename_folder(old, folder)
    for left in (temporary, old):
        remove_tree(left)
    try:
        make_folder(temporary)
        _write_files(temporary, tensors, owner, config, normalization)
        sync_folder(temporary)
        failpoint("model.before_rename")
        _replace(folder, temporary, old)
        failpoint("model.renamed")
    finally:
        remove_tree(temporary)
    remove_tree(old)


def _replace(folder: Path, new: Path, old: Path) -> None:
    try:
        if folder.exists():
            rename_folder(folder, old)
        rename_folder(new, folder)
    except OSError:
        if old.exists() and not folder.exists():
            rename_folder(old, folder)
        raise


def _write_files(
    folder: Path, tensors: Mapping[str, Any], owner: str, config: "StudyConfig", normalization: Normalization
) -> None:
    is_torch = any(hasattr(tensor, "new_tensor") for tensor in tensors.values())
    # Frameworks look here for whose arrays these are.
    write_tensors(folder / MODEL_FILE, tensors, {"format": "pt" if is_torch else "np"})
    write_file(folder / STUDY_FILE, (json.dumps(config.resolved(), indent=2) + "\n").encode())
    readme = f"The model of the study {config.study.name}. To load it:\n\n"
    readme += (_TORCH if is_torch else _NUMPY).format(owner=owner)
    statistics = normalization.arrays()
    if statistics:
        notes = {"num_samples": str(normalization.num_samples), "frozen": str(normalization.frozen)}
        write_tensors(folder / NORMALIZATION_FILE, statistics, notes)
        shown = list(statistics)[:2]
        readme += _STATISTICS.format(names=", ".join(f'statistics["{name}"]' for name in shown))
    write_file(folder / README_FILE, readme.encode())
    write_sums(folder)


def _of_torch(model: Any) -> tuple[dict[str, Any], list[str]]:
    """The tensors of a torch model by the names that the user's own module gives them."""
    from stream_server.server.torch_state import restored

    return _writable({bare_name(name): tensor for name, tensor in restored(model).items()})


def _of_learner(server: Any) -> tuple[dict[str, Any], list[str]]:
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
