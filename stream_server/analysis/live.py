"""The questions to a study that runs, at its own socket: the analysis' only door to ZeroMQ."""

import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import zmq

from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import ORPHANED, RUNNING, RunStatus, status_of
from stream_server.analysis.simulations import SimulationSummary, seconds_of, simulations_of
from stream_server.analysis.timeline import newest_failures
from stream_server.analysis.validations import errors_of_simulations
from stream_server.errors import ConfigError, MalformedMessage, NotRunning
from stream_server.messages import operator
from stream_server.messages.connection import ConnectionFile
from stream_server.messages.curve import secure_client_socket
from stream_server.messages.simulation_phase import SimulationPhase
from stream_server.messages.tcp import connect_socket
from stream_server.storage.disk import by_own_links

OPERATOR_FILE = "operator.json"
REPEAT_S = 1.0

T = TypeVar("T", bound=operator.Answer)


def query_status(run: RunFolder, timeout_s: float) -> RunStatus:
    """Status of a run: a live one is asked, for any other its files are read."""
    status = status_of(run)
    if not status.is_live:
        return status
    try:
        server = ask_server(run, timeout_s)
    except NotRunning as silence:
        # It may have ended or come back meanwhile.
        status = status_of(run)
        return replace(status, silence=str(silence)) if status.is_live else status
    return replace(status, server=server, state=ORPHANED if status.state == ORPHANED else RUNNING)


def ask_server(run: RunFolder, timeout_s: float) -> operator.StudyStatus:
    """Status of a live run, from its server.

    Raises:
        NotRunning: see `ask`.
    """
    return _query(run, operator.AskStatus(), operator.StudyStatus, timeout_s)


def query_simulations(run: RunFolder, timeout_s: float) -> list[SimulationSummary]:
    """The simulations of a run. A live one is asked; for any other its newest checkpoint and files are read.

    Raises:
        NotRunning: a live one did not answer in time.
    """
    summaries = ask_simulations(run, timeout_s) if status_of(run).is_live else simulations_of(run)
    errors, failures = errors_of_simulations(run), newest_failures(run)
    return [
        replace(each, error=errors.get(each.simulation), reason=each.reason or failures.get(each.simulation, ""))
        for each in summaries
    ]


def ask_simulations(run: RunFolder, timeout_s: float) -> list[SimulationSummary]:
    """The simulations of a live run.

    Raises:
        NotRunning: see `ask`.
    """
    rows: list[operator.SimulationRow] = []
    while True:
        question = operator.AskSimulations(first=len(rows), num=operator.MAX_ROWS)
        page = _query(run, question, operator.SimulationPage, timeout_s)
        rows += page.rows
        if len(rows) >= page.num_all or not page.rows:
            break
    return [
        SimulationSummary(
            simulation=row.simulation,
            parameters=dict(row.parameters),
            state=row.state,
            attempts=row.attempt + 1,
            seconds=seconds_of(run, row.simulation, is_running=row.state == SimulationPhase.RUNNING),
            received=row.received,
            reason=row.reason,
        )
        for row in rows
    ]


def stop(run: RunFolder, timeout_s: float, *, finish: bool) -> str:
    """Tell a study to save a checkpoint and leave, or to `finish`: to end early; returns what it says to that.

    Raises:
        NotRunning: it is not running, or see `ask`.
    """
    status = status_of(run)
    if not status.is_live:
        raise NotRunning(f"{run.path} is not running: its state is {status.state}")
    return _query(run, operator.AskStop(finish=finish), operator.StopAccepted, timeout_s).text


def _query(run: RunFolder, question: operator.Question, kind: type[T], timeout_s: float) -> T:
    return ask(run.path, question, kind, timeout_s=timeout_s, runs=lambda: status_of(run).is_live)


def ask(
    output_dir: Path, question: operator.Question, kind: type[T], *, timeout_s: float, runs: Callable[[], bool]
) -> T:
    """The answer of rank 0 to a question that may safely be asked twice.

    While there is no server, since it starts or is started again, the next one is waited for: it puts a new file with a
    new key into the folder.

    Raises:
        NotRunning: no answer came in time, nothing `runs` any more, or rank 0 is of another version.
    """
    give_up_at = time.monotonic() + timeout_s
    path = output_dir / OPERATOR_FILE
    while (left_s := give_up_at - time.monotonic()) > 0:
        try:
            frame = _ask_once(
                ConnectionFile.read(path, opener=by_own_links), operator.encode(question), min(REPEAT_S, left_s)
            )
        except ConfigError:
            # There is none yet.
            frame = None
            time.sleep(min(REPEAT_S, left_s) / 4)
        if frame is not None:
            return _understood(frame, kind)
        if not runs():
            raise NotRunning(f"{output_dir} has ended meanwhile")
    raise NotRunning(
        f"rank 0 did not answer within {timeout_s:g} s: its server is being started, or its node cannot be reached "
        "from here. Try again, with a longer --timeout if it takes long"
    )


def _ask_once(file: ConnectionFile, question: bytes, timeout_s: float) -> bytes | None:
    """The answer, None if none came in time."""
    address = _usable(file)
    if address is None or file.security is None:
        raise NotRunning(f"the study can be asked on {file.host} only: network.security is none")
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    try:
        dealer = context.socket(zmq.DEALER)
        dealer.linger = 0
        dealer.routing_id = secrets.token_hex(16).encode()
        secure_client_socket(dealer, file.security)
        connect_socket(dealer, address)
        dealer.send(question)
        return dealer.recv() if dealer.poll(round(timeout_s * 1000)) else None
    finally:
        context.destroy(linger=0)


def _usable(file: ConnectionFile) -> str | None:
    """The first address that means something on this node."""
    is_here = file.host == socket.gethostname()
    for address in file.control:
        if address.startswith("tcp:") or (is_here and os.path.exists(address.removeprefix("ipc://"))):
            return address
    return file.control[0] if is_here else None


def _understood(frame: bytes, kind: type[T]) -> T:
    try:
        answer = operator.answer(frame)
    except MalformedMessage as error:
        raise NotRunning(f"the study runs with another version of Stream Server: {error}") from error
    if not isinstance(answer, kind):
        text = answer.text if isinstance(answer, operator.NotUnderstood) else type(answer).__name__
        raise NotRunning(f"the study runs with another version of Stream Server: {text}")
    return answer
