"""All that a backend of your own needs: the protocol, jobs and their scripts, outages, and what schedulers share.

docs/guide/backends.md shows how it goes together. A package gives its backend a name by an entry point of the group
`stream_server.backends`.
"""

from stream_server.config import StudyConfig
from stream_server.errors import ConfigError
from stream_server.launcher.backends.backend import Backend, JobSpec, JobState, JobStatus, Outage, SavedJob, SubmitError
from stream_server.launcher.backends.batch_backend import BatchBackend
from stream_server.launcher.backends.job_script import write_scripts
from stream_server.launcher.backends.scheduler import (
    BatchJob,
    CommandScheduler,
    JobKind,
    NotSubmitted,
    QueueEntry,
    SubmitRefusal,
    answered,
    call,
    listed,
    option_words,
    out_of_time,
    told_all,
)

__all__ = [
    "Backend",
    "BatchBackend",
    "BatchJob",
    "CommandScheduler",
    "ConfigError",
    "JobKind",
    "JobSpec",
    "JobState",
    "JobStatus",
    "NotSubmitted",
    "Outage",
    "QueueEntry",
    "SavedJob",
    "StudyConfig",
    "SubmitError",
    "SubmitRefusal",
    "answered",
    "call",
    "listed",
    "option_words",
    "out_of_time",
    "told_all",
    "write_scripts",
]
