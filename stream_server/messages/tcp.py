"""Sockets over TCP: the port at which others reach one, and the way to the port of another."""

import errno
import socket as system
from contextlib import suppress

import zmq

from stream_server.errors import ConfigError

ANYWHERE = "*"
PREFIX = "tcp://"
HOW_TO_REACH = (
    "network.interface says by which interface or subnet nodes reach each other, network.ports which ports a firewall "
    "leaves open"
)


def bind_tcp(socket: "zmq.Socket[bytes]", *, address: str, host: str, ports: tuple[int, int] | None) -> str:
    """Bind a socket to a port; returns the address by which others reach it.

    `address` is of this node, or "*" for all that it has: others then know it as `host`. `ports` is the range to choose
    from, None for any.

    Raises:
        ConfigError: there is no such address here, or none of the ports is free.
    """
    # What IPv6 takes comes over IPv4, too. Where the system has no IPv6, libzmq goes without.
    socket.ipv6 = address == ANYWHERE or ":" in address
    here = f"[{address}]" if ":" in address else address
    for port in ["*"] if ports is None else range(ports[0], ports[1] + 1):
        try:
            socket.bind(f"{PREFIX}{here}:{port}")
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise ConfigError(f"network.interface: cannot listen at {address}, {error}") from error
        _, bound = host_and_port(socket.getsockopt_string(zmq.LAST_ENDPOINT))
        return f"{PREFIX}{host if address == ANYWHERE else here}:{bound}"
    raise ConfigError(
        f"network.ports {ports}: none of them is free; a server rank takes 1, the first one 3, and stream-launcher 2 "
        "where the server is on several nodes"
    )


def connect_socket(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Connect a socket to an address of any kind.

    Over IPv4 if this node has that and the host an address of it, else over IPv6: a name of both kinds may lead to a
    host that answers over IPv4 only.
    """
    if address.startswith(PREFIX):
        socket.ipv6 = not _has_ipv4(host_and_port(address)[0])
    socket.connect(address)


def host_and_port(address: str) -> tuple[str, int]:
    """The parts of an address; an IPv6 host has no brackets."""
    host, _, port = address.removeprefix(PREFIX).rpartition(":")
    return host.strip("[]"), int(port)


def unreached_advice() -> str:
    """A sentence for who hears nothing over TCP, with a space before it."""
    return f" Node {system.gethostname()} may not reach that address: {HOW_TO_REACH}"


def _has_ipv4(host: str) -> bool:
    # Of 127.0.0.1 a node without a network says that it has no address.
    with suppress(OSError):
        return bool(system.inet_pton(system.AF_INET, host))
    try:
        return bool(system.getaddrinfo(host, None, system.AF_INET, flags=system.AI_ADDRCONFIG))
    except OSError:
        return False
