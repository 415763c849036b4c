"""Long campaigns against the promises of docs/reliability.md.

    python -m tests.campaigns                     lists them
    python -m tests.campaigns chaos --kills 200   runs one

A campaign is a dataclass whose fields are the options of its command, and whose `run` does the work, one round after
the other. Everything else is here: parser, seed, progress, summary, recorded figures. Exit codes: 1 when a promise was
broken, 2 when the campaign could not be run.
"""

import argparse
import ast
import random
import shutil
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tests import figures

CAMPAIGNS = {
    "chaos": "tests.faults.chaos.campaign:Chaos",
    "network": "tests.faults.network.campaign:BrokenNetworks",
    "resources": "tests.faults.resources.campaign:ScarceResources",
    "disk": "tests.faults.disk.campaign:PowerFailures",
    "calls": "tests.faults.sweep.calls.campaign:FailingCalls",
    "corruption": "tests.faults.sweep.corruption.campaign:DamagedFiles",
    "machines": "tests.faults.statemachines.campaign:StateMachines",
    "simulated": "tests.faults.simulated.campaign:SimulatedSchedules",
    "fuzz": "tests.faults.fuzz.campaign:Fuzzing",
    "cluster": "tests.cluster.campaign:Clusters",
    "zoo": "tests.zoo.campaign:Zoo",
    "mutants": "tests.mutants.campaign:Mutants",
    "native-mutants": "tests.mutants.native:NativeMutants",
}


def option(default: Any, text: str, **more: Any) -> Any:
    """A field that is an option of the command; `more` goes to `add_argument`.

    A bool is a flag; with `nargs="*"` the words need no name of an option before them.
    """
    return field(default=default, metadata={"help": text, **more})


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The result of one round.

    Attributes:
        cases: How many cases of each kind it had; their sums are the figures of docs/reliability.json.
        table: Numbers by row and column of the summary; `cases` alone if there are none.
        totals: Further numbers, whose sums stand below the summary.
        violations: A sentence for each promise that was broken.
        text: The round in words, printed if there are any.
        again: The options that repeat it, beside the seed.
        size: By how much it advances the progress bar.
    """

    cases: Mapping[str, int] = field(default_factory=dict)
    table: Mapping[tuple[str, str], int] = field(default_factory=dict)
    totals: Mapping[str, float] = field(default_factory=dict)
    violations: Sequence[str] = ()
    text: str = ""
    again: str = ""
    size: int = 1


@dataclass(kw_only=True, slots=True)
class Tally:
    """The sum of many rounds."""

    num_rounds: int = 0
    cases: Counter[str] = field(default_factory=Counter)
    table: Counter[tuple[str, str]] = field(default_factory=Counter)
    totals: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> Self:
        """Run all rounds and add them up."""
        tally = cls()
        for it in rounds:
            tally.add(it)
        return tally

    def add(self, it: Round) -> None:
        """Count one more round."""
        self.num_rounds += 1
        self.cases.update(it.cases)
        self.table.update(it.table)
        self.totals.update(it.totals)
        self.violations += it.violations


@dataclass(frozen=True, kw_only=True)
class Campaign(ABC):
    """Rounds that follow from `seed`. `folder` takes files of rounds; what is in it at the end is kept with `keep`.

    `figure` is the name of the campaign among the recorded figures. A constructor raises ValueError for a value that an
    option cannot have.
    """

    figure: ClassVar[str]

    folder: Path
    seed: int = option(None, "what is drawn; without it one is chosen and printed", type=int)
    keep: bool = option(False, "keep the files of rounds in which a promise was broken")

    @abstractmethod
    def run(self) -> Generator[Round, None, None]:
        """Run one round after the other."""

    @property
    def total(self) -> int | None:
        """The sum of the sizes of all rounds, if that is known."""
        return None

    @property
    def listing(self) -> Table | None:
        """The table to show instead of running anything, if the options say so."""
        return None

    def figures(self, tally: Tally) -> Mapping[str, Mapping[str, int]]:
        """The figures that `--record` writes: cases by kind, by the name of the figures."""
        return {self.figure: tally.cases}

    def record(self, tally: Tally, wall_s: float) -> None:
        """Write the figures into docs/reliability.json and docs/reliability.md."""
        for figure, cases in self.figures(tally).items():
            figures.record(figure, cases=cases, violations=len(tally.violations), wall_s=wall_s, seed=self.seed)


def summary(tally: Tally) -> Table:
    """The sums of a campaign: a line for each row of its rounds, with the sum of each column."""
    numbers = tally.table or {(kind, "cases"): num for kind, num in tally.cases.items()}
    columns = list(dict.fromkeys(column for _, column in numbers))
    rows = list(dict.fromkeys(row for row, _ in numbers))
    table = Table()
    table.add_column("")
    for heading in columns:
        table.add_column(heading, justify="right")
    for row in rows:
        table.add_row(row, *(f"{numbers.get((row, column), 0):,}" for column in columns))
    table.add_section()
    table.add_row("all", *(f"{sum(numbers.get((row, column), 0) for row in rows):,}" for column in columns))
    return table


def listing() -> Table:
    """All campaigns, with one line of each."""
    table = Table("NAME", "", title="python -m tests.campaigns NAME --help", show_header=False)
    for name, place in CAMPAIGNS.items():
        spec = find_spec(place.partition(":")[0])
        assert spec is not None
        assert spec.origin is not None
        text = ast.get_docstring(ast.parse(Path(spec.origin).read_text())) or ""
        table.add_row(name, text.partition("\n")[0])
    return table


def parser(name: str, kind: type[Campaign]) -> argparse.ArgumentParser:
    """The command line of a campaign: its fields that are made by `option`."""
    module = sys.modules[kind.__module__]
    parser = argparse.ArgumentParser(prog=f"python -m tests.campaigns {name}", description=module.__doc__)
    for it in fields(kind):
        if "help" not in it.metadata:
            continue
        flag, more = f"--{it.name.replace('_', '-')}", {"default": it.default, **it.metadata}
        if isinstance(it.default, bool):
            parser.add_argument(flag, action="store_true", **more)
        elif more.get("nargs") == "*":
            parser.add_argument(it.name, **more)
        else:
            of_type = type(it.default) if isinstance(it.default, int | float) else None
            of_default = f" ({it.default})" if it.default and not isinstance(it.default, tuple) else ""
            shown = {} if "choices" in more else {"metavar": "N"}
            parser.add_argument(flag, **{**shown, "type": of_type, **more, "help": more["help"] + of_default})
    parser.add_argument("--record", action="store_true", help=f"put the figures into docs/{figures.FILE.name}")
    return parser


def main(arguments: Sequence[str]) -> int:
    """Run the campaign that the first of the arguments names; without any, list them."""
    console = Console()
    if not arguments:
        console.print(listing())
        return 0
    name, *rest = arguments
    if name not in CAMPAIGNS:
        console.print(f"There is no campaign {name}, only these:", listing())
        return 2
    module, _, class_name = CAMPAIGNS[name].partition(":")
    kind: type[Campaign] = getattr(import_module(module), class_name)
    command = parser(name, kind)
    options = vars(command.parse_args(rest))
    is_recorded = options.pop("record")
    if options["seed"] is None:
        # libFuzzer takes 31 bits, and 0 for none.
        options["seed"] = random.SystemRandom().getrandbits(31) or 1
    # The path stays short: sockets in the file system allow 107 bytes.
    folder = Path(tempfile.mkdtemp(prefix=f"{name[:3]}-"))
    tally, started = Tally(), time.monotonic()
    try:
        campaign = _made(kind, command, folder=folder, **options)
        if table := campaign.listing:
            console.print(table)
            return 0
        is_whole = _run(campaign, tally, console)
    finally:
        if options["keep"] and tally.violations:
            console.print(f"files: {folder}")
        else:
            shutil.rmtree(folder)
    wall_s = time.monotonic() - started
    console.print(summary(tally))
    for name, num in tally.totals.items():
        console.out(f"{num:14,.0f} {name}", highlight=False)
    result = f"{tally.num_rounds:,} rounds, {len(tally.violations)} violations in {wall_s:.0f} s"
    console.out(f"{campaign.figure}: {result} (seed {campaign.seed})", highlight=False)
    if is_recorded and is_whole:
        campaign.record(tally, wall_s)
    if tally.violations:
        return 1
    return 0 if tally.num_rounds else 2


def _run(campaign: Campaign, tally: Tally, console: Console) -> bool:
    """Run a campaign on screen and count its rounds; whether it came to its end, or was ended by Ctrl-C."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    console.print(f"seed {campaign.seed}")
    with Progress(*columns, console=console) as progress, closing(campaign.run()) as rounds:
        bar = progress.add_task(campaign.figure, total=campaign.total)
        try:
            for it in rounds:
                tally.add(it)
                progress.update(bar, advance=it.size)
                if it.text:
                    console.out(it.text, highlight=False)
                for violation in it.violations:
                    console.out(f"  {violation}", style="red", highlight=False)
                if it.violations and it.again:
                    console.out(f"  again: --seed {campaign.seed} {it.again}", highlight=False)
        except KeyboardInterrupt:
            console.print("interrupted: what was found so far")
            return False
    return True


def _made(kind: type[Campaign], command: argparse.ArgumentParser, **options: Any) -> Campaign:
    try:
        return kind(**options)
    except ValueError as error:
        command.error(str(error))


if __name__ == "__main__":
    # The campaigns import this module by its name.
    from tests.campaigns import main as run_campaign

    sys.exit(run_campaign(sys.argv[1:]))
