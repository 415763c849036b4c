"""A connection file: one that is written alike again, can be said in messages and renewed, or `ConfigError`."""

import contextlib
import math

from msgspec.structs import replace

from stream_server.errors import ConfigError
from stream_server.launcher.simulations.attempt_folders import AttemptFolders
from stream_server.messages import wire
from stream_server.messages.client import Hello
from stream_server.messages.connection import ConnectionFile, Security
from tests.faults.fuzz import scratch
from tests.faults.fuzz.target import Target

FOLDER = scratch.folder()
ATTEMPTS = AttemptFolders(command=(), templates=(), environment={}, seed=0, study_dir=FOLDER, output_dir=FOLDER)
FILE, AGAIN = ATTEMPTS.folder(0, 0) / "connection.json", FOLDER / "again.json"
KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
EXAMPLES = (
    ConnectionFile(study="heat", incarnation=3, host="node-1", control=("ipc:///tmp/s/c", "tcp://node-1:5000")),
    ConnectionFile(
        study="heat",
        incarnation=3,
        host="node-1",
        control=("tcp://node-1:5000",),
        simulation=17,
        attempt=1,
        parameters={"left": 100.0, "right": 7},
        security=Security(server_public_key=KEY, client_public_key=KEY, client_secret_key=KEY),
    ),
)


def run(data: bytes) -> None:
    """Read it as a client does, and renew it as a launcher does whose server was started again."""
    FILE.write_bytes(data)
    try:
        file = ConnectionFile.read(FILE)
    except ConfigError:
        with contextlib.suppress(ConfigError):
            _renew()
        return
    _use(file)
    _renew()
    assert ConnectionFile.read(FILE).incarnation == NEXT.incarnation, "it was renewed to something else"


def _renew() -> None:
    ATTEMPTS.reconnect(0, 0, NEXT)


def _use(file: ConnectionFile) -> None:
    assert all(map(math.isfinite, (file.parameters or {}).values())), "a parameter is no finite number"
    file.write(AGAIN)
    assert ConnectionFile.read(AGAIN) == file
    hello = Hello(study=file.study, simulation=file.simulation, attempt=file.attempt, rank=0, num_ranks=1)
    assert wire.decode(wire.encode(hello)[0]) == hello
    for text in (file.host, *file.control):
        text.encode()


NEXT = replace(EXAMPLES[1], incarnation=4)
FILE.parent.mkdir(parents=True)


def _written(file: ConnectionFile) -> bytes:
    file.write(FILE)
    return FILE.read_bytes()


TARGET = Target(run=run, seeds=tuple(map(_written, EXAMPLES)), is_json=True)
