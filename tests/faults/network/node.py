"""Another node on this machine: a network namespace and a host name of its own, at the end of a cable."""

import os
import subprocess
import tempfile
from types import TracebackType
from typing import Self

from tests.needs import need

HOLD = "hostname {name} && {known}ip link set lo up && echo ready && exec cat"


class Node:
    """There while the block lasts.

    `here` is the address of this end of the cable. What runs on the node finds all files that are here, too. With
    `ipv6` neither end has an address of IPv4, and the node knows this end as `name`.
    """

    def __init__(self, *, ipv6: bool = False, name: str = "") -> None:
        number = os.getpid() % 2**14
        self._cable, self._far_end = f"sst{number}a", f"sst{number}b"
        network = f"fd00:{number:x}::" if ipv6 else f"10.{64 + (number >> 8)}.{number & 255}."
        self.here, self._there = f"{network}1", f"{network}2"
        # An address that is still probed for duplicates cannot be used.
        self._kind = ("64", "nodad") if ipv6 else ("24",)
        self._name = name

    def __enter__(self) -> Self:
        need("another node")
        with tempfile.NamedTemporaryFile("w") as hosts:
            hosts.write(f"{self.here} {self._name}\n")
            hosts.flush()
            known = f"mount --bind {hosts.name} /etc/hosts && " if self._name else ""
            self._holder = subprocess.Popen(
                ["unshare", *self._namespaces, "sh", "-c", HOLD.format(name=f"node-{os.getpid()}", known=known)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            )
            try:
                assert self._holder.stdout is not None
                if self._holder.stdout.readline() != b"ready\n":
                    raise PermissionError("no network namespace can be made")
                self._lay_cable()
            except BaseException:
                self._leave()
                raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _run("ip", "link", "delete", self._cable)
        self._leave()

    def command(self, *words: str) -> list[str]:
        """A command that runs this one on the node."""
        where = [f"--wdns={os.getcwd()}"] if self._name else []
        return ["nsenter", "--target", str(self._holder.pid), *self._namespaces, *where, "--", *words]

    @property
    def ends(self) -> tuple[str, str]:
        """The interfaces of the cable, here and on the node."""
        return self._cable, self._far_end

    def cut(self) -> None:
        """Pull the plug: what is sent from now on gets nowhere, and nobody is told."""
        _run("ip", "link", "set", self._cable, "down")

    def reconnect(self) -> None:
        """Put the plug in again."""
        _run("ip", "link", "set", self._cable, "up")

    @property
    def _namespaces(self) -> list[str]:
        return ["--net", "--uts", *(["--mount"] if self._name else [])]

    def _lay_cable(self) -> None:
        _run("ip", "link", "add", self._cable, "type", "veth", "peer", "name", self._far_end)
        _run("ip", "link", "set", self._far_end, "netns", str(self._holder.pid))
        length, *flags = self._kind
        _run("ip", "address", "add", f"{self.here}/{length}", "dev", self._cable, *flags)
        _run("ip", "link", "set", self._cable, "up")
        _run(*self.command("ip", "address", "add", f"{self._there}/{length}", "dev", self._far_end, *flags))
        _run(*self.command("ip", "link", "set", self._far_end, "up"))

    def _leave(self) -> None:
        self._holder.communicate()


def _run(*words: str) -> None:
    done = subprocess.run(words, capture_output=True, text=True, timeout=120)
    if done.returncode != 0:
        raise PermissionError(f"{' '.join(words)}: {done.stderr.strip()}")
