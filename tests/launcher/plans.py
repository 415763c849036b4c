"""The study of the tests of the launcher, and what a rank 0 would have it run."""

from pathlib import Path

from stream_server.messages import launcher_link
from stream_server.messages.connection import ConnectionFile, Security

STUDY = {
    "study": {"simulations": 3, "time_steps": 3, "fields": {"u": [2]}},
    "parameters": {"bounds": {"left": [100, 500]}},
    "server": {"class": "server.py:Server"},
    "buffer": {"capacity": 10},
    "training": {"batch_size": 2},
}
SERVER = "from stream_server import StreamServer\n\n\nclass Server(StreamServer):\n    pass\n"


def plan(
    num: int, *, output_dir: Path, incarnation: int = 1, security: Security | None = None, attempt: int = -1
) -> launcher_link.Plan:
    """A plan of `num` simulations, of which `attempt` is known."""
    planned = tuple(
        launcher_link.Planned(simulation=i, parameters={"left": 100.0 + i}, attempt=attempt) for i in range(num)
    )
    connection = ConnectionFile(
        study="heat-1", incarnation=incarnation, host="node", control=("ipc:///tmp/x",), security=security
    )
    return launcher_link.Plan(
        study="heat-1", incarnation=incarnation, output_dir=str(output_dir), connection=connection, simulations=planned
    )
