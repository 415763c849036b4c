"""Another user of the machine, who runs programs, and to whom files can be given."""

import os
import subprocess
import sys
from pathlib import Path

UID = 54321


class Stranger:
    """User and group 54321, who may be in more groups."""

    uid = UID

    def __init__(self, *groups: int) -> None:
        self.groups = groups

    def start(self, script: str, *arguments: object, before: str = "") -> "subprocess.Popen[str]":
        """Start a script in Python, which has `sys` and `os`.

        Other modules are imported `before`, as root: Python may lie in a folder that only root can enter.
        """
        become = f"os.setgroups({list(self.groups)}); os.setgid({UID}); os.setuid({UID})"
        lines = "\n".join(("import os, sys", before, become, script))
        return subprocess.Popen(
            [sys.executable, "-I", "-c", lines, *map(str, arguments)],
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
        os.chown(path, UID, UID, follow_symlinks=False)
        return path
