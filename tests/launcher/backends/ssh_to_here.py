"""A command `ssh` that comes to this machine, to a real sshd of its own: without a port, and known to nobody else."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.needs import SBIN, need

SSHD = """
HostKey {folder}/host
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PidFile none
"""
# One connection for all commands, as users have it.
SSH = """
IdentityFile {folder}/key
IdentitiesOnly yes
UserKnownHostsFile /dev/null
StrictHostKeyChecking no
LogLevel ERROR
ControlMaster auto
ControlPath {folder}/master
ControlPersist yes
ProxyCommand {sshd} -i -f {folder}/sshd.conf
"""


@contextmanager
def ssh_to_here(folder: Path) -> Iterator[Path]:
    """Make the command in a new folder, and give that: it comes first on the PATH."""
    need("ssh")
    if os.geteuid() == 0:
        # Root's sshd asks for the folder of Debian's package, which its service makes.
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    folder.mkdir()
    for key in ("host", "key"):
        words = ["-q", "-t", "ed25519", "-N", "", "-f", str(folder / key)]
        subprocess.run(["ssh-keygen", *words], check=True)
    (folder / "sshd.conf").write_text(SSHD.format(folder=folder))
    (folder / "ssh.conf").write_text(SSH.format(folder=folder, sshd=_place("sshd")))
    command = folder / "ssh"
    command.write_text(f'#!/bin/sh\nexec {_place("ssh")} -F {folder}/ssh.conf "$@"\n')
    command.chmod(0o755)
    try:
        yield folder
    finally:
        subprocess.run([command, "-O", "exit", "here"], capture_output=True)


def _place(command: str) -> str:
    return str(shutil.which(command, path=os.pathsep.join((os.environ["PATH"], *SBIN))))
