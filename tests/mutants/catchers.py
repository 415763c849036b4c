"""The tests that may notice a mutant of a module: those of its room first."""

from functools import cache
from pathlib import Path

from tests.test_imports import MODULES, TESTS, imports, room_of
from tests.test_mirror import ELSEWHERE, _names, folder_of

ROOT = TESTS.parent


@cache
def test_files(module: str) -> tuple[str, ...]:
    """The files of the module's own tests: by its name, by their imports, those of importers in its room, elsewhere."""
    room = room_of(module)
    importers = {module}
    while new := {it for it in MODULES if room_of(it) == room and imports(it) & importers} - importers:
        importers |= new
    prefix = f"{room}." if room else ""
    by_distance: list[tuple[int, Path]] = []
    for file in sorted(folder_of(room).glob("test_*.py")):
        named = {*_named(file), prefix + file.stem.removeprefix("test_")}
        if prefix + file.stem.removeprefix("test_") == module:
            by_distance.append((0, file))
        elif module in named:
            by_distance.append((1, file))
        elif named & importers:
            by_distance.append((2, file))
    if module in ELSEWHERE:
        by_distance.append((1, TESTS / ELSEWHERE[module]))
    return tuple(dict.fromkeys(_relative(file) for _, file in sorted(by_distance)))


@cache
def _named(file: Path) -> frozenset[str]:
    return frozenset(_names(file))


def _relative(file: Path) -> str:
    return file.relative_to(ROOT).as_posix()
