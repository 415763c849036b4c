"""Steps of an ADIOS2 stream: through SST without a file, or of a file of BP, also while it grows."""

import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stream_server.adapters.adios_variables import AdiosStep, arrays_of, time_steps
from stream_server.adapters.fields import Arrays
from stream_server.adapters.program import SIGNALS
from stream_server.errors import ConfigError, SimulationError
from stream_server.extras import extra_packages

TIMEOUT_S = 600.0
# Between two looks; for a stream that is slow less often, since each reads a file of BP.
LOOK_S, MAX_LOOK_S = 0.002, 0.1
# How long the last steps may be on their way when the writer has ended.
END_S = 5.0
SST, BP = "SST", "BPFile"
# ADIOS2 2.12 crashes when the reader of an SST stream is destroyed that was not closed.
_readers: list[Any] = []


class BrokenStream(SimulationError):
    """The writer of a stream has ended without closing it."""


def read_steps(
    stream: str,
    variables: Mapping[str, str],
    *,
    engine: str = "",
    before: tuple[int, ...] | None = None,
    has_ended: Callable[[], bool] = lambda: False,
    timeout_s: float = TIMEOUT_S,
) -> Iterator[AdiosStep]:
    """The steps of a stream as they come, each with the arrays of the variables by name of the field.

    Args:
        stream: the name that the writer opens.
        engine: SST or one of BP; by default SST where the name ends with .sst.
        before: `state_of` the stream before its writer was started: what an earlier run has left is passed over.
        has_ended: whether the writer has ended, after which nothing new can come.
        timeout_s: how long nothing may come.

    Raises:
        ConfigError: the stream does not open, nothing comes for too long, or the writer discards steps.
        BrokenStream: the writer has ended without closing the stream.

    A process that does not read to the end must leave by `os._exit`.
    """
    engine, is_whole, deadline = engine or _engine_of(stream), False, time.monotonic() + timeout_s
    while not is_whole:
        if time.monotonic() > deadline:
            raise ConfigError(f"{stream} has no steps after {timeout_s:g} s; see --timeout-s")
        # A file of BP looks like one without steps until its header is written.
        is_whole = has_ended()
        reader = _opened(stream, engine, before, has_ended, timeout_s)
        for index in _steps(reader, stream, has_ended, timeout_s):
            is_whole = True
            with _undisturbed():
                if reader.current_step() != index:
                    raise ConfigError(
                        f"{stream}: expected step {index}, but step {reader.current_step()} came: the writer discards "
                        "what waits; set QueueFullPolicy to Block and RendezvousReaderCount to 1 in its ADIOS2 settings"
                    )
                steps = list(time_steps(reader, variables))
                reader.end_step()
            yield from steps
        # At any other end that of SST would wait for a writer that goes on.
        reader.close()
        time.sleep(LOOK_S)


@contextmanager
def only_step(path: Path) -> Iterator[Arrays]:
    """The arrays of a file of BP with one step, by name; signals wait meanwhile.

    Raises:
        EOFError: the step is not whole.
        ConfigError: there are more steps.
    """
    with _undisturbed():
        adios2 = import_adios2()
        io = adios2.Adios().declare_io(str(path))
        io.set_engine(BP)
        io.set_parameters({"OpenTimeoutSecs": "0"})
        with adios2.Stream(io, str(path), "r") as reader:
            if reader.begin_step(timeout=0) != _statuses().OK:
                raise EOFError("no step in it is whole")
            if (num := reader.num_steps()) > 1:
                raise ConfigError(f"{path} has {num} time steps: expected one in each file, or stream-adios {path}")
            yield arrays_of(reader)
            reader.end_step()


def state_of(stream: str, engine: str = "") -> tuple[int, ...] | None:
    """What tells a stream that a writer has opened anew from an earlier one of the same name; None if there is none."""
    for path in _paths(stream, engine or _engine_of(stream)):
        if path.exists():
            found = path.stat()
            return found.st_ino, found.st_mtime_ns, found.st_size
    return None


def _engine_of(stream: str) -> str:
    return SST if stream.endswith(".sst") else BP


def _paths(stream: str, engine: str) -> list[Path]:
    """The files by which a stream is known: SST adds .sst to the name, and openPMD names the stream without it."""
    if engine == SST:
        return [Path(f"{stream}.sst"), *([Path(stream)] if stream.endswith(".sst") else [])]
    return [Path(stream) / "md.idx"]


def _opened(
    stream: str, engine: str, before: tuple[int, ...] | None, has_ended: Callable[[], bool], timeout_s: float
) -> Any:
    with extra_packages("the reader of ADIOS2"), _undisturbed():
        adios2 = import_adios2()
    deadline = time.monotonic() + timeout_s
    problem = f"there is no {' or '.join(map(str, _paths(stream, engine)))}"
    while True:
        is_last = has_ended() or time.monotonic() > deadline
        if state_of(stream, engine) not in (None, before):
            is_short = engine == SST and not Path(f"{stream}.sst").exists()
            try:
                with _undisturbed():
                    _readers.append(adios2.Adios())
                    io = _readers[-1].declare_io(stream)
                    io.set_engine(engine)
                    io.set_parameters({"OpenTimeoutSecs": "2", "BeginStepPollingFrequencySecs": "0.1"})
                    _readers.append(adios2.Stream(io, stream.removesuffix(".sst") if is_short else stream, "r"))
                return _readers[-1]
            except RuntimeError as error:
                problem = " ".join(str(error).rpartition(" : ")[2].split())
        if is_last and has_ended():
            raise BrokenStream(f"{stream} did not open as {engine} before its writer ended: {problem}")
        if is_last:
            raise ConfigError(
                f"{stream} did not open as {engine} within {timeout_s:g} s: {problem}. The name must be that which the "
                "writer opens, seen from the folder of the simulation, and --engine that of the writer"
            )
        time.sleep(MAX_LOOK_S / 5)


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Hold signals back, which crash ADIOS2 at several places; threads that it starts within never get any."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def import_adios2() -> Any:
    """The package. It imports torch if that is there, for tensors of which none is read here: 1.6 s of each start."""
    is_there = "torch" in sys.modules
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]
    try:
        import adios2  # type: ignore[import-untyped]
    finally:
        if not is_there:
            del sys.modules["torch"]
    return adios2


def _statuses() -> Any:
    from adios2.bindings import StepStatus  # type: ignore[import-untyped]

    return StepStatus


def _steps(reader: Any, stream: str, has_ended: Callable[[], bool], timeout_s: float) -> Iterator[int]:
    """Count the steps of the stream, each while it is open."""
    statuses = _statuses()
    index, last, end, pause_s = 0, time.monotonic(), float("inf"), LOOK_S
    while True:
        if has_ended():
            end = min(end, time.monotonic() + END_S)
        # SST has crashed while it waited for a time (github.com/ornladios/ADIOS2/issues/1862), also as of 2.12.
        with _undisturbed():
            status = reader.begin_step(timeout=0)
        if status == statuses.EndOfStream:
            return
        if status == statuses.OK:
            yield index
            index, last, pause_s = index + 1, time.monotonic(), LOOK_S
        elif status == statuses.OtherError or time.monotonic() > end:
            raise BrokenStream(f"{stream} broke off after {index} steps: its writer has ended without closing it")
        elif time.monotonic() - last > timeout_s:
            raise ConfigError(f"{stream}: nothing came after {index} steps for {timeout_s:g} s; see --timeout-s")
        else:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MAX_LOOK_S)
