"""Models, optimizers, schedulers and callbacks that study.json names, as a reader of the docs would write them."""

import json
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from stream_server.config import StudyConfig, load
from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.commands.check import describe
from stream_server.server.commands.fast_dev_run import fast_dev_run
from stream_server.server.user.callbacks import EVENTS
from stream_server.server.user.components import load_server_class, make_callbacks

SERVER = """
import torch
from stream_server import StreamServer, TorchServer

class Fields:
    def process_batch(self, batch, config):
        return torch.as_tensor(batch.parameters, dtype=torch.float32), torch.as_tensor(batch.fields["x"])

    def training_step(self, batch, batch_idx):
        inputs, targets = batch
        return torch.nn.functional.mse_loss(self.model(inputs), targets)

class Server(Fields, TorchServer):
    pass

class Stepless(TorchServer):
    process_batch = Fields.process_batch

class Looped(Stepless):
    training_step = validation_step = Fields.training_step
    criterion = None

    def train_dataloader(self):
        return None

    def val_dataloader(self):
        return [self.process_batch(None, None)]

class Own(Server):
    def prepare_training_attributes(self):
        model = torch.nn.Linear(2, 3)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

class Plain(StreamServer):
    process_batch = training_step = lambda *_: 0.0
"""
NETWORKS = """
import json
from pathlib import Path

import torch
from stream_server import Callback
from torch import nn
from torch.utils.data import DataLoader

class Network(nn.Sequential):
    def __init__(self, width, depth=1, activation="Tanh"):
        hidden = [layer for _ in range(depth) for layer in (nn.LazyLinear(width), getattr(nn, activation)())]
        super().__init__(*hidden, nn.LazyLinear(3))

def linear(bias=True):
    return nn.Linear(2, 3, bias=bias)

class Moody(nn.Module):
    def __init__(self):
        super().__init__()
        raise RuntimeError("not today")

def number(*_):
    return 3

def loader(dataset, batch_size):
    return DataLoader(dataset, batch_size=batch_size, collate_fn=stacked)

def stacked(samples):
    inputs = [torch.as_tensor(each.parameters, dtype=torch.float32) for each in samples]
    return torch.stack(inputs), torch.stack([torch.as_tensor(each.fields["x"]) for each in samples])

def held_out(num):
    return [(torch.zeros(2, 2), torch.full((2, 3), float(each))) for each in range(num)]

def nothing(optimizer):
    pass

class Unstepped:
    def __init__(self, *_): ...

class Rates(Callback):
    def __init__(self, file, *, every=1):
        self.file, self.every, self.rates = Path(file), every, []

    def on_step_end(self, server):
        self.rates.append(server.optimizer.param_groups[0]["lr"])

    def on_validation_end(self, server, metrics):
        self.validated = metrics

    def on_train_end(self, server):
        told = {"rates": self.rates[:: self.every], "optimizer": type(server.optimizer).__name__}
        told["weights"] = [each.tolist() for each in server.model.parameters()]
        told["val"] = getattr(self, "validated", None)
        self.file.write_text(json.dumps(told | {"model": repr(server.model), "steps": server.expected_lr_steps}))
"""
NETWORK: dict[str, Any] = {"class": "networks.py:Network", "args": {"width": 4}}
ADAMW: dict[str, Any] = {"class": "torch.optim:AdamW", "args": {"lr": 0.5}}
CYCLE: dict[str, Any] = {
    "class": "torch.optim.lr_scheduler:OneCycleLR",
    "args": {"max_lr": 0.25, "total_steps": "{expected_lr_steps}"},
}
WHOLE: dict[str, Any] = {"model": NETWORK, "optimizer": ADAMW}


@pytest.fixture(autouse=True)
def _imports_are_undone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr("sys.path", list(sys.path))
    before = dict(sys.modules)
    yield
    for name in ("server", "networks", "points"):
        sys.modules.pop(name, None)
        if name in before:
            sys.modules[name] = before[name]


def study(folder: Path, training: dict[str, Any], *overrides: str, server_class: str = "Server") -> StudyConfig:
    (folder / "server.py").write_text(SERVER)
    (folder / "networks.py").write_text(NETWORKS)
    content = {
        "study": {"simulations": 4, "time_steps": 5, "fields": {"x": {"shape": [3], "dtype": "float32"}}},
        "parameters": {"bounds": {"a": [0, 1], "b": [1, 2]}},
        "server": {"class": f"server.py:{server_class}"},
        "buffer": {"capacity": 100, "policy": "firo", "watermark": 1},
        "training": {"batch_size": 4, **training},
    }
    (folder / "study.json").write_text(json.dumps(content))
    return load(folder / "study.json", overrides)


def trained(folder: Path, training: dict[str, Any], *overrides: str, server_class: str = "Server") -> dict[str, Any]:
    """The report of the callback `Rates` on a short training."""
    callback = {"class": "networks.py:Rates", "args": {"file": str(folder / "rates.json")}}
    config = study(folder, {"callbacks": [callback], **training}, *overrides, server_class=server_class)
    assert fast_dev_run(load_server_class(config), config) == 0
    told: dict[str, Any] = json.loads((folder / "rates.json").read_text())
    return told


def refusal(folder: Path, training: dict[str, Any], server_class: str = "Server") -> str:
    """The error message of `--check`, or else of the start of the study."""
    try:
        config = study(folder, training, server_class=server_class)
        describe(config)
        load_server_class(config)
    except ConfigError as error:
        return str(error)
    return "nothing"


def test_the_model_and_the_optimizer_that_study_json_names_are_trained(tmp_path: Path) -> None:
    told = trained(tmp_path, WHOLE)
    assert told["model"].startswith("Network(\n  (0): Linear(in_features=2, out_features=4")
    assert (told["optimizer"], told["rates"]) == ("AdamW", [0.5, 0.5, 0.5])


def test_a_study_is_varied_on_the_command_line(tmp_path: Path) -> None:
    overrides = (
        "training.optimizer.args.lr=1e-3",
        "training.model.args.width=7",
        "training.model.args.activation=GELU",
    )
    told = trained(tmp_path, WHOLE, *overrides)
    assert "out_features=7" in told["model"]
    assert "GELU" in told["model"]
    assert told["rates"] == [1e-3, 1e-3, 1e-3]


def test_a_scheduler_is_told_how_many_steps_there_will_be(tmp_path: Path) -> None:
    told = trained(tmp_path, {**WHOLE, "lr_scheduler": CYCLE})
    assert told["steps"] == 5
    # By default one cycle begins at a 25th of its largest rate, which it reaches after 30 % of the steps.
    assert told["rates"][0] == pytest.approx(0.01)
    assert max(told["rates"]) == pytest.approx(0.25, rel=0.2)


def test_a_function_may_make_the_model(tmp_path: Path) -> None:
    told = trained(tmp_path, {**WHOLE, "model": {"class": "networks.py:linear", "args": {"bias": False}}})
    assert told["model"] == "Linear(in_features=2, out_features=3, bias=False)"


def test_callbacks_go_with_a_server_class_that_makes_its_own_model(tmp_path: Path) -> None:
    assert trained(tmp_path, {}, server_class="Own")["optimizer"] == "SGD"


@pytest.mark.parametrize(
    "criterion",
    [
        {"class": "torch.nn:MSELoss"},
        {"class": "torch.nn.functional:mse_loss"},
        {"class": "torch.nn.functional:mse_loss", "args": {"reduction": "mean"}},
    ],
)
def test_with_a_criterion_a_class_without_steps_trains_as_one_that_has_them(
    tmp_path: Path, criterion: dict[str, Any]
) -> None:
    explicit = trained(tmp_path, WHOLE)
    by_default = trained(tmp_path, {**WHOLE, "criterion": criterion}, server_class="Stepless")
    assert by_default["weights"] == explicit["weights"]


def test_the_loss_of_a_validation_is_by_default_the_criterion_of_the_loader_that_is_named(tmp_path: Path) -> None:
    told = trained(
        tmp_path,
        {
            **WHOLE,
            "criterion": {"class": "torch.nn:L1Loss"},
            "optimizer": {"class": "torch.optim:SGD", "args": {"lr": 0.1}},
            "model": {"class": "networks.py:linear", "args": {"bias": False}},
        },
        'validation.val_dataloader={"class": "networks.py:held_out", "args": {"num": 4}}',
        server_class="Stepless",
    )
    # Of zeros a linear model without bias makes zeros.
    assert told["val"]["loss"] == pytest.approx((0 + 1 + 2 + 3) / 4)


def test_a_loader_that_is_named_makes_the_batches(tmp_path: Path) -> None:
    explicit = trained(tmp_path, WHOLE)
    loader = {"class": "networks.py:loader", "args": {"batch_size": 4}}
    assert trained(tmp_path, {**WHOLE, "train_dataloader": loader})["weights"] == explicit["weights"]


@pytest.mark.parametrize("key", ["criterion", "train_dataloader"])
def test_what_the_class_has_itself_is_not_named_as_well(tmp_path: Path, key: str) -> None:
    named = {**WHOLE, key: {"class": "torch.nn:MSELoss"}}
    assert f"the {key} is made twice, by training.{key} and by Looped.{key}" in refusal(tmp_path, named, "Looped")
    assert f"training.{key} would be ignored by Plain" in refusal(tmp_path, {key: named[key]}, "Plain")


def test_check_shows_what_would_be_made_and_makes_nothing(tmp_path: Path) -> None:
    text = describe(study(tmp_path, {**WHOLE, "model": {"class": "networks.py:Moody"}, "lr_scheduler": CYCLE}))
    assert f"model         {tmp_path}/networks.py:Moody()" in text
    assert "optimizer     torch.optim:AdamW(lr=0.5)" in text
    assert "lr_scheduler  torch.optim.lr_scheduler:OneCycleLR(max_lr=0.25, total_steps='{expected_lr_steps}')" in text


@pytest.mark.parametrize(
    ("training", "server_class", "told"),
    [
        ({"model": NETWORK}, "Server", "training.model: there is no training.optimizer."),
        ({"optimizer": ADAMW}, "Server", "training.optimizer: there is no training.model."),
        ({"lr_scheduler": CYCLE}, "Own", "training.lr_scheduler: there is no training.optimizer."),
        ({}, "Server", "Server must define prepare_training_attributes, or study.json must have training.model"),
        (WHOLE, "Own", "made twice, by training.model and by Own.prepare_training_attributes: remove one of the two"),
        (WHOLE, "Plain", "training.model would be ignored by Plain: make it a subclass of TorchServer"),
        (
            {**WHOLE, "model": {"class": "networks.py:Netwrk"}},
            "Server",
            "networks.py has no Netwrk: write Network",
        ),
        (
            {**WHOLE, "model": {"class": "netwrks.py:Network"}},
            "Server",
            "netwrks.py: write networks.py",
        ),
        (
            {**WHOLE, "optimizer": {"class": "torch.optims:AdamW"}},
            "Server",
            "training.optimizer.class must name a class, but there is no module torch.optims",
        ),
        ({**WHOLE, "model": {"class": "networks.py:Network"}}, "Server", "missing a required argument: 'width'"),
        (
            {**WHOLE, "optimizer": {"class": "torch.optim:AdamW", "args": {"weight_deca": 0.1}}},
            "Server",
            "training.optimizer.args do not fit torch.optim:AdamW: got an unexpected keyword argument 'weight_deca'; "
            "write weight_decay",
        ),
        (
            {**WHOLE, "optimizer": {"class": "torch.optim:AdamW", "args": {"params": []}}},
            "Server",
            "training.optimizer.args do not fit torch.optim:AdamW: multiple values for argument 'params'",
        ),
        (
            {**WHOLE, "model": {**NETWORK, "arg": {}}},
            "Server",
            'training.model.arg: unknown key. Write "args".',
        ),
        (
            {**WHOLE, "lr_scheduler": {**CYCLE, "args": {"total_steps": "{expected_steps}"}}},
            "Server",
            'training.lr_scheduler.args.total_steps: "{expected_steps}" is not known. Write "{expected_lr_steps}".',
        ),
        (
            {**WHOLE, "callbacks": [{"class": "networks.py:Network", "args": {"width": 3}}]},
            "Server",
            "training.callbacks[0].class must name a subclass of Callback, but",
        ),
        (
            {**WHOLE, "model": {"class": "networks.py:Unstepped"}},
            "Server",
            "training.model.class must make a torch.nn.Module, but",
        ),
        (
            {**WHOLE, "optimizer": {"class": "networks.py:Unstepped"}},
            "Server",
            "training.optimizer.class must make a torch.optim.Optimizer, but",
        ),
        (
            {**WHOLE, "criterion": {"class": "networks.py:Unstepped"}},
            "Server",
            "training.criterion.class must make a loss that can be called, but",
        ),
        (
            {**WHOLE, "lr_scheduler": {"class": "networks.py:Unstepped"}},
            "Server",
            "training.lr_scheduler.class must make a learning-rate scheduler with step and state_dict, but",
        ),
        (WHOLE, "Stepless", "Stepless must define training_step, which this study needs"),
        (
            {**WHOLE, "criterion": {"class": "torch.nn:HuberLoss", "args": {"dleta": 1.0}}},
            "Stepless",
            "training.criterion.args do not fit torch.nn:HuberLoss: got an unexpected keyword argument 'dleta'; "
            "write delta",
        ),
        (
            {**WHOLE, "criterion": {"class": "torch.nn.functional:huber_loss", "args": {"dleta": 1.0}}},
            "Stepless",
            "got an unexpected keyword argument 'dleta'; write delta",
        ),
        (
            {**WHOLE, "callbacks": [{"class": "networks.py:Rates", "args": {"evry": 3}}]},
            "Server",
            "training.callbacks[0].args do not fit",
        ),
    ],
)
def test_a_mistake_is_told_before_anything_starts(
    tmp_path: Path, training: dict[str, Any], server_class: str, told: str
) -> None:
    assert told in refusal(tmp_path, training, server_class)


def test_a_scheduler_cannot_be_told_how_many_steps_there_will_be_if_nobody_knows(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"total_steps: \{expected_lr_steps\} is not known in advance"):
        study(tmp_path, {**WHOLE, "lr_scheduler": CYCLE}, "study.time_steps=null")


def test_every_mistake_is_told_at_once(tmp_path: Path) -> None:
    text = refusal(tmp_path, {"model": {"class": "networks.py:Netwrk"}, "optimizer": {"clas": "torch.optim:SGD"}})
    assert "training.optimizer.clas: unknown key" in text
    assert "training.optimizer.class: missing" in text


@pytest.mark.parametrize(
    ("key", "name", "told"),
    [
        ("model", "Moody", "RuntimeError: not today"),
        ("model", "number", "training.model.class must make a torch.nn.Module, but FILE:number made 3"),
        ("optimizer", "number", "training.optimizer.class must make a torch.optim.Optimizer, but FILE:number made 3"),
        ("lr_scheduler", "number", "scheduler with step and state_dict, but FILE:number made 3"),
        ("lr_scheduler", "nothing", "scheduler with step and state_dict, but FILE:nothing made None"),
    ],
)
def test_a_class_that_raises_or_makes_something_else_is_the_users_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], key: str, name: str, told: str
) -> None:
    config = study(tmp_path, {**WHOLE, key: {"class": f"networks.py:{name}"}})
    assert fast_dev_run(load_server_class(config), config) == UserCodeError.exit_code
    text = capsys.readouterr().err
    assert f"training.{key}" in text
    assert told.replace("FILE", str(tmp_path / "networks.py")) in text


MISSPELT = """
from stream_server import Callback, StreamServer

class Mistyped(StreamServer):
    process_batch = lambda *_: None

    def traning_step(self, batch, batch_idx):
        return 0.0

class Hooked(StreamServer):
    process_batch = training_step = lambda *_: 0.0

    def on_btach_end(self, batch, batch_idx, loss):
        pass

    def train_step(self):
        "A method of their own, since training_step is there."

    def configure_callbacks(self):
        self.on_reset()
        return [Noting()]

    def on_reset(self):
        "A method of their own, since it is called."

    def configure_optimizers(self):
        pass

    def on_before_optimizer_step(self, optimizer):
        "As on_entropy says."
        # on_before_optimizer_step of Lightning

    def on_entropy(self):
        pass

    def training_epoch_end(self, outputs):
        pass

class Noting(Callback):
    def on_steps_end(self, server):
        pass

    def on_train_batch_end(self, server, *_):
        pass
"""


def test_a_misspelt_method_is_named_with_what_was_meant(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = study(tmp_path, {})
    (tmp_path / "misspelt.py").write_text(MISSPELT)
    section = config.server.model_copy(update={"class_": "misspelt.py:Mistyped"})
    with pytest.raises(ConfigError, match=r"did you mean training_step by traning_step\?"):
        load_server_class(config.model_copy(update={"server": section}))

    section = config.server.model_copy(update={"class_": "misspelt.py:Hooked"})
    config = config.model_copy(update={"server": section})
    server_class = load_server_class(config)
    make_callbacks(server_class(config))
    assert caplog.messages == [
        "Hooked.on_btach_end is never called by the study: did you mean on_batch_end?",
        "Hooked.configure_optimizers is never called by the study: did you mean prepare_training_attributes?",
        "Hooked.on_before_optimizer_step is never called by the study: did you mean on_gradients?",
        f"Hooked.on_entropy is never called by the study, whose events are {', '.join(EVENTS)}",
        "Hooked.training_epoch_end is never called by the study: did you mean on_validation_end: a stream has no "
        "epochs?",
        "Noting.on_steps_end is never called by the study: did you mean on_step_end?",
        "Noting.on_train_batch_end is never called by the study: did you mean on_batch_end?",
    ]


POINTS = """
class Points:
    def suggest(self, num):
        raise AssertionError("nobody is to ask a class that learns while a study is checked")

    def ingest(self, results): ...

class Steady:
    def __init__(self, bounds, seed, spread=1.0):
        self.bounds = bounds

    def suggest(self, num):
        return [{name: low for name, (low, high) in self.bounds.items()}] * num

class Mute: ...

class Learner(Steady):
    def ingest(self, results): ...

def made(bounds, seed, scale):
    return Learner(bounds, seed)
"""
STEADY: dict[str, Any] = {"class": "points.py:Steady"}


@pytest.mark.parametrize(
    ("sampler", "said"),
    [
        (STEADY, ""),
        ({**STEADY, "args": {"spread": 2}}, ""),
        ({**STEADY, "args": {"sprad": 2}}, 'sampler.args has "sprad", but the arguments of Steady are "spread"'),
        ({**STEADY, "lookahead": 2}, "lookahead would be ignored, since points.py:Steady has no ingest"),
        ("points.py:Mute", r"points.py:Mute must have a method suggest\(num\), but has none"),
        ({"class": "points.py:made", "args": {"scale": 2}, "lookahead": 2}, ""),
        ("points.py:made", "sampler.args must have scale, which made needs"),
        ({"class": "breed", "args": {"sgma": 0.2}}, 'sampler.args has "sgma"'),
    ],
)
def test_a_check_refuses_a_sampler_that_a_start_would_refuse(tmp_path: Path, sampler: Any, said: str) -> None:
    (tmp_path / "points.py").write_text(POINTS)
    study(tmp_path, WHOLE)
    overrides = [f"parameters.sampler={json.dumps(sampler)}", 'simulation.command=["true"]']
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        describe(load(tmp_path / "study.json", overrides))


def test_a_check_refuses_parameters_named_like_results_where_the_class_learns(tmp_path: Path) -> None:
    (tmp_path / "points.py").write_text(POINTS)
    study(tmp_path, WHOLE)
    overrides = ["parameters.sampler=points.py:Points", "parameters.bounds.loss=[0, 1]", 'simulation.command=["true"]']
    with pytest.raises(ConfigError, match=r"parameters\.bounds: loss is what points\.py:Points is told"):
        describe(load(tmp_path / "study.json", overrides))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"sampler": {"class": "points.py:Points", "lookahead": 4}}, "lookahead is 4, a worker gets one .* Write 5 or"),
        ({"sampler": "breed"}, "lookahead is 2, a worker gets one simulation"),
        ({"sampler": {"class": "points.py:Points", "lookahead": 5}}, ""),
        ({"sampler": {"class": "points.py:Other"}}, "Other"),
        ({}, ""),
    ],
)
def test_a_check_finds_a_lookahead_from_which_no_worker_gets_two(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    (tmp_path / "points.py").write_text(POINTS)
    study(tmp_path, WHOLE)
    content = json.loads((tmp_path / "study.json").read_text())
    content["parameters"] |= changes
    content["simulation"] = {"command": ["true"], "per_worker": 8}
    content["launcher"] = {"max_running": 2}
    (tmp_path / "study.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match=said) if said else nullcontext():
        describe(load(tmp_path / "study.json", []))
