"""A known bug: a patch that puts it back, with the promise that it breaks and the tests that notice it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Self

BUGS = Path(__file__).parent / "bugs"
PATCH_BEGINS = "--- "


class Form(StrEnum):
    """The catcher of a bug: tests of `make test`, `QUICK` if they take less than 2 s, or a long campaign."""

    QUICK = "quick"
    SHORT = "short"
    LONG = "long"


@dataclass(frozen=True, kw_only=True, slots=True)
class Bug:
    """The header of a patch file: `text` says what is wrong, `promises` what that breaks.

    Each of `catchers` must notice it: a test, by its name for pytest, or, of a long one, a command that ends with 1.
    """

    name: str
    file: Path
    text: str
    promises: str
    form: Form
    catchers: tuple[str, ...]

    @classmethod
    def read(cls, file: Path) -> Self:
        """The bug in a patch file.

        Raises:
            ValueError: what it must say of itself is missing.
        """
        header = file.read_text().partition(PATCH_BEGINS)[0]
        said: dict[str, list[str]] = {"": []}
        for line in filter(None, header.splitlines()):
            key, colon, value = line.partition(": ")
            known = bool(colon) and key in ("breaks", "form", "caught by")
            said.setdefault(key if known else "", []).append(value if known else line)
        missing = [key for key in ("", "breaks", "form", "caught by") if not said.get(key)]
        if missing:
            raise ValueError(f"{file} must say {' and '.join(key or 'what is wrong' for key in missing)}")
        return cls(
            name=file.stem,
            file=file,
            text=" ".join(said[""]),
            promises=said["breaks"][0],
            form=Form(said["form"][0]),
            catchers=tuple(said["caught by"]),
        )


def all_bugs(folder: Path = BUGS) -> list[Bug]:
    """Every bug of the zoo, by name."""
    return [Bug.read(file) for file in sorted(folder.glob("*.patch"))]


def named(bugs: Sequence[Bug], names: Sequence[str]) -> list[Bug]:
    """Those of these names, all without any.

    Raises:
        ValueError: there is none of that name.
    """
    unknown = sorted(set(names) - {bug.name for bug in bugs})
    if unknown:
        raise ValueError(f"there is no bug {', '.join(unknown)}: `python -m tests.campaigns zoo --list` shows them")
    return [bug for bug in bugs if not names or bug.name in names]
