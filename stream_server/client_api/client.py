"""The entry of a simulation into a study.

Why: docs/decisions/0056-workers.md
"""

import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from msgspec.structs import replace

from stream_server.client_api.hello import ask
from stream_server.client_api.session import Session
from stream_server.client_api.simulation import Simulation, StudyParameters
from stream_server.client_api.watch import ConnectionWatch, watch
from stream_server.errors import ConfigError, Refused
from stream_server.messages.client import ATTACHING, Away, Hello, Message, Reason, Refusal, Stop, Welcome
from stream_server.messages.connection import ConnectionFile, further_files

PARAMETERS_VARIABLE = "STREAM_PARAMETERS"
TIMEOUT_S = 60.0
Connection = str | os.PathLike[str] | ConnectionFile | None


def connect(
    connection: Connection = None,
    *,
    rank: int = 0,
    num_ranks: int = 1,
    simulation_id: int | None = None,
    parameters: Mapping[str, float] | None = None,
    timeout_s: float = TIMEOUT_S,
    **fields: Any,
) -> Simulation:
    """Take part in a study as one simulation, or as one rank of a parallel one.

    Args:
        connection: the connection file; by default the environment variable STREAM_CONNECTION names it,
            as for every simulation that a study starts. "none" runs alone: every call does nothing, and the
            parameters are those of the JSON object STREAM_PARAMETERS, or else of options such as `--initial 300`.
        rank: this process's rank within the simulation, of `num_ranks`.
        simulation_id: which simulation this is, when it attaches by itself; by default the server chooses.
        parameters: what is simulated, when it attaches by itself; by default the server's.
        timeout_s: how long the server may say nothing while it is waited for, unless the study says that the next one
            will come. Later it is away after that time, and the study says what then happens (`client.if_server_away`).
        fields: those that are sent once per simulation, such as `mesh=array`; what depends on the parameters is given
            to `Simulation.send_static` instead, which says more.

    Raises:
        ConfigError: the connection file is missing or cannot be read.
        TypeError, ValueError: as for `send_static`.
        Refused: the study does not want this simulation.
        Unreachable: neither the server nor the study said anything for `timeout_s`.
    """
    _check_ranks(rank, num_ranks)
    watched = watch(connection)
    if watched is None:
        return _alone(simulation_id, parameters)
    file = watched.file
    hello = _hello(file, rank=rank, num_ranks=num_ranks, simulation_id=simulation_id, parameters=parameters)
    answer = ask(hello, watched, who=_who(hello), timeout_s=timeout_s)
    if isinstance(answer, Welcome):
        simulation = _simulation(watched, hello, answer, timeout_s)
        simulation.send_static(**fields)
        return simulation
    if isinstance(answer, Stop) and hello.simulation is not None:
        known = parameters or file.parameters or {}
        return Simulation(
            None,
            id=hello.simulation,
            attempt=file.attempt,
            parameters=dict(known),
            wanted=False,
            stop_reason=answer.text,
        )
    raise _refused(hello, answer)


def simulations(connection: Connection = None, *, rank: int = 0, num_ranks: int = 1) -> Iterator[Simulation]:
    """Simulations, one after the other, as long as the study has some: for a worker that stays.

    A process that the study has started gets those that the study has meant for it (`simulation.per_worker`).
    Each one is finished when the next is asked for. Leaving the loop early leaves the current one unfinished.

    Raises:
        ConfigError, Refused, Unreachable: as for `connect`.
    """
    _check_ranks(rank, num_ranks)
    further = further_files() if connection is None else []
    watched = watch(connection)
    if watched is None:
        with _alone(None, None) as simulation:
            yield simulation
        return
    while True:
        hello = _hello(watched.file, rank=rank, num_ranks=num_ranks, simulation_id=None, parameters=None)
        answer = ask(hello, watched, who=_who(hello), timeout_s=TIMEOUT_S)
        is_none_left = isinstance(answer, Refusal) and answer.reason is Reason.NO_SIMULATION_LEFT
        if is_none_left or isinstance(answer, Stop):
            return
        if not isinstance(answer, Welcome):
            raise _refused(hello, answer)
        with _simulation(watched, hello, answer, TIMEOUT_S) as simulation:
            yield simulation
        if hello.simulation is not None:
            if not further:
                return
            path = further.pop(0)
            watched = ConnectionWatch(ConnectionFile.read(path), path)


def _check_ranks(rank: int, num_ranks: int) -> None:
    if not 0 <= rank < num_ranks:
        raise ValueError(f"rank must be between 0 and num_ranks - 1, but is {rank} of {num_ranks}")


def _alone(simulation_id: int | None, parameters: Mapping[str, float] | None) -> Simulation:
    if simulation_id is None:
        simulation_id = int(os.environ.get("STREAM_SIMULATION_ID", "0"))
    attempt = int(os.environ.get("STREAM_ATTEMPT", "0"))
    known = dict(_parameters_alone() if parameters is None else parameters)
    return Simulation(None, id=simulation_id, attempt=attempt, parameters=known)


def _parameters_alone() -> dict[str, float]:
    """The parameters of a program that runs alone, from its environment or else its command line.

    Raises:
        ConfigError: STREAM_PARAMETERS is no JSON object of numbers.
    """
    text = os.environ.get(PARAMETERS_VARIABLE)
    if not text:
        return _parameters_of(sys.argv[1:])
    try:
        return {name: float(value) for name, value in json.loads(text).items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        example = '{"initial": 300, "left": 100}'
        raise ConfigError(f"{PARAMETERS_VARIABLE} must be a JSON object such as {example}, but is {text!r}") from error


def _parameters_of(arguments: Sequence[str]) -> dict[str, float]:
    """Each `--name value` and `--name=value` whose value is a number."""
    parameters = {}
    for position, argument in enumerate(arguments):
        name, equals, value = argument.partition("=")
        if not equals and position + 1 < len(arguments):
            value = arguments[position + 1]
        if name.startswith("--"):
            with suppress(ValueError):
                parameters[name[2:].replace("-", "_")] = float(value)
    return parameters


def _hello(
    file: ConnectionFile,
    *,
    rank: int,
    num_ranks: int,
    simulation_id: int | None,
    parameters: Mapping[str, float] | None,
) -> Hello:
    if file.simulation is not None and simulation_id not in (None, file.simulation):
        raise ValueError(f"this process was started as simulation {file.simulation}, not {simulation_id}")
    simulation = simulation_id if file.simulation is None else file.simulation
    if simulation is None and num_ranks > 1:
        raise ValueError("a parallel simulation that attaches by itself must pass the same simulation_id on all ranks")
    return Hello(
        study=file.study,
        simulation=simulation,
        attempt=ATTACHING if file.simulation is None else file.attempt,
        rank=rank,
        num_ranks=num_ranks,
        parameters=None if parameters is None else {name: float(value) for name, value in parameters.items()},
    )


def _simulation(watched: ConnectionWatch, hello: Hello, welcome: Welcome, timeout_s: float) -> Simulation:
    waits = watched.heeds_touches = welcome.if_server_away is Away.WAIT
    session = Session(
        watched,
        replace(hello, simulation=welcome.simulation),
        welcome,
        silence_s=max(timeout_s, welcome.wait_s) if waits else timeout_s,
    )
    return Simulation(
        session,
        id=welcome.simulation,
        attempt=welcome.attempt,
        parameters=StudyParameters(welcome.parameters),
        time_steps=welcome.time_steps,
    )


def _who(hello: Hello) -> str:
    return f"{'a simulation' if hello.simulation is None else f'simulation {hello.simulation}'} rank {hello.rank}"


def _refused(hello: Hello, answer: Message) -> Refused:
    return Refused(f"{_who(hello)} cannot take part in study {hello.study}: {getattr(answer, 'text', answer)}")
