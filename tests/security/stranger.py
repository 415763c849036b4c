"""Another user of the machine, who runs programs, and to whom files can be given."""

import os
import subprocess
import sys
import tempfile
from functools import cached_property
from pathlib import Path

from tests.needs import AS_ROOT_OF_A_NAMESPACE

# In a namespace, he is one of the users that the machine sets aside for whoever runs the tests.
UID = 54321


class Stranger:
    """A user who is alone in his group, and may be in more groups.

    Root can be anybody, and give files to anybody. All others can do so as root of a namespace.
    """

    def __init__(self, *groups: int) -> None:
        self.groups = groups
        self._as_root = [] if os.geteuid() == 0 else list(AS_ROOT_OF_A_NAMESPACE)

    @cached_property
    def uid(self) -> int:
        """His number, which is that of his group, too."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "his")
            file.touch()
            return self.owns(file).lstat().st_uid

    def start(self, script: str, *arguments: object, before: str = "") -> "subprocess.Popen[str]":
        """Start a script in Python, which has `sys` and `os`.

        Other modules are imported `before`, as root: Python may lie in a folder that only root can enter.
        """
        become = f"os.setgroups({list(self.groups)}); os.setgid({UID}); os.setuid({UID})"
        lines = "\n".join(("import os, sys", before, become, script))
        return subprocess.Popen(
            [*self._as_root, sys.executable, "-I", "-c", lines, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, script: str, *arguments: object, before: str = "") -> str:
        """What a script prints before it ends well."""
        with self.start(script, *arguments, before=before) as process:
            said, _ = process.communicate(timeout=120)
        assert process.returncode == 0, said
        return said.strip()

    def owns(self, path: Path) -> Path:
        """Make a file or folder, or a link itself, the stranger's."""
        self._run("chown", "--no-dereference", f"{UID}:{UID}", str(path))
        return path

    def is_in_the_group_of(self, path: Path) -> None:
        """Make a file or folder that of his group."""
        self._run("chgrp", str(UID), str(path))

    def remove(self, path: Path) -> None:
        """Remove a folder in which there may be files of his."""
        self._run("rm", "-rf", str(path))

    def _run(self, *words: str) -> None:
        subprocess.run([*self._as_root, *words], check=True)
