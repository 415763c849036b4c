"""Starts the ranks of an MPICH on this node, as its own mpirun does, and listens nowhere.

    python -P -m stream_server.launcher.backends.ranks_here 4 COMMAND…

Hydra, which is MPICH's mpirun, listens on all interfaces, also for ranks on its own node, and whoever sends it twelve
bytes ends it with all of its ranks. Here each rank inherits a socket, by which it finds the others. They speak PMI 1.1,
the protocol of MPICH's starters: lines of `name=value`, of which the first one is the command.

Why: docs/decisions/0077-starter-of-ranks.md
"""

import ctypes
import os
import secrets
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

PR_SET_PDEATHSIG = 1
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGXCPU)
LARGEST_READ = 65536


class Meeting:
    """The values that ranks put down for each other, and the barrier at which they wait. Pure.

    `aborted` is the exit code with which a rank wants to end all of them, None so far.
    """

    def __init__(self, num_ranks: int) -> None:
        self.num_ranks = num_ranks
        # MPICH derives the name of the memory that the ranks share from this one, and would take that of a stranger.
        self.name = f"kvs_{secrets.token_hex(16)}"
        self.aborted: int | None = None
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{num_ranks}))"}
        self._waiting: set[int] = set()
        self._has_finished: dict[int, bool] = {}

    def may_end(self, rank: int, code: int) -> bool:
        """Whether the end of this rank leaves the others as they are: it has left MPI, or does without it."""
        return self._has_finished.get(rank, code == 0)

    def take(self, rank: int, line: str) -> dict[int, str]:
        """Take a line of a rank; gives the lines to answer with, by rank."""
        words = dict(word.partition("=")[::2] for word in line.split(" "))
        command = words.get("cmd", "")
        if command == "barrier_in":
            self._waiting.add(rank)
            if len(self._waiting) < self.num_ranks:
                return {}
            self._waiting.clear()
            return dict.fromkeys(range(self.num_ranks), "cmd=barrier_out")
        if command == "abort":
            code = words.get("exitcode", "")
            self.aborted = int(code) if code.isdecimal() else 1
            return {}
        return {rank: self._answer(rank, command, words)} if command else {}

    def _answer(self, rank: int, command: str, words: dict[str, str]) -> str:
        match command:
            case "init":
                self._has_finished[rank] = False
                return "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"
            case "get_maxes":
                return "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024"
            case "get_appnum":
                return "cmd=appnum appnum=0"
            case "get_my_kvsname":
                return f"cmd=my_kvsname kvsname={self.name}"
            case "get_universe_size":
                return f"cmd=universe_size size={self.num_ranks}"
            case "put":
                self._values[words.get("key", "")] = words.get("value", "")
                return "cmd=put_result rc=0 msg=success"
            case "get":
                value = self._values.get(words.get("key", ""))
                return f"cmd=get_result rc=0 msg=success value={value}" if value else "cmd=get_result rc=-1 msg=no_key"
            case "finalize":
                self._has_finished[rank] = True
                return "cmd=finalize_ack"
        # Such as publish_name; processes that MPI itself starts are asked for in another form.
        return f"cmd={command}_result rc=-1 msg=not_supported"


class RanksHere:
    """The ranks of one job. `run` starts them and waits for their end."""

    def __init__(self, num_ranks: int, command: Sequence[str]) -> None:
        self.command = command
        self.meeting = Meeting(num_ranks)
        self.exit_code = 0
        self._are_ended = False
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._sockets: dict[int, socket.socket] = {}
        self._unread: dict[int, bytes] = {}

    def run(self) -> int:
        """Returns the exit code of the first rank that failed, or of the one that aborted all; 0 if none did."""
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        signal.set_wakeup_fd(wake.fileno())
        # What is ignored here is ignored by the ranks, too, until they say otherwise.
        passed_on = {number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN}
        for number in (signal.SIGCHLD, *passed_on):
            signal.signal(number, lambda number, frame: None)
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ, None)
            for rank in range(self.meeting.num_ranks):
                selector.register(self._start(rank), selectors.EVENT_READ, rank)
            self._look_for_ends()
            while self._running:
                for key, _ in selector.select():
                    if key.data is None:
                        # The numbers of signals. Those that came while ranks were started reach all of them.
                        for number in passed_on.intersection(woken.recv(LARGEST_READ)):
                            self._send(number)
                        self._look_for_ends()
                    elif not self._hear(key.data):
                        selector.unregister(key.fileobj)
        return self.exit_code

    def _start(self, rank: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        size = self.meeting.num_ranks
        places = {"PMI_FD": theirs.fileno(), "PMI_RANK": rank, "PMI_SIZE": size, "MPI_LOCALNRANKS": size}
        parent, libc = os.getpid(), ctypes.CDLL(None)

        def save_without_us() -> None:
            libc.prctl(PR_SET_PDEATHSIG, signal.SIGUSR1)
            if os.getppid() != parent:
                os._exit(1)

        self._running[rank] = subprocess.Popen(
            self.command,
            env=os.environ | {name: str(value) for name, value in places.items()},
            stdin=subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
            preexec_fn=save_without_us,
            start_new_session=True,
        )
        theirs.close()
        self._sockets[rank], self._unread[rank] = ours, b""
        return ours

    def _hear(self, rank: int) -> bool:
        """Take what a rank has said, and answer; whether it may say more."""
        try:
            came = self._sockets[rank].recv(LARGEST_READ)
        except BlockingIOError:
            return True
        except OSError:
            return False
        *lines, self._unread[rank] = (self._unread[rank] + came).split(b"\n")
        for line in lines:
            for other, answer in self.meeting.take(rank, line.decode(errors="replace")).items():
                with suppress(OSError):
                    self._sockets[other].sendall(f"{answer}\n".encode())
        if self.meeting.aborted is not None:
            self.exit_code = self.exit_code or self.meeting.aborted
            self._end()
        return bool(came)

    def _look_for_ends(self) -> None:
        for rank, process in list(self._running.items()):
            if (status := process.poll()) is None:
                continue
            del self._running[rank]
            self._hear(rank)
            code = 128 - status if status < 0 else status
            if not self.meeting.may_end(rank, code):
                if status < 0 and not self._are_ended:
                    name = signal.Signals(-status).name
                    print(f"rank {rank} was killed by {name}: the others are ended", file=sys.stderr, flush=True)
                self._end()
                code = code or 1
            self.exit_code = self.exit_code or code

    def _end(self) -> None:
        self._are_ended = True
        for process in self._running.values():
            # What a rank has started goes with it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)

    def _send(self, number: int) -> None:
        for process in self._running.values():
            process.send_signal(number)


def main(argv: Sequence[str]) -> int:
    """Run the ranks; returns the exit status."""
    return RanksHere(int(argv[0]), argv[1:]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
