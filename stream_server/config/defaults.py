"""The value and the default of a key, found by its path."""

from typing import Any

from pydantic import BaseModel

from stream_server.config.models import StudyConfig


def value_of(config: StudyConfig, path: str) -> Any:
    """The value at `path`, such as "launcher.max_running"."""
    node: Any = config
    for key in path.split("."):
        node = getattr(node, key)
    return node


def default_of(path: str) -> Any:
    """The default of the key at `path`."""
    *parents, key = path.split(".")
    model: type[BaseModel] = StudyConfig
    for parent in parents:
        inner = model.model_fields[parent].annotation
        assert isinstance(inner, type)
        assert issubclass(inner, BaseModel)
        model = inner
    return model.model_fields[key].get_default(call_default_factory=True)
