"""The command `stream-launcher`, and the process that runs the simulations of a study."""

import argparse
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from stream_server.config import StudyConfig, load
from stream_server.errors import StreamServerError
from stream_server.launcher.attempts import Attempts
from stream_server.launcher.environment import release_cores, scrubbed, with_virtual_environment
from stream_server.launcher.schedule import Limits, Schedule
from stream_server.launcher.server_job import run_server

DESCRIPTION = """\
Start a study: the server as one MPI job of server.ranks ranks, which starts the simulations.

`mpirun -n 4 stream-server --config study.json` does the same with a number of ranks of your choice.
"""
LOG_FORMAT = "%(asctime)s %(levelname)s %(message)s"

log = logging.getLogger(__name__)


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` shows it."""
    parser = argparse.ArgumentParser(
        prog="stream-launcher",
        description=DESCRIPTION,
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
        "--fresh", action="store_true", help="rename the output folder of an earlier run and start over"
    )
    # The two that rank 0 uses.
    parser.add_argument("--simulations-only", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--link", help=argparse.SUPPRESS)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        config = load(arguments.config, arguments.set)
        if arguments.simulations_only:
            return run_simulations(config, arguments.link)
        return run_server(config, arguments.config, overrides=arguments.set, fresh=arguments.fresh)
    except StreamServerError as error:
        print(f"stream-launcher: {error}", file=sys.stderr)
        return error.exit_code


def run_simulations(config: StudyConfig, address: str) -> int:
    """Run the simulations of a study whose server rank 0 speaks at `address` and holds the other end of our stdin.

    An error here is written to the launcher's log and to stderr; all jobs are ended before it leaves.
    """
    # psij starts a thread and sets a signal handler when it is imported.
    from stream_server.launcher.ensemble import Ensemble
    from stream_server.launcher.jobs import LocalJobs
    from stream_server.launcher.link import Link
    from stream_server.launcher.signals import Signals

    start_log(config.output_dir / "logs" / "launcher.log")
    release_cores()
    lifeline = sys.stdin.fileno()
    try:
        with (
            Signals(signal.SIGINT, signal.SIGTERM, signal.SIGCHLD) as signals,
            Link(address, others=(lifeline, signals.readable)) as server,
            LocalJobs() as jobs,
        ):
            ensemble = Ensemble(
                schedule=Schedule(limits(config)),
                attempts=attempts(config),
                jobs=jobs,
                server=server,
                signals=signals,
                lifeline=lifeline,
                keep_finished=config.simulation.keep_folders == "all",
            )
            ensemble.run()
    except Exception:
        log.exception("the launcher failed")
        raise
    if ensemble.orphaned:
        # A rank 0 that was killed could not remove the folder of its sockets.
        shutil.rmtree(Path(address.removeprefix("ipc://")).parent, ignore_errors=True)
    return 0


def limits(config: StudyConfig) -> Limits:
    """The rules of the schedule, as the study sets them."""
    simulation = config.simulation
    return Limits(
        starts_jobs=simulation.command is not None,
        max_running=config.launcher.max_running,
        max_attached=config.client.max_attached,
        retries=simulation.retries,
        on_failure=simulation.on_failure,
        max_failed=simulation.max_failed,
        timeout_s=simulation.timeout_s,
    )


def attempts(config: StudyConfig) -> Attempts:
    """What the attempts of the study have in common."""
    simulation = config.simulation
    return Attempts(
        command=tuple(simulation.command or ()),
        templates=tuple(simulation.templates),
        environment={**with_virtual_environment(scrubbed(os.environ)), **simulation.job.environment},
        seed=config.study.seed,
        study_dir=config.study_dir,
        output_dir=config.output_dir,
    )


def start_log(file: Path) -> None:
    """Write the log of this process to `file`, with UTC times."""
    file.parent.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=file, level=logging.INFO, format=LOG_FORMAT, force=True)
    logging.Formatter.converter = time.gmtime


if __name__ == "__main__":
    sys.exit(main())
