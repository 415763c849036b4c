"""The network interfaces of this node, and the choice of `network.interface`.

Why: docs/decisions/0078-torchs-ranks.md
"""

import array
import fcntl
import ipaddress
import socket
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from stream_server.errors import ConfigError

SIOCGIFCONF = 0x8912
ENTRY_BYTES = 40
NAME_BYTES = 16
MOST_ENTRIES = 256
LINK_SCOPE = 0x20
# Linux' flags of an address that is temporary, deprecated, not unique, or still to be found so.
NOT_FOR_LONG = 0x01 | 0x20 | 0x08 | 0x40


@dataclass(frozen=True, kw_only=True, slots=True)
class Interface:
    """An address of this node, and the name of the interface that has it."""

    name: str
    address: str

    @property
    def is_loopback(self) -> bool:
        """Whether other nodes cannot reach it."""
        return ipaddress.ip_address(self.address).is_loopback

    def __str__(self) -> str:
        return f"{self.name} ({self.address})"


def interfaces() -> list[Interface]:
    """All addresses by which others may know this node, those of IPv4 first; an interface may have several, or none."""
    return [*_of_ipv4(), *_of_ipv6()]


def _of_ipv4() -> list[Interface]:
    memory = array.array("B", bytes(ENTRY_BYTES * MOST_ENTRIES))
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        request = struct.pack("iP", len(memory), memory.buffer_info()[0])
        num_bytes, _ = struct.unpack("iP", fcntl.ioctl(asked, SIOCGIFCONF, request))
    entries = [memory[start : start + ENTRY_BYTES].tobytes() for start in range(0, num_bytes, ENTRY_BYTES)]
    return [
        Interface(
            # A further address of an interface has a label, such as eth0:1.
            name=entry[:NAME_BYTES].split(b"\0")[0].decode().partition(":")[0],
            address=socket.inet_ntoa(entry[NAME_BYTES + 4 : NAME_BYTES + 8]),
        )
        for entry in entries
    ]


def _of_ipv6() -> list[Interface]:
    try:
        lines = Path("/proc/net/if_inet6").read_text().splitlines()
    except FileNotFoundError:
        return []
    addresses = []
    for line in lines:
        number, _, _, scope, flags, name = line.split()
        # An address of one link says nothing without the name of the interface, which is another one at each end.
        if int(scope, 16) != LINK_SCOPE and not int(flags, 16) & NOT_FOR_LONG:
            addresses.append(Interface(name=name, address=str(ipaddress.IPv6Address(int(number, 16)))))
    return addresses


def chosen(wanted: str, among: Sequence[Interface] | None = None) -> Interface:
    """The interface that `network.interface` names: by its name, an address of it, or a subnet such as 10.1.0.0/16.

    Raises:
        ConfigError: this node has none of that kind, or several.
    """
    there = interfaces() if among is None else among
    matching = [address for address in there if _is_meant(address, wanted)]
    # An interface of that name may have several addresses.
    if matching and (len(matching) == 1 or matching[0].name == wanted):
        return matching[0]
    existing = ", ".join(map(str, there))
    problem = f"{' and '.join(map(str, matching))} are in {wanted}" if matching else f"there is no {wanted}"
    raise ConfigError(
        f"network.interface: {problem} on node {socket.gethostname()}, which has {existing}. Write the name of one of "
        "them or the subnet in which all nodes have an address, such as 10.1.0.0/16"
    )


def description_of(wanted: str, among: Sequence[Interface] | None = None) -> str:
    """The interface that `chosen` gives, and which of its addresses are not used."""
    there = interfaces() if among is None else among
    interface = chosen(wanted, there)
    others = [other.address for other in there if other.name == interface.name and other != interface]
    unused = f"; not {' nor '.join(others)}, which it has, too"
    return f"{interface.name} ({interface.address}{unused})" if others else str(interface)


def _is_meant(interface: Interface, wanted: str) -> bool:
    if wanted == interface.name:
        return True
    try:
        return ipaddress.ip_address(interface.address) in ipaddress.ip_network(wanted, strict=False)
    except ValueError:
        return False
