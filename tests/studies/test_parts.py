"""Classes and objects of a script in the place of names in study.json, from `Study` to the server and its restarts."""

import csv
import json
import os
import re
import subprocess
import sys
import uuid
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import Any

import numpy as np
import psutil
import pytest
from torch import nn
from torch.optim import SGD

from stream_server import Callback, Study, TorchServer
from stream_server.config import StudyConfig
from stream_server.config.changes import check_continuation
from stream_server.errors import ConfigError
from stream_server.server.user.components import make_callbacks, make_criterion, make_training_attributes
from tests.study.numpy_study.ripple import NUM_STEPS, signal_at
from tests.support.runs import MARK, NUMPY_STUDY, marked_processes

LIMIT_S = 200.0
# As in a notebook: the classes are in no file, and the process is another one than those of the server.
PROGRAM = '''
import functools, json, os, signal, sys
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from stream_server import Callback, Study, TorchServer

SCALE = 20


class Inputs(TorchServer):
    def process_simulation_data(self, data, config):
        return np.append(data.parameters, data.time_step / SCALE), data.fields["signal"]


class Network(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.hidden, self.out = nn.Linear(3, width), nn.Linear(width, 8)

    def forward(self, inputs):
        return self.out(torch.tanh(self.hidden(inputs)))


class Killer(Callback):
    """Kills rank 1 at the first checkpoint; it counts steps, over restarts, too."""

    def __init__(self, marker):
        self.marker, self.steps = Path(marker), 0

    def on_step_end(self, server):
        assert isinstance(server.model, Network) and server.criterion is functional.mse_loss
        self.steps += 1

    def on_checkpoint(self, server, path):
        if server.rank == 1 and not self.marker.exists():
            self.marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def on_train_end(self, server):
        if server.rank == 0:
            self.marker.with_name("steps").write_text(str(self.steps))

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


class Lines:
    """A writer of metrics."""

    def __init__(self, run):
        self.file = run.folder / "lines"

    def write(self, record):
        with self.file.open("a") as file:
            file.write(f"{record.batch}\\n")

    def flush(self):
        pass

    close = flush


def study(**changed):
    torch.manual_seed(7)
    parts = {
        "server": Inputs,
        "model": Network(),
        "optimizer": functools.partial(torch.optim.SGD, lr=0.05),
        "criterion": functional.mse_loss,
        "callbacks": [Killer(Path("killed").absolute())],
        "writers": [Lines],
    }
    plain = json.loads(sys.argv[1])
    plain["study"]["simulations"] = changed.pop("simulations", 3)
    return Study(plain, **parts | changed)
'''
FIRST = """
status = study().start(ranks=2).wait(100)
assert (status.state, status.exit_code) == ("finished", 0), (status, status.log)
"""
# The classes of this start count, and the weights of the run.
SECOND = """
class Inputs(Inputs):
    def on_train_start(self):
        Path("began").write_text(str(self.progress.batches))


going_on = study(simulations=4)
print(going_on.check())
run = going_on.start(ranks=1)
status = run.wait(100)
assert (status.state, status.exit_code) == ("finished", 0), (status, status.log)
model = run.model()
assert type(model) is Network and run.server().criterion is functional.mse_loss
np.savez("weights", **{name: each.numpy() for name, each in model.state_dict().items()})
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "my-study"
    made.mkdir()
    (made / "ripple.py").symlink_to(NUMPY_STUDY.parent / "ripple.py")
    return made


def plain(**changes: Any) -> dict[str, Any]:
    study: dict[str, Any] = json.loads(NUMPY_STUDY.read_text())
    del study["server"], study["metrics"]
    return study | {"checkpoint": {"every_batches": 2}} | changes


def run(code: str, folder: Path) -> None:
    mark = uuid.uuid4().hex
    try:
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM + code, json.dumps(plain())],
            cwd=folder,
            env=os.environ | {MARK: mark},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    finally:
        left = marked_processes(mark)
        for process in left:
            process.kill()
        psutil.wait_procs(left)


@pytest.mark.slow
def test_what_a_script_has_is_trained_on_two_ranks_after_a_kill_too_and_goes_on_with_what_the_next_script_has(
    folder: Path,
) -> None:
    run(FIRST, folder)
    output_dir = folder / "runs" / "ripple"
    report = json.loads((output_dir / "report.json").read_text())
    assert (report["restarts"], report["samples"]["trained"]) == (1, 3 * NUM_STEPS)
    assert (folder / "steps").read_text() == str(report["batches"])
    assert str(report["batches"]) in (output_dir / "metrics" / "lines").read_text().split()
    [parts] = folder.glob("ripple-*.study-parts.pickle")
    assert parts.stat().st_mode & 0o777 == 0o600

    run(SECOND, folder)
    assert (folder / "began").read_text() == str(report["batches"])
    report = json.loads((output_dir / "report.json").read_text())
    assert report["samples"]["trained"] == 4 * NUM_STEPS
    assert report["validation"][-1]["loss"] == pytest.approx(held_out_error(output_dir, folder / "weights.npz"), 1e-4)


def held_out_error(output_dir: Path, weights: Path) -> float:
    """The mean squared error of the network on the simulation that was held out, by NumPy."""
    with (output_dir / "parameters.csv").open() as file:
        parameters = {name: float(value) for name, value in next(csv.DictReader(file)).items()}
    steps = np.arange(NUM_STEPS)
    inputs = np.stack(
        [np.full(NUM_STEPS, parameters["offset"]), np.full(NUM_STEPS, parameters["slope"]), steps / 20], 1
    )
    net = np.load(weights)
    outputs = np.tanh(inputs @ net["hidden.weight"].T + net["hidden.bias"]) @ net["out.weight"].T + net["out.bias"]
    signals = np.stack([signal_at(step, parameters) for step in steps])
    return float(np.mean((outputs - signals) ** 2))


class Counting(Callback):
    """Does nothing, and has what is asked of a model."""

    named_parameters = None


class Pairs(TorchServer):
    process_batch = training_step = validation_step = lambda *_: 0.0


def test_a_part_takes_the_place_of_a_name_and_its_arguments_stay_in_the_dict(folder: Path) -> None:
    training = {"batch_size": 4, "model": {"class": "net.py:Net", "args": {"width": 3}}, "optimizer": {"class": "o:O"}}
    study = Study(plain(training=training), folder, server=dict, model=list, callbacks=[Counting(), "call.py:Back"])
    settings, name = study.config.training, study.config.server.class_.removesuffix(":server")
    assert re.fullmatch(r"ripple-[0-9a-f]{8}\.study-parts\.pickle", name)
    assert settings.model is not None
    assert (settings.model.class_, settings.model.args) == (f"{name}:model", {"width": 3})
    assert [each.class_ for each in settings.callbacks] == [f"{name}:callbacks_0", f"{folder}/call.py:Back"]


def test_each_output_folder_has_parts_of_its_own_and_may_get_another_name(folder: Path) -> None:
    def made(output_dir: str) -> StudyConfig:
        changed = plain()
        changed["study"]["output_dir"] = output_dir
        return Study(changed, folder, server=dict).config

    one, other = made("runs/one"), made("runs/other")
    assert one.server.class_ != other.server.class_
    assert made("runs/one").server.class_ == one.server.class_
    check_continuation(one.resolved(), other)
    with pytest.raises(ConfigError, match=r'server\.class: "mine\.py:Server", but the run began with'):
        check_continuation(one.resolved(), Study(plain(server={"class": "mine.py:Server"}), folder).config)


def test_objects_that_share_a_network_share_it_in_the_server_and_each_server_has_its_own(folder: Path) -> None:
    net = nn.Linear(1, 1)
    study = Study(
        plain(), folder, server=Pairs, model=net, criterion=Physics(net), callbacks=[Watch(net)], optimizer=SGD
    )
    study._write()
    servers = [Pairs(study.config) for _ in range(2)]
    for server in servers:
        criterion, (model, _), [watch] = (
            make_criterion(server),
            make_training_attributes(server),
            make_callbacks(server),
        )
        assert model is criterion.net is watch.net
        assert model is not net
        server.hold_attributes(model=model)
    assert servers[0].model is not servers[1].model


class Physics(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, outputs: Any, targets: Any) -> Any:
        return nn.functional.mse_loss(outputs, targets) + sum(each.square().sum() for each in self.net.parameters())


class Watch(Callback):
    def __init__(self, net: nn.Module) -> None:
        self.net = net


def test_a_part_that_is_none_is_not_given(folder: Path) -> None:
    study = Study(plain(server={"class": "mine.py:Server"}), folder, server=None, model=None, callbacks=None)
    assert (study.config.server.class_, study.config.training.model) == (f"{folder}/mine.py:Server", None)


def test_a_mistake_in_a_part_is_told_by_the_check_and_writes_nothing(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^Study takes no optimiser: write optimizer$"):
        Study(plain(), folder, optimiser=dict)
    with pytest.raises(ConfigError, match=r"server\.class: missing"):
        Study(plain(server={}), folder, callbacks=[])
    with pytest.raises(ConfigError, match=r"server\.class must name a subclass of StreamServer or TorchServer, but"):
        Study(plain(), folder, server=Counting()).check()
    with pytest.raises(ConfigError, match=r"optimizer\.args do not fit .*; it is an object of the class Counting"):
        Study(plain(), folder, server=Pairs, model=Counting, optimizer=Counting()).check()
    for name, wrong in {"callbacks": Counting(), "writers": "tensorboard"}.items():
        with pytest.raises(ConfigError, match=f"^{name} of Study must be a list, but is .*: write {name}="):
            Study(plain(), folder, **{name: wrong})
    with pytest.raises(ConfigError, match=r"cannot be written as JSON: <class '.*Counting'> is no number"):
        Study(plain(), folder, server=Pairs, model={"class": "net.py:Net", "args": {"activation": Counting}})
    with pytest.raises(ConfigError, match=r"training\.model\.class must make a torch.nn.Module, but .* <class 'dict'>"):
        Study(plain(), folder, server=Pairs, model={"klass": Counting}, optimizer=SGD).check()
    with pytest.raises(
        ConfigError, match=r"metrics\.writers: .*:writers_0 must be a class, but is an object of .*Counting"
    ):
        Study(plain(), folder, server=Pairs, model=Counting, optimizer=SGD, writers=[Counting()]).check()
    with pytest.raises(ConfigError, match=r"criterion\.class must make a loss that can be called, but .*SimpleNamesp"):
        Study(plain(), folder, server=Pairs, model=Counting, optimizer=SGD, criterion=SimpleNamespace()).check()
    lock = Lock()
    with pytest.raises(ConfigError, match="callbacks_0 cannot be sent to the server, which is another process"):
        Study(plain(), folder, server=dict, callbacks=[lambda: lock]).check()
    assert list(folder.glob("*.pickle")) == []
