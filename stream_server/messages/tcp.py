"""The TCP port of a socket."""

import errno

import zmq

from stream_server.errors import ConfigError

ANYWHERE = "*"


def bind_tcp(socket: "zmq.Socket[bytes]", *, address: str, host: str, ports: tuple[int, int] | None) -> str:
    """Bind a socket to a port; returns the address by which others reach it.

    `address` is of this node, or "*" for all that it has: others then know it as `host`. `ports` is the range to choose
    from, None for any.

    Raises:
        ConfigError: there is no such address here, or none of the ports is free.
    """
    for port in ["*"] if ports is None else range(ports[0], ports[1] + 1):
        try:
            socket.bind(f"tcp://{address}:{port}")
        except zmq.ZMQError as error:
            if error.errno == errno.EADDRINUSE:
                continue
            raise ConfigError(f"network.interface: cannot listen at {address}, {error}") from error
        bound = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return bound if address != ANYWHERE else f"tcp://{host}:{bound.rpartition(':')[2]}"
    raise ConfigError(
        f"network.ports {ports}: none of them is free; a server rank takes 1, the first one 3, and stream-launcher 2 "
        "where the server is on several nodes"
    )
