"""What a stranger, or a simulation, writes moves no cursor and forges no line."""

import json
import sys
from pathlib import Path

import pytest

from stream_server.commands.cli import main
from stream_server.machine.screen import escaped, in_one_line, print_escaped
from tests.support.runs import NUMPY_STUDY, assert_complete, run_study

EVIL = "\x1b]0;title\x07\x1b[2J\x9b31m\u202egnp.exe\u2028forged [red]line[/red]"


def is_plain(text: str) -> bool:
    return all(it.isprintable() or it in "\n\t" for it in text)


def test_all_that_a_terminal_or_a_reader_would_obey_is_written_out() -> None:
    assert escaped("\x1b[31m\u202e\x9b a\tb\r\nc") == "\\x1b[31m\\u202e\\x9b a\tb\nc"
    assert in_one_line("over\n2026-01-01 INFO all is well\tnow") == "over\\n2026-01-01 INFO all is well now"
    assert is_plain(escaped(EVIL))


def test_what_is_told_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    print_escaped(EVIL)
    print_escaped(EVIL, sys.stderr)
    out, err = capsys.readouterr()
    assert out == err == escaped(EVIL) + "\n"


SIMULATION = f"""
from stream_server.client_api import connect
EVIL = {EVIL!r}
simulation = connect()
print(EVIL, flush=True)
if simulation.id == 1:
    simulation.invalidate("bad\\n1 fake line " + EVIL)
elif simulation.id == 2:
    raise SystemExit(EVIL)
else:
    for step in range(20):
        simulation.send(step, signal=[float(step)] * 8)
simulation.finish()
"""


@pytest.mark.slow
def test_no_log_table_or_message_has_what_a_simulation_wrote_as_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "evil.py"
    program.write_text(SIMULATION)
    settings = {
        "study.simulations": 3,
        "validation.simulations": 0,
        "validation.every_batches": None,
        "simulation.command": [sys.executable, str(program)],
        "simulation.retries": 0,
        "simulation.max_failed": 100,
        "network.security": "none",
    }
    run = run_study(NUMPY_STUDY, tmp_path / "run", mpi=None, program="stream-launcher", settings=settings)
    assert run.exit_code == 0, run.output
    assert is_plain(run.output)
    for log in (run.output_dir / "logs").iterdir():
        assert is_plain(log.read_text()), log
    for words in (["simulations"], ["status"], ["logs", "0"], ["logs"]):
        assert main([words[0], str(run.output_dir), *words[1:]]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b[2J" in shown
    assert "[red]line[/red]" in shown
    assert is_plain(shown)
    assert not any(line.startswith("1 fake line") for line in shown.splitlines())
    report = json.loads((run.output_dir / "report.json").read_text())
    assert report["security"] == "none"
    assert report["warnings"][0].startswith("network.security is none: anybody who reaches the ports")
    assert run.output.count("network.security is none") >= 2, "at the start and in the summary"


@pytest.mark.slow
def test_a_study_with_keys_warns_of_nothing(tmp_path: Path) -> None:
    run = run_study(NUMPY_STUDY, tmp_path / "run", mpi=None, settings={"study.simulations": 1})
    assert_complete(run, num_simulations=1)
    assert run.report["security"] == "curve"
    assert "network.security" not in run.output
