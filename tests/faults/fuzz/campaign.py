"""Every parser of bytes from outside gets random inputs, each in a process of its own."""

import os
import re
import subprocess
import time
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from tests.campaigns import Campaign, Round, option
from tests.faults.fuzz import scratch
from tests.faults.fuzz.programs import Program, programs
from tests.faults.fuzz.target import CORPORA

ROOT = Path(__file__).parents[3]
# At the end, and, of a process that was interrupted, on the way.
RUN = re.compile(rb"^(?:stat::number_of_executed_units: *|#)(\d+)", re.MULTILINE)
PEAK = re.compile(rb"stat::peak_rss_mb: *(\d+)")
WRITTEN = re.compile(rb"Test unit written to (\S+)")
INTERRUPTED = re.compile(rb"KeyboardInterrupt: stopping|libFuzzer: run interrupted")
LOG_BYTES = 4000
MOST_FILES, MOST_BYTES = 100, 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """The outcome of one target. `found` is the input that broke a promise, `told` what was said of it."""

    name: str
    num_inputs: int
    num_new: int
    peak_mib: int
    wall_s: float
    found: Path | None = None
    told: str = ""


@dataclass(frozen=True, kw_only=True)
class Fuzzing(Campaign):
    """`seconds` of wall time for all targets together, of which `at_once` run side by side, or `runs` inputs for each.

    With `keep`, new inputs that reach more of a target come into its corpus, which is below `corpora`.
    """

    figure: ClassVar[str] = "fuzz"

    targets: Sequence[str] = option((), "what is fuzzed (all)", nargs="*", metavar="TARGET")
    seconds: float = option(300.0, "how long all of it takes")
    at_once: int = option(2, "processes side by side")
    keep: bool = option(False, "keep new inputs that reach more, in tests/faults/fuzz/corpus")
    runs: int = 0
    corpora: Path = CORPORA

    def __post_init__(self) -> None:
        assert self.programs

    @cached_property
    def programs(self) -> list[Program]:
        return programs(tuple(self.targets), self.folder, corpora=self.corpora)

    @property
    def total(self) -> int:
        return len(self.programs)

    def run(self) -> Generator[Round, None, None]:
        for it in self.outcomes():
            numbers = {"inputs": it.num_inputs, "new ones": it.num_new, "MiB at most": it.peak_mib}
            yield Round(
                cases={it.name: it.num_inputs},
                table={(it.name, column): num for column, num in numbers.items()},
                violations=[f"{it.name}: BROKEN by {it.found}\n{it.told}"] if it.told else [],
                again=f"{it.name}; of this input: python -m tests.faults.fuzz.process {it.name} {it.found}",
            )

    def outcomes(self) -> Iterator[Outcome]:
        """Run all, and tell of each target that has ended. An interrupt ends those that run; the others never begin."""
        told: list[Outcome] = []
        with ThreadPoolExecutor(self.at_once) as pool:
            futures: list[Future[Outcome]] = []
            try:
                for program in self.programs:
                    program.prepare()
                futures += [pool.submit(self._fuzz, program) for program in self.programs]
                for future in as_completed(futures):
                    told.append(future.result())
                    yield told[-1]
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                yield from (it.result() for it in futures if not it.cancelled() and it.result() not in told)

    def _fuzz(self, program: Program) -> Outcome:
        new = self.folder / f"{program.name}-new"
        new.mkdir()
        program.corpus.mkdir(parents=True, exist_ok=True)
        options = [f"-seed={self.seed}", "-print_final_stats=1", f"-artifact_prefix={program.corpus}/"]
        options += [f"-runs={self.runs}"] if self.runs else [f"-max_total_time={max(1, round(self._seconds(program)))}"]
        start = time.monotonic()
        log, code = self._told(program, [*options, str(new), str(program.corpus)])
        if self.keep and code == 0 and not program.is_native:
            self._keep(program, new)
        found = WRITTEN.search(log)
        return Outcome(
            name=program.name,
            num_inputs=_number(RUN, log),
            num_new=len(list(new.iterdir())),
            peak_mib=_number(PEAK, log),
            wall_s=time.monotonic() - start,
            found=Path(os.fsdecode(found[1])) if found else None,
            told="" if code == 0 or INTERRUPTED.search(log) else log[-LOG_BYTES:].decode(errors="replace"),
        )

    def _seconds(self, program: Program) -> float:
        shares = sum(other.share for other in self.programs)
        return self.seconds * min(1.0, self.at_once * program.share / shares)

    def _told(self, program: Program, arguments: list[str]) -> tuple[bytes, int]:
        command = [*program.command, *program.options, *arguments]
        with scratch.for_processes() as environment:
            done = subprocess.run(
                command,
                cwd=ROOT,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return done.stdout, done.returncode

    def _keep(self, program: Program, new: Path) -> None:
        """Put the fewest inputs that reach all that old and new ones reach in the place of the old ones."""
        fewest = self.folder / f"{program.name}-fewest"
        fewest.mkdir()
        _, code = self._told(program, ["-merge=1", str(fewest), str(program.corpus), str(new)])
        if code == 0:
            replace(program.corpus, fewest)


def replace(corpus: Path, better: Path) -> None:
    """Put the inputs of `better` in the place of those of a corpus; of too many, the smallest ones.

    Inputs with a name stay: each once broke something.
    """
    inputs = sorted((path.read_bytes() for path in better.iterdir()), key=lambda data: (len(data), data))
    named = [path for path in corpus.iterdir() if not path.name.isdecimal()]
    for path in set(corpus.iterdir()) - set(named):
        path.unlink()
    num_bytes = sum(path.stat().st_size for path in named)
    for number, data in enumerate(inputs[: MOST_FILES - len(named)]):
        num_bytes += len(data)
        if num_bytes > MOST_BYTES:
            return
        (corpus / f"{number:03}").write_bytes(data)


def _number(pattern: re.Pattern[bytes], log: bytes) -> int:
    return max(map(int, pattern.findall(log)), default=0)
