"""Small changes to the clients in C and Fortran, of each source some: the tests must notice each that breaks a promise.

Why: docs/decisions/0095-mutants.md
"""

import os
import shutil
import subprocess
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.campaigns import Round, option
from tests.mutants import native_compile, scores
from tests.mutants.campaign import MutantCampaign
from tests.mutants.mutations import Mutant
from tests.mutants.native_mutations import ROOM, mutants, sample
from tests.mutants.trial import Workshop
from tests.native.building import NATIVE
from tests.native.conformance import build, script, vectors
from tests.native.conformance.cases import CASES
from tests.native.conformance.run import run
from tests.native.conformance.script import Driver
from tests.native.conformance.test_conformance import IN_FORTRAN
from tests.native.unit.conftest import SOURCES as IN_UNIT_TESTS
from tests.support.built_once import SHARED_FOLDER

FORTRAN = NATIVE / "fortran" / "stream_client.f90"
INCLUDES = (f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'src'}")
CONFORMANCE = "tests/native/conformance/test_conformance.py"
UNIT = ("tests/native/unit",)
CLIENT = ("tests/client_api", "tests/native/test_retention.py", "tests/native/test_delivery.py", "-k", "not python")
OF_FORTRAN = ("tests/native/test_fortran.py",)
LIMIT_S = 600.0
# A client that waits for ever is noticed after so long.
HANGS_S = 15.0


@dataclass(frozen=True, kw_only=True)
class NativeMutants(MutantCampaign):
    """One mutant after the other: it speaks the conformance cases, then tests run in a copy that has it."""

    number: int = option(84, "about how many mutants of C, the more of a source the longer it is")
    fortran: int = option(15, "how many mutants of Fortran")

    def run(self) -> Generator[Round, None, None]:
        reasons = scores.reasons()
        for name in ("objects", "shared"):
            (self.folder / name).mkdir()
        native_compile.put_on_path(self.folder)
        os.environ[SHARED_FOLDER] = str(self.folder / "shared")
        script.DEADLINE_S = HANGS_S
        clients = Clients(self.folder / "clients")
        for file in (clients.sources[0], FORTRAN):
            if case := clients.case_that_differs(file, file.read_text()):
                raise SystemExit(
                    f"the case {case} fails with the client as it is ({file.name}): no mutant can be judged"
                )
        with Workshop(self.folder) as workshop:
            for mutant in self.mutants(clients):
                how = catcher(mutant, clients, workshop, elsewhere=scores.test_of(mutant, reasons))
                yield self.judged(mutant, how, reasons)

    def mutants(self, clients: "Clients") -> Iterator[Mutant]:
        """Those that are asked for, or such as the seed draws: another program, even for a compiler that optimizes."""
        if asked := scores.open_ones(ROOM) if self.again else self.names:
            all_mutants = [it for file in (*clients.sources, FORTRAN) for _, it in mutants(file)]
            yield from (it for it in all_mutants if any(name in it.name for name in asked))
            return
        sizes = {file: len(file.read_text()) for file in clients.sources}
        numbers = {file: max(1, round(self.number * size / sum(sizes.values()))) for file, size in sizes.items()}
        for file, number in {**numbers, FORTRAN: self.fortran}.items():
            yield from sample(file, number, self.seed, clients.is_another)


def catcher(mutant: Mutant, clients: "Clients", workshop: Workshop, *, elsewhere: str) -> str:
    """The test that notices a mutant, "" if none does; `elsewhere` is one that is known to."""
    if (case := clients.case_that_differs(mutant.file, mutant.text)) and not (
        # A busy machine may have done that.
        clients.case_that_differs(mutant.file, mutant.file.read_text(), only=case)
        or not clients.case_that_differs(mutant.file, mutant.text, only=case)
    ):
        return f"{CONFORMANCE}: {case}"
    if elsewhere:
        stages: Sequence[Sequence[str]] = [(elsewhere,)]
    elif mutant.file == FORTRAN:
        stages = [OF_FORTRAN]
    else:
        stages = [UNIT, CLIENT] if mutant.file.stem in IN_UNIT_TESTS else [CLIENT]
    for stage in stages:
        if how := workshop.notices(mutant, stage, LIMIT_S):
            return how
    return ""


class Clients:
    """The clients in C and Fortran, compiled without optimization, and the conformance drivers with them."""

    def __init__(self, folder: Path) -> None:
        self.sources = sorted((NATIVE / "src").glob("*.c"))
        self._folder = folder
        folder.mkdir()
        _gcc(folder, "-O0", "-c", *map(str, self.sources))

    def case_that_differs(self, file: Path, text: str, *, only: str = "") -> str:
        """The first case of conformance that goes otherwise with this text in a source, "" if there is none.

        `only` is the name of a case to leave out all others.
        """
        driver = self._driver(file, text)
        cases = [case for case in (IN_FORTRAN if file == FORTRAN else CASES) if only in ("", case.name)]
        # What the shortest messages are made of comes first.
        for case in sorted(cases, key=lambda case: vectors.path(case).stat().st_size):
            try:
                with Driver([str(driver)]) as process:
                    said = run(case, process)
            # Whatever it says, it may be no message, or none at all.
            except Exception:
                return case.name
            if said != vectors.path(case).read_text():
                return case.name
        return ""

    def _driver(self, file: Path, text: str) -> Path:
        changed = self._folder / "changed"
        shutil.rmtree(changed, ignore_errors=True)
        changed.mkdir()
        objects = [str(it) for it in sorted(self._folder.glob("*.o")) if it.stem != file.stem]
        if file == FORTRAN:
            _fortran(changed, text, str(build.HERE / "driver.f90"), *objects, *build.LIBRARIES, "-o", "driver")
        else:
            _compile(changed, file.name, text, "-O0")
            parts = (f"{file.stem}.o", str(build.HERE / "driver.c"), *objects)
            _gcc(changed, *parts, *build.LIBRARIES, "-o", "driver")
        return changed / "driver"

    def is_another(self, mutant: Mutant) -> bool:
        """Whether a mutant compiles, in C to another object than its source."""
        folder = self._folder / "optimized"
        folder.mkdir(exist_ok=True)
        try:
            if mutant.file == FORTRAN:
                _fortran(folder, mutant.text, "-c")
                return True
            made = _compile(folder, mutant.file.name, mutant.text, "-O1")
        except subprocess.CalledProcessError:
            return False
        return made != _compile(folder, mutant.file.name, mutant.file.read_text(), "-O1")


def _compile(folder: Path, name: str, text: str, level: str) -> bytes:
    source = folder / name
    source.write_text(text)
    _gcc(folder, level, "-g0", "-c", name)
    return source.with_suffix(".o").read_bytes()


def _gcc(folder: Path, *words: str) -> None:
    subprocess.run(["gcc", "-std=c11", "-w", *INCLUDES, *words], cwd=folder, check=True, capture_output=True)


def _fortran(folder: Path, text: str, *words: str) -> None:
    (folder / FORTRAN.name).write_text(text)
    command = ["gfortran", "-std=f2008", "-w", "-fcheck=all,no-array-temps", FORTRAN.name, *words]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)
