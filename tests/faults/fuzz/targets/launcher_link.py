"""Frames between rank 0 and the launcher, or an operator: a message of the right types, or `MalformedMessage`."""

from collections.abc import Callable
from typing import get_type_hints

from stream_server.errors import MalformedMessage
from stream_server.messages import launcher_link, operator
from stream_server.messages.launcher_link import ToLauncher, ToServer
from tests.faults.fuzz.target import Target
from tests.support.connections import NOWHERE

Known = ToLauncher | ToServer | operator.Question | operator.Answer

MESSAGES: tuple[Known, ...] = (
    launcher_link.Rank0Alive(incarnation=1),
    launcher_link.Plan(
        study="s",
        incarnation=1,
        output_dir="/tmp/o",
        connection=NOWHERE,
        simulations=(
            launcher_link.Planned(simulation=0, parameters={"x": 1.0}),
            launcher_link.Planned(simulation=1, parameters={}),
        ),
    ),
    launcher_link.AddSimulation(simulation=2, parameters={"x": 0.5}),
    launcher_link.ProgressReport(simulation=0, attempt=0, received=5, blocked=False),
    launcher_link.Finished(simulation=0),
    launcher_link.Invalid(simulation=0, reason="r"),
    launcher_link.AttachRequest(token=0, simulation=None),
    launcher_link.StopSimulations(reason="r", grace_s=1.5),
    launcher_link.Committed(checkpoint=1, batches=10),
    launcher_link.Leaving(),
    launcher_link.FinishSimulations(reason="r"),
    launcher_link.Stopping(reason="r"),
    launcher_link.Dropped(simulations=(0, 2), reason="r"),
    launcher_link.AskPlan(),
    launcher_link.Leave(reason="r"),
    launcher_link.PlanAccepted(),
    launcher_link.Attempt(simulation=0, attempt=1, public_key="k", attached=True),
    launcher_link.Failed(simulation=0, attempt=0, reason="r", log=""),
    launcher_link.FailedLater(simulation=0, attempt=0, reason="r", log=""),
    launcher_link.GaveUp(simulation=0, attempts=3, reason="r", log="", redraw=True),
    launcher_link.Attached(token=0, simulation=0, attempt=1),
    launcher_link.NoneLeft(token=0, text="t", busy=True),
    launcher_link.TooMany(text="t", simulation=0, attempt=0),
    launcher_link.Queued(simulations=(1, 2), waits_for="Priority"),
    launcher_link.Status(waiting=1, running=2, done=3, failed=4),
    launcher_link.LauncherDone(),
    operator.AskStatus(),
    operator.AskSimulations(first=0, num=10),
    operator.AskStop(finish=True),
    operator.StopAccepted(text="t"),
    operator.StudyStatus(
        stage="training", incarnation=1, ranks=2, simulations={"waiting": 1}, received=3, awaited="", age_s=0.5
    ),
    operator.SimulationPage(
        num_all=1,
        rows=(operator.SimulationRow(simulation=0, parameters={"x": 1.0}, state="s", attempt=-1, received=0),),
    ),
)
PLAIN = (int, str, bool)


def run(data: bytes) -> None:
    """All ends read it."""
    for decode in (launcher_link.to_launcher, launcher_link.to_server, operator.question, operator.answer):
        _read(decode, data)


def _read(decode: Callable[[bytes], Known], data: bytes) -> None:
    try:
        message = decode(data)
    except MalformedMessage:
        return
    for name, expected in get_type_hints(type(message)).items():
        if expected in PLAIN:
            assert type(getattr(message, name)) is expected, f"{name} is no {expected}"
    written = launcher_link.encode(message)
    assert launcher_link.encode(decode(written)) == written


TARGET = Target(run=run, seeds=tuple(map(launcher_link.encode, MESSAGES)), is_json=True)
