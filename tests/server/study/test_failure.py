"""Which exit code an exception gets: 7 only where a rank, a thread or a node was lost."""

import re
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from stream_server import errors
from stream_server.buffers import Buffer, Drawn, Fifo, Slots
from stream_server.buffers.policy import SlotArray
from stream_server.errors import ConfigError, ProducerFailed, RankLost, StreamServerError, UserCodeError
from stream_server.launcher.supervision import cli as launcher_cli
from stream_server.server.commands import cli
from stream_server.server.commands.fast_dev_run import fast_dev_run
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.stop import StopRequests
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.run.start import StartOptions
from stream_server.server.study import study as server_study
from stream_server.server.study.failure import Failure
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import encode
from stream_server.user_code import call_user
from tests.server.commands.test_fast_dev_run import MeanServer, study
from tests.support.settings import settings

CODES = {
    "ConfigError": 2,
    "UserCodeError": 3,
    "TooManyFailures": 4,
    "NonFiniteData": 4,
    "NotBalanced": 5,
    "ModelNotWritten": 9,
    "DamagedCheckpoint": 6,
    "NoUsableCheckpoint": 6,
    "RankLost": 7,
    "StaleIncarnation": 7,
    "RanksDiverged": 8,
    "InternalError": 70,
    "MalformedMessage": 70,
    "Closed": 70,
    "Refused": 70,
}
GLOO = "[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:41034"


def test_the_documented_exit_codes_are_those_that_there_are() -> None:
    saved_and_interrupted = {0, 75, 130}
    expected = saved_and_interrupted | {it.exit_code for it in vars(errors).values() if hasattr(it, "exit_code")}
    page = (Path(__file__).parents[3] / "docs" / "guide" / "restart.md").read_text()
    assert {int(code) for code in re.findall(r"^\| (\d+) \|", page, re.MULTILINE)} == expected
    # That of stream-study, whose help tells it.
    expected.remove(errors.NotRunning.exit_code)
    for epilog in (cli.EXAMPLES, launcher_cli.EPILOG):
        told = epilog.partition("exit status:\n")[2].partition("\n\n")[0]
        assert {int(code) for code in re.findall(r"(?:^| ) (\d+) [a-z]", told, re.MULTILINE)} >= expected - {130}


def failure_of(action: Callable[[], Any]) -> Failure:
    """How the failure of a rank that does this is told."""
    try:
        action()
    except BaseException as error:
        return Failure.of(error, rank=0, phase="training", batch=3)
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(("name", "code"), CODES.items())
def test_each_error_of_the_tree_has_its_exit_code(name: str, code: int) -> None:
    error: StreamServerError = getattr(errors, name)("text")
    assert Failure.of(error, rank=0, phase="training").exit_code == code


class Figure:
    """A user's object whose method fails."""

    def savefig(self, image: Any, format: str) -> None:
        raise KeyError("axis")


def raise_in_library() -> None:
    np.stack([np.zeros(2), np.zeros(3)])


def exit_in_method() -> None:
    call_user("Server.training_step", sys.exit, 0)


USERS: dict[str, Callable[[], Any]] = {
    "a method that is called as such": lambda: call_user("Server.log", raise_in_library),
    "an object that our code calls": lambda: Metrics(SoloRanks()).log_figure("f", Figure()),
    "a library that the user calls": raise_in_library,
    "a wrong use of ours by the user": lambda: call_user("Server.on_step_end", Metrics(SoloRanks()).log, "x", "y"),
    "memory that a method asks for": lambda: call_user("Server.training_step", bytearray, 2**62),
    "a method that leaves": exit_in_method,
}


@pytest.mark.parametrize("action", USERS.values(), ids=USERS)
def test_what_the_users_code_raises_is_3_with_its_traceback(action: Callable[[], Any]) -> None:
    failure = failure_of(action)
    assert failure.exit_code == 3
    assert "Traceback" in failure.traceback


class Raising(Fifo):
    """A user's policy whose methods fail: in another method, and in a library."""

    def ready(self, num: int) -> int:
        return num

    def put(self, slots: Sequence[int]) -> SlotArray:
        return self._order(slots)

    def _order(self, slots: Sequence[int]) -> SlotArray:
        raise KeyError("oops")

    def draw(self, num: int) -> Drawn:
        raise_in_library()
        return super().draw(num)


@pytest.mark.parametrize(("method", "told"), [("put", "KeyError: 'oops'"), ("draw", "ValueError: all input arrays")])
def test_what_the_users_policy_raises_names_the_method_that_was_called(method: str, told: str) -> None:
    buffer = Buffer(Raising(capacity=4), Slots({"x": ()}, 4))
    buffer.enqueue(buffer.claim(1))
    failure = failure_of({"put": buffer.admit, "draw": lambda: buffer.draw(1, timeout_s=0.0)}[method])
    assert failure.exit_code == UserCodeError.exit_code
    assert failure.message.startswith(f"Raising.{method} raised {told}")


@pytest.mark.parametrize("error", [KeyError("k"), ValueError(), OSError(22, "Invalid argument"), RuntimeError("dtype")])
def test_any_other_exception_is_70_and_asks_for_a_report(error: Exception) -> None:
    failure = Failure.of(error, rank=1, phase="training", batch=3)
    assert failure.exit_code == 70
    assert f"{type(error).__name__}: {error}" in failure.message
    assert "please report it with its traceback" in failure.message
    assert type(error).__name__ in failure.traceback


REFUSED = {
    "No space left": OSError(28, "No space left"),
    "ulimit -u": BlockingIOError(11, "Resource temporarily unavailable"),
    "start new thread. Have the limits": RuntimeError("can't start new thread"),
    "the system has no memory for it": MemoryError(),
    "ulimit -n": OSError(24, "Too many open files"),
}


@pytest.mark.parametrize(("words", "error"), REFUSED.items())
def test_what_the_machine_refuses_is_7_and_says_what_to_do(words: str, error: Exception) -> None:
    failure = Failure.of(error, rank=1, phase="training", batch=3)
    assert failure.exit_code == RankLost.exit_code
    assert words in failure.message
    assert "report" not in failure.message
    assert type(error).__name__ in failure.traceback


def test_an_exception_in_our_code_is_not_the_users_although_his_is_further_out() -> None:
    failure = failure_of(lambda: encode(object()))
    assert failure.exit_code == 70
    assert "plain_state.py" in failure.traceback


@pytest.mark.parametrize("error", [KeyError("k"), OSError(22, "Invalid argument")])
def test_an_exception_of_the_receiver_is_told_as_what_it_is(error: Exception) -> None:
    producer = ProducerFailed("the receiver failed")
    producer.__cause__ = error
    failure = Failure.of(producer, rank=0, phase="training")
    assert (failure.thread, failure.exit_code) == ("receiver", 70)


def test_a_connection_that_another_rank_took_with_it_is_a_lost_rank_also_in_the_users_step() -> None:
    def backward() -> None:
        raise RuntimeError(GLOO)

    for action in (backward, lambda: call_user("the backward pass of Net.training_step", backward)):
        failure = failure_of(action)
        assert (failure.exit_code, failure.message) == (RankLost.exit_code, "another rank died or lost its connection")
        assert GLOO in failure.traceback


class Items:
    """A data set of which the second item cannot be read."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> Any:
        if index:
            raise IndexError("the second item")
        return np.zeros(2, np.float32), np.zeros((3, 2), np.float32)


def raising(kind: type[BaseException]) -> Callable[..., Any]:
    def raise_it(*_: Any) -> Any:
        raise kind("trouble")

    return raise_it


METHODS: dict[str, dict[str, Any]] = {
    **{
        name: {name: raising(KeyError)}
        for name in (
            "__init__",
            "prepare_training_attributes",
            "configure_callbacks",
            "process_simulation_data",
            "process_batch",
            "training_step",
            "validation_step",
            "val_dataloader",
            "on_round",
            "on_step_end",
            "on_train_end",
        )
    },
    "memory": {"process_batch": raising(MemoryError)},
    "exit": {"training_step": raising(SystemExit)},
    "callbacks that are no list": {"configure_callbacks": lambda self: 5},
    "a loader": {"val_dataloader": lambda self: map_of_two()},
    "a data set": {"val_dataloader": lambda self: Items()},
    "a value that is no number": {"on_step_end": lambda self: self.log("x", [1, 2])},
    "a figure": {"on_step_end": lambda self: self.log_figure("f", Figure())},
}


def map_of_two() -> Any:
    class Loader:
        def __iter__(self) -> Any:
            raise OSError("the file of the loader is gone")

    return Loader()


@pytest.mark.parametrize("members", METHODS.values(), ids=METHODS)
def test_wherever_the_users_class_raises_it_is_3(
    members: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    server_class = type("Troubled", (MeanServer,), members)
    assert fast_dev_run(server_class, study(tmp_path, validation={"simulations": 1})) == 3
    assert "Traceback" in capsys.readouterr().err


class Twin(TorchServer):
    """The mean of x by torch."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Linear(2, 6)
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    def process_batch(self, batch: Any, config: Any) -> Any:
        return batch.parameters, batch.fields["x"].reshape(len(batch), -1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return nn.functional.mse_loss(self.model(batch[0]), batch[1])


class Stuck(torch.optim.SGD):
    """An optimizer that cannot step."""

    def step(self, closure: Any = None) -> None:
        torch.ones(2) @ torch.ones(3)


class Wrong(nn.Linear):
    """A model whose forward pass fails in torch."""

    def forward(self, values: Any) -> Any:
        return super().forward(values[:, :1])


def made(model: nn.Module, optimizer: type[torch.optim.Optimizer] = torch.optim.SGD, rate: Any = None) -> Any:
    def prepare_training_attributes(self: Any) -> Any:
        steps = optimizer(model.parameters(), lr=0.1)  # type: ignore[call-arg]
        return (model, steps) if rate is None else (model, steps, torch.optim.lr_scheduler.LambdaLR(steps, rate))

    return prepare_training_attributes


TORCH: dict[str, dict[str, Any]] = {
    "a forward pass": {"prepare_training_attributes": made(Wrong(2, 6))},
    "a loss without a gradient": {"training_step": lambda self, batch, batch_idx: torch.ones(())},
    "an optimizer": {"prepare_training_attributes": made(nn.Linear(2, 6), Stuck)},
    "an lr_scheduler": {"prepare_training_attributes": made(nn.Linear(2, 6), rate=lambda step: 1 / (1 - step))},
    "a batch of text": {"process_batch": lambda self, batch, config: (np.array(["a"]), np.array(["b"]))},
}


@pytest.mark.parametrize("members", TORCH.values(), ids=TORCH)
def test_what_torch_raises_in_the_users_model_is_3(
    members: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fast_dev_run(type("Troubled", (Twin,), members), study(tmp_path)) == 3
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("place", "key", "wanted"),
    [
        (0, "model", "a torch.nn.Module"),
        (1, "optimizer", "a torch.optim.Optimizer"),
        (2, "lr_scheduler", "a learning-rate scheduler with step and state_dict"),
    ],
)
def test_a_model_optimizer_or_scheduler_that_is_none_is_3(
    place: int, key: str, wanted: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare_training_attributes(self: Any) -> Any:
        parts = [*made(nn.Linear(2, 6), rate=lambda step: 1.0)(self)]
        parts[place] = 5
        return parts

    members = {"prepare_training_attributes": prepare_training_attributes}
    assert fast_dev_run(type("Troubled", (Twin,), members), study(tmp_path)) == 3
    said = f"the {key} that Troubled.prepare_training_attributes returns must be {wanted}, but is 5"
    assert said in capsys.readouterr().err


class ByEpoch(torch.optim.lr_scheduler.StepLR):
    def step(self, epoch: int) -> None:  # type: ignore[override]
        super().step()


@pytest.mark.filterwarnings("ignore:The epoch parameter")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda it: torch.optim.SGD(it.param_groups[0]["params"], lr=0.1), "step and state_dict, but is SGD"),
        (lambda it: torch.optim.lr_scheduler.StepLR, "step and state_dict, but is <class"),
        (lambda it: {"scheduler": torch.optim.lr_scheduler.StepLR(it, 1)}, "step and state_dict, but is {'scheduler'"),
        (
            lambda it: ByEpoch.__new__(ByEpoch),
            "lr_scheduler that Troubled.prepare_training_attributes returned is called with no arguments, but "
            "ByEpoch.step takes (epoch: int) -> None",
        ),
    ],
    ids=["optimizer", "class", "dict", "step"],
)
def test_an_lr_scheduler_of_another_kind_is_3(
    make: Any, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def prepare_training_attributes(self: Any) -> Any:
        model, optimizer, *_ = made(nn.Linear(2, 6))(self)
        return model, optimizer, make(optimizer)

    members = {"prepare_training_attributes": prepare_training_attributes}
    assert fast_dev_run(type("Troubled", (Twin,), members), study(tmp_path)) == 3
    assert told in capsys.readouterr().err


def test_a_model_that_the_ranks_would_share_out_is_refused() -> None:
    class Sharded(Twin):
        def prepare_training_attributes(self) -> Any:
            model, _ = super().prepare_training_attributes()
            fully_shard(model, mesh=init_device_mesh("cpu", (2,)))
            return model, torch.optim.SGD(model.parameters(), lr=0.1)

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        server = Sharded(settings(precision="32-true"))
        with pytest.raises(UserCodeError, match="is a DTensor, as fully_shard"), ExitStack() as stack:
            stack.enter_context(TorchStep(server, SoloRanks(), server.config))
    finally:
        torch.distributed.destroy_process_group()


def test_a_model_that_cannot_be_saved_is_3() -> None:
    class Sparse(Twin):
        def prepare_training_attributes(self) -> Any:
            model, optimizer = super().prepare_training_attributes()
            model.register_buffer("mask", torch.eye(3).to_sparse())
            return model, optimizer

    server = Sparse(settings(precision="32-true"))
    with TorchStep(server, SoloRanks(), server.config) as step:
        assert failure_of(step.state_dict).exit_code == 3


def test_a_rank_that_cannot_be_built_leaves_word_for_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_study, "StudyRank", lambda *_: encode(object()))
    config = study(tmp_path)
    watchdog: Any = SimpleNamespace(is_outdated=None)
    with pytest.raises(TypeError):
        server_study._run(config, SoloRanks(), StartOptions(), StopRequests(), watchdog)
    failure = Failure.read(config.output_dir)
    assert failure is not None
    assert (failure.phase, failure.exit_code, failure.batch) == ("set-up", 70, None)


def test_a_user_code_error_without_a_cause_is_its_text() -> None:
    assert Failure.of(UserCodeError("text"), rank=0, phase="training").traceback == "text\n"


@pytest.mark.parametrize("error", [ConfigError("text"), ValueError("text")])
def test_an_error_that_is_its_own_cause_is_told(error: Exception) -> None:
    other = KeyError("other")
    for cause in (error, other):
        error.__cause__, other.__cause__ = cause, error
        failure = Failure.of(error, rank=0, phase="training")
        assert failure.exit_code == (ConfigError.exit_code if isinstance(error, ConfigError) else 70)
        assert "text" in failure.message


def test_the_first_of_several_failures_is_kept_and_nothing_beside_it(tmp_path: Path) -> None:
    first, second = (Failure.of(KeyError("of rank"), rank=rank, phase="training") for rank in (1, 0))
    first.record(tmp_path)
    second.record(tmp_path)
    assert Failure.read(tmp_path) == first
    assert [file.name for file in tmp_path.iterdir()] == ["exit.json"]
