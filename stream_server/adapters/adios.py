"""Sends what an unchanged code writes by ADIOS2: each step of an SST stream, or of a BP file that grows.

    python -P -m stream_server.adapters.adios out.bp --field E -- ./solver case.in

Of an openPMD series a field is a component in whatever iteration there is, such as `--field Ex=meshes/E/x`, and the
number of the iteration is the time step.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

import numpy as np

from stream_server.adapters.adios_stream import TIMEOUT_S, BrokenStream, read_steps, state_of
from stream_server.adapters.adios_variables import AdiosStep
from stream_server.adapters.program import GRACE_S, Program
from stream_server.client_api import Simulation, connect
from stream_server.errors import ConfigError, SimulationError


def main(words: Sequence[str]) -> int:
    """Run the adapter; the exit code is 0, 2 for what the user can correct, or that of the writer."""
    separator = list(words).index("--") if "--" in words else len(words)
    options = _parser().parse_args(words[:separator])
    program = Program(words[separator + 1 :])
    exit_code: int | None = 0
    try:
        before = state_of(options.stream, options.engine) if program.command else None
        with connect() as simulation, program:
            try:
                is_whole = _send_all(simulation, options, program, before)
            except BrokenStream as error:
                exit_code = program.wait(GRACE_S)
                raise SimulationError(f"{error} (exit code {exit_code})") from error
            if is_whole and (exit_code := program.wait()):
                raise SimulationError(f"{program.command[0]} has ended with exit code {exit_code} after its last step")
    except (ConfigError, SimulationError) as error:
        print(f"stream-server: {error}", file=sys.stderr)
        return error.exit_code if isinstance(error, ConfigError) else exit_code or 1
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def _send_all(
    simulation: Simulation, options: argparse.Namespace, program: Program, before: tuple[int, ...] | None
) -> bool:
    """Whether the stream came to its end; else the study wants nothing more."""
    steps = read_steps(
        options.stream,
        dict(options.field) | dict(options.static),
        engine=options.engine,
        before=before,
        has_ended=lambda: program.has_ended,
        timeout_s=options.timeout_s,
    )
    labels = simulation.time_steps or range(sys.maxsize)
    for number, step in enumerate(steps):
        fields = _in_si(step) if options.si else step.fields
        label = labels.start + number * labels.step if step.time_step is None else step.time_step
        statics = {field: fields.pop(field) for field, _ in options.static}
        try:
            if number == 0:
                _tell(step)
                simulation.send_static(**statics)
            if not simulation.send(label, **fields):
                return False
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{options.stream}, time step {label}: {error}{_missing(step, options)}") from error
    return True


def _in_si(step: AdiosStep) -> dict[str, np.ndarray | None]:
    """The fields in SI units, where openPMD gives the factor."""
    return {it: value if value is None else value * step.units.get(it, 1) for it, value in step.fields.items()}


def _tell(step: AdiosStep) -> None:
    for field, name in step.found.items():
        unit = f", unitSI {step.units[field]:g}" if field in step.units else ""
        print(f"stream-server: field {field} is {name}{unit}", flush=True)


def _missing(step: AdiosStep, options: argparse.Namespace) -> str:
    """What the step has instead of variables that are not there."""
    missing = [name for field, name in (*options.field, *options.static) if field not in step.found]
    if not missing:
        return ""
    near = get_close_matches(missing[0], step.names, n=1, cutoff=0.3)
    hint = f"; did you mean {near[0]}?" if near else ""
    return f". There is no variable {', '.join(missing)} in this step, only {', '.join(step.names)}{hint}"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="stream_server.adapters.adios",
        usage="python -P -m %(prog)s STREAM --field NAME[=VARIABLE] [--field …] [options] [-- COMMAND …]",
        description="Sends each step of an ADIOS2 stream, which the command writes, as a sample of this simulation.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("stream", help="name that the writer opens, such as out.bp or out.sst")
    add("--field", type=_pair, action="append", required=True, help="field of the study, and its variable")
    add("--static", type=_pair, action="append", default=[], help="field that is sent once, from the first step")
    add("--engine", default="", help="SST or BP; by default SST if the name ends with .sst")
    add("--si", action="store_true", help="multiply by unitSI of openPMD; without it values are sent as written")
    add("--timeout-s", type=float, default=TIMEOUT_S, help="how long nothing may come (default %(default)g)")
    return parser


def _pair(text: str) -> tuple[str, str]:
    field, equals, variable = text.partition("=")
    return field, variable if equals else field


if __name__ == "__main__":
    result = main(sys.argv[1:])
    sys.stdout.flush()
    # Without the destructors of ADIOS2, which are not safe for a stream that is still open.
    os._exit(result)
