"""journal.jsonl of the launchers: records whose lines are written alike again, or `DamagedJournal`; and their sum."""

from stream_server.launcher.journal.history import History
from stream_server.launcher.journal.records import (
    AttemptCancelled,
    AttemptEnded,
    AttemptStarted,
    AttemptStarting,
    DamagedJournal,
    FirstStep,
    LauncherLeft,
    LauncherStarted,
    PlanTaken,
    ServerEnded,
    ServerStarted,
    ServerStarting,
    decode,
    encode,
)
from stream_server.messages.launcher_link import Attached, Committed, Failed, GaveUp
from tests.faults.fuzz.target import Target

EXAMPLE = b"".join(
    map(
        encode,
        (
            LauncherStarted(pid=7, boot="b", link="ipc:///tmp/l", supervises=True, resumed=False),
            ServerStarting(number=1, ranks=2, folder="/tmp/s", alive="ipc:///tmp/a", reports_before="- -"),
            ServerStarted(number=1, pid=8, started=9),
            PlanTaken(incarnation=1),
            AttemptStarting(simulation=3, attempt=0, folder="/tmp/3", public_key=None, job="/tmp/j", ranks=2),
            AttemptStarted(simulation=3, attempt=0, handle="10 11 boot"),
            Attached(token=1, simulation=4, attempt=0),
            FirstStep(),
            AttemptCancelled(simulation=3, attempt=0, reason="r", excuse=""),
            AttemptEnded(simulation=5, attempt=0, reason="r"),
            Failed(simulation=3, attempt=0, reason="r", excuse=""),
            GaveUp(simulation=3, attempts=1, redraw=False, reason="r"),
            Committed(checkpoint=1, batches=1),
            ServerEnded(number=1, exit_code=7, num_in_a_row=1, failed_batch=None),
            LauncherLeft(exit_code=0),
        ),
    )
) + encode(PlanTaken(incarnation=2), FirstStep())


def run(data: bytes) -> None:
    """Read it as a launcher does that takes over."""
    try:
        records = list(decode(data))
    except DamagedJournal:
        return
    assert list(decode(b"".join(map(encode, records)))) == records
    assert len(records) >= data.count(b"\n"), "a line was left out that is not the last"
    past = History.of(records)
    for simulation, open_one in past.attempts.items():
        assert open_one.key == (simulation, open_one.attempt.number)
        assert open_one.attempt.number <= past.highest[simulation]
        assert open_one.attempt is past.simulations[simulation].attempt
        assert open_one.attempt.job is None or simulation in open_one.attempt.members


TARGET = Target(
    run=run, seeds=(EXAMPLE, *(line + b"\n" for line in EXAMPLE.splitlines())), is_json=True, max_bytes=4096
)
