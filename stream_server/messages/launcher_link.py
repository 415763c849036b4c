"""Messages between the launcher and rank 0 of the server.

Each message is one frame of JSON, `{"message": "Progress", "simulation": 3, …}`. The launcher binds a ROUTER on an
`ipc://` address in a private folder, and on TCP where the server is on other nodes; rank 0 connects a DEALER and sends
`Rank0Alive` first and then once a second. A launcher without the plan of that incarnation, because the server or the
launcher is new, asks for it. It asks again when rank 0 has reconnected, since messages may be lost. Any other launcher
answers with its `Status`, so that rank 0 notices when no launcher is there.

Every rank has a connection of its own, under its `rank_name`, where it echoes what the launcher asks while it lives.
"""

from collections.abc import Callable

from stream_server.messages import codec
from stream_server.messages.codec import JsonMessage, JsonObject
from stream_server.messages.connection import ConnectionFile

RANK = b"rank-"
MOST_DIGITS = 6


class Planned(JsonObject, frozen=True, kw_only=True):
    """One simulation that the study wants; `attempt` is the highest that the server knows of, -1 for none."""

    simulation: int
    parameters: dict[str, float]
    attempt: int = -1


class Rank0Alive(JsonMessage, frozen=True, kw_only=True):
    """To launcher, first and then once a second: rank 0 of this incarnation is there."""

    incarnation: int


class Plan(JsonMessage, frozen=True, kw_only=True):
    """To launcher, when it asks: the run, the simulations without a terminal state, in the order of starting.

    `connection` is what the connection file of every attempt says; the launcher adds simulation, attempt,
    parameters and keys.
    """

    study: str
    incarnation: int
    output_dir: str
    connection: ConnectionFile
    simulations: tuple[Planned, ...]


class AddSimulation(JsonMessage, frozen=True, kw_only=True):
    """To launcher: one more simulation, in place of one that was given up."""

    simulation: int
    parameters: dict[str, float]


class ProgressReport(JsonMessage, frozen=True, kw_only=True):
    """To launcher: `received` steps have come in this attempt; `blocked` while the server holds the simulation back."""

    simulation: int
    attempt: int
    received: int
    blocked: bool


class Finished(JsonMessage, frozen=True, kw_only=True):
    """To launcher: the ledger has all of this simulation."""

    simulation: int


class Invalid(JsonMessage, frozen=True, kw_only=True):
    """To launcher: the simulation withdrew itself; it is not to be tried again."""

    simulation: int
    reason: str


class AttachRequest(JsonMessage, frozen=True, kw_only=True):
    """To launcher: a client that attaches by itself asks for this simulation, or for any (None).

    `client` is its name, the same over all connections and servers on which it asks; "" if it has none.
    """

    token: int
    simulation: int | None
    client: str = ""


class StopSimulations(JsonMessage, frozen=True, kw_only=True):
    """To launcher: the study has ended; start nothing more, cancel what still runs after `grace_s`, and leave."""

    reason: str
    grace_s: float


class FinishSimulations(JsonMessage, frozen=True, kw_only=True):
    """To launcher, also before the plan: start nothing more, not even again; what runs may end."""

    reason: str


class Stopping(JsonMessage, frozen=True, kw_only=True):
    """To launcher: an operator asked the study to save and leave. A server that dies now is not started again."""

    reason: str


class Committed(JsonMessage, frozen=True, kw_only=True):
    """To launcher: a checkpoint was committed after `batches` batches; a later restart begins there."""

    checkpoint: int
    batches: int


class Leaving(JsonMessage, frozen=True, kw_only=True):
    """To launcher: the simulations are released, and rank 0 is about to leave in an orderly way."""


class AskPlan(JsonMessage, frozen=True, kw_only=True):
    """To server: the launcher has no plan of this incarnation."""


class Leave(JsonMessage, frozen=True, kw_only=True):
    """To server: save a checkpoint and leave with exit code 75."""

    reason: str


class PlanAccepted(JsonMessage, frozen=True, kw_only=True):
    """To server: the launcher has the plan."""


class Attempt(JsonMessage, frozen=True, kw_only=True):
    """To server, before the job is submitted: `public_key` (None without CURVE) will speak for this attempt.

    Said again after each plan for every attempt that `goes_on`; `attached` ones are run by clients that attached.
    `waits_for` says what comes before it in its job, None if nothing does.
    """

    simulation: int
    attempt: int
    public_key: str | None
    attached: bool = False
    goes_on: bool = False
    waits_for: str | None = None


class Queued(JsonMessage, frozen=True, kw_only=True):
    """To server: what the newest attempts of these wait for, as the scheduler says it; None once they run."""

    simulations: tuple[int, ...]
    waits_for: str | None


class Failed(JsonMessage, frozen=True, kw_only=True):
    """To server: an attempt failed; another or `GaveUp` follows.

    An `excuse` says why that does not count against the simulation. `log` is the path of its output, "" without one.
    """

    simulation: int
    attempt: int
    reason: str
    excuse: str = ""
    log: str = ""

    @property
    def explanation(self) -> str:
        return f"{self.reason} (not counted against it, for {self.excuse})" if self.excuse else self.reason


class FailedLater(JsonMessage, frozen=True, kw_only=True):
    """To server: an attempt failed after its last time step; nothing is repeated."""

    simulation: int
    attempt: int
    reason: str
    log: str = ""


class GaveUp(JsonMessage, frozen=True, kw_only=True):
    """To server: no attempt is left; with `redraw` the launcher waits for an `AddSimulation` in its place."""

    simulation: int
    attempts: int
    reason: str
    redraw: bool
    log: str = ""


class Dropped(JsonMessage, frozen=True, kw_only=True):
    """To server, after `FinishSimulations`: nothing runs of these simulations, and nothing will."""

    simulations: tuple[int, ...]
    reason: str


class Attached(JsonMessage, frozen=True, kw_only=True):
    """To server: the client of this `AttachRequest`, and of its name, gets this attempt of this simulation."""

    token: int
    simulation: int
    attempt: int
    client: str = ""


class NoneLeft(JsonMessage, frozen=True, kw_only=True):
    """To server: nothing for the client of this `AttachRequest`; `busy` when it may ask again later."""

    token: int
    text: str
    busy: bool


class TooMany(JsonMessage, frozen=True, kw_only=True):
    """To server: the study must stop, for the simulations cannot be made to run.

    `simulation` and `attempt` are those of the last failure; `text` ends with the end of its log.
    """

    text: str
    simulation: int
    attempt: int


class Status(JsonMessage, frozen=True, kw_only=True):
    """To server: how many simulations wait, run, have finished, and were given up or withdrawn."""

    waiting: int
    running: int
    done: int
    failed: int


class HeldBack(JsonMessage, frozen=True, kw_only=True):
    """To server: why no simulation is started, or nothing is known of them, for now; and that this is over."""

    text: str


class LauncherDone(JsonMessage, frozen=True, kw_only=True):
    """To server: every job has ended and so does the launcher."""


ToLauncher = (
    Rank0Alive
    | Plan
    | AddSimulation
    | ProgressReport
    | Finished
    | Invalid
    | AttachRequest
    | Committed
    | Leaving
    | StopSimulations
    | FinishSimulations
    | Stopping
)
ToServer = (
    AskPlan
    | PlanAccepted
    | Attempt
    | Queued
    | Failed
    | FailedLater
    | GaveUp
    | Dropped
    | Attached
    | NoneLeft
    | TooMany
    | Status
    | HeldBack
    | Leave
    | LauncherDone
)


def rank_name(rank: int) -> bytes:
    """The routing id of a rank's connection."""
    return RANK + str(rank).encode()


def rank_of(name: bytes) -> int | None:
    """The rank that has this routing id, None if there is none."""
    digits = name.removeprefix(RANK)
    return int(digits) if name.startswith(RANK) and digits.isdigit() and len(digits) <= MOST_DIGITS else None


encode = codec.encode
to_launcher: Callable[[bytes], ToLauncher] = codec.decoder(ToLauncher)
to_server: Callable[[bytes], ToServer] = codec.decoder(ToServer)
