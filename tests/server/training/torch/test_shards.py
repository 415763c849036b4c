"""A model that the ranks share out is saved in parts, and restored on any number of ranks, to the bit."""

import shutil
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import nn

from stream_server.config import load as load_config
from stream_server.config.training_sections import Checkpoint
from stream_server.errors import DamagedCheckpoint, UserCodeError
from stream_server.server.checkpoint.folder import SHARDS, STUDY, CheckpointFolder, rank_folder
from stream_server.server.checkpoint.saver import commit
from stream_server.server.checkpoint.user_state import learned_files, read_learned, shard_files
from stream_server.server.model.best_models import BestModels
from stream_server.server.model.model_export import ModelExport
from stream_server.server.model.saved_model import find_saved_model, model_files
from stream_server.server.model.warm_start import NewestWeights, warm_start
from stream_server.server.ranks.communicator import SoloRanks
from stream_server.server.training.torch.fingerprint import of_tensors, of_whole
from stream_server.server.training.torch.shards import local
from stream_server.server.user.callbacks import Callbacks
from stream_server.server.user.framework import framework_of
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.torch_server import TorchServer
from stream_server.storage.checksums import record_of
from stream_server.storage.folders import FolderWriter
from stream_server.storage.plain_state import read_state, write_state
from stream_server.storage.tensor_file import write_tensors
from tests.fakes.thread_ranks import on_ranks
from tests.support.checkpoint_stores import manifest_of, start
from tests.support.saved_models import Net, config_of, set_up, train
from tests.support.sharded import differing, rows_of, sharded

CONFIG = load_config(Path(__file__).parents[3] / "study" / "numpy_study" / "study.json")
SIZES = [1, 2, 3, 4]


class Wide(Net):
    """Rows that do not divide, a layer of one row, a parameter of many bytes, and a scalar in a buffer."""

    def prepare_training_attributes(self) -> Any:
        model = nn.Sequential(nn.Linear(2, 5003), nn.BatchNorm1d(5003), nn.Linear(5003, 7), nn.Linear(7, 1))
        return model, torch.optim.Adam(model.parameters(), lr=0.1)


def state_of(server: TorchServer) -> dict[str, Any]:
    return {"model": dict(server.model.state_dict()), "optimizer": server.optimizer.state_dict()}


def save(folder: Path, step: Any) -> None:
    """Save what a rank of a study saves of the model."""
    server = step._server
    files = shard_files(server, step)
    if server.rank == 0:
        files += learned_files(server, step, Callbacks(server), allow_pickle=False)
    writer = FolderWriter(folder)
    for file in files:
        writer.write(file.path, file.write)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """The checkpoint of an unsharded model, and the state of it."""
    folder = tmp_path_factory.mktemp("whole")
    server = Wide(config_of())
    with set_up(server) as step:
        train(step, 3)
        save(folder, step)
        return folder, state_of(server)


@pytest.fixture(scope="module")
def in_parts(trained: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> dict[int, Path]:
    """Checkpoints of the same model, sharded over other numbers of ranks."""
    folders = {}
    for size in SIZES:
        folders[size] = tmp_path_factory.mktemp(f"by-{size}")
        for rank in range(size):
            with sharded(Wide, rank, size) as step:
                step.load_state_dict(read_learned(trained[0]))
                save(folders[size], step)
    return folders


@pytest.mark.parametrize("size", SIZES)
def test_a_rank_takes_its_rows_from_an_unsharded_checkpoint(trained: tuple[Path, Any], size: int) -> None:
    folder, whole = trained
    for rank in range(size):
        with sharded(Wide, rank, size, seed=1) as step:
            step.load_state_dict(read_learned(folder))
            assert differing(state_of(step._server), whole, rank, size) == []


@pytest.mark.parametrize("saved", SIZES)
@pytest.mark.parametrize("size", SIZES)
def test_other_ranks_take_their_rows_from_the_parts(
    trained: tuple[Path, Any], in_parts: dict[int, Path], saved: int, size: int
) -> None:
    for rank in range(size):
        with sharded(Wide, rank, size, seed=1) as step:
            step.load_state_dict(read_learned(in_parts[saved]))
            assert differing(state_of(step._server), trained[1], rank, size) == []


@pytest.mark.parametrize("saved", SIZES)
def test_an_unsharded_server_takes_the_whole_model_from_the_parts(
    trained: tuple[Path, Any], in_parts: dict[int, Path], saved: int
) -> None:
    server = Wide(config_of(seed=1))
    with set_up(server) as step:
        step.load_state_dict(read_learned(in_parts[saved]))
        assert differing(state_of(server), trained[1], 0, 1) == []


def test_an_update_after_a_restart_is_that_of_the_unsharded_model(
    trained: tuple[Path, Any], in_parts: dict[int, Path]
) -> None:
    server = Wide(config_of(seed=1))

    def update(parameters: list[torch.Tensor], whole: Any, optimizer: Any, rank: int, size: int) -> None:
        for parameter, gradient in zip(parameters, whole, strict=True):
            parameter.grad = parameter.detach().clone()
            local(parameter.grad).copy_(rows_of(gradient, rank, size))
        optimizer.step()

    with set_up(server) as step:
        step.load_state_dict(read_learned(trained[0]))
        gradients = [torch.randn(each.shape) for each in server.model.parameters()]
        update([*server.model.parameters()], gradients, server.optimizer, 0, 1)
        whole = state_of(server)
    for rank in range(3):
        with sharded(Wide, rank, 3) as step:
            step.load_state_dict(read_learned(in_parts[2]))
            update([*step._server.model.parameters()], gradients, step._server.optimizer, rank, 3)
            assert differing(state_of(step._server), whole, rank, 3) == []


def test_each_part_has_its_rows_alone(trained: tuple[Path, Any], in_parts: dict[int, Path]) -> None:
    sizes = [(in_parts[4] / rank_folder(rank) / SHARDS).stat().st_size for rank in range(4)]
    beside = (in_parts[4] / "model/model.state").stat().st_size
    whole = (trained[0] / "model/model.state").stat().st_size
    assert all(size < 0.4 * whole for size in sizes)
    assert 0 < sum(sizes) + beside - whole < 20_000


def test_what_is_missing_or_of_another_model_is_damage(in_parts: dict[int, Path], tmp_path: Path) -> None:
    paths = {rank: in_parts[3] / rank_folder(rank) / SHARDS for rank in range(3)}
    originals = {rank: read_state(path) for rank, path in paths.items()}

    def change(rank: int, state: Any) -> None:
        paths[rank].unlink(missing_ok=True)
        if state is not None:
            with paths[rank].open("wb") as file:
                write_state(file, state)

    name = "the model.0.weight"
    try:
        for content in (
            None,
            {},
            originals[1],
            {**originals[2], name: originals[2]["the model.2.weight"]},
            {**originals[2], name: {**originals[2][name], "values": originals[2][name]["values"][8:]}},
        ):
            change(2, content)
            with pytest.raises(DamagedCheckpoint, match=r"shards\.state|the shards of"):
                read_learned(in_parts[3])
    finally:
        change(2, originals[2])


def test_a_state_of_the_users_with_a_shard_is_refused() -> None:
    class Careless(Wide):
        def state_dict(self) -> dict[str, Any]:
            return {"weights": dict(self.model.state_dict())}

    with sharded(Careless, 0, 2) as step, pytest.raises(UserCodeError, match=r"weights\.0\.weight is a DTensor"):
        learned_files(step._server, step, Callbacks(step._server), allow_pickle=False)


def test_the_fingerprint_of_a_whole_parameter_does_not_depend_on_the_ranks() -> None:
    class Large(Net):
        def prepare_training_attributes(self) -> Any:
            # More words than one chunk of a fingerprint has.
            model = nn.Sequential(nn.Linear(2, 200_003), nn.Linear(3, 5).double(), nn.Linear(1, 1))
            return model, torch.optim.SGD(model.parameters())

    whole = Large(config_of())
    with set_up(whole):
        expected = of_tensors(dict(whole.model.named_parameters()))
    for size in SIZES:
        shares: list[Any] = []

        def gather(share: Any, shares: list[Any] = shares) -> list[Any]:
            """As if the ranks before this one had come to it."""
            shares.append(share)
            return shares

        for rank in range(size):
            with sharded(Large, rank, size) as step:
                step._ranks.gather = gather
                found = of_whole(step._ranks, dict(step._server.model.named_parameters()))
        assert found == expected


class Parted:
    """The ranks of a sharded server in threads, and one unsharded server with the same weights."""

    def __init__(self, stack: ExitStack, size: int) -> None:
        self.whole = Wide(config_of())
        self.whole_step = stack.enter_context(set_up(self.whole))
        self.size = size
        self.steps = []
        for rank in range(size):
            with sharded(Wide, rank, size) as step:
                self.steps.append(step)

    def each(self, function: Any) -> None:
        def call(ranks: Any) -> None:
            step = self.steps[ranks.rank]
            step._ranks = step._lender._ranks = ranks
            function(step._server, step)

        on_ranks(self.size, call)


@pytest.mark.parametrize("size", [1, 3])
def test_the_exported_file_is_that_of_an_unsharded_run(tmp_path: Path, size: int) -> None:
    def export(folder: Path, server: Any, step: Any) -> ModelExport:
        export = ModelExport(folder, step=step, config=CONFIG, normalization=Normalization(SoloRanks()))
        export.on_train_end(server)
        return export

    with ExitStack() as stack:
        parted = Parted(stack, size)
        export(tmp_path / "whole", parted.whole, parted.whole_step)
        parted.each(lambda server, step: export(tmp_path / "parted", server, step))
    files = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parted")}
    assert files["whole"] == files["parted"]
    state = {name: each.contiguous() for name, each in parted.whole.model.state_dict().items()}
    assert files["whole"] == safetensors.torch.save(state, {"format": "pt"})


def test_a_best_model_has_the_whole_model(tmp_path: Path) -> None:
    with ExitStack() as stack:
        parted = Parted(stack, 3)
        best = tmp_path / "best"

        def keep(server: Any, step: Any) -> None:
            models = BestModels(
                best,
                step,
                Checkpoint(keep_best=1),
                capture=lambda: model_files(server, step, callbacks={}, allow_pickle=False),
                is_outdated=lambda: False,
            )
            for batch, loss in enumerate((3.0, 4.0, 2.0), 1):
                server.progress.batches = batch
                models.on_validation_end(server, {"loss": loss})

        parted.each(keep)
        assert [path.name for path in best.iterdir()] == ["batch-000003"]
        again = Wide(config_of(seed=1))
        with set_up(again) as step:
            step.load_model_state(read_learned(best / "batch-000003"))
            assert differing(dict(again.model.state_dict()), dict(parted.whole.model.state_dict()), 0, 1) == []


def test_ranks_that_lend_go_on_when_rank_0_fails() -> None:
    with ExitStack() as stack:
        parted = Parted(stack, 3)
        done = []

        def fail(server: Any, step: Any) -> None:
            with suppress(OSError), step.lending():
                if server.rank == 0:
                    step.exported()["0.weight"].read()
                    raise OSError
            done.append(server.rank)

        parted.each(fail)
        assert sorted(done) == [0, 1, 2]


def output_folder(folder: Path, parts: Path) -> Path:
    """The output folder of a study with one checkpoint, of which these are the parts."""
    checkpoints = CheckpointFolder(folder / "checkpoints")
    start(checkpoints.folder)
    temporary = checkpoints.temporary(1, 1)
    shutil.copytree(parts, temporary)
    with (temporary / STUDY).open("wb") as file:
        write_state(file, {"callbacks": {}, "parameters": []})
    paths = [path for path in temporary.rglob("*") if path.is_file()]
    commit(checkpoints, manifest_of(1, {str(path.relative_to(temporary)): record_of(path) for path in paths}))
    return folder


@pytest.mark.parametrize("what", ["model", "model+optimizer", "all"])
def test_a_sharded_study_starts_warm_from_parts(
    in_parts: dict[int, Path], trained: tuple[Path, Any], tmp_path: Path, what: str
) -> None:
    load = {"checkpoint": str(output_folder(tmp_path, in_parts[3])), "what": what}
    for rank in range(2):
        with sharded(Wide, rank, 2, seed=2, load=load) as step:
            server = step._server
            warm_start(server.config, server, step, Normalization(SoloRanks()))
            state, whole = state_of(server), trained[1]
            kept = ["model"] if what == "model" else [*whole]
            assert differing({it: state[it] for it in kept}, {it: whole[it] for it in kept}, rank, 2) == []


def test_a_sharded_study_starts_warm_from_an_exported_file(trained: tuple[Path, Any], tmp_path: Path) -> None:
    whole = trained[1]["model"]
    write_tensors(tmp_path / "model.safetensors", {f"_orig_mod.{name}": each for name, each in whole.items()})
    for rank in range(4):
        with sharded(Wide, rank, 4, seed=2, load={"checkpoint": str(tmp_path / "model.safetensors")}) as step:
            server = step._server
            warm_start(server.config, server, step, Normalization(SoloRanks()))
            assert differing(dict(server.model.state_dict()), whole, rank, 4) == []


def test_the_newest_weights_of_a_sharded_run_are_whole(
    in_parts: dict[int, Path], trained: tuple[Path, Any], tmp_path: Path
) -> None:
    newest = NewestWeights(study_dir=tmp_path, ranks=SoloRanks(), framework=framework_of(Wide))
    assert differing(newest(output_folder(tmp_path, in_parts[3])), trained[1]["model"], 0, 1) == []


def test_a_part_that_is_damaged_is_no_saved_model(in_parts: dict[int, Path], tmp_path: Path) -> None:
    folder = output_folder(tmp_path, in_parts[3])
    damaged = folder / "checkpoints" / "000001" / rank_folder(2) / SHARDS
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(DamagedCheckpoint, match=r"rank-2/shards\.state does not match its checksum"):
        find_saved_model(folder / "checkpoints" / "000001")
