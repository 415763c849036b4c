"""The pins of constraints.txt, and whether an index has a wheel of each for every Python that pyproject.toml promises.

    python -m tests.install.pins [VERSION …]

asks the index that pip is set up for, with a recent pip, and installs nothing.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"
NUM_PATCHES = 20
COMMENT = re.compile(r"#\s*Python\s*(\S+)")


@dataclass(frozen=True, kw_only=True, slots=True)
class Pin:
    """A line of constraints.txt; `comment` is what it says its `Requires-Python` were."""

    text: str
    requirement: Requirement
    comment: str | None

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)

    @property
    def version(self) -> str:
        return str(self.requirement.specifier).removeprefix("==")

    def is_for(self, python: str) -> bool:
        """Whether it is for this Python, a version such as 3.11.2."""
        versions = {"python_full_version": python, "python_version": python.rpartition(".")[0]}
        return self.requirement.marker is None or self.requirement.marker.evaluate(versions)


def pins(text: str) -> Iterator[Pin]:
    for line in text.splitlines():
        requirement, _, _ = line.partition("#")
        comment = COMMENT.search(line)
        yield Pin(
            text=requirement.strip(),
            requirement=Requirement(requirement),
            comment=comment.group(1) if comment else None,
        )


def promised() -> list[str]:
    """Every version of Python that pyproject.toml promises, and some that do not exist yet."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    minors = [version for it in project["classifiers"] if (version := it.rpartition(" :: Python :: ")[2]) != it]
    assert f">={minors[0]}" == project["requires-python"]
    return [f"{minor}.{patch}" for minor in minors for patch in range(NUM_PATCHES)]


def ask(python: str) -> bool:
    """Whether pip finds all that is pinned for this Python."""
    print(f"Python {python}", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        wanted = [pin.text.partition(";")[0] for pin in pins(CONSTRAINTS.read_text()) if pin.is_for(python)]
        options = ["--dry-run", "--quiet", "--no-deps", "--only-binary=:all:", "--python-version", python]
        command = [sys.executable, "-m", "pip", "install", *options, "--target", folder, *wanted]
        return subprocess.run(command).returncode == 0


def main(pythons: Sequence[str]) -> int:
    return 0 if sum(not ask(python) for python in pythons) == 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [it for it in promised() if it.endswith((".0", "11.2", "14.1"))]))
