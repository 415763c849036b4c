"""`stream-server --fast-dev-run`: tries a server class in seconds, without simulations, sockets or MPI."""

import sys
import tempfile
import traceback
from pathlib import Path

from stream_server.config import StudyConfig
from stream_server.errors import StreamServerError
from stream_server.server.call_record import CallRecord
from stream_server.server.failure import foreseen
from stream_server.server.stream_server import StreamServer
from stream_server.server.trial import Trial


def fast_dev_run(server_class: type[StreamServer], config: StudyConfig) -> int:
    """Train a few batches of made-up samples and validate once; print what was called, with what shapes.

    All in this process and in a temporary folder.

    Returns:
        The exit code: 0, or that of the first error, which is printed with its traceback.
    """
    print(f"Trying {server_class.__name__} on made-up samples: one rank, no simulation, nothing is kept.")
    with tempfile.TemporaryDirectory(prefix="stream-") as folder:
        trial = Trial(server_class, _shortened(config, Path(folder)))
        try:
            logged = trial.run()
        except Exception as raised:
            error = foreseen(raised)
            _print_calls(trial.record)
            _print_error(error)
            return error.exit_code
    _print_calls(trial.record)
    _print_result(trial, logged)
    return 0


def _shortened(config: StudyConfig, folder: Path) -> StudyConfig:
    """The study without its limits and intervals, in another output folder."""
    study = config.study.model_copy(update={"output_dir": folder})
    training = config.training.model_copy(update={"max_batches": None, "max_s": None})
    return config.model_copy(update={"study": study, "training": training})


def _print_calls(record: CallRecord) -> None:
    for name, call in record.calls.items():
        print(f"\n{name}, {call.num} {'call' if call.num == 1 else 'calls'}")
        print(f"    given     {call.given}")
        print(f"    returned  {call.returned}")


def _print_error(error: StreamServerError) -> None:
    if error.__cause__ is not None:
        print(file=sys.stderr)
        traceback.print_exception(error.__cause__, file=sys.stderr)
    print(f"\nIt does not work yet: {error}", file=sys.stderr)


def _print_result(trial: Trial, logged: dict[str, float]) -> None:
    progress = trial.progress
    losses = [f"{name} {logged[name]:.4g}" for name in ("train/loss", "val/loss") if name in logged]
    if progress.skipped:
        losses.append(f"{progress.skipped} samples skipped, since their gradient was not finite")
    if "val/loss" not in logged:
        losses.append("nothing was validated: the study holds no simulation out and there is no val_dataloader")
    print(f"\nIt works: {progress.batches} batches with {progress.draws} samples; {'; '.join(losses)}.")
