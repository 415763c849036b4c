"""The limit on open files: each connection and each job takes one at least."""

import resource

from stream_server.errors import ConfigError

# Logs, checkpoints, metrics and ZeroMQ's own. Without the last ones ZeroMQ ends the process: it aborts when a client
# comes over a socket in the file system and there is no descriptor left for it.
OWN = 64
# TCP connections per port that have not identified themselves.
STRANGERS = 64
FOR_CONNECTIONS = "connections of simulations and strangers"
# libzmq's own thread accepts up to about a thousand connections at each of the three ports of rank 0 before it waits
# for the thread that cuts those which are too many. That one may not run for long, as user code may hold the
# interpreter.
BURST = 3 * 1024


def raise_limit(num: int, what_for: str, *, spare: int = 0) -> str:
    """Raise the soft limit of this process to `num` and its own, if need be; returns why it cannot, or "".

    It is raised by up to `spare` more, as far as that is allowed. What the process starts has the limit, too. It is not
    raised further, since programs that use select() know descriptors below 1024 only.
    """
    if problem := beyond_limit(num, what_for):
        return problem
    needed = num + OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed + spare if hard == resource.RLIM_INFINITY else min(needed + spare, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return ""


def beyond_limit(num: int, what_for: str) -> str:
    """The error message if this process may never open so many files, and its own; "" if it may."""
    needed = num + OWN
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard == resource.RLIM_INFINITY or needed <= hard:
        return ""
    return (
        f"{needed} open files are needed, {num} of them for {what_for}, but only {hard} are allowed here "
        "(ulimit -Hn): have the limit raised, or let fewer simulations run at once"
    )


def require(num: int, what_for: str) -> None:
    """See to it that this process may open so many files.

    Raises:
        ConfigError: it may not.
    """
    if problem := raise_limit(num, what_for):
        raise ConfigError(problem)


def verdict(connections: int, hard: int | None) -> str:
    """In words, whether a rank with so many connections to clients and ranks can run under this hard limit."""
    needed = connections + STRANGERS + OWN
    if hard is None or hard >= needed + BURST:
        return "fits"
    if hard >= needed:
        return (
            f"fits; with {needed + BURST} a flood of connections is harmless even while user code holds the interpreter"
        )
    return f"does NOT fit, {needed} are needed: have it raised, or let fewer simulations run at once"


def most_connections(connections: int) -> int:
    """Most TCP connections that a rank may have, of which so many are those of clients and ranks.

    There is room for each of these once more, since a connection that was lost may be there for a while beside the
    one that takes its place. But half of what the limit of this process leaves to spare stays free for what is
    accepted before it is cut.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * connections + STRANGERS
    return (
        wanted if soft == resource.RLIM_INFINITY else min(wanted, connections + max(0, soft - OWN - connections) // 2)
    )
