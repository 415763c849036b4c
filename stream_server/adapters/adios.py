"""`stream-adios`: runs a code that is not changed, and sends each step that it writes by ADIOS2 or openPMD.

The steps are those of an SST stream, or of a BP file that grows. Of an openPMD series a field is a component in
whatever iteration there is, such as `--field Ex=meshes/E/x`, and the number of the iteration is the time step.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import NoReturn

import numpy as np

from stream_server.adapters.adios_stream import TIMEOUT_S, BrokenStream, read_steps, state_of
from stream_server.adapters.adios_variables import AdiosStep
from stream_server.adapters.fields import names_of
from stream_server.adapters.program import GRACE_S, InterruptedBySignal, Interruptions, Program
from stream_server.client_api import Simulation, connect
from stream_server.errors import ConfigError, SimulationError


def main() -> NoReturn:
    """Run the command, and leave with its exit status."""
    status = adapt(sys.argv[1:])
    sys.stdout.flush()
    # Without the destructors of ADIOS2, which are not safe for a stream that is still open.
    os._exit(status)


def adapt(words: Sequence[str]) -> int:
    """Send all steps; the exit status is the solver's, 2 where something does not fit, 1 if the study is gone."""
    separator = list(words).index("--") if "--" in words else len(words)
    options, command = parser().parse_args(words[:separator]), words[separator + 1 :]
    status: int | None = 0
    try:
        before = state_of(options.stream, options.engine) if command else None
        with Interruptions() as interruptions, connect() as simulation, Program(command, interruptions) as solver:
            try:
                is_whole = _send_all(simulation, options, solver, before)
            except BrokenStream as error:
                status = solver.wait(GRACE_S)
                raise SimulationError(f"{error} (exit status {status})") from error
            if is_whole and (status := solver.wait()):
                raise SimulationError(f"{command[0]} has ended with exit status {status} after its last step")
    except (ConfigError, SimulationError) as error:
        print(f"stream-adios: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, ConfigError) else status or 1
    except InterruptedBySignal as interrupted:
        return 128 + interrupted.number
    return 0


def _send_all(
    simulation: Simulation, options: argparse.Namespace, solver: Program, before: tuple[int, ...] | None
) -> bool:
    """Whether the stream came to its end; else the study wants nothing more."""
    names = names_of(options.field, simulation.fields)
    static = [field for field, spec in simulation.fields.items() if spec.is_static]
    steps = read_steps(
        options.stream,
        names,
        engine=options.engine,
        before=before,
        has_ended=lambda: solver.has_ended,
        timeout_s=options.timeout_s,
    )
    labels = simulation.time_steps or range(sys.maxsize)
    for number, step in enumerate(steps):
        fields = _in_si(step) if options.si else step.fields
        label = labels.start + number * labels.step if step.time_step is None else step.time_step
        statics = {field: array for field in static if (array := fields.pop(field)) is not None}
        try:
            if number == 0:
                _tell(step, options.stream)
                simulation.send_static(**statics)
            if not simulation.send(label, **fields):
                return False
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{options.stream}, time step {label}: {error}{_missing(step, names)}") from error
    return True


def _in_si(step: AdiosStep) -> dict[str, np.ndarray | None]:
    """The fields in SI units, where openPMD gives the factor."""
    return {it: value if value is None else value * step.units.get(it, 1) for it, value in step.fields.items()}


def _tell(step: AdiosStep, stream: str) -> None:
    for field, name in step.found.items():
        unit = f", unitSI {step.units[field]:g}" if field in step.units else ""
        print(f"stream-adios: field {field} is {name}{unit}", file=sys.stderr)
    if not step.fields:
        print(f"stream-adios: without a study; {stream} has {', '.join(step.names)}", file=sys.stderr)


def _missing(step: AdiosStep, names: Mapping[str, str]) -> str:
    """The end of a message about missing variables: those that the step has."""
    missing = [name for field, name in names.items() if field not in step.found]
    if not missing:
        return ""
    near = get_close_matches(missing[0], step.names, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f". There is no variable {', '.join(missing)} in this step, only {', '.join(step.names)}{hint}"


def parser() -> argparse.ArgumentParser:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="stream-adios",
        usage="stream-adios STREAM [options] [-- SOLVER [arguments]]",
        description="Run a solver as it is, and send each time step that it writes by ADIOS2 (docs/guide/adios.md).",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("stream", metavar="STREAM", help="name that the solver opens, such as out.bp or out.sst")
    add("--field", metavar="FIELD=NAME", action="append", default=[], help="what a field of the study is called there")
    add("--engine", default="", help="SST, BP4 or BP5; by default SST if the name ends with .sst, and else any BP")
    add("--si", action="store_true", help="multiply by unitSI of openPMD; without it values are sent as written")
    add(
        "--timeout-s",
        metavar="S",
        type=float,
        default=TIMEOUT_S,
        help="longest time that nothing comes (default: %(default)g)",
    )
    return parser


if __name__ == "__main__":
    main()
