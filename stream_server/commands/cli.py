"""The command `stream-study`."""

import argparse
import errno
import shlex
import stat
import sys
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path

from stream_server.analysis.reading import find_run
from stream_server.commands import operating
from stream_server.errors import ConfigError, NotRunning, StreamServerError
from stream_server.extras import extra_packages
from stream_server.machine import program
from stream_server.machine.refusals import refusal
from stream_server.machine.screen import ignore_broken_pipe, print_escaped
from stream_server.storage.disk import UnusableFile
from stream_server.storage.ownership import private_files
from stream_server.templates.new_study import LANGUAGES, copy_example, examples, make_blank, next_command
from stream_server.wording import counted

DESCRIPTION = """\
Create a study, check this machine, look at runs, and stop one.

RUN is the output folder of a run (runs/NAME), or the folder or the study.json of a study. It may be going on.
"""

EXAMPLES = """\
examples:
  stream-study doctor                                         is this machine ready?
  stream-study doctor --config study.json                     and does it start the ranks of this study?
  stream-study new heat my-study                              a copy of an example; `new --list` shows them
  stream-study new --blank my-study --language c              a small study to fill in
  stream-study export runs/heat --to metrics.parquet          all logged values, one row per value
  stream-study export runs/heat --to metrics.csv --wide       one row per batch, one column per name
  stream-study export runs/a runs/b --to both.csv             two runs in one table, told apart by the column run
  stream-study plot runs/heat                                 pictures in runs/heat/plots
  stream-study plot runs/heat --html heat.html                one page with everything, to send to a colleague
  stream-study plot study.json --to figures --format pdf      the same for a paper
  stream-study list                                           the runs below this folder, with their states
  stream-study status runs/heat                               server, simulations, rates, buffer, time left
  stream-study serve                                          all of this in a browser, live, at the link that it prints
  stream-study why runs/heat 17                               why simulation 17 failed, was cancelled, or still waits
  stream-study stop runs/heat --finish                        start no more simulations, train on the rest, end

exit status: 0 done   1 doctor: something must be repaired; list, status, stop, logs, why, simulations: no such
run, or it is not running   2 the command line is wrong; export, plot: there is no such run
"""

NEW = """\
Make the folder of a new study: a copy of an example, or a small study that runs as it is, for you to fill in.

FOLDER must be empty or not exist yet. By default it is named after the example, or my-study with --blank.
"""

NEW_USAGE = """\
stream-study new EXAMPLE [FOLDER]
       stream-study new --blank [--language {python,c,fortran}] [FOLDER]
       stream-study new --list
"""

BLANK_FOLDER = "my-study"


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` shows it."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="stream-study", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=layout
    )
    parser.add_argument("--version", action="version", version=f"stream-study {version('stream-server')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    new = commands.add_parser(
        "new", help="make the folder of a new study", description=NEW, usage=NEW_USAGE, formatter_class=layout
    )
    new.add_argument(
        "words", metavar="EXAMPLE, FOLDER", nargs="*", help="the name of an example, and the folder for its copy"
    )
    new.add_argument("--list", action="store_true", help="list the examples")
    new.add_argument("--blank", action="store_true", help="a study to fill in instead of an example")
    new.add_argument(
        "--language", choices=LANGUAGES, help="with --blank, the language of the simulation; python by default"
    )
    new.set_defaults(command=_new)

    doctor = commands.add_parser("doctor", help="check whether this machine is ready", description=_doctor.__doc__)
    doctor.add_argument(
        "--config", metavar="STUDY", type=Path, help="try the ranks of this study.json: as many, and as it starts them"
    )
    doctor.set_defaults(command=_doctor)

    export = commands.add_parser("export", help="write all logged values as one table", description=_export.__doc__)
    export.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a run; several share the table")
    export.add_argument("--to", metavar="FILE", type=Path, required=True, help="a file that ends in .parquet or .csv")
    shape = export.add_mutually_exclusive_group()
    shape.add_argument("--long", action="store_true", help="one row per value: the default")
    shape.add_argument("--wide", action="store_true", help="one row per batch, and one column per name")
    export.add_argument("--per-rank", action="store_true", help="the values of each rank, not the means over the ranks")
    export.set_defaults(command=_export)

    plot = commands.add_parser(
        "plot", help="draw predictions beside the truth, errors, losses, throughput, buffer", description=_plot.__doc__
    )
    plot.add_argument("run", metavar="RUN", type=Path, help="a run")
    plot.add_argument("--to", metavar="FOLDER", type=Path, help="where the pictures go; RUN/plots by default")
    plot.add_argument("--html", metavar="FILE", type=Path, help="write one page with all pictures instead, for others")
    plot.add_argument(
        "--format",
        action="append",
        choices=("png", "pdf", "svg"),
        help="png by default; may be given several times",
    )
    plot.set_defaults(command=_plot)
    operating.register(commands)

    serve = commands.add_parser("serve", help="show runs in a browser, live", description=_serve.__doc__)
    serve.add_argument("folder", metavar="FOLDER", type=Path, nargs="?", default=Path(), help="this folder by default")
    serve.add_argument("--port", type=int, help="8787 by default, or a free one")
    serve.set_defaults(command=_serve)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    if argv is None:
        program.begin()
    arguments = parser().parse_args(argv)
    status = 0
    try:
        with ignore_broken_pipe():
            status = arguments.command(arguments) or 0
    except StreamServerError as error:
        print_escaped(f"stream-study: {error}", sys.stderr)
        return error.exit_code
    except (UnusableFile, PermissionError) as error:
        is_closed = error.errno == errno.EACCES
        why = ": a run is its owner's alone, unless study.share_with says more" if is_closed else ""
        print_escaped(f"stream-study: {error}{why}", sys.stderr)
        return NotRunning.exit_code
    except Exception as error:
        if not (words := refusal(error)):
            raise
        print_escaped(f"stream-study: {words}", sys.stderr)
        return ConfigError.exit_code
    return status


def _new(arguments: argparse.Namespace) -> None:
    """Make the folder of a new study; asks nothing, and prints the command that runs it."""
    words: list[str] = arguments.words
    if arguments.list:
        if words or arguments.blank or arguments.language:
            raise ConfigError("new --list takes nothing else")
        _list_examples()
        return
    if arguments.blank:
        if len(words) > 1:
            raise ConfigError(f"new --blank takes one FOLDER, but was given {shlex.join(words)}")
        folder = Path(*words or [BLANK_FOLDER])
        make_blank(folder, arguments.language or LANGUAGES[0])
    else:
        if arguments.language:
            raise ConfigError("--language is for new --blank: an example has its language")
        if not 1 <= len(words) <= 2:
            raise ConfigError("new takes an EXAMPLE and a FOLDER; `stream-study new --list` shows the examples")
        folder = Path(words[-1])
        copy_example(words[0], folder)
    print(f"{folder}: {', '.join(sorted(file.name for file in folder.iterdir()))}")
    print(f"next: {next_command(folder)}")


def _list_examples() -> None:
    known = examples()
    width = max(map(len, known))
    for name, title in known.items():
        print(f"{name:<{width}}  {title}")


def _doctor(arguments: argparse.Namespace) -> int:
    """Look at Python, torch, MPI, memory, open files, ports and schedulers: what is there, and what to do about it."""
    from stream_server.config import load
    from stream_server.doctor.checks import report

    return report(None if arguments.config is None else load(arguments.config))


def _export(arguments: argparse.Namespace) -> None:
    """Write all numbers that a run has logged, validations among them, as a table for pandas and the like."""
    from stream_server.analysis.export import export

    runs = [find_run(path) for path in arguments.runs]
    with extra_packages("a Parquet file"):
        num_rows = export(runs, arguments.to, wide=arguments.wide, per_rank=arguments.per_rank)
    print(f"{arguments.to}: {counted(num_rows, 'row')}")


def _plot(arguments: argparse.Namespace) -> None:
    """Draw losses, predictions beside the truth, errors by simulation and time step, parameters, buffer and time."""
    with extra_packages("plot"), program.outside_of_folders():
        from stream_server.analysis.page import write_page
        from stream_server.analysis.plot import folder_in, plot
    run = find_run(arguments.run)
    if arguments.html is not None:
        if arguments.to is not None or arguments.format:
            raise ConfigError("--html writes one file with all pictures in it: leave out --to and --format")
        write_page(run, arguments.html)
        print(arguments.html)
        return
    # Among the files of the run those who may read it see the pictures, too; elsewhere the user's umask says who.
    in_run = private_files(group_reads=bool(run.path.stat().st_mode & stat.S_IRGRP))
    with in_run if arguments.to is None else nullcontext():
        files = plot(run, arguments.to or folder_in(run), arguments.format or ["png"])
    for file in files:
        print(file)


def _serve(arguments: argparse.Namespace) -> None:
    """Show the runs below a folder in a browser, as they change, to those who have the link that it prints."""
    with extra_packages("serve"):
        from stream_server.dashboard.serving import serve

    serve(arguments.folder, arguments.port, lambda link: print(link, flush=True))


if __name__ == "__main__":
    sys.exit(main())
