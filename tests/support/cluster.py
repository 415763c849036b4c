"""A real Slurm cluster of several hosts on this machine, for tests; needs root, Slurm, munge and iproute2.

Each host has namespaces of its own for network, name, processes and mounts: its own address, host name, /tmp, /dev/shm
and processes. All other files are shared, as on a cluster with a parallel file system; so what hosts share lies in
`Cluster.shared`, never in /tmp. The hosts' network is closed, a namespace too, so that clusters side by side have the
same addresses. Nothing of a cluster outlives this process, however that ends, but for the folder in /var/tmp.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.needs import need
from tests.support.timing import until

PROJECT = Path(__file__).parent.parent.parent
LOGIN = "login"
NETWORK = "10.99.0"
COMMANDS = ("sbatch", "scancel", "scontrol", "sinfo", "squeue", "srun")
# What hosts must see although it may lie in /tmp.
SHOWN = (PROJECT, Path(sys.prefix), Path(sys.base_prefix))

# The first process of a host, which waits for all that lose their parents.
HOST = """
set -e
hostname "$1"; ready=$2; hosts=$3; aside=$4; shift 4
i=0; for place; do i=$((i + 1)); mkdir -p "$aside/$i"; mount --bind "$place" "$aside/$i"; done
mount -t tmpfs tmpfs /tmp; chmod 1777 /tmp
mount -t tmpfs tmpfs /dev/shm; chmod 1777 /dev/shm
i=0; for place; do i=$((i + 1)); mkdir -p "$place"; mount --move "$aside/$i" "$place"; done
mount --bind "$hosts" /etc/hosts
ip link set lo up
touch "$ready"
sleep infinity & wait
"""
CONFIGURATION = """
ClusterName=trial
SlurmctldHost={login}({network}.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
ReturnToService=2
SlurmdTimeout={lost_after_s}
KillWait=2
MinJobAge=300
SchedulerParameters=sched_min_interval=0,sched_interval=1,batch_sched_delay=0,bf_interval=1
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n/slurmd.pid
SlurmdSpoolDir={folder}/%n/spool
StateSaveLocation={folder}/state
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=100
SlurmdParameters=config_overrides
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=pmi2
GresTypes=gpu
NodeName=DEFAULT CPUs={cores} RealMemory=8000 Gres=gpu:1 State=UNKNOWN
{nodes}
PartitionName=DEFAULT Nodes=ALL State=UP PriorityTier=5 PreemptMode=OFF
PartitionName=main Default=YES MaxTime=INFINITE
PartitionName=short MaxTime=1:00:00
PartitionName=closed State=DOWN
PartitionName=spare PriorityTier=1 PreemptMode=REQUEUE
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Host:
    """A host: the process that holds its namespaces up, and the first process in them."""

    outer: "subprocess.Popen[bytes]"
    pid: int


class Cluster:
    """A cluster with the hosts `login`, on which the controller runs, and n1 … n`num_nodes`; for one `with` block.

    `shared` is a folder that all hosts see. `commands` is one of programs that run Slurm's commands on the login node
    for a process of this machine, which sees neither the network nor the names of the cluster. A node that does not
    answer for `lost_after_s` is down, also to a controller that was away for so long.
    """

    def __init__(self, num_nodes: int = 2, *, cores: int = 4, lost_after_s: int = 60) -> None:
        self.nodes = [f"n{number + 1}" for number in range(num_nodes)]
        self.cores = cores
        self.lost_after_s = lost_after_s
        self._hosts: dict[str, _Host] = {}
        self._others: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        need("a cluster")
        self.folder = Path(tempfile.mkdtemp(prefix="cluster-", dir="/var/tmp"))
        self.folder.chmod(0o755)
        self.shared = self._folder("shared")
        self.commands = self._folder("commands")
        try:
            self._write_configuration()
            self._start_munge()
            self._switch = self._namespaces("switch", "--net", "--fork")
            self._within(self._switch, "ip", "link", "add", "br0", "type", "bridge")
            self._within(self._switch, "ip", "link", "set", "br0", "up")
            self.start_host(LOGIN)
            self._write_commands()
            self.start_controller()
            for name in self.nodes:
                self.start_host(name)
            self.wait_for_nodes()
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end()

    @property
    def environment(self) -> Mapping[str, str]:
        """What a process needs in its environment to use the cluster, besides `commands` on its PATH."""
        # UCX takes hosts of one kernel for one machine.
        return {"SLURM_CONF": str(self.folder / "slurm.conf"), "UCX_TLS": "tcp,self"}

    def on(self, host: str, folder: Path | None = None) -> list[str]:
        """The words that, put before a command, run it on a host, in `folder` or else in `shared`."""
        path = os.pathsep.join(it for it in os.environ["PATH"].split(os.pathsep) if it != str(self.commands))
        variables = [f"{name}={value}" for name, value in {**self.environment, "PATH": path}.items()]
        return [*self._entering(host, "--mount", "--pid", f"--wdns={folder or self.shared}"), "env", *variables]

    def run(self, host: str, *command: str, limit_s: float = 60) -> str:
        """Run a command on a host to its end; returns what it printed."""
        done = subprocess.run(
            [*self.on(host), *command], stdin=subprocess.DEVNULL, capture_output=True, timeout=limit_s
        )
        assert done.returncode == 0, f"{command} on {host}: {done.returncode}\n{done.stderr.decode()}"
        return done.stdout.decode()

    def start_host(self, name: str) -> None:
        """Start a host that is not there, with the daemon of a node on a node."""
        number = [LOGIN, *self.nodes].index(name) + 1
        ready = self._folder(name) / "ready"
        ready.unlink(missing_ok=True)
        aside = self._folder(f"{name}/aside")
        shown = [str(it) for it in dict.fromkeys(SHOWN) if it.is_relative_to("/tmp")]
        words = [name, str(ready), str(self.folder / "hosts"), str(aside), *shown]
        kinds = ("--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
        host = self._namespaces(name, *kinds, program=["sh", "-c", HOST, "host", *words])
        self._hosts[name] = host
        until(lambda: ready.exists() or self._assert_alive(name, host))
        # The same hardware address after a restart: the others remember it.
        own = ["name", "eth0", "address", f"02:00:00:00:00:{number:02x}", "netns", str(host.pid)]
        self._within(self._switch, "ip", "link", "add", f"to-{name}", "type", "veth", "peer", *own)
        self._within(self._switch, "ip", "link", "set", f"to-{name}", "master", "br0", "up")
        self._within(host, "ip", "address", "add", f"{NETWORK}.{number}/24", "dev", "eth0")
        self._within(host, "ip", "link", "set", "eth0", "up")
        if name != LOGIN:
            self._folder(f"{name}/spool")
            self._daemon(name, "slurmd", "-D", "-N", name)

    def lose(self, host: str) -> None:
        """The host dies: all its processes are killed at once."""
        self._kill(self._hosts.pop(host))

    def cut(self, host: str) -> None:
        """The host's cable is pulled."""
        self._within(self._switch, "ip", "link", "set", f"to-{host}", "down")

    def reconnect(self, host: str) -> None:
        """The host's cable is plugged in again."""
        self._within(self._switch, "ip", "link", "set", f"to-{host}", "up")

    def stop_controller(self) -> None:
        """End the controller, which saves its state; nodes and jobs go on."""
        pid = self.run(LOGIN, "cat", str(self.folder / "slurmctld.pid")).strip()
        self.run(LOGIN, "kill", "-TERM", pid)
        self.run(LOGIN, "tail", f"--pid={pid}", "-f", "/dev/null")

    def start_controller(self) -> None:
        """Start the controller, which goes on with its saved state, and wait until it answers."""
        self._folder("state")
        self._daemon(LOGIN, "slurmctld", "-D")
        until(lambda: self._said("scontrol", "ping").find("is UP") >= 0, told=self._logs)

    def restart_daemon(self, node: str) -> None:
        """End the daemon of a node and start it again; the jobs on it go on."""
        pid = self.run(node, "cat", str(self.folder / node / "slurmd.pid")).strip()
        self.run(node, "kill", "-TERM", pid)
        self.run(node, "tail", f"--pid={pid}", "-f", "/dev/null")
        self._daemon(node, "slurmd", "-D", "-N", node)

    def wait_for_nodes(self) -> None:
        """Wait until every node takes jobs."""
        count = str(len(self.nodes))
        until(
            lambda: self._said("sinfo", "-h", "-p", "main", "-t", "idle", "-o", "%D").strip() == count, told=self._logs
        )

    def _said(self, *command: str) -> str:
        done = subprocess.run([*self.on(LOGIN), *command], stdin=subprocess.DEVNULL, capture_output=True)
        return done.stdout.decode()

    def _folder(self, name: str) -> Path:
        folder = self.folder / name
        folder.mkdir(exist_ok=True)
        return folder

    def _write_configuration(self) -> None:
        addresses = {name: f"{NETWORK}.{number + 1}" for number, name in enumerate([LOGIN, *self.nodes])}
        hosts = ["127.0.0.1 localhost", *(f"{address} {name}" for name, address in addresses.items())]
        (self.folder / "hosts").write_text("\n".join(hosts) + "\n")
        nodes = [f"NodeName={name} NodeAddr={addresses[name]}" for name in self.nodes]
        text = CONFIGURATION.format(
            login=LOGIN,
            network=NETWORK,
            folder=self.folder,
            cores=self.cores,
            lost_after_s=self.lost_after_s,
            nodes="\n".join(nodes),
        )
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/zero\n")

    def _start_munge(self) -> None:
        folder = self._folder("munge")
        key = folder / "key"
        key.write_bytes(os.urandom(64))
        key.chmod(0o600)
        options = ["--key-file=key", "--socket=socket", "--pid-file=pid", "--log-file=log", "--seed-file=seed"]
        paths = [option.replace("=", f"={folder}/") for option in options]
        self._others.append(self._start("munge", ["setpriv", "--pdeathsig", "KILL", "munged", "--foreground", *paths]))
        until(lambda: (folder / "socket").exists(), told=self._logs)

    def _write_commands(self) -> None:
        """The words of `on` without a namespace that `nsenter` would have to fork for."""
        for name in COMMANDS:
            program = shutil.which(name)
            words = [*self._entering(LOGIN), "env", *(f"{key}={it}" for key, it in self.environment.items())]
            script = self.commands / name
            script.write_text(f'#!/bin/sh\nexec {" ".join(words)} {program} "$@"\n')
            script.chmod(0o755)

    def _entering(self, host: str, *kinds: str) -> list[str]:
        return ["nsenter", "--target", str(self._hosts[host].pid), "--net", "--uts", *kinds]

    def _namespaces(self, name: str, *kinds: str, program: Sequence[str] = ("sleep", "infinity")) -> _Host:
        """Make namespaces that live as long as a process of them, which dies with this one."""
        outer = self._start(
            name, ["setpriv", "--pdeathsig", "KILL", "unshare", *dict.fromkeys((*kinds, "--kill-child")), *program]
        )
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        pid = int(until(lambda: children.read_text().split() or (outer.poll() is not None and self._fail(name)))[0])
        return _Host(outer=outer, pid=pid)

    def _daemon(self, host: str, *command: str) -> None:
        self._others = [it for it in self._others if it.poll() is None]
        self._others.append(self._start(host, [*self.on(host), *command]))

    def _start(self, name: str, command: Sequence[str]) -> "subprocess.Popen[bytes]":
        with (self._folder(name) / "out").open("ab") as out:
            return subprocess.Popen(
                command, cwd=self.folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
            )

    def _within(self, host: _Host, *command: str) -> None:
        """Run a command in the network of a host, with the files of this machine."""
        subprocess.run(["nsenter", "--target", str(host.pid), "--net", *command], check=True)

    def _kill(self, host: _Host) -> None:
        """Kill the first process of a host and with it all others: the outer one ends when it has reaped the first."""
        with suppress(ProcessLookupError):
            os.kill(host.pid, signal.SIGKILL)
        host.outer.wait()

    def _assert_alive(self, name: str, host: _Host) -> None:
        if host.outer.poll() is not None:
            self._fail(name)

    def _fail(self, name: str) -> None:
        raise AssertionError(f"the host {name} has ended:\n{self._logs()}")

    def _logs(self) -> str:
        """The ends of all logs."""
        files = [*self.folder.glob("*/out"), *self.folder.glob("*.log"), *self.folder.glob("*/*.log")]
        return "\n".join(f"{file}:\n{file.read_text(errors='replace')[-2000:]}" for file in sorted(files))

    def _end(self) -> None:
        for name in list(self._hosts):
            self.lose(name)
        if hasattr(self, "_switch"):
            self._kill(self._switch)
        for process in self._others:
            # The daemons of hosts have died with them.
            process.kill()
            process.wait()
        shutil.rmtree(self.folder)
