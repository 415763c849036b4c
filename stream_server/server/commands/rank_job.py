"""The MPI job of a command that is no study: its ranks, and how they leave together."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from stream_server.config import StudyConfig
from stream_server.errors import PeerFailed
from stream_server.machine.forced_exit import ForcedExit
from stream_server.machine.screen import tell
from stream_server.server.ranks.collectives import CollectiveCalls
from stream_server.server.ranks.communicator import Ranks, environment_rank, ranks_from_environment
from stream_server.server.study.failure import Failure, leave_together
from stream_server.server.study.watchdog import Watchdog


@contextmanager
def ranks_of_this_job(config: StudyConfig) -> Iterator[Ranks]:
    """The ranks of this MPI job, or one rank outside of MPI, watched for stalls. Main thread, collective."""
    rank, collectives = environment_rank(), CollectiveCalls()
    watchdog = Watchdog(
        collectives,
        rank=rank or 0,
        stall_s=config.server.stall_s,
        output_dir=None,
        is_under_mpirun=rank is not None,
    )
    with ForcedExit(), watchdog:
        ranks = ranks_from_environment(collectives)
        watchdog.watch(ranks)
        yield ranks


def leave_because_of(error: Exception, ranks: Ranks, *, phase: str) -> int:
    """Make all ranks end because of `error`, which rank 0 prints; gives the exit code of all."""
    failure = Failure.of(error, rank=ranks.rank, phase=phase)
    text = f"rank {failure.rank} failed in {failure.phase}:\n{failure.traceback}"
    agreed = leave_together(error, ranks, None, phase=failure.phase)
    if agreed is None:
        tell(text, sys.stderr)
        ranks.abort(failure.exit_code)
    told = ranks.gather("" if isinstance(error, PeerFailed) else text)
    if told is not None:
        tell(next(filter(None, told)), sys.stderr)
    ranks.barrier()
    if ranks.is_cut_short:
        ranks.abort(agreed)
    return agreed
