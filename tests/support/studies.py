"""Studies for the tests: the smallest one, and changes to it."""

import json
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from stream_server.config import StudyConfig, load
from stream_server.errors import ConfigError

SMALLEST: dict[str, Any] = {
    "study": {"simulations": 100, "time_steps": 100, "fields": {"temperature": [100, 100]}},
    "parameters": {"bounds": {"initial": [100, 500], "left": [100, 500]}},
    "simulation": {"command": ["python", "heat.py", "--initial", "{initial}", "--left", "{left}"]},
    "server": {"class": "server.py:HeatServer"},
    "buffer": {"capacity": 2500},
    "training": {"batch_size": 10},
}

Changes = dict[str, Any]


def changed(changes: Changes) -> dict[str, Any]:
    """The smallest study with changes such as {"buffer.capacity": 4}; the value ... removes a key."""
    study = deepcopy(SMALLEST)
    for path, value in changes.items():
        *parents, key = path.split(".")
        node = study
        for parent in parents:
            node = node.setdefault(parent, {})
        if value is ...:
            del node[key]
        else:
            node[key] = value
    return study


class StudyFolder:
    """A folder `heat` with a simulation, a server class and a study.json."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.write("heat.py", "")
        self.write("server.py", "import torch_is_not_imported\n\nclass HeatServer: ...\n")

    def write(self, name: str, text: str) -> Path:
        file = self.path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    def study(self, changes: Changes | None = None) -> Path:
        return self.write("study.json", json.dumps(changed(changes or {})))

    def load(self, changes: Changes | None = None, *overrides: str) -> StudyConfig:
        return load(self.study(changes), overrides)

    def problems(self, changes: Changes | None = None, *overrides: str) -> list[str]:
        """The problems that loading reports, one line each."""
        with pytest.raises(ConfigError) as caught:
            self.load(changes, *overrides)
        return [line.strip() for line in str(caught.value).splitlines()[1:]]

    def problem(self, changes: Changes) -> str:
        """The only problem that loading reports."""
        [problem] = self.problems(changes)
        return problem
