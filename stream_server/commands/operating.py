"""The commands of `stream-study` that ask a run how it is doing, and tell it to stop."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stream_server.analysis.run_status import status_of
from stream_server.analysis.runs import runs_below, the_run
from stream_server.analysis.simulations import MOST_PARAMETERS
from stream_server.errors import NotRunning
from stream_server.machine.screen import in_one_line, print_escaped
from stream_server.wording import counted

TIMEOUT_S = 10.0
WAIT_LOOK_S = 0.2
NUM_LINES = 40
EXIT_STATUS = "exit status: 0 done; 1 there is no such run, or it is not running; 2 the command line is wrong"


def register(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the commands to those of `stream-study`."""
    runs = _command(commands, "list", "the runs below a folder, and how each is doing", _list)
    runs.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", default=Path(), help="this folder by default")
    _json(runs)

    status = _command(
        commands, "status", "how a run is doing: a running one is asked, for any other its files are read", _status
    )
    _run(status)
    _json(status)
    _timeout(status)

    stop = _command(commands, "stop", "save a checkpoint and leave, or bring the study to an early end", _stop)
    _run(stop)
    stop.add_argument(
        "--finish",
        action="store_true",
        help="start no more simulations, train on what the running ones still send, then end with exit code 0",
    )
    stop.add_argument("--wait", action="store_true", help="return only when the study has ended")
    _timeout(stop)

    logs = _command(commands, "logs", "what launcher and ranks wrote, or the newest attempt of a simulation", _logs)
    _run(logs)
    logs.add_argument("simulation", metavar="SIMULATION", type=int, nargs="?", help="its id")
    logs.add_argument("-f", "--follow", action="store_true", help="go on until the run ends")
    logs.add_argument(
        "-n",
        "--lines",
        metavar="NUM",
        type=int,
        default=NUM_LINES,
        help="the last NUM lines, 0 for all (default: %(default)d)",
    )

    why = _command(commands, "why", "why a simulation was cancelled, tried again or given up, or still waits", _why)
    _run(why)
    why.add_argument("simulation", metavar="SIMULATION", type=int, help="its id")
    _timeout(why)

    simulations = _command(
        commands, "simulations", "every simulation: parameters, attempts, state, seconds", _simulations
    )
    _run(simulations)
    _json(simulations)
    _timeout(simulations)


def _command(
    commands: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    about: str,
    command: Callable[[argparse.Namespace], None],
) -> argparse.ArgumentParser:
    added: argparse.ArgumentParser = commands.add_parser(
        name, help=about, description=command.__doc__, epilog=EXIT_STATUS
    )
    added.set_defaults(command=command)
    return added


def _run(command: argparse.ArgumentParser) -> None:
    command.add_argument("run", metavar="RUN", type=Path, help="a run: its output folder, or a study's folder or file")


def _json(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="print one JSON value instead of a table")


def _timeout(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--timeout",
        metavar="SECONDS",
        type=float,
        default=TIMEOUT_S,
        help="how long to wait for rank 0, such as while its server is started again (default: %(default)g)",
    )


def _list(arguments: argparse.Namespace) -> None:
    """Show the runs below a folder: starting, running, orphaned, finished, stopped, failed and the like."""
    if not arguments.folder.is_dir():
        raise NotRunning(f"there is no folder {arguments.folder}")
    statuses = [status_of(run) for run in runs_below(arguments.folder, partial(print_escaped, stream=sys.stderr))]
    if arguments.json:
        _print_json([replace(status, report={}).to_json() for status in statuses])
        return
    if not statuses:
        print_escaped(f"there is no run in {arguments.folder.resolve()} or the folders below it")
        return
    table = _table("run", "state", "checkpoint", "batches in it", "")
    for status in statuses:
        saved = status.checkpoint
        numbers = (f"{saved.number}", f"{saved.batches:,}") if saved else ("-", "-")
        _add_row(table, str(status.run.path), status.state, *numbers, status.detail)
    print_table(table, Console())


def _status(arguments: argparse.Namespace) -> None:
    """Show how a run is doing. A running one is asked; for any other its files are read."""
    from stream_server.analysis import live

    status = live.query_status(the_run(arguments.run), arguments.timeout)
    if arguments.json:
        _print_json(status.to_json())
        return
    table = _table("", "")
    table.show_header = False
    for title, text in status.rows():
        _add_row(table, title, text)
    print_table(table, Console())


def _stop(arguments: argparse.Namespace) -> None:
    """Tell a running study to save a checkpoint and leave (exit code 75), or with --finish to end early (0)."""
    from stream_server.analysis import live

    run = the_run(arguments.run)
    print_escaped(f"{run.path}: {live.stop(run, arguments.timeout, finish=arguments.finish)}")
    if arguments.wait:
        while (status := status_of(run)).is_live:
            time.sleep(WAIT_LOOK_S)
        text = status.detail if status.detail.startswith(status.state) else f"{status.state}: {status.detail}"
        print_escaped(f"{run.path}: {text.removesuffix(': ')}")


def _logs(arguments: argparse.Namespace) -> None:
    """Show the last lines of the launcher and the ranks, in the order of time (UTC), or of one simulation."""
    from stream_server.analysis import follow

    run = the_run(arguments.run)
    try:
        follow.show(
            run,
            arguments.simulation,
            num_lines=max(arguments.lines, 0) or None,
            follows=arguments.follow,
            runs=lambda: status_of(run).is_live,
        )
    except (KeyboardInterrupt, BrokenPipeError):
        return


def _why(arguments: argparse.Namespace) -> None:
    """Show the state of a simulation and what became of its attempts, as the launchers' journal tells it."""
    from stream_server.analysis.story import story

    for line in story(the_run(arguments.run), arguments.simulation, arguments.timeout):
        print_escaped(in_one_line(line))


def _simulations(arguments: argparse.Namespace) -> None:
    """Show every simulation of a run. A running one is asked; for any other its checkpoint and files are read."""
    from stream_server.analysis import live

    simulations = live.query_simulations(the_run(arguments.run), arguments.timeout)
    if arguments.json:
        _print_json([asdict(each) for each in simulations])
        return
    # Those of simulations that come later may be yet to be suggested.
    all_names = list(next((each.parameters for each in simulations if each.parameters), {}))
    names = all_names[:MOST_PARAMETERS]
    table = _table("id", *names, "attempts", "state", "seconds", "steps", "val error", "")
    for each in simulations:
        parameters = [f"{each.parameters[name]:.6g}" if name in each.parameters else "-" for name in names]
        seconds = "-" if each.seconds is None else f"{each.seconds:.1f}"
        received = "-" if each.received is None else f"{each.received:,}"
        error = "-" if each.error is None else f"{each.error:.4g}"
        cells = [each.state, seconds, received, error]
        _add_row(table, str(each.simulation), *parameters, str(each.attempts), *cells, each.reason)
    print_table(table, Console())
    if len(all_names) > len(names):
        more = counted(len(all_names) - len(names), "more parameter")
        print(f"{more}: see {the_run(arguments.run).path / 'parameters.csv'}")


def print_table(table: Table, console: Console) -> None:
    """Print a table; where there is room, only its last column goes on in further lines.

    In a pipe or a file each row is one line, however long.
    """
    if not console.is_terminal:
        # Of 2,000 simulations rich would take several seconds to lay out the table.
        print("\n".join(_lines(table)), file=console.file)
        return
    for column in table.columns[:-1]:
        column.no_wrap = True
    if console.measure(table).minimum > console.width:
        for column in table.columns[:-1]:
            column.no_wrap = False
    console.print(table)


def _lines(table: Table) -> Iterator[str]:
    columns = [
        [str(cell) for cell in (*([each.header] if table.show_header else []), *each.cells)] for each in table.columns
    ]
    widths = [max(map(cell_len, cells), default=0) for cells in columns]
    for row in zip(*columns, strict=True):
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


def _table(*columns: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    return table


def _add_row(table: Table, *cells: str) -> None:
    """Add a row of plain text, which neither the terminal nor rich takes for more than that, nor a reader for two."""
    table.add_row(*(Text(in_one_line(cell)) for cell in cells))


def _print_json(value: dict[str, Any] | list[dict[str, Any]]) -> None:
    print(json.dumps(value, indent=2))
