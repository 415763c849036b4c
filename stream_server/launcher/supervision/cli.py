"""The command `stream-launcher`, and the process that runs the simulations of a study for rank 0."""

import argparse
import math
import sys
import time
import traceback
from collections.abc import Sequence

from stream_server.config import load
from stream_server.config.command_line import EXIT_STATUS, add_check, add_run_options
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
EPILOG = f"""\
Ctrl-C, TERM, USR1, USR2, XCPU and HUP make the study save a checkpoint and leave; a second Ctrl-C or TERM ends it at
once.
If this process itself is killed, server and simulations go on; the same command takes them over again.

{EXIT_STATUS}"""
# Threads of ZeroMQ and of a backend, and a few for what they start.
NUM_THREADS = 8


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` shows it."""
    parser = argparse.ArgumentParser(
        prog="stream-launcher",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_check(add_run_options(parser, required=True))
    parser.set_defaults(time_limit=math.inf)
    # Rank 0 of a server that was started by hand has it run the simulations only.
    parser.add_argument("--link", help=argparse.SUPPRESS)
    return parser


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
            if arguments.link is not None:
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
