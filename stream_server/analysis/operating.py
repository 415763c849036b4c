"""The commands of `stream-study` that ask a run how it is doing, and tell it to stop."""

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from stream_server.analysis import run_state
from stream_server.analysis.attempts import newest_failures
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_state import RunState, SimulationFacts, runs_below, simulations_of, state_of, the_run
from stream_server.analysis.validations import errors_of_simulations
from stream_server.errors import NotRunning
from stream_server.machine.screen import in_one_line, tell
from stream_server.wording import counted

TIMEOUT_S = 10.0
WAIT_LOOK_S = 0.2
NUM_LINES = 40
MOST_PARAMETERS = 8
EXIT_STATUS = "exit status: 0 done; 1 there is no such run, or it is not running; 2 the command line is wrong"

Plain = dict[str, Any]


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
    found = [(run, state_of(run)) for run in runs_below(arguments.folder, partial(tell, stream=sys.stderr))]
    if arguments.json:
        _print_json([facts_of(run, state) for run, state in found])
        return
    if not found:
        tell(f"there is no run in {arguments.folder.resolve()} or the folders below it")
        return
    table = _table("run", "state", "checkpoint", "batches in it", "")
    for run, state in found:
        saved = state.checkpoint
        numbers = (f"{saved.number}", f"{saved.batches:,}") if saved else ("-", "-")
        _add_row(table, str(run.path), state.state, *numbers, state.detail)
    print_table(table, Console())


def _status(arguments: argparse.Namespace) -> None:
    """Show how a run is doing. A running one is asked; for any other its files are read."""
    facts = asked_facts(the_run(arguments.run), arguments.timeout)
    if arguments.json:
        _print_json(facts)
        return
    table = _table("", "")
    table.show_header = False
    for title, text in status_rows(facts):
        _add_row(table, title, text)
    print_table(table, Console())


def _stop(arguments: argparse.Namespace) -> None:
    """Tell a running study to save a checkpoint and leave (exit code 75), or with --finish to end early (0)."""
    from stream_server.analysis import live

    run = the_run(arguments.run)
    tell(f"{run.path}: {live.stop(run, arguments.timeout, finish=arguments.finish)}")
    if arguments.wait:
        while state_of(run).is_live:
            time.sleep(WAIT_LOOK_S)
        state = state_of(run)
        told = state.detail if state.detail.startswith(state.state) else f"{state.state}: {state.detail}"
        tell(f"{run.path}: {told.removesuffix(': ')}")


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
            runs=lambda: state_of(run).is_live,
        )
    except (KeyboardInterrupt, BrokenPipeError):
        return


def _simulations(arguments: argparse.Namespace) -> None:
    """Show every simulation of a run. A running one is asked; for any other its checkpoint and files are read."""
    facts = asked_simulations(the_run(arguments.run), arguments.timeout)
    if arguments.json:
        _print_json([asdict(it) for it in facts])
        return
    # Those of simulations that come later may be yet to be suggested.
    all_names = list(next((it.parameters for it in facts if it.parameters), {}))
    names = all_names[:MOST_PARAMETERS]
    table = _table("id", *names, "attempts", "state", "seconds", "steps", "val error", "")
    for it in facts:
        parameters = [f"{it.parameters[name]:.6g}" if name in it.parameters else "-" for name in names]
        seconds = "-" if it.seconds is None else f"{it.seconds:.1f}"
        received = "-" if it.received is None else f"{it.received:,}"
        error = "-" if it.error is None else f"{it.error:.4g}"
        _add_row(
            table, str(it.simulation), *parameters, str(it.attempts), it.state, seconds, received, error, it.reason
        )
    print_table(table, Console())
    if len(all_names) > len(names):
        more = counted(len(all_names) - len(names), "more parameter")
        print(f"{more}: see {the_run(arguments.run).path / 'parameters.csv'}")


def asked_simulations(run: RunFolder, timeout_s: float) -> list[SimulationFacts]:
    """The simulations of a run. A running one is asked; for any other its newest checkpoint and files are read.

    Raises:
        NotRunning: a live one did not answer in time.
    """
    from stream_server.analysis import live

    is_live = state_of(run).is_live
    facts = live.simulations_of(run, timeout_s) if is_live else simulations_of(run)
    errors, failures = errors_of_simulations(run), newest_failures(run, is_live=is_live)
    return [
        replace(it, error=errors.get(it.simulation), reason=it.reason or failures.get(it.simulation, ""))
        for it in facts
    ]


def asked_facts(run: RunFolder, timeout_s: float) -> Plain:
    """How a run is doing, as `status_rows` takes it. A running one is asked; for any other its files are read."""
    state = state_of(run)
    facts = facts_of(run, state)
    if state.is_live:
        from stream_server.analysis import live

        try:
            status = live.status_of(run, timeout_s)
        except NotRunning as silence:
            # It may have ended or come back meanwhile.
            state = state_of(run)
            facts = facts_of(run, state) | ({"silence": str(silence)} if state.is_live else {})
        else:
            facts["server"] = asdict(status)
            if state.state != run_state.ORPHANED:
                facts["state"] = run_state.RUNNING
    return facts | ({"report": state.report} if state.report else {})


def facts_of(run: RunFolder, state: RunState) -> Plain:
    """The facts that the files of a run give, as `status_rows` takes them."""
    saved = state.checkpoint
    return {
        "run": str(run.path),
        "state": state.state,
        "detail": state.detail,
        "checkpoint": saved and {"number": saved.number, "batches": saved.batches, "age_s": round(saved.age_s, 1)},
    }


def status_facts(run: RunFolder) -> Plain:
    """The status of a run as its files tell, plain."""
    state = state_of(run)
    return facts_of(run, state) | ({"report": state.report} if state.report else {})


def status_rows(facts: Plain) -> list[tuple[str, str]]:
    """The status of a run as rows for people."""
    rows = [("run", facts["run"]), ("state", facts["state"]), *([("", facts["detail"])] if facts["detail"] else [])]
    if "server" in facts:
        rows += _server_rows(facts["server"])
    elif "report" in facts:
        rows += _report_rows(facts["report"])
    saved = facts["checkpoint"]
    text = "none yet"
    if saved:
        text = f"{saved['number']}, after {counted(saved['batches'], 'batch')}, {_duration(saved['age_s'])} ago"
    return [*rows, ("checkpoint", text), *([("no answer", facts["silence"])] if "silence" in facts else [])]


def _server_rows(server: Plain) -> list[tuple[str, str]]:
    rows = [
        (
            "server",
            f"{server['stage']}, {counted(server['ranks'], 'rank')}, {counted(server['incarnation'] - 1, 'restart')}",
        ),
        ("simulations", ", ".join(f"{num:,} {_words(state)}" for state, num in server["simulations"].items() if num)),
        ("time steps", f"{server['received']:,} received"),
    ]
    if server["queue"]:
        reasons = (f"{num:,} {reason and f'({reason})'}".rstrip() for reason, num in server["queue"].items())
        rows.append(("queued", ", ".join(reasons)))
    training = server["training"]
    if training is not None:
        losses = [("loss", training["loss"]), ("validation", training["validation_loss"])]
        shown = [f"{name} {value:.4g}" for name, value in losses if value is not None]
        rates = [f"{training['batches_per_s']:.1f} batches/s", f"{training['draws_per_s']:.1f} draws/s"]
        rows += [
            ("training", ", ".join([counted(training["batches"], "batch"), *rates, *shown])),
            ("buffer", f"{training['population']:,} of {training['capacity']:,} on rank 0"),
        ]
        if training["fraction"] is not None:
            seconds = round(training["left_s"] or 0.0)
            left = f", about {_duration(seconds)} left" if seconds else ""
            rows.append(("done", f"{training['fraction']:.0%}{left}"))
        if server["age_s"] > 2 * TIMEOUT_S:
            rows.append(("busy", f"the training was last heard of {_duration(server['age_s'])} ago"))
        if training["is_degraded"]:
            rows.append(("degraded", "the last checkpoint failed; the one before is good, and another will be tried"))
    return [*rows, *([("waits for", server["awaited"])] if server["awaited"] else [])]


def _report_rows(report: Plain) -> list[tuple[str, str]]:
    counts = report.get("simulations", {})
    return [
        ("server", f"{counted(report.get('ranks', 0), 'rank')}, {counted(report.get('restarts', 0), 'restart')}"),
        ("simulations", ", ".join(f"{num:,} {_words(name)}" for name, num in counts.items() if num)),
        _use_of_samples(report),
        *run_state.balance_rows(report),
    ]


def _use_of_samples(report: Plain) -> tuple[str, str]:
    duration = _duration(report.get("wall_s") or 0.0)
    if (recorded := report.get("samples", {}).get("recorded")) is not None:
        return "files", f"{counted(recorded, 'sample')} recorded in {duration}"
    return "training", f"{counted(report.get('batches', 0), 'batch')} in {duration}"


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
    columns = [[str(cell) for cell in (*([it.header] if table.show_header else []), *it.cells)] for it in table.columns]
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


def _print_json(value: Plain | Sequence[Plain]) -> None:
    print(json.dumps(value, indent=2))


def _words(name: str) -> str:
    return name.replace("_", " ")


def _duration(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
