"""The command `stream-study`."""

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path

from stream_server.analysis.run import find_run
from stream_server.errors import ConfigError, StreamServerError

DESCRIPTION = """\
Look at a run, whether it is still going on or long over.

RUN is the output folder of a run (runs/NAME), or the folder or the study.json of a study.
"""

EXAMPLES = """\
examples:
  stream-study export runs/heat --to metrics.parquet          all that was logged, one row per value
  stream-study export runs/heat --to metrics.csv --wide       one row per batch, one column per name
  stream-study export runs/a runs/b --to both.csv             two runs in one table, told apart by the column run
  stream-study plot runs/heat                                 pictures in runs/heat/plots
  stream-study plot study.json --to figures --format pdf      the same for a paper

exit status: 0 done   2 the command line is wrong, or there is no such run
"""

EXTRA = ("pandas", "pyarrow", "matplotlib")


def parser() -> argparse.ArgumentParser:
    """The command line, as `--help` shows it."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="stream-study", description=DESCRIPTION, epilog=EXAMPLES, formatter_class=layout
    )
    parser.add_argument("--version", action="version", version=f"stream-study {version('stream-server')}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    export = commands.add_parser("export", help="write what was logged as one table", description=_export.__doc__)
    export.add_argument("runs", metavar="RUN", type=Path, nargs="+", help="a run; several share the table")
    export.add_argument("--to", metavar="FILE", type=Path, required=True, help="a file that ends in .parquet or .csv")
    shape = export.add_mutually_exclusive_group()
    shape.add_argument("--long", action="store_true", help="one row per value: the default")
    shape.add_argument("--wide", action="store_true", help="one row per batch, and one column per name")
    export.add_argument("--per-rank", action="store_true", help="what each rank logged, not the means over the ranks")
    export.set_defaults(command=_export)

    plot = commands.add_parser("plot", help="draw losses, throughput, buffer and phases", description=_plot.__doc__)
    plot.add_argument("run", metavar="RUN", type=Path, help="a run")
    plot.add_argument("--to", metavar="FOLDER", type=Path, help="where the pictures go; RUN/plots by default")
    plot.add_argument(
        "--format",
        action="append",
        choices=("png", "pdf", "svg"),
        help="png by default; may be given several times",
    )
    plot.set_defaults(command=_plot)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    arguments = parser().parse_args(argv)
    try:
        arguments.command(arguments)
    except StreamServerError as error:
        print(f"stream-study: {error}", file=sys.stderr)
        return error.exit_code
    return 0


def _export(arguments: argparse.Namespace) -> None:
    """Write all numbers that a run has logged, validations among them, as a table for pandas and the like."""
    with _extra():
        from stream_server.analysis.export import export
    runs = [find_run(path) for path in arguments.runs]
    num_rows = export(runs, arguments.to, wide=arguments.wide, per_rank=arguments.per_rank)
    print(f"{arguments.to}: {num_rows:,} rows")


def _plot(arguments: argparse.Namespace) -> None:
    """Draw the losses, the throughput, the fill of the buffer, how often samples were drawn, and where time went."""
    with _extra():
        from stream_server.analysis.plot import plot
    run = find_run(arguments.run)
    for file in plot(run, arguments.to or run.path / "plots", arguments.format or ["png"]):
        print(file)


@contextmanager
def _extra() -> Iterator[None]:
    """Import what only the analysis of runs needs.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise ConfigError(f"{error.name} is not installed: pip install 'stream-server[analysis]'") from error


if __name__ == "__main__":
    sys.exit(main())
