"""The command `stream-server`."""

import argparse
import json
import math
import socket
import sys
import time
import traceback
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from pathlib import Path

import stream_server
from stream_server import config as study_config
from stream_server.config.command_line import EXIT_STATUS, add_check, add_run_options
from stream_server.errors import EXIT_FORCED, ConfigError, RankLost, StreamServerError
from stream_server.machine import caches, exit_watch, processes, program
from stream_server.machine.garbage import collect_seldom
from stream_server.machine.refusals import refusal, require_threads
from stream_server.machine.screen import ignore_broken_pipe, print_escaped, tolerate_full_disk
from stream_server.server.run.start import RANK_0_REPORTS_S, StartOptions
from stream_server.wording import counted

# Of a rank: those of ZeroMQ, of the watchdog and the like. Those of libraries that compute are not among them.
NUM_THREADS = 16
NATIVE_PATH = Path(stream_server.__file__).parent / "native"

DESCRIPTION = """\
Train a neural network on a simulation ensemble while the simulations run.

A study is a folder with three files of yours: study.json says what to run, a simulation sends its time
steps with stream_server.client_api, and a server class defines the model and process_simulation_data.
"""

EXAMPLES = f"""\
examples:
  stream-server --config study.json --check            what the study would do and need; starts nothing
  stream-server --config study.json --fast-dev-run     try the server class on synthetic samples, no simulation
  stream-server --config study.json                    the study on one rank
  mpirun -n 4 stream-server --config study.json        the study on four ranks
  stream-server --config study.json --evaluate runs/heat/checkpoints/best/batch-000400
  stream-server --config study.json --set training.batch_size=32 --set buffer.policy=fifo
  cmake -S "$(stream-server --native-path)" -B build   build the client for C, C++ and Fortran (docs/guide/clients.md)

{EXIT_STATUS}
A run that did not finish is continued from its newest checkpoint, without the simulations that were given up unless
--retry says so. Ctrl-C, TERM, USR1, USR2, XCPU and HUP save one and leave; a second Ctrl-C or TERM ends it at once.
`stream-launcher` restarts a server that dies, or whose ranks hang.

The output folder (runs/NAME beside study.json) holds report.json, the logs of ranks and simulations, and the metrics
(tensorboard --logdir runs/NAME/metrics/tensorboard). docs/reference/study.md explains every key of study.json.
"""


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` shows it."""
    parser = argparse.ArgumentParser(
        prog="stream-server",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add_run_options(parser, required=False)
    parser.add_argument(
        "--replay", type=Path, metavar="DIR", help="train from the samples that a study recorded, without simulations"
    )
    # stream-launcher passes these to the server that it starts.
    parser.add_argument("--link", help=argparse.SUPPRESS)
    parser.add_argument("--alive", help=argparse.SUPPRESS)
    parser.add_argument("--launcher-endpoint", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--followed", action="store_true", help=argparse.SUPPRESS)
    only = parser.add_mutually_exclusive_group()
    add_check(only)
    only.add_argument("--fast-dev-run", action="store_true", help="try the server class on synthetic samples")
    only.add_argument(
        "--evaluate",
        type=Path,
        metavar="CHECKPOINT",
        help="validate a saved model: an output folder, a checkpoint, or one of the best models",
    )
    only.add_argument("--schema", action="store_true", help="print the JSON schema of study.json")
    only.add_argument(
        "--native-path",
        action="store_true",
        help="print where the sources of the client for C, C++ and Fortran are; CMake builds them",
    )
    only.add_argument("--version", action="version", version=f"stream-server {version('stream-server')}")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    if argv is None:
        program.begin()
        caches.keep_private()
    command = parser()
    arguments, unknown = command.parse_known_args(argv)
    if unknown:
        files = [word for word in unknown if word.endswith(".json")] if arguments.config is None else []
        advice = f": write --config {files[0]}" if files else ""
        command.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
    if arguments.schema:
        with ignore_broken_pipe():
            print(json.dumps(study_config.json_schema(), indent=2))
        return 0
    if arguments.native_path:
        print(NATIVE_PATH.resolve())
        return 0
    exit_code = _ended(arguments, is_watched=argv is None)
    if exit_code and _is_launched(arguments):
        from stream_server.server.ranks.communicator import is_awaited, refuse

        if is_awaited():
            refuse(exit_code)
    if argv is None:
        exit_watch.leave_soon(exit_code)
    return exit_code


def _ended(arguments: argparse.Namespace, *, is_watched: bool) -> int:
    """Run what was asked for, and report an error; returns the exit status."""
    try:
        config = _load(arguments)
        if is_watched:
            for name in "replay", "evaluate", "launcher_endpoint":
                path = getattr(arguments, name)
                setattr(arguments, name, path and path.absolute())
            program.work_in(config.study_dir)
        if is_watched and not arguments.check:
            exit_watch.watch_exit(partial(_tell_loss, config))
        return _run(arguments, config)
    except StreamServerError as error:
        from stream_server.server.ranks.communicator import environment_rank, is_awaited

        rank = environment_rank()
        if _is_launched(arguments) and is_awaited():
            # A launcher has looked before: it is the matter of this rank, or of its node.
            print_escaped(f"stream-server: rank {rank} on node {socket.gethostname()}: {error}", sys.stderr)
        elif not rank:
            print_escaped(f"stream-server: {error}", sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("stream-server: interrupted", file=sys.stderr)
        return EXIT_FORCED
    except (Exception, SystemExit) as error:
        if words := refusal(error):
            print_escaped(f"stream-server: {words}", sys.stderr)
            return ConfigError.exit_code
        from stream_server.server.study.failure import classified

        traceback.print_exc()
        failure = classified(error)
        print_escaped(f"stream-server: {failure}", sys.stderr)
        return failure.exit_code


def _is_launched(arguments: argparse.Namespace) -> bool:
    return arguments.link is not None or arguments.launcher_endpoint is not None


def _tell_loss(config: study_config.StudyConfig, how: str, incarnation: int) -> int:
    """Report that this rank is lost, in exit.json too if it was the newest server of the study."""
    from stream_server.server.checkpoint.incarnations import read_incarnations
    from stream_server.server.ranks.communicator import environment_rank
    from stream_server.server.run.output import OutputFolder
    from stream_server.server.study.failure import Failure

    rank = environment_rank() or 0
    text = f"the process of rank {rank} {how}"
    print_escaped(f"stream-server: {text}", sys.stderr)
    checkpoints = config.checkpoint.dir or OutputFolder(config.output_dir).checkpoints
    with suppress(StreamServerError, OSError):
        if incarnation and read_incarnations(checkpoints).newest == incarnation:
            Failure.of(RankLost(text), rank=rank, phase="own code").record(config.output_dir)
    return RankLost.exit_code


def _run(arguments: argparse.Namespace, config: study_config.StudyConfig) -> int:
    with collect_seldom():
        if arguments.check:
            from stream_server.server.commands.check import describe, require_start
            from stream_server.server.ranks.communicator import environment_rank

            if environment_rank():
                return 0
            with ignore_broken_pipe():
                print(describe(config, arguments.replay))
            told = require_start(config, arguments.replay, fresh=arguments.fresh)
            with ignore_broken_pipe():
                print("".join(f"{'changed':<13} {text}\n" for text in told), end="")
            return 0
        if arguments.fast_dev_run:
            from stream_server.server.commands.fast_dev_run import fast_dev_run
            from stream_server.server.user.components import load_server_class

            return fast_dev_run(load_server_class(config), config)
        if arguments.evaluate is not None:
            from stream_server.server.commands.evaluate import evaluate

            return evaluate(config, arguments.evaluate)
        require_threads(NUM_THREADS)
        with tolerate_full_disk():
            _say_that_it_starts(config)
        from stream_server.messages.launcher_endpoint import LauncherEndpoint
        from stream_server.server.study.study import run_study
        from stream_server.storage.ownership import private_files

    age_s = processes.age_s()
    start = StartOptions(
        overrides=arguments.set,
        fresh=arguments.fresh,
        resume=arguments.resume,
        retry=arguments.retry,
        replay=arguments.replay,
        time_limit_s=_time_limit_s(arguments, age_s),
        began_s=time.monotonic() - age_s,
        link=arguments.link,
        alive=arguments.alive,
        is_followed=arguments.followed,
    )
    if arguments.launcher_endpoint is not None:
        start = start.to_launcher_at(LauncherEndpoint.read(arguments.launcher_endpoint))
    with tolerate_full_disk(), private_files(group_reads=config.study.share_with is not None):
        return run_study(config, start)


def _say_that_it_starts(config: study_config.StudyConfig) -> None:
    """Say it before the imports, which take seconds with torch, and longer where cores are busy. Rank 0."""
    from stream_server.server.ranks.communicator import environment_rank, environment_size
    from stream_server.server.run.output import shown

    if not environment_rank():
        starting = f"starting {counted(environment_size() or 1, 'rank')}"
        print_escaped(f"{config.study.name} → {shown(config.output_dir)}: {starting}", sys.stderr)


def _time_limit_s(arguments: argparse.Namespace, age_s: float) -> float | None:
    """The time limit that is given, or that of our job of Slurm: rank 0 asks, unless the launcher beside us has.

    Both count from the start of this process, which is `age_s` old: imports on a busy disk take their part.
    """
    from stream_server.launcher.backends.allocation import time_left_s
    from stream_server.server.ranks.communicator import environment_rank

    given: float | None = arguments.time_limit
    if environment_rank() or arguments.link is not None:
        return given
    limit_s = min(age_s + time_left_s(), math.inf if given is None else given)
    return None if limit_s == math.inf else limit_s


def _ranks_started() -> list[str]:
    """The setting that says how many ranks mpirun has started, if it has."""
    from stream_server.server.ranks.communicator import environment_size

    num_ranks = environment_size()
    return [] if num_ranks is None else [f"server.ranks={num_ranks}"]


def _load(arguments: argparse.Namespace) -> study_config.StudyConfig:
    """Load the study; rank 0 reports what is wrong with it.

    All ranks find the same mistakes, and Open MPI ends the others as soon as one leaves: rank 0 must be the first.
    """
    try:
        if arguments.config is None:
            raise ConfigError("--config study.json is missing; `stream-server --help` shows examples")
        config = study_config.load(arguments.config, [*arguments.set, *(_ranks_started() if arguments.check else [])])
        if arguments.retry is not None and (arguments.fresh or arguments.replay):
            raise ConfigError("--retry goes on with a study whose simulations were given up: drop --fresh and --replay")
        if arguments.fresh and "load.hyperparameters=saved" in arguments.set and config.load.checkpoint is None:
            raise ConfigError("--fresh begins anew, with nothing saved: drop --keep-saved, or write load.checkpoint")
        if arguments.replay is not None and config.offline.write_files:
            raise ConfigError("offline.write_files writes what simulations send, but with --replay none runs: drop one")
        if not (arguments.fast_dev_run or arguments.evaluate or arguments.replay):
            from stream_server.launcher.backends.mpirun import require

            require(config)
        return config
    except ConfigError:
        from stream_server.server.ranks.communicator import environment_rank

        if environment_rank():
            time.sleep(RANK_0_REPORTS_S)
        raise
