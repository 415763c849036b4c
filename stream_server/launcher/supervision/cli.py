"""The command `stream-launcher`, and the process that runs the simulations of a study for rank 0."""

import argparse
import math
import re
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from stream_server.config import load
from stream_server.errors import EXIT_FORCED, ConfigError, InternalError, StreamServerError
from stream_server.launcher.backends.allocation import ServerSize, time_left_s
from stream_server.launcher.backends.mpirun import require
from stream_server.launcher.supervision.runs import rename_earlier_run, run_simulations, supervise_study
from stream_server.launcher.supervision.server_job import ServerCommand
from stream_server.machine import descriptors, program
from stream_server.machine.garbage import keep_modules
from stream_server.machine.refusals import refusal, require_threads
from stream_server.machine.screen import print_escaped, tolerate_full_disk
from stream_server.storage.ownership import private_files

DESCRIPTION = """\
Run a study under supervision: the server as one MPI job of server.ranks ranks, and the simulations.

A server that dies or hangs is started again from its newest checkpoint, while the simulations go on; a study
that was interrupted continues when the same command is given again.
`mpirun -n 4 stream-server --config study.json` runs a study with a number of ranks of your choice, unsupervised.
"""
EPILOG = """\
Ctrl-C, TERM, USR1, USR2, XCPU and HUP make the study save a checkpoint and leave; a second Ctrl-C or TERM ends it at
once.
If this process itself is killed, server and simulations go on; the same command takes them over again.

exit status:
  0 finished and balanced   2 command line or study.json   3 the user's class raised
  4 too many simulations failed: repair the cause, and run it again with --retry
  5 the account does not balance, or the last checkpoint was not committed   6 no usable checkpoint
  7 a rank, thread or node was lost, more often in a row than launcher.restarts allows
  8 the weights of the ranks have diverged   70 an unexpected error: please report it
  9 the trained model cannot be written, and is in the last checkpoint alone: make room, and run it again
  75 saved: run the same command again to go on
  130 ended by a second signal that came while it was busy
"""
# Threads of ZeroMQ and of a backend, and a few for what they start.
NUM_THREADS = 8
TIME_LIMIT = re.compile(r"(\d+):([0-5]\d):([0-5]\d)")


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` shows it."""
    parser = argparse.ArgumentParser(
        prog="stream-launcher",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--config", type=Path, required=True, metavar="study.json", help="the study")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key, such as training.batch_size=32",
    )
    parser.add_argument(
        "--time-limit",
        type=time_limit,
        default=math.inf,
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
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--resume", action="store_true", help="continue the run in the output folder; an error if there is none"
    )
    how.add_argument("--fresh", action="store_true", help="rename the output folder of an earlier run and start over")
    how.add_argument(
        "--check", action="store_true", help="check study.json and print what the study needs; start nothing"
    )
    # The two that rank 0 uses.
    parser.add_argument("--simulations-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--link", help=argparse.SUPPRESS)
    return parser


def time_limit(text: str) -> float:
    """The seconds of an HH:MM:SS."""
    match = TIME_LIMIT.fullmatch(text)
    seconds = sum(int(part) * unit for part, unit in zip(match.groups(), (3600, 60, 1), strict=True)) if match else 0
    if not seconds:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write HH:MM:SS, such as 23:50:00")
    return float(seconds)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    if argv is None:
        program.begin()
    began = time.monotonic()
    arguments = parser().parse_args(argv)
    try:
        config = load(arguments.config, arguments.set)
        require(config)
        if arguments.retry is not None and arguments.fresh:
            raise ConfigError("--retry goes on with a study whose simulations were given up: drop --fresh")
        if arguments.fresh and "load.hyperparameters=saved" in arguments.set and config.load.checkpoint is None:
            raise ConfigError("--fresh begins anew, with nothing saved: drop --keep-saved, or write load.checkpoint")
        command = ServerCommand(
            study=config,
            file=arguments.config.absolute(),
            overrides=arguments.set,
            resume=arguments.resume,
            ranks=ServerSize.of(config).num_ranks,
            retry=arguments.retry,
        )
        if argv is None:
            program.work_in(config.study_dir)
        if arguments.check:
            return command.check()
        keep_modules()
        with tolerate_full_disk(), private_files(group_reads=config.study.share_with is not None):
            descriptors.require(2 * config.launcher.max_running + command.ranks, "jobs and ranks")
            require_threads(NUM_THREADS)
            if arguments.simulations_only:
                return run_simulations(config, arguments.link)
            if arguments.fresh and (renamed := rename_earlier_run(config)):
                print_escaped(f"stream-launcher: {renamed}", sys.stderr)
            time_limit_s = min(arguments.time_limit, time_left_s() + time.monotonic() - began)
            return supervise_study(config, command, ends_at=began + time_limit_s)
    except StreamServerError as error:
        print_escaped(f"stream-launcher: {error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stream-launcher: interrupted", file=sys.stderr)
        return EXIT_FORCED
    except Exception as error:
        if words := refusal(error):
            print_escaped(f"stream-launcher: {words}", sys.stderr)
            return ConfigError.exit_code
        traceback.print_exc()
        print_escaped(f"stream-launcher: {InternalError.of(error)}", sys.stderr)
        return InternalError.exit_code


if __name__ == "__main__":
    sys.exit(main())
