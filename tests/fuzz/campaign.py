"""Every target in a process of its own, for its share of the time."""

import os
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz import scratch
from tests.fuzz.programs import Program

ROOT = Path(__file__).parent.parent.parent
# At the end, and, of a process that was interrupted, on the way.
RUN = re.compile(rb"^(?:stat::number_of_executed_units: *|#)(\d+)", re.MULTILINE)
PEAK = re.compile(rb"stat::peak_rss_mb: *(\d+)")
WRITTEN = re.compile(rb"Test unit written to (\S+)")
INTERRUPTED = re.compile(rb"KeyboardInterrupt: stopping|libFuzzer: run interrupted")
LOG_BYTES = 4000
MOST_FILES, MOST_BYTES = 100, 200_000


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What became of one target. `found` is the input that broke a promise, `told` what was said of it."""

    name: str
    num_inputs: int
    num_new: int
    peak_mib: int
    wall_s: float
    found: Path | None = None
    told: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Campaign:
    """`seconds` of wall time for all programs together, of which `at_once` run side by side, or `runs` inputs for each.

    `folder` takes what is needed on the way. With `keeps`, new inputs that reach more of a target come into its corpus.
    """

    programs: Sequence[Program]
    folder: Path
    seed: int
    seconds: float = 0.0
    runs: int = 0
    at_once: int = 2
    keeps: bool = False
    outcomes: list[Outcome] = field(default_factory=list)

    def run(self) -> Iterator[Outcome]:
        """Run all, and tell of each target that has ended. An interrupt ends those that run; the others never begin."""
        with ThreadPoolExecutor(self.at_once) as pool:
            futures: list[Future[Outcome]] = []
            try:
                for program in self.programs:
                    program.prepare()
                futures += [pool.submit(self._fuzz, program) for program in self.programs]
                for future in as_completed(futures):
                    yield self._noted(future)
            except KeyboardInterrupt:
                pool.shutdown(cancel_futures=True)
                for future in futures:
                    if not future.cancelled() and future.result() not in self.outcomes:
                        yield self._noted(future)

    def _noted(self, future: Future[Outcome]) -> Outcome:
        self.outcomes.append(future.result())
        return future.result()

    def _fuzz(self, program: Program) -> Outcome:
        new = self.folder / f"{program.name}-new"
        new.mkdir()
        program.corpus.mkdir(parents=True, exist_ok=True)
        options = [f"-seed={self.seed}", "-print_final_stats=1", f"-artifact_prefix={program.corpus}/"]
        options += [f"-runs={self.runs}"] if self.runs else [f"-max_total_time={max(1, round(self._seconds(program)))}"]
        start = time.monotonic()
        log, code = self._told(program, [*options, str(new), str(program.corpus)])
        if self.keeps and code == 0 and not program.is_native:
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
