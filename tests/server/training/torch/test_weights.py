"""Which weights of a TorchServer are evaluated, exported, saved and left out."""

from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.model.best_models import BestFolder
from stream_server.server.model.saved_model import find_saved_model, load_model, model_files
from stream_server.server.progress.batches import StepCounts, UnionBatch
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.plain_step import PlainStep
from stream_server.server.training.torch.state import restored
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.stream_server import StreamServer
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


class Averaged(TorchServer):
    """Validates a moving average of its weights."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.ema = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5))
        return model, torch.optim.Adam(model.parameters(), lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model(batch) ** 2).mean()

    def on_step_end(self) -> None:
        self.ema.update_parameters(self.model)

    def model_to_evaluate(self) -> nn.Module:
        return self.ema


class Late(Averaged):
    """Makes the average when the training starts."""

    def prepare_training_attributes(self) -> Any:
        model, optimizer = super().prepare_training_attributes()
        del self.ema
        return model, optimizer

    def on_train_start(self) -> None:
        self.ema = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.5))


class Frozen(TorchServer):
    """A head on a backbone that it loads itself."""

    value = 0.5
    frozen = True
    options: ClassVar[dict[str, Any]] = {}

    def prepare_training_attributes(self) -> Any:
        model = nn.ModuleDict({"backbone": nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4)), "head": nn.Linear(4, 1)})
        for parameter in model["backbone"].parameters():
            parameter.requires_grad_(not self.frozen)
            nn.init.constant_(parameter, self.value)
        return model, torch.optim.SGD(model.parameters(), lr=0.1, **self.options)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.model["head"](self.model["backbone"](batch)) ** 2).mean()


class Filtered(Frozen):
    """Says by a method what is saved."""

    ending = "weight"

    def save_filter(self, name: str) -> bool:
        return not (name.startswith("backbone.0") and name.endswith(self.ending))


class Scaled(TorchServer):
    """Learns a scale that is in no module, and unfreezes its backbone at the third step."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 1))
        model[0].requires_grad_(False)
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.step = 0
        return model, torch.optim.Adam([*model.parameters(), self.scale], lr=0.1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return (self.scale * self.model(batch) ** 2).mean()

    def on_step_end(self) -> None:
        self.step += 1
        if self.step == 3:
            self.model[0].requires_grad_(True)


class OwnBackward(Averaged):
    """Backpropagates by itself, which gives the gradient of one rank's batch."""

    automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        super().training_step(batch, batch_idx).backward()
        self.optimizer.step()


def step_of(server_class: type[TorchServer], *exclude: str) -> TorchStep:
    config = settings()
    config.checkpoint.exclude = exclude
    server = server_class(config)
    return TorchStep(server, SoloRanks(), config)


def server_of(step: TorchStep) -> Any:
    return step._server


def train(step: TorchStep, first: int, stop: int) -> None:
    for index in range(first, stop):
        data = torch.randn(4, 3, generator=torch.Generator().manual_seed(index)).double()
        union_batch = UnionBatch(own=batch_of(data, 4), sizes=(4,), counts=StepCounts(num_first=4))
        step.run(union_batch, step.to_device(data), index)
        server_of(step).on_step_end()


def saved(step: TorchStep) -> Any:
    step.synchronize()
    return from_bytes(to_bytes(step.state_dict()))


def values(state: Any) -> dict[str, Any]:
    return {name: tensor.tolist() for name, tensor in restored(state).items()}


def test_the_average_is_the_model_while_it_is_validated_and_only_then() -> None:
    with step_of(Averaged) as step:
        train(step, 0, 3)
        server = server_of(step)
        trained = server.model
        with step.evaluating():
            assert server.model is server.ema.module
            assert not any(module.training for module in (*trained.modules(), *server.model.modules()))
        assert server.model is trained
        assert trained.training
        with pytest.raises(ArithmeticError), step.evaluating():
            raise ArithmeticError
        assert server.model is trained


class Apart(Averaged):
    """A decoder with batch norm, a dropout, and a part that stays in evaluation mode, beside the model."""

    def prepare_training_attributes(self) -> Any:
        self.decoder, self.dropouts = nn.BatchNorm1d(3), [nn.Dropout(0.5)]
        self.pretrained = nn.BatchNorm1d(3).eval()
        return super().prepare_training_attributes()


def test_all_modules_of_the_server_are_in_evaluation_mode_within_a_validation() -> None:
    server = Apart(settings())
    parts = ("model", "decoder", "dropout", "pretrained", "ema")
    with TorchStep(server, SoloRanks(), server.config) as step:

        def modes() -> list[bool]:
            modules = (server.model, server.decoder, *server.dropouts, server.pretrained, server.ema)
            return [module.training for module in modules]

        assert dict(zip(parts, modes(), strict=True)) == dict.fromkeys(parts, True) | {"pretrained": False}
        with step.evaluating():
            assert not any(modes())
            server.decoder(torch.ones(2, 3))
        assert dict(zip(parts, modes(), strict=True)) == dict.fromkeys(parts, True) | {"pretrained": False}
        assert server.decoder.running_mean.tolist() == [0, 0, 0]


def test_the_average_is_saved_and_comes_back_to_the_last_bit() -> None:
    with step_of(Averaged) as step:
        train(step, 0, 3)
        state = saved(step)
        train(step, 3, 6)
        undisturbed = to_bytes(step.state_dict())
    with step_of(Averaged) as other:
        other.load_state_dict(state)
        assert server_of(other).ema.n_averaged == 3
        train(other, 3, 6)
        assert to_bytes(other.state_dict()) == undisturbed


def test_parameters_that_only_an_optimizer_has_come_back_and_what_is_frozen_stays_so() -> None:
    with step_of(Scaled) as step:
        train(step, 0, 4)
        state = saved(step)
        train(step, 4, 6)
        undisturbed = to_bytes(step.state_dict())
    with step_of(Scaled) as other:
        other.load_state_dict(state)
        assert server_of(other).scale.item() != 2.0
        assert server_of(other).model[0].weight.requires_grad
        train(other, 4, 6)
        assert to_bytes(other.state_dict()) == undisturbed


def test_parameters_that_only_an_optimizer_has_are_compared_over_the_ranks() -> None:
    with step_of(Scaled) as step:
        before = step.fingerprints()
        server_of(step).scale.data.mul_(1.5)
        after = step.fingerprints()
    assert {name for name in after if after[name] != before[name]} == {"parameter 4 in group 0 of optimizer 0"}


def test_what_is_learned_are_the_parameters_of_all_modules_and_the_arrays_in_the_state() -> None:
    class WithState(Averaged):
        def state_dict(self) -> Any:
            return {"scale": self.model[2].bias.detach(), "num": 1, "time": 2.5}

    with step_of(WithState) as step:
        before = step.learned()
        nn.init.zeros_(server_of(step).model[2].bias)
        after = step.learned()
    assert {name for name in after if after[name] != before[name]} == {"2.bias", "state_dict()['scale']"}
    assert {"0.weight", "ema.module.0.weight"} < before.keys()
    assert not any("num" in name or "time" in name for name in before)


def test_an_average_that_is_made_when_the_training_starts_comes_back_then() -> None:
    with step_of(Late) as step:
        server_of(step).on_train_start()
        train(step, 0, 3)
        state = saved(step)
        train(step, 3, 6)
        undisturbed = to_bytes(step.state_dict())
    with step_of(Late) as other:
        other.load_state_dict(state)
        server_of(other).on_train_start()
        train(other, 3, 6)
        assert to_bytes(other.state_dict()) == undisturbed


def test_an_average_that_nobody_makes_any_more_is_not_lost_silently() -> None:
    with step_of(Averaged) as step:
        state = saved(step)
    with step_of(Late) as other:
        other.load_state_dict(state)
        with pytest.raises(UserCodeError, match=r"module Late\.ema, which is not there"):
            train(other, 0, 1)


def test_modules_in_lists_and_dicts_are_saved_but_parts_of_the_model_only_once() -> None:
    class Several(Averaged):
        def prepare_training_attributes(self) -> Any:
            model, optimizer = super().prepare_training_attributes()
            self.head, self.wrapped, self.loss = model[2], nn.Sequential(model), nn.MSELoss()
            self.emas = [AveragedModel(model), AveragedModel(model)]
            self.critics = {"one": nn.Linear(1, 1)}
            self.again = self.ema
            return model, optimizer

    with step_of(Several) as step:
        assert set(saved(step)["modules"]) == {"again", "critics.one", "emas.0", "emas.1"}


def test_the_export_has_the_average_by_the_names_of_the_model(tmp_path: Path) -> None:
    with step_of(Averaged) as step:
        train(step, 0, 3)
        state = step.model_state()
        server = server_of(step)
        average = {name: tensor.tolist() for name, tensor in server.ema.module.state_dict().items()}
        assert values(state["evaluated"]) == average
        assert {name: tensor.tolist() for name, tensor in step.exported().items()} == average
        assert set(average) == set(server.model.state_dict())
        assert values(state["model"]) != average


def test_one_of_the_best_models_is_evaluated_by_its_average(tmp_path: Path) -> None:
    with step_of(Averaged) as step:
        train(step, 0, 3)
        parts = model_files(server_of(step), step, callbacks={}, allow_pickle=False)
        best = BestFolder(tmp_path / "checkpoints" / "best").write(3, parts, {"batch": 3})
        average = values(step.model_state()["evaluated"])
    with step_of(Averaged) as other:
        server = server_of(other)
        load_model(find_saved_model(best), server, other, Callbacks(server), allow_pickle=False)
        with other.evaluating():
            assert {name: tensor.tolist() for name, tensor in server.model.state_dict().items()} == average


def test_what_is_to_be_evaluated_must_be_a_module() -> None:
    class Wrong(Averaged):
        def model_to_evaluate(self) -> Any:
            return self.ema.state_dict()

    with step_of(Wrong) as step, pytest.raises(UserCodeError, match="must return a torch module, but returned"):
        step.model_state()


def test_excluded_parameters_are_not_saved_and_the_user_loads_them() -> None:
    with step_of(Frozen, "backbone.*") as step:
        train(step, 0, 3)
        state = saved(step)
        # Running means are no parameters: they move although the backbone is frozen.
        assert [name for name in state["model"]["__module_state__"][0] if "backbone" in name] == [
            "backbone.1.running_mean",
            "backbone.1.running_var",
            "backbone.1.num_batches_tracked",
        ]
        train(step, 3, 6)
        undisturbed = to_bytes(step.state_dict())
        assert "backbone.0.weight" in restored(step.model_state()["model"])
    with step_of(Frozen, "backbone.*") as other:
        other.load_state_dict(state)
        train(other, 3, 6)
        assert to_bytes(other.state_dict()) == undisturbed


def test_parameters_that_are_trained_cannot_be_excluded() -> None:
    with pytest.raises(
        ConfigError, match=r"'head\.\*' matches head\.weight, head\.bias, of 2 parameters that are trai"
    ):
        step_of(Frozen, "backbone.*", "head.*").__enter__()


@pytest.mark.parametrize("patterns", [(), ("backbone.1.*",)])
def test_what_the_save_filter_of_a_class_leaves_out_is_not_saved_beside_what_patterns_match(
    patterns: tuple[str, ...],
) -> None:
    with step_of(Filtered, *patterns) as step:
        train(step, 0, 3)
        state = saved(step)
        names = {*restored(step.model_state()["model"])}
        left_out = {"backbone.0.weight", *(["backbone.1.weight", "backbone.1.bias"] if patterns else [])}
        assert {*restored(state["model"])} == names - left_out
        train(step, 3, 6)
        undisturbed = to_bytes(step.state_dict())
    with step_of(Filtered, *patterns) as other:
        other.load_state_dict(state)
        train(other, 3, 6)
        assert to_bytes(other.state_dict()) == undisturbed


def test_a_save_filter_cannot_leave_out_what_is_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filtered, "frozen", False)
    with pytest.raises(
        ConfigError, match=r"Filtered\.save_filter leaves out backbone\.0\.weight, of 1 parameters that"
    ):
        step_of(Filtered).__enter__()


def test_what_a_save_filter_raises_is_told_as_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Filtered, "ending", 1)
    with pytest.raises(UserCodeError, match=r"Filtered\.save_filter raised TypeError"):
        step_of(Filtered).__enter__()


def test_a_pattern_that_matches_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'bakbone\.\*' matches no parameter of Frozen"):
        step_of(Frozen, "bakbone.*").__enter__()


def test_a_plain_server_excludes_nothing() -> None:
    config = settings(precision="32-true")
    config.checkpoint.exclude = ("backbone.*",)
    with pytest.raises(ConfigError, match=r"checkpoint\.exclude must be left out"):
        PlainStep(StreamServer(config), SoloRanks())


def test_what_is_missing_and_not_excluded_any_more_is_refused() -> None:
    with step_of(Frozen, "backbone.*") as step:
        state = saved(step)
    with step_of(Frozen, "backbone.0.*") as other, pytest.raises(UserCodeError, match=r"backbone\.1\.weight"):
        other.load_state_dict(state)


def test_excluded_parameters_are_those_that_the_user_loads_at_a_restart() -> None:
    class Other(Frozen):
        value = 0.25

    with step_of(Frozen, "backbone.*") as step:
        state = saved(step)
    with step_of(Other, "backbone.*") as other:
        other.load_state_dict(state)
        assert (server_of(other).model["backbone"][0].weight == 0.25).all()


def test_a_backbone_that_was_written_to_is_saved() -> None:
    with step_of(Frozen, "backbone.*") as step:
        nn.init.zeros_(server_of(step).model["backbone"][0].weight)
        state = restored(saved(step)["model"])
        assert "backbone.0.weight" in state
        assert "backbone.0.bias" not in state


def test_a_backbone_that_got_other_memory_is_saved() -> None:
    with step_of(Frozen, "backbone.*") as step:
        weight = server_of(step).model["backbone"][0].weight
        weight.data = weight.data * 0.5
        assert "backbone.0.weight" in restored(saved(step)["model"])


@pytest.mark.parametrize("options", [{}, {"fused": True, "momentum": 0.9}], ids=["plain", "fused"])
def test_a_backbone_that_is_unfrozen_later_is_saved_from_then_on(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    monkeypatch.setattr(Frozen, "options", options)
    with step_of(Frozen, "backbone.*") as step:
        backbone = server_of(step).model["backbone"]
        backbone.requires_grad_(True)
        train(step, 0, 2)
        backbone.requires_grad_(False)
        state = saved(step)
        assert "backbone.0.weight" in restored(state["model"])
        trained = backbone[0].weight.tolist()
    with step_of(Frozen, "backbone.*") as other:
        other.load_state_dict(state)
        assert server_of(other).model["backbone"][0].weight.tolist() == trained
        assert "backbone.0.weight" in restored(saved(other)["model"])


def test_a_backward_pass_that_several_ranks_would_refuse_is_refused_on_one() -> None:
    with step_of(OwnBackward) as step, pytest.raises(UserCodeError, match=r"must call self\.manual_backward\(loss\)"):
        train(step, 0, 1)
