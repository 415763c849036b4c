"""The programs of libFuzzer: a process for each target in Python, and those that are built for the native client."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.faults.fuzz.target import CORPORA, names

NATIVE = Path(__file__).parents[2] / "native" / "fuzz"
NATIVE_CORPORA = {"decode_reply": "replies", "parse_connection_file": "connection_files"}
# Native ones take a hundred times as many inputs in the same time; some in Python take very few.
SHARES = {"decode_reply": 8.0, "parse_connection_file": 8.0, "hostile_clients": 3.0, "study_json": 2.0}
MEMORY_MIB = 1024
INPUT_S = 20


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """How a target is started, where its inputs are kept, and how much time it gets beside the others."""

    name: str
    command: tuple[str, ...]
    options: tuple[str, ...]
    corpus: Path
    share: float = 1.0
    is_native: bool = False

    def prepare(self) -> None:
        """Build it, if it must be built.

        Raises:
            CalledProcessError: it cannot be.
        """
        if self.is_native:
            subprocess.run([NATIVE / "build.sh", self.name, self.command[0]], check=True)


def programs(chosen: tuple[str, ...], folder: Path, *, corpora: Path = CORPORA) -> list[Program]:
    """Those that were chosen, or all. Native ones are built into `folder`.

    Raises:
        ValueError: there is no such target.
    """
    known = (*NATIVE_CORPORA, *names())
    if unknown := [name for name in chosen if name not in known and "." not in name]:
        raise ValueError(f"there is no target {unknown[0]}, only {', '.join(known)}")
    return [_native(name, folder) if name in NATIVE_CORPORA else _python(name, corpora) for name in chosen or known]


def _native(name: str, folder: Path) -> Program:
    dictionary = NATIVE / "json.dict"
    return Program(
        name=name,
        command=(str(folder / name),),
        options=("-max_len=1024", "-malloc_limit_mb=4", *([f"-dict={dictionary}"] if "file" in name else [])),
        corpus=NATIVE / "corpus" / NATIVE_CORPORA[name],
        share=SHARES[name],
        is_native=True,
    )


def _python(name: str, corpora: Path) -> Program:
    command = (sys.executable, "-m", "tests.faults.fuzz.process", name)
    options = (f"-rss_limit_mb={MEMORY_MIB}", f"-timeout={INPUT_S}")
    return Program(name=name, command=command, options=options, corpus=corpora / name, share=SHARES.get(name, 1.0))
