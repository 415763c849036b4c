"""Run under MPI: trains models of many kinds, each beside a plain loop of torch on the union batches.

The first argument is a JSON list of jobs: the kind of model, the batch sizes of each rank, step by step, the keys of
`training`, before which steps it starts anew from what it saved, and whether the ranks are to refuse it. The second is
the JSON file to write: for each job what each rank has at the end, and what the plain loop has.
"""

import json
import sys
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn import functional
from torch.nn.parameter import is_lazy
from torch.optim.swa_utils import AveragedModel

from stream_server.errors import ConfigError, UserCodeError
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.batches import StepCounts, UnionBatch
from stream_server.server.progress.progress import Progress
from stream_server.server.ranks.communicator import ranks_from_environment
from stream_server.server.training.torch.step import TorchStep
from stream_server.server.user.torch_server import SkippedBatch, TorchServer
from stream_server.storage.plain_state import from_bytes, to_bytes
from tests.support.settings import settings
from tests.support.streams import batch_of

RANKS = ranks_from_environment()
Pair = tuple[Tensor, Tensor]


class Kind:
    """A model with automatic optimisation."""

    is_manual = False

    def make(self) -> tuple[nn.Module, Any]:
        model = self.make_model()
        return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def make_model(self) -> nn.Module:
        return nn.ModuleDict({"a": nn.Linear(3, 4), "b": nn.Linear(4, 2), "c": nn.Linear(3, 2)})

    def loss(self, model: Any, batch: Pair, index: int) -> Any:
        return functional.mse_loss(self.output(model, batch[0]), batch[1])

    def output(self, model: Any, x: Tensor) -> Tensor:
        raise AssertionError

    def after(self, model: Any, num_steps: int) -> None:
        """Every rank does this after each step."""

    def learned(self, model: Any) -> list[Tensor]:
        return list(model.parameters())


class Submodules(Kind):
    """The parts of a model are called, and not the model."""

    def output(self, model: Any, x: Tensor) -> Tensor:
        return model.b(torch.tanh(model.a(x)))  # type: ignore[no-any-return]


class NeverUsed(Submodules):
    """Also part c is in an optimizer with weight decay, and must stay as it is."""

    def make(self) -> tuple[nn.Module, Any]:
        model = self.make_model()
        return model, torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)


class SometimesUsed(NeverUsed):
    """Part c is for larger batches only."""

    def output(self, model: Any, x: Tensor) -> Tensor:
        output = super().output(model, x)
        return output + model.c(x) if len(x) >= 3 else output


class NotInTheOptimizer(Submodules):
    def make(self) -> tuple[nn.Module, Any]:
        model: Any = self.make_model()
        return model, torch.optim.SGD(model.b.parameters(), lr=0.1)


class OnlyInTheOptimizer(Submodules):
    """A weight of the loss is learned too, and is in no module."""

    def make(self) -> tuple[nn.Module, Any]:
        model = self.make_model()
        self.scale = torch.ones((), requires_grad=True)
        return model, torch.optim.SGD([*model.parameters(), self.scale], lr=0.1)

    def output(self, model: Any, x: Tensor) -> Tensor:
        return super().output(model, x) * self.scale

    def learned(self, model: Any) -> list[Tensor]:
        return [*model.parameters(), self.scale]


class SharedOut(Submodules):
    """Each rank has the optimizer's state of some of the parameters, and the step waits for all ranks."""

    options: ClassVar[dict[str, Any]] = {}

    def make(self) -> tuple[nn.Module, Any]:
        model = self.make_model()
        if not dist.is_initialized():
            return model, torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
        optimizer = ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, lr=0.05, weight_decay=0.1, **self.options
        )
        return model, optimizer


class Overlapping(SharedOut):
    """Never steps without DDP, and says so in the log only."""

    options: ClassVar[dict[str, Any]] = {"overlap_with_ddp": True}


class Unfrozen(Submodules):
    def make(self) -> tuple[nn.Module, Any]:
        model, optimizer = super().make()
        self.freeze(model, is_frozen=True)
        return model, optimizer

    def after(self, model: Any, num_steps: int) -> None:
        if num_steps == 2:
            self.freeze(model, is_frozen=False)

    def freeze(self, model: Any, *, is_frozen: bool) -> None:
        model.a.requires_grad_(not is_frozen)


class Frozen(Submodules):
    """Frozen by ranks with a batch; the others see nothing of it."""

    def loss(self, model: Any, batch: Pair, index: int) -> Any:
        if index == 2:
            model.a.requires_grad_(False)
        return super().loss(model, batch, index)


class FrozenOnOneRank(Submodules):
    def loss(self, model: Any, batch: Pair, index: int) -> Any:
        if index == 1 and RANKS.rank == 1:
            model.b.bias.requires_grad_(False)
        return super().loss(model, batch, index)


class Fourier(Kind):
    """A layer with complex weights, as of a Fourier neural operator."""

    def make_model(self) -> nn.Module:
        layer = nn.Module()
        layer.spectral = nn.Parameter(0.1 * torch.randn(4, 2, dtype=torch.complex128))
        return nn.ModuleDict({"a": nn.Linear(3, 6), "layer": layer, "b": nn.Linear(2, 2)})

    def output(self, model: Any, x: Tensor) -> Tensor:
        modes = torch.fft.rfft(model.a(x)).to(torch.complex128)
        return model.b((modes @ model.layer.spectral).real)  # type: ignore[no-any-return]


class Lazy(Kind):
    """The shapes and weights of layers are made by the first batch, on whichever rank it is."""

    def make_model(self) -> nn.Module:
        self.first: dict[str, Tensor] = {}
        return nn.Sequential(nn.LazyLinear(4), nn.Tanh(), nn.LazyBatchNorm1d(), nn.LazyLinear(2))

    def output(self, model: Any, x: Tensor) -> Tensor:
        if any(map(is_lazy, model.parameters())):
            model(torch.zeros(2, 3))
            self.first = {name: value.clone() for name, value in model.state_dict().items()}
        made: Tensor = model.eval()(x)
        model.train()
        return made


class Experts(Kind):
    """Each expert is for some samples only; an expert may have none on any rank."""

    def make_model(self) -> nn.Module:
        return nn.ModuleList([nn.Linear(3, 2) for _ in range(4)])

    def output(self, model: Any, x: Tensor) -> Tensor:
        choice = (x[:, 0].abs() * 3).long().clamp(max=3)
        output = torch.zeros(len(x), 2)
        for number in choice.unique().tolist():
            rows = choice == number
            output[rows] = model[number](x[rows])
        return output


class Averaged(Submodules):
    """The running mean of the weights is kept beside them."""

    def after(self, model: Any, num_steps: int) -> None:
        if num_steps == 1:
            self.averaged = AveragedModel(model)
        self.averaged.update_parameters(model)

    def learned(self, model: Any) -> list[Tensor]:
        return [*model.parameters(), *self.averaged.parameters()]


class SomeWithoutLoss(Submodules):
    """Batches whose first number is negative are skipped."""

    def loss(self, model: Any, batch: Pair, index: int) -> Any:
        if batch[0][0, 0] < 0:
            return SkippedBatch()
        return {"loss": super().loss(model, batch, index), "more": 1}


class WithoutReturn(Submodules):
    def loss(self, model: Any, batch: Pair, index: int) -> None:
        super().loss(model, batch, index)


class OwnLoop(Submodules):
    """Optimises by itself, and returns the loss as well."""

    def make(self) -> tuple[nn.Module, Any]:
        model, self.optimizer = super().make()
        return model, self.optimizer

    def loss(self, model: Any, batch: Pair, index: int) -> Any:
        self.optimizer.zero_grad()
        loss = super().loss(model, batch, index)
        loss.backward()
        self.optimizer.step()
        return loss


class Manual(Kind):
    is_manual = True

    def step(self, model: Any, optimizers: Any, backward: Callable[..., None], batch: Pair, index: int) -> None:
        raise AssertionError


class Adversarial(Manual):
    """The textbook's step of two networks, whose parts are called, with a limit to the weights of one."""

    def make(self) -> tuple[nn.Module, Any]:
        critic = nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))
        model: Any = nn.ModuleDict({"g": nn.Linear(3, 2), "d": critic})
        return model, [
            torch.optim.Adam(model.g.parameters(), lr=0.05),
            torch.optim.SGD(model.d.parameters(), lr=0.05, momentum=0.9),
        ]

    def step(self, model: Any, optimizers: Any, backward: Callable[..., None], batch: Pair, index: int) -> None:
        (x, y), (of_g, of_d) = batch, optimizers
        of_d.zero_grad()
        backward(model.d(model.g(x).detach()).mean() - model.d(y).mean())
        nn.utils.clip_grad_norm_(model.d.parameters(), 0.2)
        of_d.step()
        with torch.no_grad():
            for parameter in model.d.parameters():
                parameter.clamp_(-0.5, 0.5)
        of_g.zero_grad()
        backward(-model.d(model.g(x)).mean())
        of_g.step()


class SharedOutManually(Adversarial):
    def make(self) -> tuple[nn.Module, Any]:
        return SharedOut().make()


class AveragedAdversarial(Adversarial):
    """The running mean of both, which a rank without a batch takes of weights that it takes over later."""

    after = Averaged.after
    learned = Averaged.learned


class Accumulating(Adversarial):
    """Steps the first at every second batch, and clears nothing that it does not have to."""

    def step(self, model: Any, optimizers: Any, backward: Callable[..., None], batch: Pair, index: int) -> None:
        (x, y), (of_g, of_d) = batch, optimizers
        generated = model.g(x)
        backward(model.d(generated).square().mean() + functional.mse_loss(generated, y), retain_graph=True)
        backward(0.1 * generated.square().mean())
        of_d.step()
        of_d.zero_grad(set_to_none=False)
        if index % 2:
            of_g.step()
            model.g.zero_grad()


class LineSearch(Manual):
    """How often LBFGS asks for the loss depends on what it is told."""

    def make(self) -> tuple[nn.Module, Any]:
        model = self.make_model()
        return model, torch.optim.LBFGS(model.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def step(self, model: Any, optimizers: Any, backward: Callable[..., None], batch: Pair, index: int) -> None:
        def closure() -> Tensor:
            optimizers.zero_grad()
            loss = functional.mse_loss(model.b(torch.tanh(model.a(batch[0]))), batch[1])
            backward(loss)
            return loss

        optimizers.step(closure)


class OwnBackward(Adversarial):
    """Forgets manual_backward."""

    def step(self, model: Any, optimizers: Any, backward: Callable[..., None], batch: Pair, index: int) -> None:
        model.g(batch[0]).mean().backward()


class Sparse(Submodules):
    def make_model(self) -> nn.Module:
        model: Any = super().make_model()
        model.table = nn.Embedding(5, 4, sparse=True)
        return model  # type: ignore[no-any-return]

    def output(self, model: Any, x: Tensor) -> Tensor:
        return model.b(torch.tanh(model.a(x)) + model.table(torch.arange(len(x))))  # type: ignore[no-any-return]


class OtherModels(Submodules):
    """Rank 1 makes a part more."""

    def make_model(self) -> nn.Module:
        model: Any = super().make_model()
        if RANKS.rank == 1:
            model.more = nn.Linear(2, 2)
        return model  # type: ignore[no-any-return]


class NormOfAllRanks(Submodules):
    def make_model(self) -> nn.Module:
        model: Any = super().make_model()
        model.norm = nn.SyncBatchNorm(4)
        return model  # type: ignore[no-any-return]


KINDS: dict[str, type[Kind]] = {kind.__name__: kind for kind in (*Kind.__subclasses__(), *Manual.__subclasses__())}
KINDS |= {kind.__name__: kind for one in list(KINDS.values()) for kind in one.__subclasses__()}
KINDS |= {kind.__name__: kind for one in list(KINDS.values()) for kind in one.__subclasses__()}


class Server(TorchServer):
    """Trains what its kind says."""

    def __init__(self, kind: Kind, config: Any) -> None:
        super().__init__(config)
        self.kind = kind
        self.automatic_optimization = not kind.is_manual

    def prepare_training_attributes(self) -> Any:
        return self.kind.make()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if isinstance(self.kind, Manual):
            return self.kind.step(self.model, self.optimizer, self.manual_backward, batch, batch_idx)
        return self.kind.loss(self.model, batch, batch_idx)

    def on_step_end(self) -> None:
        self.kind.after(self.model, self.progress.batches)
        self.further = {name: it for name, it in vars(self.kind).items() if isinstance(it, nn.Module)}


def union_batches(steps: list[list[int]]) -> list[list[Pair]]:
    """The parts of all ranks, step by step."""
    generator = torch.Generator().manual_seed(1)
    samples = torch.randn(sum(map(sum, steps)), 5, generator=generator, dtype=torch.float64)
    unions = samples.split([sum(sizes) for sizes in steps])
    parts = [union.split(sizes) for union, sizes in zip(unions, steps, strict=True)]
    return [[(part[:, :3], part[:, 3:]) for part in union] for union in parts]


def union_batch_of(parts: Sequence[Pair]) -> tuple[UnionBatch, Pair | None]:
    sizes = tuple(len(x) for x, _ in parts)
    own = parts[RANKS.rank] if sizes[RANKS.rank] else None
    batch = None if own is None else batch_of(own, len(own[0]))
    return UnionBatch(own=batch, sizes=sizes, counts=StepCounts(num_first=sum(sizes))), own


def train_on_ranks(job: dict[str, Any]) -> tuple[Server, dict[str, Any]]:
    progress, batches, saved = Progress(RANKS.size), union_batches(job["steps"]), b""
    found: dict[str, Any] = {"error": ""}
    try:
        for first, stop in pairwise([0, *job.get("restarts", ()), len(batches)]):
            server = Server(KINDS[job["kind"]](), settings(**job.get("training", {})))
            server.union_mean, server.progress = UnionMean(RANKS), progress
            with TorchStep(server, RANKS, server.config) as step:
                if saved:
                    step.load_state_dict(from_bytes(saved))
                for index in range(first, stop):
                    union_batch, data = union_batch_of(batches[index])
                    outcome = step.run(union_batch, data, index)
                    progress.count_batch(union_batch)
                    if outcome.updated:
                        progress.count_update(outcome)
                    server.on_step_end()
                last = step.finish()
                if last is not None:
                    progress.count_update(last)
                # As in a checkpoint, where the state is asked for on one rank.
                saved = RANKS.broadcast_bytes(to_bytes(step.state_dict()) if RANKS.rank == 0 else b"")
                found["weights"] = numbers(server.kind.learned(server.model))
                found["counts"] = [progress.updates, progress.samples, progress.skipped]
                found["names"] = list(server.model.state_dict())
    except (UserCodeError, ConfigError) as error:
        if not job.get("is_refused"):
            print(error, file=sys.stderr, flush=True)
            RANKS.abort(error.exit_code)
        found["error"] = str(error)
        # After an error the process group is left to the end of the process.
        if dist.is_initialized():
            dist.destroy_process_group()
    return server, found


def train_plainly(job: dict[str, Any], of_rank: Kind) -> list[float]:
    """One process, and nothing but torch."""
    torch.set_default_dtype(torch.float64)
    torch.manual_seed(0)
    training = job.get("training", {})
    kind = KINDS[job["kind"]]()
    model, optimizer = kind.make()
    if isinstance(kind, Lazy) and isinstance(of_rank, Lazy):
        model(torch.zeros(2, 3))
        model.load_state_dict(of_rank.first)
        kind.first = of_rank.first
    waiting: list[tuple[Pair, int]] = []
    batches = union_batches(job["steps"])
    for index, parts in enumerate(batches):
        present = [part for part in parts if len(part[0])]
        if isinstance(kind, Manual):
            x, y = (torch.cat(tensors) for tensors in zip(*present, strict=True))
            kind.step(model, optimizer, Tensor.backward, (x, y), index)
            kind.after(model, index + 1)
            continue
        waiting += [(part, index) for part in present]
        if (index + 1) % training.get("accumulate", 1) == 0 or index + 1 == len(batches):
            update_plainly(kind, model, optimizer, waiting, training)
            waiting = []
        kind.after(model, index + 1)
    torch.set_default_dtype(torch.float32)
    return numbers(kind.learned(model))


def update_plainly(kind: Kind, model: Any, optimizer: Any, parts: list[tuple[Pair, int]], training: Any) -> None:
    losses = [(len(part[0]), kind.loss(model, part, index)) for part, index in parts]
    given = [
        (num, loss["loss"] if isinstance(loss, dict) else loss)
        for num, loss in losses
        if not isinstance(loss, SkippedBatch)
    ]
    if not given:
        return
    model.zero_grad()
    optimizer.zero_grad()
    sum(num * loss for num, loss in given).div(sum(num for num, _ in given)).backward()
    if "clip_norm" in training:
        nn.utils.clip_grad_norm_([it for it in model.parameters() if it.grad is not None], training["clip_norm"])
    optimizer.step()


def numbers(tensors: Sequence[Tensor]) -> list[float]:
    real = [torch.view_as_real(it) if it.is_complex() else it for it in (tensor.detach() for tensor in tensors)]
    return [value for tensor in real for value in tensor.double().flatten().tolist()]


found: list[dict[str, Any]] = []
for the_job in json.loads(sys.argv[1]):
    trained, own_result = train_on_ranks(the_job)
    everyone = RANKS.gather(own_result)
    if everyone is not None:
        plain = [] if own_result["error"] else train_plainly(the_job, trained.kind)
        found.append({"ranks": everyone, "plain": plain})
if RANKS.rank == 0:
    Path(sys.argv[2]).write_text(json.dumps(found))
