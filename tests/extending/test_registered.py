"""Classes that an installed package registers have names in study.json."""

from pathlib import Path

import pytest

from stream_server.errors import ConfigError
from stream_server.server.simulations.design import ParameterDesign
from tests.cluster.jobs import simulations_backend
from tests.support.studies import StudyFolder

ENTRY_POINTS = """
[stream_server.backends]
near = of_others:Near
[stream_server.policies]
last = of_others:Last
[stream_server.samplers]
middle = of_others:Middle
[stream_server.parts]
wide = of_others:Wide
[stream_server.writers]
ticker = of_others:Ticker
"""
CODE = """
from stream_server.launcher.backends.local import LocalBackend


class Near(LocalBackend):
    pass


class Middle:
    def __init__(self, bounds):
        self.bounds = bounds

    def suggest(self, num):
        return [{name: (low + high) / 2 for name, (low, high) in self.bounds.items()}] * num
"""


@pytest.fixture(autouse=True)
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    about = tmp_path / "site" / "of_others-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: of-others\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(ENTRY_POINTS)
    (tmp_path / "site" / "of_others.py").write_text(CODE)
    monkeypatch.syspath_prepend(tmp_path / "site")


def test_each_plug_point_takes_the_name_for_the_class_that_is_registered(folder: StudyFolder) -> None:
    config = folder.load(
        {
            "launcher.backend": "near",
            "buffer": {"policy": "last", "capacity": 2500, "args": {"n": 1}},
            "parameters.sampler": {"class": "middle"},
            "metrics.writers": ["tensorboard", "ticker"],
            "training.model": {"class": "wide", "args": {"width": 9}},
            "training.optimizer": {"class": "torch.optim:SGD"},
        }
    )
    assert str(config.training.model) == "of_others:Wide(width=9)"
    assert config.launcher.backend == "of_others:Near"
    assert (config.buffer.policy, config.buffer.has_own_policy) == ("of_others:Last", True)
    assert config.parameters.sampler.class_ == "of_others:Middle"
    assert [name for name, _ in config.metrics.wanted] == ["tensorboard", "of_others:Ticker"]


def test_the_class_is_loaded_as_one_of_the_users(folder: StudyFolder) -> None:
    config = folder.load(
        {
            "launcher.backend": "near",
            "parameters.sampler": "middle",
            "parameters.bounds": {"initial": [0, 1], "left": [2, 4]},
        }
    )
    assert ParameterDesign(config).parameters(5) == {"initial": 0.5, "left": 3.0}
    assert simulations_backend(config).name == "of_others:Near"


def test_a_name_that_is_misspelt_is_told_with_those_that_are_registered(folder: StudyFolder) -> None:
    with pytest.raises(ConfigError, match=r'"tickr" is not a writer\. Write "ticker", or FILE\.py:Class'):
        folder.load({"metrics.writers": ["tickr"]})
    with pytest.raises(ConfigError, match=r'"wid" names no class\. Write "wide", or FILE\.py:Class'):
        folder.load({"server.class": "wid"})
    with pytest.raises(ConfigError, match=r'"lats" is not a policy\. Write "last"'):
        folder.load({"buffer.policy": "lats"})
