"""The command `stream-server`."""

import argparse
import json
import sys
from importlib.metadata import version
from pathlib import Path

from stream_server import config as study_config
from stream_server.errors import ConfigError, StreamServerError

DESCRIPTION = """\
Train a neural network on a simulation ensemble while the simulations run.

A study is a folder with three files of yours: study.json says what to run, a simulation sends its time
steps with stream_server.client_api, and a server class defines the model and process_simulation_data.
"""

EXAMPLES = """\
examples:
  stream-server --config study.json --check            what the study would do and take; starts nothing
  stream-server --config study.json --fast-dev-run     try the server class on made-up samples, no simulation
  stream-server --config study.json                    the study on one rank
  mpirun -n 4 stream-server --config study.json        the study on four ranks
  stream-server --config study.json --set training.batch_size=32 --set buffer.policy=fifo

exit status:
  0 finished and balanced   2 command line or study.json   3 the user's class raised
  4 too many simulations failed   5 the account does not balance   7 stopped, or a rank, thread or node was lost

The output folder (runs/NAME beside study.json) holds report.json, the logs of ranks and simulations, and the metrics
(tensorboard --logdir runs/NAME/metrics/tensorboard). docs/study.md explains every key of study.json.
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
    parser.add_argument("--config", type=Path, metavar="study.json", help="the study")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override one key, such as training.batch_size=32",
    )
    parser.add_argument(
        "--fresh", action="store_true", help="rename the output folder of an earlier run and start over"
    )
    only = parser.add_mutually_exclusive_group()
    only.add_argument(
        "--check", action="store_true", help="check study.json, print what the study takes, start nothing"
    )
    only.add_argument("--fast-dev-run", action="store_true", help="try the server class on made-up samples")
    only.add_argument("--schema", action="store_true", help="print the JSON schema of study.json")
    only.add_argument("--version", action="version", version=f"stream-server {version('stream-server')}")
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    if arguments.schema:
        print(json.dumps(study_config.json_schema(), indent=2))
        return 0
    try:
        return _run(arguments)
    except StreamServerError as error:
        from stream_server.server.ranks import environment_rank

        if not environment_rank():
            print(f"stream-server: {error}", file=sys.stderr)
        return error.exit_code


def _run(arguments: argparse.Namespace) -> int:
    if arguments.config is None:
        raise ConfigError("--config study.json is missing; `stream-server --help` shows examples")
    config = study_config.load(arguments.config, arguments.set)
    if arguments.check:
        from stream_server.server.check import describe

        print(describe(config))
        return 0
    if arguments.fast_dev_run:
        from stream_server.server.fast_dev_run import fast_dev_run
        from stream_server.server.user_class import load_server_class

        return fast_dev_run(load_server_class(config), config)
    from stream_server.server.study import run_study

    return run_study(config, fresh=arguments.fresh)
