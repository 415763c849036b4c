"""A command that `watch_exit` watches; it ends in the way that the argument names."""

import atexit
import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading

from stream_server.machine import exit_watch

C = ctypes.CDLL(None)
SLEEPING = ["sleep", "1234"]
never = threading.Event()
WAYS = {
    "ours": lambda: exit_watch.is_ours(0),
    "ours_at_once": lambda: exit_watch.leave(3),
    "os._exit": lambda: os._exit(0),
    "exit": lambda: C.exit(0),
    "exit_1": lambda: C.exit(1),
    "sys.exit": lambda: sys.exit(0),
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "no_room": lambda: os.kill(os.getpid(), signal.SIGBUS),
    "terminated": lambda: os.kill(os.getpid(), signal.SIGTERM),
    "hears": lambda: hear(),
    "thread": lambda: (threading.Thread(target=never.wait, name="plotter").start(), exit_watch.leave_soon(3)),
    "atexit": lambda: (atexit.register(never.wait), exit_watch.leave_soon(3)),
    "library": lambda: (C.__cxa_atexit(C.pause, None, None), exit_watch.leave_soon(3)),
    "child": lambda: (subprocess.Popen(SLEEPING), exit_watch.leave_soon(3), sys.exit(3)),
    "grandchild": lambda: (subprocess.run(["sh", "-c", "setsid sleep 1234 &"]), exit_watch.leave_soon(3), sys.exit(3)),
    "quiet child": lambda: (
        print(subprocess.Popen(SLEEPING, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid, flush=True),
        exit_watch.leave(3),
    ),
    "process": lambda: (multiprocessing.Process(target=never.wait).start(), exit_watch.leave_soon(3), sys.exit(3)),
}


def hear() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    print(os.getpid(), exit_watch.starter(), flush=True)
    signal.sigwait({signal.SIGUSR1})
    print("heard", flush=True)
    exit_watch.leave(75)


def tell_loss(how: str, incarnation: int) -> int:
    print(f"{how} [{incarnation}]", flush=True)
    return 7


exit_watch.HOLD_S = 0.5
exit_watch.watch_exit(tell_loss)
exit_watch.note_incarnation(5)
WAYS[sys.argv[1]]()
