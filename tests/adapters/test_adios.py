"""Codes that write by ADIOS2 and openPMD, as they are: what the adapter sends is what they wrote."""

import os
import pickle
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from stream_server.server.replay.record_format import SAMPLES, EntryKind
from stream_server.server.replay.record_reader import RankRecord
from tests.adapters.collecting import ENOUGH, STATIC
from tests.configs.test_studies import CONFIGS
from tests.support.launch import alone
from tests.support.runs import LEFT_BY_WORK, LiveRun, Run, run_study, start_study
from tests.support.timing import completed, until

HERE = Path(__file__).parent
WRITER = HERE / "adios_writer.py"
OPENPMD = CONFIGS / "heat-openpmd" / "heat.py"
ADAPTER = "stream_server.adapters.adios"
NUM_STEPS = 6
LIMIT_S = 60.0
OFFSET = 7.0
TEMPERATURES = (300.0, 100.0, 200.0, 250.0, 400.0)
Sent = list[tuple[str, Any]]


def field(step: int, offset: float) -> np.ndarray:
    """The values of the writer, computed independently."""
    return np.arange(12.0).reshape(4, 3) * (step + 1) + offset


def heat(nodes: int, num_steps: int, temperatures: Sequence[float]) -> list[np.ndarray]:
    """The temperatures of the openPMD code, once more."""
    u = np.full((nodes + 2, nodes + 2), temperatures[0])
    u[:, 0], u[:, -1], u[0], u[-1] = temperatures[1:]
    found = []
    for _ in range(num_steps):
        for _ in range(20):
            around = np.roll(u, 1, 0) + np.roll(u, -1, 0) + np.roll(u, 1, 1) + np.roll(u, -1, 1)
            u[1:-1, 1:-1] += 0.2 * (around - 4 * u)[1:-1, 1:-1]
        found.append(u[1:-1, 1:-1].copy())
    return found


def writer(stream: str, engine: str, *options: str, num_steps: int = NUM_STEPS, offset: float = OFFSET) -> list[str]:
    return [sys.executable, str(WRITER), stream, engine, str(num_steps), str(offset), *options]


def command(folder: Path, words: Sequence[str], program: Sequence[str]) -> list[str]:
    collecting = [sys.executable, "-P", "-m", "tests.adapters.collecting", ADAPTER, str(folder / "sent")]
    return ["env", "-C", str(folder), *collecting, *words, "--", *program]


def environment() -> dict[str, str]:
    return alone([]).environment | {"PYTHONPATH": str(HERE.parents[1])}


def adapt(folder: Path, words: Sequence[str], program: Sequence[str]) -> tuple[Sent, int, str]:
    """The steps that the adapter has sent, its exit code and its output."""
    done = completed(command(folder, words, program), environment(), LIMIT_S)
    path = folder / "sent"
    return pickle.loads(path.read_bytes()) if path.exists() else [], done.returncode, done.stdout + done.stderr


def assert_sent(sent: Sent, expected: dict[str, dict[str, np.ndarray]]) -> None:
    assert [label for label, _ in sent] == [*expected, "finished"]
    for label, fields in sent[:-1]:
        assert fields.keys() == expected[label].keys()
        for name, value in fields.items():
            np.testing.assert_array_equal(value, expected[label][name])


@pytest.mark.parametrize(("stream", "engine"), [("out.sst", "SST"), ("out.bp", "BP5"), ("out.bp", "BP4")])
def test_each_step_of_a_stream_is_sent_as_it_was_written(tmp_path: Path, stream: str, engine: str) -> None:
    words = (stream, "--field", "u", "--field", "t=time", "--field", STATIC)
    sent, exit_code, said = adapt(tmp_path, words, writer(stream, engine, "pause=0.05"))
    assert exit_code == 0, said
    steps = {str(100 + 10 * step): {"u": field(step, OFFSET), "t": np.array(0.5 * step)} for step in range(NUM_STEPS)}
    assert_sent(sent, {"static": {STATIC: np.full(2, OFFSET)}, **steps})


@pytest.mark.parametrize("stream", ["heat.sst", "heat.bp"])
def test_iterations_of_openpmd_are_the_time_steps(tmp_path: Path, stream: str) -> None:
    words = (stream, "--field", "T=meshes/temperature")
    program = [sys.executable, str(OPENPMD), stream, "5", "4", *map(str, TEMPERATURES)]
    sent, exit_code, said = adapt(tmp_path, words, program)
    assert exit_code == 0, said
    assert "field T is /data/meshes/temperature, unitSI 1" in said
    assert [label for label, _ in sent] == ["0", "1", "2", "3", "finished"]
    np.testing.assert_allclose([fields["T"] for _, fields in sent[:-1]], heat(5, 4, TEMPERATURES), rtol=1e-12)


SERIES = """
import sys
sys.modules["torch"] = None
import numpy as np
import openpmd_api as openpmd

series = openpmd.Series(sys.argv[1], openpmd.Access_Type.create)
for number in (20, 10):
    electrons = (series.iterations if sys.argv[2] == "at once" else series.write_iterations())[number].particles["e"]
    for name, values in (("x", np.arange(float(number))), ("y", np.full(number, 3.0))):
        position = electrons["position"][name]
        position.unit_SI = 1e-6
        position.reset_dataset(openpmd.Dataset(values.dtype, values.shape))
        if name == "x":
            position.store_chunk(values)
        else:
            position.make_constant(3.0)
    series.flush() if sys.argv[2] == "at once" else series.write_iterations()[number].close()
series.close()
"""


@pytest.mark.parametrize("how", ["one by one", "at once"])
def test_particles_of_openpmd_may_change_their_number_and_be_constant(tmp_path: Path, how: str) -> None:
    script = tmp_path / "series.py"
    script.write_text(SERIES)
    words = ("out.bp", "--si", "--field", "x=particles/e/position/x", "--field", "y=particles/e/position/y")
    sent, exit_code, said = adapt(tmp_path, words, [sys.executable, str(script), "out.bp", how])
    assert exit_code == 0, said
    assert "unitSI 1e-06" in said
    numbers = {"one by one": (20, 10), "at once": (10, 20)}[how]
    assert [label for label, _ in sent] == [*map(str, numbers), "finished"]
    for number, (_, fields) in zip(numbers, sent, strict=False):
        np.testing.assert_allclose(fields["x"], 1e-6 * np.arange(number))
        np.testing.assert_allclose(fields["y"], np.full(number, 3e-6))


def test_a_stream_that_an_earlier_run_has_left_is_passed_over(tmp_path: Path) -> None:
    subprocess.run(["env", "-C", str(tmp_path), *writer("out.bp", "BP5", "pause=0")], check=True, env=environment())
    late = ["sh", "-c", f"sleep 0.5; exec {' '.join(writer('out.bp', 'BP5', 'pause=0.05', offset=9.0))}"]
    sent, exit_code, said = adapt(tmp_path, ("out.bp", "--field", "u"), late)
    assert exit_code == 0, said
    assert [label for label, _ in sent] == [*(str(100 + 10 * step) for step in range(NUM_STEPS)), "finished"]
    np.testing.assert_array_equal(sent[0][1]["u"], field(0, 9.0))


@pytest.mark.parametrize(
    ("words", "program", "exit_code", "told"),
    [
        pytest.param(
            ("out.bp", "--field", "u=uu"),
            writer("out.bp", "BP5"),
            2,
            "out.bp, time step 100: field 'u' is missing. There is no variable uu in this step, only coefficient, "
            "time, u; did you mean u?",
            id="a variable that is not there",
        ),
        pytest.param(
            ("out.sst", "--field", "u"),
            writer("out.sst", "SST", "trouble=grow"),
            2,
            "out.sst, time step 130: field 'u' must have the shape (4, 3), but has (8, 3)",
            id="a field of another shape",
        ),
        pytest.param(
            ("out.sst", "--field", "u"),
            writer("out.sst", "SST", "trouble=die"),
            137,
            "steps: its writer has ended without closing it (exit status 137)",
            id="a writer of SST that is killed",
        ),
        pytest.param(
            ("out.bp", "--field", "u"),
            writer("out.bp", "BP5", "trouble=die"),
            137,
            "steps: its writer has ended without closing it (exit status 137)",
            id="a writer of BP that is killed",
        ),
        pytest.param(
            ("out.sst", "--field", "u", "--timeout-s", "1"),
            ["sleep", "600"],
            2,
            "out.sst did not open as SST within 1 s: there is no out.sst.sst or out.sst. The name must be",
            id="a stream that never opens",
        ),
        pytest.param(
            ("out.bp", "--field", "u"),
            ["sh", "-c", "exit 3"],
            3,
            "out.bp did not open as BPFile before its writer ended: there is no out.bp/md.idx (exit status 3)",
            id="a writer that fails at once",
        ),
        pytest.param(
            ("out.bp", "--field", "u"),
            ["./no-such-solver"],
            2,
            "'./no-such-solver' cannot be started: No such file or directory",
            id="no such program",
        ),
        pytest.param(
            ("out.bp", "--field", "u"),
            ["sh", "-c", f"{' '.join(writer('out.bp', 'BP5'))} && exit 5"],
            5,
            "sh has ended with exit status 5 after its last step",
            id="a writer that fails at its end",
        ),
    ],
)
def test_what_cannot_be_read_is_told_and_leaves_nothing_running(
    tmp_path: Path, words: Sequence[str], program: Sequence[str], exit_code: int, told: str
) -> None:
    sent, found, said = adapt(tmp_path, words, program)
    assert found == exit_code, said
    assert told in said
    assert [label for label, _ in sent if not label.isdecimal()] == ["abandoned"]
    assert _children_in(tmp_path) == []


def test_a_writer_that_discards_steps_is_refused(tmp_path: Path) -> None:
    program = writer("out.sst", "SST", "pause=0.1", "QueueLimit=1", "QueueFullPolicy=Discard", num_steps=40)
    sent, exit_code, said = adapt(tmp_path, ("out.sst", "--field", "u", "--field", "slow=time"), program)
    assert exit_code == 2, said
    assert "came: the writer discards what waits; set QueueFullPolicy to Block" in said
    assert sent[-1][0] == "abandoned"


@pytest.mark.parametrize(("stream", "engine"), [("out.sst", "SST"), ("out.bp", "BP5")])
def test_a_study_that_wants_no_more_ends_the_writer(tmp_path: Path, stream: str, engine: str) -> None:
    endless = writer(stream, engine, "pause=0.01", "QueueLimit=2", "QueueFullPolicy=Block", num_steps=100_000)
    sent, exit_code, said = adapt(tmp_path, (stream, "--field", "u"), endless)
    assert exit_code == 0, said
    assert sent[-1][0] == "finished"
    assert len(sent) - 1 == ENOUGH
    assert _children_in(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("after", ["the start", "the first step"])
def test_a_signal_ends_the_writer_too(tmp_path: Path, number: signal.Signals, after: str) -> None:
    program = writer("out.sst", "SST", "pause=30")
    words = command(tmp_path, ("out.sst", "--field", "u"), program)
    with subprocess.Popen(words, env=environment(), stderr=subprocess.PIPE) as adapter:
        try:
            until(lambda: any(_words(it)[1:2] == [str(WRITER)] for it in _children_in(tmp_path)))
            if after == "the first step":
                assert b"field u is u" in adapter.stderr.readline()
            adapter.send_signal(number)
            assert adapter.wait(LIMIT_S) == 128 + number
        finally:
            left = _children_in(tmp_path)
            for process in left:
                process.kill()
    assert left == []


def _words(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except (psutil.Error, OSError):
        return []


def _children_in(folder: Path) -> list[psutil.Process]:
    """Processes that work in a folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def recorded(done: Run) -> tuple[dict[tuple[int, int], np.ndarray], dict[int, np.ndarray]]:
    """The temperatures that the server was sent, and the parameters."""
    fields, parameters = {}, {}
    record = RankRecord(done.output_dir / "record", 0)
    for entry in map(record.read, range(len(record))):
        if entry.kind in SAMPLES:
            assert (entry.simulation, entry.time_step) not in fields
            fields[entry.simulation, entry.time_step] = entry.fields["temperature"]
        elif entry.kind is EntryKind.PARAMETERS:
            parameters[entry.simulation] = entry.parameters
    record.close()
    return fields, parameters


def test_the_study_of_an_openpmd_code_has_what_the_code_wrote(tmp_path: Path) -> None:
    for name in ("heat-openpmd", "heat-numpy"):
        shutil.copytree(CONFIGS / name, tmp_path / name, ignore=LEFT_BY_WORK)
    settings = {"study.simulations": 2, "checkpoint.record": True}
    done = run_study(tmp_path / "heat-openpmd" / "study.json", tmp_path / "run", settings=settings, limit_s=200)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.account["accepted"] == done.account["trained"] == 20
    fields, parameters = recorded(done)
    assert len(fields) == 30
    assert len(parameters) == 3
    for simulation, values in parameters.items():
        np.testing.assert_allclose(fields[simulation, 9], heat(24, 10, values)[-1], rtol=1e-12)


STUDY = {
    "study.simulations": 3,
    "study.fields": {"temperature": [4, 3]},
    "checkpoint.record": True,
    "checkpoint.every_batches": 2,
    "server.ranks": 1,
    "simulation.retries": 3,
    "training.batch_size": 3,
    "buffer.watermark": 3,
}


@pytest.mark.parametrize("engine", ["SST", pytest.param("BP5", marks=pytest.mark.full)])
def test_kills_of_writer_adapter_and_server_cost_no_sample_and_send_none_twice(tmp_path: Path, engine: str) -> None:
    for name in ("heat-openpmd", "heat-numpy"):
        shutil.copytree(CONFIGS / name, tmp_path / name, ignore=LEFT_BY_WORK)
    stream = "out.sst" if engine == "SST" else "out.bp"
    words = ["stream-adios", stream, "--field", "temperature=u", "--"]
    program = ["python", str(WRITER), stream, engine, "10", "{initial}", "pause=0.4"]
    if engine == "SST":
        program += ["QueueLimit=2", "QueueFullPolicy=Block"]
    settings = STUDY | {"simulation.command": [*words, *program]}
    study = tmp_path / "heat-openpmd" / "study.json"
    with start_study(study, tmp_path / "run", program="stream-launcher", mpi=None, settings=settings) as live:
        _kill(live, lambda words: words[1:2] == [str(WRITER)])
        _kill(live, lambda words: any(it.endswith("stream-adios") for it in words[:6]))
        live.wait_until(lambda: list((live.output_dir / "checkpoints").glob("0*")), LIMIT_S)
        live.ranks[0].kill()
        done = live.end(200)
    assert done.exit_code == 0, done.output
    assert done.report["balanced"] is True
    assert done.report["restarts"] == 1
    assert done.report["simulations"]["finished"] == 4
    assert sum(num > 1 for num in done.attempts.values()) >= 1
    fields, parameters = recorded(done)
    assert fields.keys() == {(simulation, step) for simulation in range(4) for step in range(10)}
    for (simulation, step), values in fields.items():
        np.testing.assert_array_equal(values, field(step, parameters[simulation][0]))


def _kill(live: LiveRun, is_meant: Any) -> None:
    """Kill a process of which this is so, once its simulation has sent something."""

    def find() -> psutil.Process | None:
        for process in live.processes():
            try:
                log = Path(process.cwd()) / "output.log"
                if is_meant(process.cmdline()) and log.exists() and "field temperature is u" in log.read_text():
                    return process
            except (psutil.Error, OSError):
                continue
        return None

    found: list[psutil.Process] = []
    live.wait_until(lambda: found or ((it := find()) and found.append(it)) or found, LIMIT_S)
    os.kill(found[0].pid, signal.SIGKILL)
