"""The base class of the user's server."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stream_server.errors import UserCodeError
from stream_server.ragged import is_ragged, pack
from stream_server.server.metrics.logged_numbers import Reduce
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.metrics.union_mean import UnionMean
from stream_server.server.progress.phases import Phases
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason, StopRequests
from stream_server.server.ranks.communicator import Ranks, SoloRanks
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.collate import KeptSample
from stream_server.server.user.forecast import Scale, array_of, rounding_of, scale_of_target
from stream_server.server.user.framework import framework_of
from stream_server.server.user.normalization import Normalization
from stream_server.server.user.rendering import Prediction, Rendering, render
from stream_server.server.user.simulation_data import SimulationBatch, SimulationData
from stream_server.user_code import call_user

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    from stream_server.buffers.buffer import Buffer
    from stream_server.config import StudyConfig

# What `prepare_training_attributes` returns, under the names that it has then.
RETURNED = ("model", "optimizer", "lr_scheduler")


class StreamServer:
    """The part of a study that turns the samples of its simulations into a trained model, with any framework or none.

    Override at least `process_simulation_data` and `training_step`. All methods are called in the main thread with no
    lock held, but for `process_simulation_data` and `process_batch` with `training.prefetch` or a loader. A server
    constructed directly, as in a unit test, is a single rank and logs nowhere.
    """

    automatic_optimization = True
    framework: ClassVar[str] = "numpy"
    _held: frozenset[str] = frozenset()

    def __init__(self, config: "StudyConfig | None" = None) -> None:
        self.config: Any = config
        self.rank = 0
        self.num_ranks = 1
        self.num_threads = 1
        self.parameter_names: tuple[str, ...] = ()
        self.progress = Progress()
        self.buffer: Buffer | None = None
        self.output_dir = Path()
        self.union_mean = UnionMean(SoloRanks())
        self.normalization = Normalization(SoloRanks()) if config is None else Normalization.of(config)
        self.phases = Phases()
        self._metrics = Metrics(SoloRanks())
        self._stops = StopRequests()
        self._parameters_of: Callable[[NDArray[np.int64]], NDArray[np.float64]] | None = None
        self._take_scores: Callable[[Any, Any, Mapping[str, Any]], None] | None = None
        self._end_early: Callable[[int, str], None] | None = None
        # What two objects of a script share, its copies for this server share, too.
        self.copy_live = partial(deepcopy, memo={})
        training = None if config is None else config.training
        precision, device = ("32-true", "cpu") if training is None else (training.precision, training.device)
        framework = framework_of(self)
        framework.check_precision(precision, device)
        self.collate = framework.make_collate(precision)
        self._rounding = rounding_of(precision)
        self._scale_of_forecast: Scale | None = None
        if config is not None:
            self.hold_attributes(config=config)

    def __setattr__(self, name: str, value: Any) -> None:
        """Set an attribute of the user's class.

        Raises:
            UserCodeError: the name is one that Stream Server needs itself.
        """
        if name in self._held or _takes_place_of_ours(type(self), name, value):
            owner = type(self).__name__
            raise UserCodeError(
                f"self.{name} must not be assigned in {owner}, since Stream Server uses it itself: "
                + (
                    "it stays what prepare_training_attributes returned, which may be changed in place, such as the "
                    "rates in self.optimizer.param_groups. Other weights are evaluated by model_to_evaluate"
                    if name in RETURNED
                    else "give the attribute another name"
                )
            )
        super().__setattr__(name, value)

    def hold_attributes(self, **attributes: Any) -> None:
        """Set attributes that the user's class cannot assign from now on. Called by Stream Server."""
        vars(self).update(attributes)
        vars(self)["_held"] = self._held | attributes.keys()

    def enter_study(self, ranks: Ranks, parameter_names: Sequence[str]) -> None:
        """Give the server its place in a running study; called once, before any other method.

        The other attributes that come from the study are held beside this.
        """
        normalization = self.normalization
        if self.config is not None:
            normalization = Normalization.of(self.config, ranks, num_parameters=len(parameter_names))
        self.hold_attributes(
            rank=ranks.rank,
            num_ranks=ranks.size,
            parameter_names=tuple(parameter_names),
            union_mean=UnionMean(ranks),
            normalization=normalization,
            collate=self.collate,
        )

    def enter_stream(self, parameters_of: "Callable[[NDArray[np.int64]], NDArray[np.float64]]") -> None:
        """Give the server the parameters of the simulations whose samples come; called once, before the training."""
        self._parameters_of = parameters_of

    def make_loader(self, samples: Iterator[Any]) -> Any:
        """The user's loader, which makes batches of these samples; None: batches are made of `batch_size` each."""
        return None

    @staticmethod
    def setup_environment(config: Any, rank: int, local_rank: int) -> None:
        """Prepare this process, as by `os.environ`; called on every rank before all other methods and `__init__`.

        The file of the class is imported by then, and the study has touched no GPU: `CUDA_VISIBLE_DEVICES` still
        counts. `local_rank` numbers the ranks of a node. Simulations that rank 0 starts inherit its environment.
        """

    def prepare_training_attributes(self) -> Any:
        """Make the model and whatever else training needs; called once on every rank."""

    def process_simulation_data(self, data: SimulationData, config: Any) -> Any:
        """One sample as the training step wants it: arrays and numbers in a tuple, list or dict.

        The arrays of `data` are read-only views, valid until the batch is formed.
        """
        raise NotImplementedError(f"{type(self).__name__} must define process_simulation_data or process_batch")

    def process_batch(self, batch: SimulationBatch, config: Any) -> Any:
        """A whole batch as the training step wants it; override to treat all rows in one operation."""
        kept = KeptSample(self.collate)
        samples = [kept.note(self.process_simulation_data(sample, config)) for sample in batch.samples()]
        kept.check()
        return self.collate(samples)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        """Learn from this rank's batch and return the mean loss of its samples, or an array with the loss of each.

        Only ranks with a batch call this. `all_reduce` is the one way to communicate in it; a server that uses it here
        holds the same state on all ranks, and ranks that had no batch are given the `state_dict` of those that had.
        """
        return self._loss_by_default(batch, "training_step")

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        """The mean loss of a validation batch, or a dict of means with "loss" among them.

        Instead of a mean it may give an array of shape (samples,), a value for each: with the loss of each, these are
        the errors of the held-out samples.
        """
        return self._loss_by_default(batch, "validation_step")

    def predict(self, batch: Any) -> Any:
        """The output of the model for a validation batch, a row for each sample; None: no prediction is kept.

        Called after `validation_step` with the same batch, on the ranks that have one: it must not communicate.
        """
        return None

    def render(self, sample: SimulationData, prediction: Prediction) -> Rendering:
        """A sample as it is shown: by name the truth and the prediction, of one shape, in physical units.

        By default the field whose values, normalised or not, are the target; if there is none, output and target.
        """
        return render(sample, prediction, self._denormalized, self._rounding)

    def rollout_step(self, window: SimulationBatch, batch: Any) -> dict[str, Any]:
        """Forecast the next k steps of trajectories: by field an array of shape (n, k, …), or (n, …) where k is 1.

        Of a field that differs in size n stands for the rows of all trajectories, one after the other, as `pack` gives
        them: a trajectory is forecast as long as it keeps the number of its rows.

        Called in a validation with `validation.rollout` in study.json, again and again along each held-out trajectory,
        on the ranks that have one: it must not communicate. k is `samples.window.length` minus
        `validation.rollout.input_steps`, and a forecast has the unit of its field.

        Args:
            window: n windows as `process_batch` is given them. In place of the last k steps of the fields that are
                forecast stand copies of the step before them; the steps before are given, or forecast already.
            batch: what `process_batch` made of it, as `validation_step` is given it.

        By default the forecast is the output of `predict`, which must be one field in the scale of the target.

        Raises:
            UserCodeError: the output, or the target, is not the one field that is to be forecast.
        """
        [name, *others] = self.config.validation.rollout.fields
        output = None if others or self._scale_of_forecast is None else self.predict(batch)
        known = self._last_steps(window, name)
        outputs = None if output is None else array_of(output)
        if self._scale_of_forecast is None or outputs is None or outputs.size != known.size:
            raise UserCodeError(
                f"{type(self).__name__} must define rollout_step: by default a batch is a pair of inputs and targets, "
                f"and targets and predictions are the last {self._num_forecast} step(s) of the one field in "
                f"validation.rollout.fields, which is {' and '.join([name, *others])}"
            )
        return {name: self._scale_of_forecast(outputs.reshape(known.shape))}

    def enter_rollout(self, window: SimulationBatch, batch: Any) -> None:
        """Find out what the targets of a batch are from windows as they were sent. Called by Stream Server."""
        name = self.config.validation.rollout.fields[0]
        target = batch[1] if isinstance(batch, tuple | list) and len(batch) == 2 else None
        self._scale_of_forecast = scale_of_target(
            self._last_steps(window, name), target, partial(self._denormalized, name), self._rounding
        )

    def val_dataloader(self) -> Any:
        """The whole validation set as an iterable of batches, or a dict of such; None: the held-out simulations."""
        return None

    def state_dict(self) -> dict[str, Any]:
        """The state to keep over a restart besides the model, as plain containers and arrays."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the state that `state_dict` returned."""

    def rank_state_dict(self) -> dict[str, Any]:
        """The state of this rank alone to keep over a restart, as plain containers and arrays; it never communicates.

        Such as what this rank has counted of the samples that it drew. It is of the same moment on all ranks, and of
        that of the samples and weights in the checkpoint.
        """
        return {}

    def load_rank_state_dict(self, states: dict[int, dict[str, Any]]) -> None:
        """Restore what `rank_state_dict` returned, by the number of the rank that returned it.

        On as many ranks as before this is the rank's own alone. On another number it is that of all earlier ranks, of
        which each may take those with `rank % self.num_ranks == self.rank`, for example.
        """

    def replicated_state(self) -> dict[str, Any]:
        """The arrays that are the same on every rank, bit by bit, such as the weights; nothing by default.

        They are compared at every checkpoint and at the end of the training, and ranks that differ end the study. The
        parameters and buffers of a TorchServer's model are compared anyway.
        """
        return {}

    def configure_callbacks(self) -> list[Callback]:
        """The callbacks for the events of the training."""
        return []

    def on_train_start(self) -> None:
        """The model is set up; no batch was drawn yet."""

    def on_round(self) -> None:
        """The ranks are about to agree on what comes next, which they do for each batch and at least once a second."""

    def on_round_start(self, round_idx: int) -> None:
        """The first batch with a sample of this round of `study.rounds` is about to be trained, on every rank."""

    def on_round_end(self, round_idx: int) -> None:
        """All samples of this round of `study.rounds` are trained, and none of the next one; on every rank."""

    def on_batch_start(self, batch: Any, batch_idx: int) -> None:
        """`batch` is about to be passed to `training_step`."""

    def on_batch_end(self, batch: Any, batch_idx: int, loss: Any) -> None:
        """`loss` is what `training_step` returned on this rank."""

    def on_gradients(self, model: Any) -> None:
        """The gradients of `model` are complete, on every rank; what is changed in them, on all ranks alike, is used.

        Called where the study makes the gradients, for each update of a TorchServer with automatic optimisation: they
        are those of the union batch, finite, without a loss scale, and not clipped yet by `training.clip_norm`.
        """

    def on_step_end(self) -> None:
        """A training step is over, on every rank, also on those that had no batch for it."""

    def on_validation_start(self) -> None:
        """A validation begins, on every rank."""

    def on_validation_end(self, metrics: dict[str, float]) -> None:
        """`metrics` are the means over all ranks, the same on each, by names without "val/"."""

    def on_checkpoint(self, path: Path) -> None:
        """A checkpoint is committed in the folder `path`."""

    def on_simulation_finished(self, simulation_id: int) -> None:
        """All that this simulation produced has been received."""

    def on_reception_end(self) -> None:
        """No more samples will come; what is in the buffer is still to be trained."""

    def on_train_end(self) -> None:
        """Every batch is trained and the last validation done; not called when the study fails."""

    def parameters_of(self, simulation_ids: "NDArray[np.int64]") -> "NDArray[np.float64]":
        """The parameters of these simulations, shape (n, P), in the order of study.json: a row for each id.

        For what was drawn or is in the buffer, as `self.parameters_of(self.buffer.contents().simulation_ids)`.

        Raises:
            RuntimeError: the training has not begun, so that no sample is known.
        """
        if self._parameters_of is None:
            raise RuntimeError("parameters_of knows simulations once the training begins: call it in training_step")
        return self._parameters_of(simulation_ids)

    def report(self, simulation_ids: "ArrayLike", time_steps: "ArrayLike", **scores: "ArrayLike") -> None:
        """Tell the class that suggests parameters how samples score, such as `difficulty=…`; a value for each or one.

        It gets the mean over all samples of a simulation on all ranks since it was last told. Never communicates.
        Nothing happens in a study whose parameters are not suggested while it runs.

        Args:
            simulation_ids: the simulations of n samples, shape (n,).
            time_steps: their time steps, shape (n,).
            scores: numbers by name; those that are not finite are left out.

        Raises:
            ValueError: the shapes differ, or a name stands for a result that every simulation has (`loss`).
        """
        if self._take_scores is not None:
            self._take_scores(simulation_ids, time_steps, scores)

    def stop_simulation(self, simulation_id: int, reason: str = "it teaches nothing more") -> None:
        """Stop one training simulation early: what has come of it is trained on, and nothing more comes.

        Its client sees the end of the study: `send` returns False (STREAM_STOP in C and Fortran). It is neither a
        failure nor started again. One that waits to be started never is. Any rank may call this, at any time and
        repeatedly; it never communicates. Nothing happens for held-out simulations, for those that have ended, and in a
        replay.

        Args:
            simulation_id: the simulation, as `data.simulation_id` has it.
            reason: what the client and the report are told.
        """
        if self._end_early is not None:
            self._end_early(int(simulation_id), reason)

    def log(
        self, name: str, value: Any, *, step: int | None = None, reduce: Reduce = "mean", keep: bool = False
    ) -> None:
        """Log one number. Never communicates: the mean over ranks and batches is taken where it is written.

        In `validation_step` it is a value of the validation, as if it were returned: `val/NAME`.

        Args:
            name: what the number is called.
            value: a number, or a tensor or array of one element; or a metrics object that is an attribute, such as of
                torchmetrics: then `train/NAME` is its value over all ranks at the next log point, which resets it.
            step: the batch at which it stands in the curves, usually `self.progress.batches`, and not before the last
                log point. By default it becomes one value at the next log point, with all others since the last one.
            reduce: what that value is of all that the ranks have logged under this name since then, or for this step:
                "mean", "last" (the mean over the ranks of what each logged last), "sum", "max" or "min".
            keep: do not start anew at each log point: the value is that of the whole run so far, over restarts.

        Raises:
            TypeError: `value` is not one number, or `step` no whole one.
            ValueError: `step` lies before the last log point or after now, or the name has another `reduce` or `keep`.
            UserCodeError: the study logs the same name, such as "train/loss" where `training_step` returns a loss.
        """
        self._metrics.log(name, value, step=step, reduce=reduce, keep=keep, by_user=True)

    def log_histogram(self, name: str, values: Any) -> None:
        """Log the distribution of an array.

        Raises:
            UserCodeError: the study logs the same name, such as "buffer/age".
        """
        self._metrics.log_histogram(name, values, by_user=True)

    def log_figure(self, name: str, figure: Any) -> None:
        """Log a Matplotlib figure of rank 0."""
        self._metrics.log_figure(name, figure)

    def all_reduce(self, arrays: Any, n: float | None = None) -> Any:
        """The mean over the ranks of an array, or of each array in a list, tuple or dict, weighted by `n`.

        In `training_step` the weight is by default the size of this rank's batch, so that the means over samples of
        the ranks become the mean over the union batch; ranks without a batch take part by themselves. Elsewhere all
        ranks must call it, and the default weight is 1.

        Raises:
            UserCodeError: the ranks passed arrays of different shapes.
        """
        return self.union_mean.mean(arrays, n)

    def stop_study(self, reason: str) -> None:
        """Ask all ranks to end the training at the next update; one rank's request is enough."""
        self._stops.request(StopReason.EARLY_STOP, reason)

    def _loss_by_default(self, batch: Any, method: str) -> Any:
        raise NotImplementedError(f"{type(self).__name__} must define {method}")

    @property
    def _num_forecast(self) -> int:
        """The number of steps of a window that are forecast."""
        num: int = self.config.window.length - self.config.validation.rollout.input_steps
        return num

    def _last_steps(self, window: SimulationBatch, name: str) -> "NDArray[Any]":
        """A field where the model forecasts, in one array."""
        steps = window.fields[name][:, -self._num_forecast :]
        return pack(steps)[0] if is_ragged(steps) else steps

    def _denormalized(self, field: str, array: Any) -> Any:
        is_normalized = field in self.normalization.fields
        return self.normalization.denormalize(field, array) if is_normalized else array


def rank_state_of(server: StreamServer) -> dict[str, Any]:
    """The result of the server's `rank_state_dict`.

    Raises:
        UserCodeError: it raised, or waits for other ranks.
    """
    with server.union_mean.alone():
        return call_user(f"{type(server).__name__}.rank_state_dict", server.rank_state_dict)  # type: ignore[no-any-return]


def left_out_by_filter(server: Any, names: Iterable[str]) -> list[str]:
    """Those of these names of parameters that the `save_filter` of a TorchServer leaves out.

    Raises:
        UserCodeError: it raised.
    """
    where = f"{type(server).__name__}.save_filter"
    return [name for name in names if not call_user(where, server.save_filter, name)]


# The servers of the studies of this process, the newest last.
RUNNING: list[StreamServer] = []


def log(name: str, value: Any, *, step: int | None = None, reduce: Reduce = "mean", keep: bool = False) -> None:
    """Log a number by the server of this process, as its `log` does, where it is not at hand, such as in a model.

    Raises:
        UserCodeError: no server runs in this process.
    """
    if not RUNNING:
        raise UserCodeError(
            f"stream_server.log({name!r}, …) found no study in this process: it logs by the server of one that trains, "
            "validates or evaluates. In a model that is also used without a study, log only `if self.training`"
        )
    RUNNING[-1].log(name, value, step=step, reduce=reduce, keep=keep)


def _takes_place_of_ours(server_class: type[StreamServer], name: str, value: Any) -> bool:
    """Whether a value would take the place of a property, or of a method without being one, that are not the user's."""
    own = (vars(each).get(name) for each in server_class.__mro__ if each.__module__.startswith("stream_server."))
    return any(isinstance(each, property) or (callable(each) and not callable(value)) for each in own)
