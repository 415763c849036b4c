"""The speed of a training whose data costs nothing: one batch of made-up samples comes again and again.

    python -m benchmarks.training_alone study.json
    mpirun -n 2 python -m benchmarks.training_alone study.json --seconds 60 --set training.batch_size=32

What was received, drawn and kept of a run cannot make it faster than this.
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from stream_server.config import StudyConfig, load
from stream_server.errors import StreamServerError
from stream_server.machine import private_folder
from stream_server.server.commands.evaluate import leave_because_of, ranks_of_this_job
from stream_server.server.commands.fast_dev_run import SyntheticSource
from stream_server.server.metrics.metrics import Metrics
from stream_server.server.progress.batches import Batch
from stream_server.server.progress.length import TrainingLength
from stream_server.server.progress.progress import Progress
from stream_server.server.progress.stop import StopReason
from stream_server.server.ranks.communicator import Ranks
from stream_server.server.run.build import make_policy
from stream_server.server.run.cores import SimulationCores, share_cores, wait_passively
from stream_server.server.study.composition import Composition
from stream_server.server.study.display import shares
from stream_server.server.training.control_round import Stream
from stream_server.server.user.callbacks import Callback
from stream_server.server.user.components import load_server_class, make_callbacks
from stream_server.wording import counted

SECONDS = 10.0
NUM_WARM_UP = 10
NUM_PHASES = 8


def train_alone(config: StudyConfig, seconds: float) -> int:
    """Train for `seconds` on one batch of synthetic samples, again and again, and print the speed.

    On all ranks of this MPI job, or on one rank outside of MPI, with the loop, the callbacks and the threads of the
    study; nothing is received, validated or kept. Collective.

    Returns:
        The exit code: 0, or that of the first error, which is printed.
    """
    with ranks_of_this_job(config) as ranks, ExitStack() as stack:
        folder = stack.enter_context(private_folder.temporary())
        try:
            speed = measure(config, ranks, seconds, folder, stack)
        except Exception as error:
            return leave_because_of(error, ranks, phase="training alone")
        if ranks.rank == 0:
            print(told(config, ranks.size, speed, last_report(config)))
    return 0


class TrainingSpeed(Callback):
    """Measures the training after some first batches, and stops it after `seconds`."""

    def __init__(self, training: Composition, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._training = training
        self._seconds = seconds
        self._clock = clock
        self._begin: tuple[float, int, int, Mapping[str, float]] | None = None
        self._now = 0.0

    def on_step_end(self, server: Any) -> None:
        progress = self._training.progress
        self._now = self._clock()
        if progress.batches == NUM_WARM_UP:
            self._begin = self._now, progress.batches, progress.draws, self._training.phases.seconds
        if self._begin is not None and self._now - self._begin[0] >= self._seconds:
            # Nothing is validated or exported after this one.
            self._training.stops.request(StopReason.SAVED, "measured")

    def result(self) -> dict[str, Any]:
        """Batches, samples, seconds, and seconds by phase on this rank, since the first batches."""
        assert self._begin is not None
        since, batches, draws, phases_s = self._begin
        progress = self._training.progress
        return {
            "seconds": self._now - since,
            "batches": progress.batches - batches,
            "samples": progress.draws - draws,
            "phases_s": {name: s - phases_s.get(name, 0.0) for name, s in self._training.phases.seconds.items()},
        }


class RepeatedBatch:
    """A stream that gives the first batch of another one for ever."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._batch: Batch | None = None

    def draw(self, timeout_s: float) -> Batch | None:
        if self._batch is None:
            self._batch = self._stream.draw(timeout_s)
        return self._batch

    def release(self) -> None:
        """Do nothing: the batch comes again."""

    def form_again(self) -> Batch:
        self._batch = self._stream.form_again()
        return self._batch

    def quiesce(self) -> None:
        self._stream.quiesce()


def measure(config: StudyConfig, ranks: Ranks, seconds: float, folder: Path, stack: ExitStack) -> dict[str, Any]:
    """The `TrainingSpeed` of the study. What was set up is taken down with the `stack`. Main thread, collective.

    Raises:
        UserCodeError: a method of the user's class raised, which is the cause.
        ConfigError: the class and study.json do not fit together.
    """
    cores = share_cores(ranks, SimulationCores.of(config, os.environ))
    wait_passively(cores.nodes[ranks.node])
    source = SyntheticSource(config, num_batches=1)
    length = TrainingLength.of(config, ranks.size, draws_per_sample=make_policy(config, ranks.rank).draws_per_sample)
    endless = config.model_copy(
        update={"training": config.training.model_copy(update={"max_batches": None, "max_s": None})}
    )
    composition = Composition(
        endless,
        ranks,
        output_dir=folder,
        parameter_names=source.parameter_names,
        progress=Progress(ranks.size, length=length, lr_clock=config.training.lr_clock),
        buffer=source.buffer,
        num_threads=cores.threads[ranks.rank],
    )
    speed = TrainingSpeed(composition, seconds)
    composition.make_server(load_server_class(config), stack, Metrics(ranks, progress=composition.progress))
    composition.make_step(stack, make_callbacks(composition.server))
    composition.make_stream(source, stack)
    composition.make_validation(
        composition.held_out(source),
        quiesce=composition.stream.quiesce,
    )
    training = composition.make_training(source, log_every=config.training.log_every_batches, after_logging=[speed])
    replace(training, stream=RepeatedBatch(training.stream)).run()
    return speed.result()


def last_report(config: StudyConfig) -> Mapping[str, Any] | None:
    """The report of the last run of this study, if there is one."""
    with suppress(OSError, ValueError):
        report: Mapping[str, Any] = json.loads((config.output_dir / "report.json").read_text())
        return report
    return None


def told(config: StudyConfig, num_ranks: int, speed: Mapping[str, Any], report: Mapping[str, Any] | None) -> str:
    """The result for people, beside the last run of this study."""
    seconds, batch_size = speed["seconds"], config.training.batch_size
    batches_per_s = speed["batches"] / seconds
    rows = {
        "speed": f"{batches_per_s:,.1f} batches/s, {speed['samples'] / seconds:,.0f} samples/s",
        "measured": f"{counted(speed['batches'], 'batch')} in {seconds:.1f} s",
        "time": shares(speed["phases_s"], NUM_PHASES) or "-",
    }
    if report is not None and report["ranks"] == num_ranks and (rate := report["throughput"]["batches_per_s"]):
        rows["last run"] = f"{rate:,.1f} batches/s, {rate / batches_per_s:.0%} of it, with all waits"
    title = f"{config.study.name}: the training alone, {num_ranks} x {batch_size} samples, the same ones in each batch"
    return "\n".join([title, *(f"  {name:<9} {text}" for name, text in rows.items())])


def main() -> int:
    """Measure the study of the command line; returns its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path, metavar="study.json")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="how long it trains")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override one key")
    arguments = parser.parse_args()
    try:
        return train_alone(load(arguments.study, arguments.set), arguments.seconds)
    except StreamServerError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
