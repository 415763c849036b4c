"""The options that `stream-server` and `stream-launcher` share, and what their exit status means."""

import argparse
from contextlib import suppress
from pathlib import Path

from stream_server.config.values import walltime_s

EXIT_STATUS = """\
exit status:
  0 finished and balanced   2 command line or study.json   3 the user's class raised
  4 too many simulations failed: repair the cause, and run it again with --retry
  5 the account does not balance, or the last checkpoint was not committed   6 no usable checkpoint
  7 a rank, thread or node was lost; with stream-launcher, more often in a row than launcher.restarts allows
  8 the weights of the ranks have diverged   70 an unexpected error: please report it
  9 the trained model cannot be written, and is in the last checkpoint alone: make room, and run it again
  75 saved: run the same command again to go on   130 ended by a second signal
"""


def add_run_options(parser: argparse.ArgumentParser, *, required: bool) -> argparse._MutuallyExclusiveGroup:
    """Add the study, if that is `required`, and how it is run; returns what becomes of an earlier run."""
    parser.add_argument("--config", type=Path, required=required, metavar="study.json", help="the study")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key, such as training.batch_size=32",
    )
    parser.add_argument(
        "--time-limit",
        type=_time_limit,
        metavar="HH:MM:SS",
        help="save a checkpoint and leave with exit status 75 before this time is over, or that of the job of Slurm",
    )
    parser.add_argument(
        "--keep-saved",
        action="append_const",
        dest="set",
        const="load.hyperparameters=saved",
        help="go on with the learning rates and schedules that were saved, although they are others now",
    )
    parser.add_argument(
        "--retry",
        type=int,
        nargs="*",
        metavar="ID",
        help="go on, and try simulations again that were given up: these, or all of them",
    )
    earlier = parser.add_mutually_exclusive_group()
    earlier.add_argument(
        "--resume", action="store_true", help="continue the run in the output folder; an error if there is none"
    )
    earlier.add_argument(
        "--fresh", action="store_true", help="rename the output folder of an earlier run and start over"
    )
    return earlier


def add_check(group: argparse._MutuallyExclusiveGroup) -> None:
    """Add what is done instead of a run."""
    group.add_argument(
        "--check", action="store_true", help="check study.json and print what the study needs; start nothing"
    )


def _time_limit(text: str) -> float:
    with suppress(ValueError):
        if seconds := walltime_s(text):
            return seconds
    raise argparse.ArgumentTypeError(f"{text!r} is no time; write HH:MM:SS, such as 23:50:00")
