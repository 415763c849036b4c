"""One short training of a user's server class on made-up samples."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from stream_server.buffers import Buffer
from stream_server.config import StudyConfig
from stream_server.server.call_record import CallRecord
from stream_server.server.cores import share_cores
from stream_server.server.design import ParameterDesign
from stream_server.server.made_up_samples import MadeUpSamples
from stream_server.server.ranks import SoloRanks
from stream_server.server.stream import StreamDataset
from stream_server.server.stream_server import StreamServer
from stream_server.server.training.callbacks import EVENTS, Callback, Callbacks, call_user
from stream_server.server.training.length import Length
from stream_server.server.training.limits import Limits
from stream_server.server.training.log_points import Logging
from stream_server.server.training.loop import Training
from stream_server.server.training.metrics import Metrics
from stream_server.server.training.phases import Phases
from stream_server.server.training.progress import Progress
from stream_server.server.training.saves import NoSaves
from stream_server.server.training.schedules import Schedule
from stream_server.server.training.step import Step
from stream_server.server.training.stop import StopRequests
from stream_server.server.training.validation import Validation
from stream_server.server.training.writers import open_writers

NUM_BATCHES = 3
NUM_SIMULATIONS = 2
METHODS = (
    "prepare_training_attributes",
    "process_simulation_data",
    "process_batch",
    "training_step",
    "val_dataloader",
    "validation_step",
    "configure_callbacks",
)


class Trial:
    """Sets up what a study sets up, for one rank, and trains a few batches that are there from the start.

    Files go to `config.output_dir`. `record` tells afterwards which of the user's methods were called.
    """

    def __init__(self, server_class: type[StreamServer], config: StudyConfig) -> None:
        self.record = CallRecord()
        self.progress = Beginning(length=Length.of(config, 1), lr_clock=config.training.lr_clock)
        self._server_class = server_class
        self._config = config
        self._ranks = SoloRanks()
        self._stops = StopRequests()
        self._phases = Phases()
        self._samples = MadeUpSamples(config)
        num_held_out = config.validation.simulations
        self._held_out = range(min(NUM_SIMULATIONS, num_held_out))
        self._trained = range(num_held_out, num_held_out + min(NUM_SIMULATIONS, config.study.simulations))

    def run(self) -> dict[str, float]:
        """Train, and validate once at the end; gives the newest value of all that was logged.

        Raises:
            UserCodeError: a method of the user's class raised, which is the cause.
            ConfigError: the class and study.json do not fit together.
        """
        config = self._config
        design = ParameterDesign(config)
        parameters = {
            simulation: np.array(list(design.parameters(simulation).values()), np.float64)
            for simulation in (*self._held_out, *self._trained)
        }
        num_batches = max(NUM_BATCHES, config.training.accumulate)
        buffer = self._samples.buffer(self._trained, num_batches * config.training.batch_size)
        with Metrics(self._ranks, open_writers(config.output_dir / "metrics"), progress=self.progress) as metrics:
            server = self._make_server(design.names, buffer, metrics)
            name = f"{self._server_class.__name__}.configure_callbacks"
            callbacks = Callbacks(server, call_user(name, server.configure_callbacks))
            with server.make_step(self._ranks) as step:
                self._training(server, step, callbacks, metrics, buffer, parameters).run()
        return metrics.latest

    def _make_server(self, parameter_names: tuple[str, ...], buffer: Buffer, metrics: Metrics) -> StreamServer:
        server: StreamServer = call_user(self._server_class.__name__, self._server_class, self._config)
        server.enter_study(
            ranks=self._ranks,
            parameter_names=parameter_names,
            progress=self.progress,
            buffer=buffer,
            output_dir=self._config.output_dir,
            metrics=metrics,
            stops=self._stops,
            phases=self._phases,
            num_threads=share_cores(self._ranks).threads[0],
        )
        self.record.listen(server, [name for name in METHODS + EVENTS if _is_users(server, name)])
        return server

    def _training(
        self,
        server: StreamServer,
        step: Step,
        callbacks: Callbacks,
        metrics: Metrics,
        buffer: Buffer,
        parameters: Mapping[int, NDArray[np.float64]],
    ) -> Training:
        settings = self._config.validation
        held_out = None
        if self._held_out:
            held_out = self._samples.batch(self._held_out, settings.batch_size + 1, parameters)
        validation = Validation(
            server,
            self._ranks,
            callbacks,
            step,
            held_out=lambda: held_out,
            batch_size=settings.batch_size,
            progress=self.progress,
            metrics=metrics,
            phases=self._phases,
        )
        limits = Limits(self._config.training, self.progress, self._stops)
        logging = Logging(metrics, schedule=Schedule(every=1), progress=self.progress, phases=self._phases)
        rates = server.make_learning_rates()
        metrics.gauges += rates
        callbacks.surround(
            before=[limits, Reception(callbacks, self._trained), server.normalization, validation],
            after=[logging, *rates],
        )
        stream = StreamDataset(
            buffer,
            server,
            parameters_of=parameters.__getitem__,
            batch_size=self._config.training.batch_size,
            phases=self._phases,
        )
        return Training(
            ranks=self._ranks,
            stream=stream,
            step=step,
            stops=self._stops,
            limits=limits,
            progress=self.progress,
            callbacks=callbacks,
            metrics=metrics,
            phases=self._phases,
            saves=NoSaves(),
            normalization=server.normalization,
        )


def _is_users(server: StreamServer, method: str) -> bool:
    return not getattr(type(server), method).__module__.startswith("stream_server.")


class Beginning(Progress):
    """The progress of a study of which only the beginning is tried: schedules are not taken to their end."""

    def end(self) -> None:
        pass


class Reception(Callback):
    """Tells, in the first round, that all samples have come."""

    def __init__(self, callbacks: Callbacks, simulations: range) -> None:
        self._callbacks = callbacks
        self._simulations = simulations
        self._is_told = False

    def on_round(self, server: Any) -> None:
        if not self._is_told:
            self._is_told = True
            for simulation in self._simulations:
                self._callbacks.on_simulation_finished(simulation)
            self._callbacks.on_reception_end()
