"""`stream-follow`: runs a code that is not changed, and sends each time step that it writes to files."""

import argparse
import math
import sys
from collections.abc import Sequence

from stream_server.adapters.follow_files import WHEN_QUIET, WILDCARD
from stream_server.adapters.follow_formats import Unreadable
from stream_server.adapters.follow_growing import GrowingFileFollower
from stream_server.adapters.follow_lock import lock_of
from stream_server.adapters.follow_sending import Follower
from stream_server.adapters.follow_steps import StepFileFollower
from stream_server.adapters.program import InterruptedBySignal, Interruptions, Program
from stream_server.client_api import Simulation, connect
from stream_server.errors import ConfigError, SimulationError

POLL_S, LONGEST_PAUSE_S = 0.02, 1.0
# Of a core, at most, that looking for files takes.
SHARE = 0.05
FAILED, MISTAKEN = 1, ConfigError.exit_code


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; its exit status is the solver's, 2 where something does not fit, 1 if the study is gone."""
    options = parser().parse_args(arguments)
    try:
        return _follow(options)
    except (ConfigError, Unreadable) as error:
        print(f"stream-follow: {error}", file=sys.stderr)
        return MISTAKEN
    except SimulationError as error:
        print(f"stream-follow: {error}", file=sys.stderr)
        return FAILED
    except InterruptedBySignal as interrupted:
        return 128 + interrupted.number


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="stream-follow",
        usage="stream-follow PATTERN [options] -- SOLVER [arguments]",
        description="Run a solver as it is, and send each time step that it writes to files (docs/guide/following.md).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("pattern", metavar="PATTERN", help="files of one step each, 'out/step_*.vtk', or one file that grows")
    add("solver", metavar="SOLVER", nargs="+", help="its command")
    add("--field", metavar="FIELD=NAME", action="append", default=[], help="what a field of the study is called there")
    add("--in-order", action="store_true", help="count the files, instead of taking the numbers in their names")
    add(
        "--finished-by",
        metavar="HOW",
        default=WHEN_QUIET,
        help="when a file is finished: quiet (default), rename, or with another file, such as {}.done",
    )
    add("--quiet-s", metavar="S", type=_seconds, default=2.0, help="seconds without a change for `quiet` (default: 2)")
    add("--patience-s", metavar="S", type=_seconds, default=60.0, help="how long one may be unreadable (default: 60)")
    add("--delete", action="store_true", help="delete the files of steps that a checkpoint of the study has")
    add("--earlier", action="store_true", help="also send what is there at the start: an earlier attempt wrote it")
    return parser


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds, from 0 on")
    return seconds


def follower_of(options: argparse.Namespace, simulation: Simulation) -> Follower:
    """What follows the files of a pattern, or the one file that a name without wildcards is.

    Raises:
        ConfigError: an option does not fit the files or the study.
    """
    is_pattern = WILDCARD.search(options.pattern)
    return (StepFileFollower if is_pattern else GrowingFileFollower)(options, simulation)


def _follow(options: argparse.Namespace) -> int:
    with Interruptions() as interruptions, lock_of(options.pattern) as lock, connect() as simulation:
        follower = follower_of(options, simulation)
        with Program(options.solver, interruptions, inherited=[lock]) as solver:
            while follower.is_wanted:
                # Before the look: what a solver that has ended wrote is found then.
                has_ended = solver.has_ended
                follower.turn(has_ended=has_ended and solver.wait() == 0)
                if has_ended:
                    break
                solver.wait(min(max(POLL_S, follower.look_s / SHARE), LONGEST_PAUSE_S))
        if follower.is_wanted and (status := solver.wait()):
            # Leaving so, the simulation is not finished, and the study tries it again.
            sys.exit(status)
        follower.check()
        simulation.finish()
        follower.delete_durable()
    return 0


if __name__ == "__main__":
    sys.exit(main())
