"""A backend for a cluster of one folder: jobs are files in it, which a worker takes (`folder_worker.py`)."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path

from stream_server.backends import Backend, JobKind, JobSpec, JobState, JobStatus, SavedJob, StudyConfig, SubmitError

# By the ending of the file that says so, the last first: a worker renames no file, it adds one.
STATES = {"ended": JobState.ENDED, "cancel": JobState.ENDING, "running": JobState.RUNNING, "job": JobState.QUEUED}


class FolderQueue(Backend):
    """Jobs in the folder `queue` of the study. The handle of a job follows from its folder, so it is never lost."""

    query_interval_s = 0.05

    def __init__(self, config: StudyConfig, kind: JobKind) -> None:
        self.queue = config.study_dir / "queue"
        self.handles: set[str] = set()

    def submit(self, spec: JobSpec) -> str:
        handle = self._handle(spec.folder)
        job = {"command": spec.shell_command, "environment": dict(spec.environment), "folder": str(spec.folder)}
        # An OSError, of a disk that is full or away, may pass: the launcher tries again later.
        (self.queue / f"{handle}.new").write_text(json.dumps(job))
        (self.queue / f"{handle}.new").rename(self.queue / f"{handle}.job")
        return handle

    def cancel(self, handles: Collection[str]) -> None:
        for handle in handles:
            (self.queue / f"{handle}.cancel").touch()

    def query(self, handles: Collection[str]) -> Mapping[str, JobStatus]:
        names = {file.name for file in self.queue.iterdir()}
        found = {}
        for handle in handles:
            states = [state for ending, state in STATES.items() if f"{handle}.{ending}" in names]
            # A job that was never queued cannot be on its way out.
            is_known = f"{handle}.job" in names
            found[handle] = JobStatus(state=states[0] if is_known else JobState.UNKNOWN)
        self.handles = {handle for handle in handles if found[handle].state is not JobState.ENDED}
        return found

    def reattach(self, job: SavedJob) -> str:
        handle = self._handle(job.folder)
        names = {file.name for file in self.queue.iterdir()}
        if f"{handle}.job" not in names:
            raise SubmitError("it was never queued")
        return handle

    def close(self) -> None:
        for handle in self.handles:
            (self.queue / f"{handle}.kill").touch()

    def _handle(self, folder: Path) -> str:
        return "-".join(folder.parts[-2:])
