"""The command line of `stream-server`, as far as it is read before any study."""

import json
import sys
from pathlib import Path

import pytest

from stream_server.server.commands.cli import main
from tests.support.runs import NUMPY_STUDY


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["study.json"], "unrecognized arguments: study.json: write --config study.json"),
        (["--config", "a.json", "b.json"], "unrecognized arguments: b.json"),
        (["--fesh"], "unrecognized arguments: --fesh"),
    ],
)
def test_what_the_command_line_does_not_know_is_told_with_what_was_meant(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert capsys.readouterr().err.endswith(f"stream-server: error: {told}\n")


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({}, "ripple → {}: starting 1 rank\n"),
        ({"PMI_RANK": "0", "PMI_SIZE": "2"}, "ripple → {}: starting 2 ranks\n"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, ""),
    ],
    ids=["alone", "rank 0", "rank 1"],
)
def test_rank_0_says_that_it_starts_before_anything_heavy_is_imported(
    environment: dict[str, str],
    told: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "stream_server.server.study.study", None)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    output_dir = tmp_path / "run"
    assert main(["--config", str(NUMPY_STUDY), "--set", f"study.output_dir={json.dumps(str(output_dir))}"]) == 70
    assert capsys.readouterr().err.partition("Traceback")[0] == told.format(output_dir)


@pytest.mark.parametrize(("rank", "num_lines"), [("0", 1), ("1", 0)])
def test_a_check_under_mpirun_is_told_once(
    rank: str, num_lines: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PMI_RANK", rank)
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setattr("stream_server.server.commands.check.describe", lambda *_: "facts")
    monkeypatch.setattr("stream_server.server.commands.check.require_start", lambda *_, fresh: [])
    assert main(["--config", str(NUMPY_STUDY), "--check"]) == 0
    assert capsys.readouterr().out == "facts\n" * num_lines


def test_an_evaluation_ends_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr("stream_server.server.commands.evaluate.evaluate", lambda _, path: asked.append(path) or 7)
    assert main(["--config", str(NUMPY_STUDY), "--evaluate", "runs/ripple"]) == 7
    assert asked == [Path("runs/ripple")]


def test_fresh_has_nothing_to_keep(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--config", str(NUMPY_STUDY), "--fresh", "--keep-saved"]) == 2
    assert "--fresh begins anew, with nothing saved: drop --keep-saved" in capsys.readouterr().err
