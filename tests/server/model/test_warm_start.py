"""A fresh study takes over the model of another one."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from stream_server.errors import ConfigError, DamagedCheckpoint, UserCodeError
from stream_server.server.checkpoint.folder import MODEL
from stream_server.server.checkpoint.user_state import user_file
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.model.best_models import BestFolder
from stream_server.server.model.warm_start import NewestWeights, find_source, warm_start
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.user.framework import Step, framework_of
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.stream_server import StreamServer
from stream_server.storage.checksums import write_sums
from stream_server.storage.folders import PendingFile
from stream_server.storage.plain_state import write_state
from stream_server.storage.tensor_file import write_tensors
from tests.fakes.thread_ranks import on_ranks
from tests.support.saved_models import Net, commit, config_of, set_up, train

NUM_STEPS = 3


@pytest.fixture(autouse=True)
def _own_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def statistics(seed: int = 0, name: str = "u") -> Normalization:
    it = Normalization(SoloRanks(), {name: ()})
    it.observe({name: np.random.default_rng(seed).normal(size=8)}, np.zeros((8, 1)))
    it.sync()
    return it


def weights(server: Any) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in server.model.state_dict().items()}


def assert_equal(found: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """The output folder of a study, and the weights after its last batch."""
    server = Net(config_of(lr=0.2))
    server.mark = 7
    with set_up(server) as step:
        train(step, NUM_STEPS)
        commit(tmp_path / "run", server, step, statistics())
        return tmp_path / "run", weights(server)


def started(server: StreamServer, step: Step, normalization: Normalization | None = None) -> str:
    return warm_start(server.config, server, step, normalization or Normalization(SoloRanks()))


def fresh(checkpoint: Path, **load: Any) -> Net:
    """A server with other weights than the trained one, and another learning rate."""
    return Net(config_of(seed=5, load={"checkpoint": str(checkpoint), **load}, lr=0.01))


@pytest.mark.parametrize("place", [".", "checkpoints", "checkpoints/000001"])
def test_a_fresh_study_takes_over_the_model(trained: Any, place: str) -> None:
    folder, expected = trained
    server = fresh(folder / place)
    with set_up(server) as step:
        text = started(server, step)
        assert_equal(weights(server), expected)
        assert server.optimizer.state_dict()["state"] == {}
    assert server.mark == 0
    assert "000001, after batch 10 (model)" in text


class Ordered(Net):
    """Has something in its model that is in no state."""

    def prepare_training_attributes(self) -> Any:
        made = super().prepare_training_attributes()
        made[0].order = np.arange(3) + self.config.study.seed
        return made


@pytest.mark.parametrize(("seed", "num_warnings"), [(5, 1), (0, 0)])
def test_a_model_that_was_trained_with_other_arrays_beside_its_state_is_told(
    tmp_path: Path, seed: int, num_warnings: int
) -> None:
    server = Ordered(config_of())
    with set_up(server) as step:
        commit(tmp_path / "run", server, step, statistics())
    server = Ordered(config_of(seed=seed, load={"checkpoint": str(tmp_path / "run")}))
    with set_up(server) as step:
        started(server, step)
        said = "the model was trained with other values of order, "
        assert [text[: len(said)] for text in step.warnings] == [said] * num_warnings


def test_the_optimizers_keep_what_they_are_set_to(trained: Any) -> None:
    server = fresh(trained[0], what="model+optimizer")
    with set_up(server) as step:
        started(server, step)
        state = server.optimizer.state_dict()
        assert state["state"][0]["step"] == NUM_STEPS
        assert state["param_groups"][0]["lr"] == 0.01
        assert server.lr_scheduler.last_epoch == 0


def test_all_goes_on_as_the_other_study_would_have(trained: Any) -> None:
    server = fresh(trained[0], what="all", hyperparameters="saved")
    normalization = Normalization(SoloRanks(), {"u": ()})
    other = Net(config_of(lr=0.2))
    with set_up(other) as step:
        train(step, NUM_STEPS)
        train(step, 2)
        expected = weights(other)
    with set_up(server) as step:
        started(server, step, normalization)
        assert server.optimizer.param_groups[0]["lr"] == 0.2
        train(step, 2)
        assert_equal(weights(server), expected)
    assert server.mark == 7
    assert normalization.state_dict()["num_samples"] == 8
    assert normalization.mean["u"] == statistics().mean["u"]


@pytest.mark.parametrize("what", ["all", "model+optimizer"])
@pytest.mark.parametrize(("hyperparameters", "rate"), [("new", 0.01), ("saved", 0.2)])
def test_the_rate_is_the_new_one_or_as_the_study_says_the_saved_one(
    trained: Any, what: str, hyperparameters: str, rate: float
) -> None:
    server = fresh(trained[0], what=what, hyperparameters=hyperparameters)
    with set_up(server) as step:
        text = started(server, step, Normalization(SoloRanks(), {"u": ()}))
        assert server.optimizer.param_groups[0]["lr"] == rate
        assert len(server.optimizer.state) == 6
    said = "; learning rate 0.2 → 0.01, from server.py; optimizer state kept; the schedule goes on at its step 0"
    assert (said in text) == (what == "all" and hyperparameters == "new")


def test_statistics_come_along_only_with_all_and_must_be_of_the_same_fields(trained: Any) -> None:
    normalization, other = Normalization(SoloRanks(), {"u": ()}), Normalization(SoloRanks(), {"v": ()})
    server = fresh(trained[0])
    with set_up(server) as step:
        started(server, step, normalization)
        assert not normalization.is_ready
    server = fresh(trained[0], what="all")
    with set_up(server) as step, pytest.raises(ConfigError, match=r"asks for fields\.v \(\), .* saved is fields\.u"):
        started(server, step, other)


class Wider(Net):
    """Its last layer alone is as before; and there is one more."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(3, self.width), nn.BatchNorm1d(self.width), nn.Linear(self.width, 1))
        model.append(nn.Linear(1, 1))
        return model, torch.optim.Adam(model.parameters())


def test_a_model_that_does_not_fit_is_refused_with_both_sides(trained: Any) -> None:
    server = Wider(config_of(load={"checkpoint": str(trained[0])}))
    with set_up(server) as step:
        before = weights(server)
        with pytest.raises(ConfigError) as caught:
            started(server, step)
        assert_equal(weights(server), before)
    text = str(caught.value)
    assert "does not fit the model of Wider: only in the model: 3.weight, 3.bias; " in text
    assert "of another shape: 0.weight (4 × 2 there, 4 × 3 in the model). " in text
    assert "set load.strict to false" in text


def test_what_fits_is_taken_and_the_rest_is_told(trained: Any) -> None:
    folder, expected = trained
    server = Wider(config_of(load={"checkpoint": str(folder), "strict": False}))
    with set_up(server) as step:
        before = weights(server)
        text = started(server, step)
        after = weights(server)
    assert text.endswith(
        "; skipped: only in the model: 3.weight, 3.bias; of another shape: 0.weight (4 × 2 there, 4 × 3 in the model)"
    )
    for name in ("0.bias", "1.running_var", "2.weight"):
        torch.testing.assert_close(after[name], expected[name], rtol=0, atol=0)
    for name in ("0.weight", "3.weight"):
        torch.testing.assert_close(after[name], before[name], rtol=0, atol=0)


class Filtered(Net):
    """Its first layer is frozen and loaded by itself; its names are those of another class."""

    def prepare_training_attributes(self) -> Any:
        model, optimizer, scheduler = super().prepare_training_attributes()
        model[0].requires_grad_(False)
        return model, optimizer, scheduler

    def save_filter(self, name: str) -> bool:
        assert not name.endswith(("running_mean", "running_var", "num_batches_tracked"))
        return not name.startswith("0.")


def test_what_the_save_filter_left_out_may_be_missing(tmp_path: Path) -> None:
    server = Filtered(config_of())
    with set_up(server) as step:
        commit(tmp_path / "run", server, step, statistics())
        expected = {name: value for name, value in weights(server).items() if not name.startswith("0.")}
    server = Filtered(config_of(seed=5, load={"checkpoint": str(tmp_path / "run")}))
    with set_up(server) as step:
        own = {name: value for name, value in weights(server).items() if name.startswith("0.")}
        assert "skipped" not in started(server, step)
        assert_equal(weights(server), own | expected)
    server = fresh(tmp_path / "run")
    with set_up(server) as step, pytest.raises(ConfigError, match=r"only in the model: 0\.weight, 0\.bias"):
        started(server, step)


def newest_on_two_ranks(folder: Path, path: str) -> list[Any]:
    """What each rank is given, and how often its other threads were waited for."""

    def read(ranks: Ranks) -> Any:
        waited: list[int] = []
        framework = framework_of(Net)
        # Rank 0 alone reads.
        study_dir = folder if ranks.rank == 0 else Path("/nowhere")
        newest = NewestWeights(study_dir=study_dir, ranks=ranks, framework=framework)
        newest.quiesce = lambda: waited.append(1)
        return newest(Path(path)), waited

    return on_ranks(2, read)


@pytest.mark.parametrize("place", ["run", "run/checkpoints/000001", "model.safetensors"])
def test_the_newest_weights_of_another_run_are_read_by_rank_0_for_all(trained: Any, place: str) -> None:
    folder, expected = trained
    write_tensors(folder.parent / "model.safetensors", {name: value.numpy() for name, value in expected.items()})
    for found, waited in newest_on_two_ranks(folder.parent, place):
        assert_equal(found, expected)
        assert waited == [1]


def test_where_there_are_no_weights_yet_none_are_given_and_the_log_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    assert [found for found, _ in newest_on_two_ranks(tmp_path, "run")] == [{}, {}]
    assert "newest_weights('run') gives nothing: the path must be the output folder" in caplog.text
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    assert [found for found, _ in newest_on_two_ranks(tmp_path, "model.safetensors")] == [{}, {}]


def test_that_there_are_no_weights_yet_is_told_once_until_something_else_is_the_matter(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = NewestWeights(study_dir=tmp_path, ranks=SoloRanks(), framework=framework_of(Net))
    for _ in range(3):
        assert newest(Path("run")) == newest(Path("other")) == {}
    assert len(caplog.records) == 2
    (tmp_path / "run").mkdir()
    newest(Path("run"))
    assert len(caplog.records) == 3
    (tmp_path / "model.safetensors").write_bytes(b"junk")
    newest(Path("model.safetensors"))
    assert "the path cannot be read" in caplog.text
    assert "load.checkpoint" not in caplog.text


def test_a_class_by_itself_has_no_newest_weights_and_they_are_no_matter_of_a_training_step() -> None:
    server = Net()
    assert server.newest_weights("run") == {}
    with server.union_mean.step([6]), pytest.raises(UserCodeError, match="not in training_step or validation_step"):
        server.newest_weights("run")


def test_newest_weights_are_refused_where_the_other_ranks_do_not_come() -> None:
    def ask(ranks: Ranks) -> None:
        server = Net()
        server.union_mean = UnionMean(ranks)
        with (
            server.union_mean.alone(),
            pytest.raises(UserCodeError, match="newest_weights must not be called in"),
        ):
            server.newest_weights("run")
        thread = ThreadPoolExecutor(1)
        with thread, pytest.raises(UserCodeError, match="newest_weights must be called in the main thread"):
            thread.submit(server.newest_weights, "run").result()

    on_ranks(2, ask)


def test_newest_weights_are_refused_before_the_class_is_in_its_study() -> None:
    class Early(Net):
        def __init__(self, config: Any) -> None:
            super().__init__(config)
            self.newest_weights("run")

    with pytest.raises(UserCodeError, match="no study in __init__: call it in prepare_training_attributes"):
        Early(config_of())


def test_optimizers_of_a_model_that_fits_in_part_are_refused(trained: Any) -> None:
    server = Wider(config_of(load={"checkpoint": str(trained[0]), "strict": False, "what": "model+optimizer"}))
    with set_up(server) as step, pytest.raises(ConfigError, match=r'load\.what must be "model", for the optimizers'):
        started(server, step)


class OtherOptimizer(Net):
    def prepare_training_attributes(self) -> Any:
        model, _, _ = super().prepare_training_attributes()
        return model, torch.optim.Adam([{"params": [it]} for it in model.parameters()])


@pytest.mark.parametrize("what", ["model+optimizer", "all"])
def test_other_optimizers_are_refused(trained: Any, what: str) -> None:
    server = OtherOptimizer(config_of(load={"checkpoint": str(trained[0]), "what": what}))
    with (
        set_up(server) as step,
        pytest.raises(ConfigError, match=r"do not fit those of OtherOptimizer .*set load\.what"),
    ):
        started(server, step)


def test_one_of_the_best_models_is_a_model_only(tmp_path: Path) -> None:
    server = Net(config_of())
    with set_up(server) as step:
        train(step, 1)
        state, expected = {"model": step.state_dict()["model"], "callbacks": {}}, weights(server)
    parts = [
        PendingFile(path=MODEL, write=lambda file: write_state(file, state)),
        user_file(server, allow_pickle=False),
    ]
    best = BestFolder(tmp_path / "checkpoints" / "best").write(120, parts, {"batch": 120})
    server = fresh(best)
    with set_up(server) as step:
        assert "batch-000120, after batch 120 (model)" in started(server, step)
        assert_equal(weights(server), expected)
    server = fresh(best, what="all")
    with set_up(server) as step, pytest.raises(ConfigError, match="is one of the best models, and only a model"):
        started(server, step)


@pytest.mark.parametrize("place", ["model/model.safetensors", "model", "."])
@pytest.mark.parametrize("prefix", ["", "_orig_mod."])
def test_an_exported_model_is_taken(tmp_path: Path, place: str, prefix: str) -> None:
    server = Net(config_of())
    with set_up(server) as step:
        train(step, 1)
        expected = weights(server)
    (tmp_path / "model").mkdir()
    write_tensors(tmp_path / "model" / "model.safetensors", {prefix + name: it for name, it in expected.items()})
    server = fresh(tmp_path / place)
    with set_up(server) as step:
        started(server, step)
        assert_equal(weights(server), expected)
    server = fresh(tmp_path / place, what="model+optimizer")
    with set_up(server) as step, pytest.raises(ConfigError, match="nothing but a model in"):
        started(server, step)


@pytest.mark.parametrize(("name", "expected"), [("gone", "is not there"), ("", "is none of these")])
def test_nothing_to_start_from_is_told(tmp_path: Path, name: str, expected: str) -> None:
    server = fresh(tmp_path / name)
    with set_up(server) as step, pytest.raises(ConfigError, match=f"must be the output folder .*{expected}"):
        started(server, step)


def test_a_file_that_holds_no_tensors_is_told(tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"junk" * 8)
    server = fresh(tmp_path / "m.safetensors")
    with set_up(server) as step, pytest.raises(ConfigError, match=r"cannot be read: .*no \.safetensors file"):
        started(server, step)


@pytest.mark.parametrize("is_exported", [False, True])
def test_a_model_of_the_same_parameters_in_another_order_is_refused(tmp_path: Path, *, is_exported: bool) -> None:
    server = Net(config_of())
    server.parameter_names = ("mass", "drag")
    with set_up(server) as step:
        commit(tmp_path / "run", server, step)
        place = tmp_path / "run"
        if is_exported:
            place = tmp_path / "model.safetensors"
            write_tensors(place, weights(server))
            (tmp_path / "study.json").write_text('{"parameters": {"bounds": {"mass": [1, 2], "drag": [10, 20]}}}')
    for names, is_refused in ((["drag", "mass"], True), (["mass", "drag"], False), (["drag", "lift"], False)):
        server = fresh(place)
        server.parameter_names = tuple(names)
        with set_up(server) as step:
            if is_refused:
                expected = r"the order .* which is mass, drag, but is drag, mass: the model would take"
                with pytest.raises(ConfigError, match=expected):
                    started(server, step)
            else:
                started(server, step)


def test_a_damaged_checkpoint_is_never_taken(trained: Any) -> None:
    path = trained[0] / "checkpoints" / "000001" / MODEL
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    server = fresh(trained[0])
    with set_up(server) as step, pytest.raises(DamagedCheckpoint, match=r"model\.state"):
        started(server, step)


@pytest.mark.parametrize("named", ["model/model.safetensors", "model", "."])
def test_an_exported_model_that_differs_from_its_checksum_is_never_taken(tmp_path: Path, named: str) -> None:
    model = tmp_path / "model" / "model.safetensors"
    model.parent.mkdir()
    write_tensors(model, {"weight": np.zeros(3)})
    write_sums(model.parent)
    assert find_source(tmp_path / named) == model
    data = bytearray(model.read_bytes())
    data[-1] ^= 1
    model.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match="is not as it was written"):
        find_source(tmp_path / named)


class Learner(StreamServer):
    """Nested arrays, without torch."""

    def prepare_training_attributes(self) -> None:
        self.state: Any = {"layers": [{"w": np.zeros(2)}, {"w": np.zeros(3)}], "scale": np.zeros(())}

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def learned(folder: Path) -> Learner:
    server = Learner(config_of())
    with set_up(server) as step:
        server.state["layers"][1]["w"] += [1, 2, 3]
        commit(folder, server, step, statistics())
    return server


@pytest.mark.parametrize("what", ["model", "all"])
def test_a_learner_is_given_the_whole_of_its_state(tmp_path: Path, what: str) -> None:
    learned(tmp_path)
    server = Learner(config_of(load={"checkpoint": str(tmp_path), "what": what}))
    normalization = Normalization(SoloRanks(), {"u": ()})
    with set_up(server) as step:
        started(server, step, normalization)
    assert server.state["layers"][1]["w"].tolist() == [1, 2, 3]
    assert normalization.is_ready == (what == "all")


def test_a_learner_is_given_the_arrays_of_a_file_as_they_were_nested(tmp_path: Path) -> None:
    arrays = {"layers.0.w": np.ones(2), "layers.1.w": np.arange(3.0), "scale": np.array(5.0)}
    write_tensors(tmp_path / "m.safetensors", arrays)
    server = Learner(config_of(load={"checkpoint": str(tmp_path / "m.safetensors")}))
    with set_up(server) as step:
        started(server, step)
    assert [layer["w"].tolist() for layer in server.state["layers"]] == [[1, 1], [0, 1, 2]]
    assert server.state["scale"] == 5


@pytest.mark.parametrize(
    ("load", "expected"),
    [({"what": "model+optimizer"}, r'must be "model" or "all" for Learner'), ({"strict": False}, "must be left out")],
)
def test_a_learner_refuses_what_it_would_ignore(tmp_path: Path, load: dict[str, Any], expected: str) -> None:
    learned(tmp_path)
    server = Learner(config_of(load={"checkpoint": str(tmp_path), **load}))
    with set_up(server) as step, pytest.raises(ConfigError, match=expected):
        started(server, step)


def test_a_torch_server_refuses_the_state_of_a_learner(tmp_path: Path) -> None:
    learned(tmp_path)
    server = fresh(tmp_path)
    with set_up(server) as step, pytest.raises(ConfigError, match=r"there is no torch model in .*, which Net needs"):
        started(server, step)
