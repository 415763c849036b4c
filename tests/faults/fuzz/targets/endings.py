"""The traces of the ends of jobs, ranks and servers: exit codes, logs, report.json, exit.json. Never an error."""

from stream_server.launcher.backends.backend import EXIT_FILE, LOG_FILE, JobState, JobStatus, describe, exit_code_of
from stream_server.launcher.backends.mpirun import RANKS_FILE
from stream_server.launcher.simulations.attempt_jobs import Traces, judge
from stream_server.launcher.supervision.server_restart import FAILURE_FILE, REPORT_FILE, EndReports
from stream_server.machine.log_end import MAX_BYTES, log_end
from stream_server.server.run.output import OutputFolder
from stream_server.server.study.failure import Failure
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()
FILES = (EXIT_FILE, RANKS_FILE, LOG_FILE, REPORT_FILE, FAILURE_FILE)
LARGEST_CODE = 2**31


def run(data: bytes) -> None:
    """The first byte says which file it is."""
    name = FILES[data[0] % len(FILES)] if data else FILES[0]
    (FOLDER / name).write_bytes(data[1:])
    try:
        {EXIT_FILE: _job, RANKS_FILE: _ranks, LOG_FILE: _ranks, REPORT_FILE: _server, FAILURE_FILE: _server}[name]()
    finally:
        (FOLDER / name).unlink()


def _job() -> None:
    code = exit_code_of(FOLDER / EXIT_FILE)
    assert code is None or (0 <= code < LARGEST_CODE and describe(code))


def _ranks() -> None:
    assert len(log_end(FOLDER / LOG_FILE).encode()) <= 3 * MAX_BYTES
    job = JobStatus(state=JobState.ENDED, exit_code=1, reason="r")
    folders = {(0, 0): FOLDER, (1, 0): FOLDER.parent}
    traces = {attempt: Traces.read(folder) for attempt, folder in folders.items()}
    for end in judge(traces, folders, job, 2):
        assert end.exit_code in (None, 0, 1)
        assert len(end.reason) < MAX_BYTES


def _server() -> None:
    end = EndReports(FOLDER, "- -").read(7, was_planned=True)
    assert type(end.exit_code) is int
    assert abs(end.exit_code) < LARGEST_CODE
    assert end.batch is None or type(end.batch) is int
    OutputFolder(FOLDER).is_finished({"study": {"simulations": 1}, "training": {}})
    failure = Failure.read(FOLDER)
    assert failure is None or type(failure.exit_code) is int


def _seed(name: str, content: bytes) -> bytes:
    return bytes([FILES.index(name)]) + content


TARGET = Target(
    run=run,
    seeds=(
        _seed(EXIT_FILE, b"143\n"),
        _seed(RANKS_FILE, b"0\n0\n139\n"),
        _seed(LOG_FILE, b"step 1\nAbort(1) on node 0\n" + b"x" * 100),
        _seed(REPORT_FILE, b'{"exit_code": 0, "exit_reason": "finished", "message": null}'),
        _seed(
            FAILURE_FILE,
            b'{"rank": 1, "thread": "t", "phase": "p", "message": "m", "traceback": "", "exit_code": 3, "batch": 7}',
        ),
    ),
    max_bytes=4096,
)
