"""What gcc finds in the C client without running it: leaks, use after free, null pointers, on whatever path."""

from pathlib import Path

import pytest

from tests.native.building import NATIVE, run

SOURCES = (*NATIVE.glob("src/*.c"), *NATIVE.glob("melissa/*.c"))
INCLUDES = tuple(f"-I{NATIVE / name}" for name in ("include", "src", "melissa"))
# Debian's wrapper of gcc knows where mpi.h is.
ANALYZER = ("mpicc.mpich", "-c", "-std=c11", "-O1", "-fanalyzer", "-Wall", "-Wextra", "-Werror")


@pytest.mark.full
@pytest.mark.slow
def test_the_analyzer_has_nothing_to_say(tmp_path: Path) -> None:
    assert len(SOURCES) > 40
    run([*ANALYZER, *INCLUDES, *map(str, sorted(SOURCES))], cwd=tmp_path)


def test_the_analyzer_knows_that_there_may_be_no_memory(tmp_path: Path) -> None:
    mistake = tmp_path / "mistake.c"
    mistake.write_text("#include <stdlib.h>\nint *one(void) { int *it = malloc(sizeof *it); *it = 1; return it; }\n")
    with pytest.raises(AssertionError, match="possibly-NULL"):
        run([*ANALYZER, str(mistake)], cwd=tmp_path)
