"""A backend for another machine, `job.options.host`, which sees the files of the study at the same paths."""

import shlex
import subprocess
from collections.abc import Collection, Iterable, Mapping

from stream_server.backends import (
    Backend,
    JobKind,
    JobSpec,
    JobState,
    JobStatus,
    SavedJob,
    StudyConfig,
    SubmitError,
    write_scripts,
)

UNREACHABLE = 255
# Whoever makes job.ssh has the job: its start, or a launcher that looks for it, after which it cannot start any more.
START = "cd {} && mkdir job.ssh && {{ setsid bash -c {} </dev/null &>/dev/null & echo $! >job.ssh/session; }}"
FIND = "mkdir {}/job.ssh 2>/dev/null && echo none"
LOOK = (
    "s=$(cat {}/job.ssh/session) && {{ ps -s $s -o stat= | grep -qv Z && echo running || echo ended; }} || echo unknown"
)
END = "s=$(cat {}/job.ssh/session); pkill -TERM -s $s; (sleep 5; pkill -KILL -s $s) &>/dev/null &"
KILL = "pkill -KILL -s $(cat {}/job.ssh/session)"


class Ssh(Backend):
    """Jobs on the other machine. Each is a session of processes there; its folder is its handle."""

    query_interval_s = 2.0

    def __init__(self, config: StudyConfig, kind: JobKind) -> None:
        self.kind, self.host = kind, str(kind.resources.options["host"])
        self.jobs: set[str] = set()
        self.cancelled: set[str] = set()

    def submit(self, spec: JobSpec) -> str:
        try:
            self._run(START.format(shlex.quote(str(spec.folder)), shlex.quote(write_scripts(spec, self.kind))))
        except subprocess.CalledProcessError as error:
            if error.returncode == UNREACHABLE:
                raise  # It may have started: the launcher looks for it.
            raise SubmitError(f"{self.host} refused it: {error.stderr.strip()}") from error
        self.jobs.add(str(spec.folder))
        return str(spec.folder)

    def cancel(self, handles: Collection[str]) -> None:
        new = self.jobs & set(handles) - self.cancelled
        self._run_each(END, new)
        self.cancelled |= new

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        states = dict(zip(handles, map(JobState, self._run_each(LOOK, handles)), strict=True))
        self.jobs -= {it for it, state in states.items() if state is JobState.ENDED}
        states |= {it: JobState.ENDING for it in self.cancelled if states.get(it) is JobState.RUNNING}
        return {it: JobStatus(state=state) for it, state in states.items()}

    def reattach(self, job: SavedJob) -> str:
        if self._run_each(FIND, [str(job.folder)]):
            raise SubmitError("it was never started")
        self.jobs.add(str(job.folder))
        return str(job.folder)

    def close(self) -> None:
        self._run_each(KILL, self.jobs)

    def _run_each(self, script: str, folders: Iterable[str]) -> list[str]:
        return self._run("\n".join([*(script.format(shlex.quote(it)) for it in folders), "true"])).split()

    def _run(self, script: str) -> str:
        command = ["ssh", "-oBatchMode=yes", self.host, "bash"]
        return subprocess.run(command, input=script, capture_output=True, text=True, timeout=10, check=True).stdout
