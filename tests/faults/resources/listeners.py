"""The sockets that wait for somebody: TCP ports, and sockets in the file system or under an abstract name."""

import socket
import struct
from pathlib import Path

LISTENS = "0A"
ACCEPTS = 0x10000
ADDRESS, STATE, INODE = 1, 3, 9
FLAGS, UNIX_INODE, PATH = 3, 6, 7


def listeners(network: Path = Path("/proc/self/net")) -> dict[str, str]:
    """The address of each listening socket, by the name that its descriptor has in /proc."""
    found = {}
    for line in _lines(network / "tcp"):
        if line[STATE] == LISTENS:
            host, _, port = line[ADDRESS].partition(":")
            address = socket.inet_ntoa(struct.pack("=I", int(host, 16)))
            found[f"socket:[{line[INODE]}]"] = f"{address}:{int(port, 16)}"
    for line in _lines(network / "tcp6"):
        if line[STATE] == LISTENS:
            found[f"socket:[{line[INODE]}]"] = f"[…]:{int(line[ADDRESS].rpartition(':')[2], 16)}"
    for line in _lines(network / "unix"):
        if len(line) > PATH and int(line[FLAGS], 16) & ACCEPTS:
            found[f"socket:[{line[UNIX_INODE]}]"] = line[PATH]
    return found


def _lines(file: Path) -> list[list[str]]:
    return [line.split() for line in file.read_text().splitlines()[1:]] if file.exists() else []
