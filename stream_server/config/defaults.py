"""Defaults that depend on other keys, and absolute paths: the first thing done to a study.json.

Works on plain dictionaries and leaves alone whatever is not of the expected type, so that the models can
tell what is wrong with it.
"""

import os
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from stream_server.config.parameters import SAMPLERS
from stream_server.config.samples import SampleField
from stream_server.config.values import size_in_bytes

WATERMARK_PART = 5
PATHS = (("study", "output_dir"), ("parameters", "file"), ("checkpoint", "dir"), ("load", "checkpoint"))

Raw = dict[str, Any]

_FIELDS = TypeAdapter(dict[str, SampleField])


def filled(raw: Raw) -> Raw:
    """A copy of `raw` with absolute paths, and values for the keys whose default depends on other keys."""
    raw = deepcopy(raw)
    study_dir = raw.get("study_dir", "")
    folder = Path(os.path.abspath(study_dir if isinstance(study_dir, str | Path) else ""))
    if isinstance(study_dir, str | Path):
        raw["study_dir"] = str(folder)
    _fill_study(_section(raw, "study"), folder)
    _fill_buffer(_section(raw, "buffer"), _section(raw, "study"))
    _fill_training(raw)
    _fill_validation(raw)
    _make_paths_absolute(raw, folder)
    return raw


def _section(raw: Raw, name: str) -> Raw:
    section = raw.get(name)
    return section if isinstance(section, dict) else {}


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _fill_study(study: Raw, folder: Path) -> None:
    name = study.setdefault("name", folder.name or "study")
    if isinstance(name, str):
        study.setdefault("output_dir", str(Path("runs", name)))


def _fill_buffer(buffer: Raw, study: Raw) -> None:
    capacity = buffer.get("capacity")
    if isinstance(capacity, str):
        capacity = _samples_in(capacity, study.get("fields"))
        if capacity:
            buffer["capacity"] = capacity
    if _is_count(capacity):
        assert isinstance(capacity, int)
        one_by_one = buffer.get("policy") == "fifo"
        buffer.setdefault("watermark", 1 if one_by_one else max(1, capacity // WATERMARK_PART))


def _samples_in(size: str, fields: Any) -> int | None:
    num_bytes = size_in_bytes(size)
    try:
        sample_bytes = sum(field.num_bytes for field in _FIELDS.validate_python(fields).values())
    except ValidationError:
        return None
    return num_bytes // sample_bytes if num_bytes and sample_bytes else None


def _fill_training(raw: Raw) -> None:
    training, buffer = raw.get("training"), _section(raw, "buffer")
    if isinstance(training, dict):
        is_unbounded = buffer.get("policy", "reservoir") == "reservoir" and training.get("draws_per_sample") is None
        is_known = _section(raw, "study").get("time_steps") is not None and not is_unbounded
        training.setdefault("lr_clock", "updates" if is_known else "samples")


def _fill_validation(raw: Raw) -> None:
    batch_size = _section(raw, "training").get("batch_size")
    if _is_count(batch_size) and isinstance(raw.setdefault("validation", {}), dict):
        raw["validation"].setdefault("batch_size", batch_size)


def _make_paths_absolute(raw: Raw, folder: Path) -> None:
    for section, key in (
        ("study", "output_dir"),
        ("parameters", "file"),
        ("checkpoint", "dir"),
        ("load", "checkpoint"),
    ):
        path = _section(raw, section).get(key)
        if isinstance(path, str | Path) and str(path):
            raw[section][key] = os.path.abspath(folder / path)
    for section, key in (("server", "class"), ("parameters", "sampler")):
        reference = _section(raw, section).get(key)
        if isinstance(reference, str) and reference not in SAMPLERS:
            raw[section][key] = _absolute_reference(reference, folder)
    simulation = _section(raw, "simulation")
    if isinstance(simulation.get("templates"), list):
        simulation["templates"] = [
            os.path.abspath(folder / path) if isinstance(path, str) and path else path
            for path in simulation["templates"]
        ]
    for node, key in ((simulation, "command"), (_section(simulation, "job"), "mpirun")):
        if isinstance(node.get(key), list):
            node[key] = [_absolute_element(element, folder) for element in node[key]]


def _absolute_reference(reference: str, folder: Path) -> str:
    file, colon, name = reference.rpartition(":")
    return f"{os.path.abspath(folder / file)}{colon}{name}" if file.endswith(".py") else reference


def _absolute_element(element: Any, folder: Path) -> Any:
    """An element of the command that names a file of the study becomes absolute."""
    if not isinstance(element, str) or not os.path.isfile(folder / element):
        return element
    return os.path.abspath(folder / element)
