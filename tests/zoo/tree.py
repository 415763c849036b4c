"""Copies of the project in which a bug can be put back."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

ROOT = Path(__file__).parent.parent.parent
PACKAGE = "stream_server"
# Environments that tests look for beside themselves; whatever is started there imports the copy, too.
ENVIRONMENTS = (".venv", ".venv-openmpi")
# What must run the copy: whoever imports the package, and the console scripts, which begin in another folder.
PROGRAMS = (
    (sys.executable, "-c", f"import {PACKAGE}.failpoints"),
    *((name, "--help") for name in ("stream-server", "stream-launcher", "stream-study")),
)


class DoesNotApply(Exception):
    """The sources have moved: the patch is to be made anew."""


class NotTheCopy(Exception):
    """Another tree than the copy would run."""


class Tree:
    """A copy of what git knows of the project, or would, in a temporary folder of its own, while the block lasts.

    `environment` makes all processes run the copy, though the package is installed from somewhere else.
    """

    def __enter__(self) -> Self:
        self.path = Path(tempfile.mkdtemp(prefix="zoo-"))
        self.environment = {**os.environ, "PYTHONPATH": str(self.path)}
        for name in ENVIRONMENTS:
            (self.path / name).symlink_to(ROOT / name)
        for name in _known_files():
            target = self.path / name
            target.parent.mkdir(parents=True, exist_ok=True)
            # The times of the sources come along, so that what was compiled of them is good for the copy.
            shutil.copy2(ROOT / name, target, follow_symlinks=False)
            compiled = f"{target.stem}.{sys.implementation.cache_tag}.pyc"
            cache = (ROOT / name).parent / "__pycache__"
            if (cache / compiled).exists():
                (target.parent / "__pycache__").mkdir(exist_ok=True)
                shutil.copy2(cache / compiled, target.parent / "__pycache__" / compiled)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        shutil.rmtree(self.path)

    def apply(self, patch: Path) -> None:
        """Put a bug back.

        Raises:
            DoesNotApply: the sources have moved.
            SyntaxError: what comes out is no Python.
        """
        touched = [self.path / name for name in touched_files(patch)]
        before = [file.read_bytes() for file in touched]
        apply(patch, self.path)
        for file, old in zip(touched, before, strict=True):
            if file.read_bytes() == old:
                raise DoesNotApply(f"{patch.name} left {file.relative_to(self.path)} as it was")
            if file.suffix == ".py":
                compile(file.read_text(), str(file), "exec")

    def check(self) -> None:
        """Make sure that whatever is started with `environment` is the copy.

        Raises:
            NotTheCopy: it is not.
        """
        for program in PROGRAMS:
            self._check(program, self.environment)

    def _check(self, program: tuple[str, ...], environment: Mapping[str, str]) -> None:
        ran = subprocess.run(
            program,
            cwd=tempfile.gettempdir(),
            env={**environment, "PYTHONVERBOSE": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
        sources = {line.rpartition(" ")[2] for line in ran.stderr.splitlines() if f"/{PACKAGE}/" in line}
        files = {source.strip("'") for source in sources if source.strip("'").endswith(".py")}
        strangers = sorted(file for file in files if not Path(file).is_relative_to(self.path))
        if strangers or not files:
            raise NotTheCopy(f"{' '.join(program)} imports {strangers[0] if strangers else 'nothing of the package'}")


def apply(patch: Path, tree: Path, *, check: bool = False) -> None:
    """Apply a patch to a tree, or only see whether it could be applied.

    Raises:
        DoesNotApply: it cannot.
    """
    command = ["git", "apply", "-p1", *(["--check"] if check else []), str(patch)]
    # Within a repository, git would leave out what is not below the working folder.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(tree.parent)}
    ran = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if ran.returncode:
        raise DoesNotApply(ran.stderr.strip())


def touched_files(patch: Path) -> list[str]:
    """The files that a patch changes, by relative path."""
    return [line.removeprefix("+++ b/") for line in patch.read_text().splitlines() if line.startswith("+++ b/")]


def _known_files() -> list[str]:
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    names = filter(None, listed.stdout.split("\0"))
    return [name for name in names if (ROOT / name).is_file() or (ROOT / name).is_symlink()]
