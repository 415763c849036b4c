"""The limit on open files: each connection and each job takes one at least."""

import resource

from stream_server.errors import ConfigError

# Logs, checkpoints, metrics and ZeroMQ's own; without the last ones ZeroMQ ends the process.
OWN = 64


def lacking(num: int, what_for: str) -> str:
    """Raise the soft limit of this process to `num` and its own, if need be; why that cannot be, "" if it can.

    What the process starts has the limit, too. It is not raised further than needed, since programs that use select()
    know descriptors below 1024 only.
    """
    needed = num + OWN
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or needed <= soft:
        return ""
    if hard == resource.RLIM_INFINITY or needed <= hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
        return ""
    return (
        f"{needed} open files are needed, {num} of them for {what_for}, but only {hard} are allowed here (ulimit -Hn): "
        "have the limit raised, or let fewer simulations run at once"
    )


def require(num: int, what_for: str) -> None:
    """See to it that this process may open so many files.

    Raises:
        ConfigError: it may not.
    """
    if problem := lacking(num, what_for):
        raise ConfigError(problem)
