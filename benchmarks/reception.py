"""One server rank's receiver, with a launcher that says yes to everything, as the benchmarks of intake need it."""

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from stream_server.buffers import Buffer, Policy, Slots
from stream_server.launcher.simulations.server_connection import ServerConnection
from stream_server.messages import launcher_link
from stream_server.messages.client import Away, FieldSpec, Routing, TimeSteps, Welcome
from stream_server.messages.connection import ConnectionFile, Security
from stream_server.messages.curve import KeyPair
from stream_server.messages.routing import Dealing
from stream_server.server.intake.intake import Intake
from stream_server.server.intake.mailbox import BeginStudy
from stream_server.server.intake.state import IntakeState
from stream_server.server.intake.validation_store import ValidationStore
from stream_server.server.reception.access import CurveAccess
from stream_server.server.reception.receiver import Receiver
from stream_server.server.reception.sockets import ReceiverSettings
from stream_server.server.simulations.roster import Roster

STUDY = "benchmark"
HELD_SAMPLES = 65
NUM_STEPS = 100_000_000
DEADLINE_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Reception:
    """A running receiver with its buffer; `folder` is private and has room for files."""

    folder: Path
    buffer: Buffer
    receiver: Receiver
    thread: threading.Thread
    files: list[ConnectionFile]

    @property
    def cpu_s(self) -> float:
        """CPU time of the receiver thread so far."""
        assert self.thread.ident is not None
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread.ident))

    def wait_until(self, ready: Callable[[], bool]) -> None:
        """Look every 10 ms whether the buffer is as it should be: nothing tells of its fill.

        Raises:
            TimeoutError: it is not within a minute.
        """
        give_up_at = time.monotonic() + DEADLINE_S
        while not ready():
            if time.monotonic() > give_up_at:
                raise TimeoutError(f"{self.buffer.population} samples came, {self.buffer.num_waiting} wait for room")
            time.sleep(0.01)

    def write_connection(self, simulation: int = 0, *, over_tcp: bool = False) -> Path:
        """A connection file of a simulation that has begun; `over_tcp` as from another node."""
        file = self.files[simulation]
        path = self.folder / f"connection-{simulation}.json"
        (replace(file, host="another node") if over_tcp else file).write(path)
        return path


@contextmanager
def reception(
    policy: Policy,
    *,
    sample_bytes: int,
    credit: int,
    num_simulations: int = 1,
    spare: int = 0,
    held: int = HELD_SAMPLES,
    window_bytes: int = 64 * 2**20,
    encrypts: bool = True,
) -> Iterator[Reception]:
    """Receive samples of one float32 field, of more time steps than a fast machine sends.

    With keys over TCP as by default, unless nothing `encrypts`.

    `spare` slots are there for checkpoints, `held` for samples of draws that are not released.
    A client retains `window_bytes` of what is in none.
    """
    fields = (FieldSpec(name="field", shape=(sample_bytes // 4,), dtype="<f4"),)
    room = credit * num_simulations
    slots = Slots({"field": fields[0].shape}, policy.capacity + room + held + spare)
    buffer = Buffer(policy, slots, spare=spare)
    keys, attaching = KeyPair.make(), KeyPair.make()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="stream-")))
        launcher = stack.enter_context(ServerConnection(f"ipc://{folder}/launcher"))
        receiver = Receiver(
            buffer=buffer,
            intake=Intake(
                IntakeState(
                    rank=0,
                    dealing=Dealing(Routing.STEPS, 1),
                    time_steps=TimeSteps(num=NUM_STEPS),
                    fields=fields,
                    study=STUDY,
                    incarnation=0,
                    credit=credit,
                ),
                buffer=buffer,
                validation=ValidationStore(0),
                credit_slots=room,
            ),
            access=CurveAccess(keys, attaching=attaching.public if encrypts else None, encrypts_tcp=encrypts),
            settings=ReceiverSettings(
                ipc_folder=folder, host=socket.gethostname(), address="127.0.0.1", link=f"ipc://{folder}/launcher"
            ),
        )
        endpoints = receiver.bind()
        facts = Welcome(
            study=STUDY,
            simulation=0,
            attempt=0,
            parameters={},
            incarnation=0,
            endpoints=(endpoints.data,),
            time_steps=TimeSteps(num=NUM_STEPS),
            fields=fields,
            routing=Routing.STEPS,
            window_bytes=window_bytes,
            if_server_away=Away.WAIT,
            wait_s=600.0,
        )
        roster = Roster(facts, [{"x": 0.0}] * num_simulations, num_planned=num_simulations, num_held_out=0, num_ranks=1)
        receiver.meet([endpoints], roster)
        others = set(threading.enumerate())
        stack.enter_context(receiver)
        (thread,) = set(threading.enumerate()) - others
        connection = ConnectionFile(study=STUDY, incarnation=0, host=endpoints.host, control=endpoints.control)
        plan = launcher_link.Plan(study=STUDY, incarnation=0, output_dir="", connection=connection, simulations=())
        receiver.post(BeginStudy(plan=plan))
        while not any(isinstance(message, launcher_link.Plan) for message in launcher.receive()):
            launcher.wait(0.1)
        files = []
        for simulation in range(num_simulations):
            key = KeyPair.make()
            public = key.public if encrypts else None
            launcher.send(launcher_link.Attempt(simulation=simulation, attempt=0, public_key=public))
            security = Security(
                server_public_key=keys.public, client_public_key=key.public, client_secret_key=key.secret
            )
            files.append(replace(connection, simulation=simulation, security=security if encrypts else None))
        yield Reception(folder=folder, buffer=buffer, receiver=receiver, thread=thread, files=files)
