"""Who is to blame when a job of several simulations is cancelled. Pure."""

from collections.abc import Sequence

from stream_server.launcher.entry import Entry

ENDED_WITH_JOB = "was ended with its job"


def excuse_of_failed(guilty: int) -> str:
    """Why the end of a job does not count against those whom another has brought down."""
    return f"simulation {guilty}, which shared the job, failed"


def decide(cause: Entry, members: Sequence[Entry]) -> None:
    """Say of each what its end will mean, before its processes hear of it: what they do then tells nothing.

    `cause` is the member whose clock has run out. It is to blame only if no rank of any member has failed by itself:
    those that wait for one that failed are quiet, too.
    """
    guilty = next((it.id for it in members if it.at_fault), None)
    for it in members:
        if it.at_fault:
            it.reason = it.at_fault
        elif it.over:
            continue
        elif guilty is not None:
            it.reason, it.excuse = ENDED_WITH_JOB, it.excuse or excuse_of_failed(guilty)
        elif it is not cause:
            excuse = f"simulation {cause.id}, which shared the job, was cancelled"
            it.reason, it.excuse = ENDED_WITH_JOB, it.excuse or excuse
