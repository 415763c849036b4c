"""The command `stream-study`, as its users meet it."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped]
import pytest

from stream_server.commands.cli import main
from stream_server.extras import EXTRAS
from tests.analysis.conftest import fonts  # noqa: F401
from tests.analysis.logged_run import log_run


@pytest.mark.slow
def test_export_writes_the_table_and_says_how_long_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_run(tmp_path / "heat")
    assert main(["export", str(tmp_path / "heat"), "--to", str(tmp_path / "m.csv")]) == 0
    num_rows = len(pd.read_csv(tmp_path / "m.csv"))
    assert capsys.readouterr().out == f"{tmp_path / 'm.csv'}: {num_rows:,} rows\n"


def test_export_can_be_wide_and_of_single_ranks(tmp_path: Path) -> None:
    log_run(tmp_path / "heat")
    assert main(["export", str(tmp_path / "heat"), "--to", str(tmp_path / "m.csv"), "--wide", "--per-rank"]) == 0
    assert {"rank", "train/loss"} < set(pd.read_csv(tmp_path / "m.csv").columns)


@pytest.mark.slow
def test_plot_puts_its_pictures_into_the_run_unless_told_otherwise(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log_run(tmp_path / "heat", range(10, 30, 10))
    assert main(["plot", str(tmp_path / "heat")]) == 0
    files = sorted((tmp_path / "heat" / "plots").iterdir())
    assert sorted(capsys.readouterr().out.split()) == [str(file) for file in files]
    assert main(["plot", str(tmp_path / "heat"), "--to", str(tmp_path / "paper"), "--format", "svg"]) == 0
    assert (tmp_path / "paper" / "loss.svg").exists()


@pytest.mark.parametrize(
    "arguments", [[], ["export", "runs/heat"], ["plot"], ["plot", "runs/heat", "--format", "gif"], ["forget"]]
)
def test_a_wrong_command_line_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert left.value.code == 2
    assert "usage: stream-study" in capsys.readouterr().err


def test_no_such_run_ends_with_2_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plot", str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.startswith("stream-study: there is no ")


def test_the_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--help"])
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "stream-study export runs/heat --to metrics.parquet" in shown
    assert "stream-study plot runs/heat" in shown


@pytest.fixture
def hide(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Lets packages seem not to be installed; ours that may want them are imported anew, and for this test alone."""

    def of_ours() -> list[str]:
        return [
            name for name in sys.modules if name.startswith(("stream_server.analysis.", "stream_server.dashboard."))
        ]

    def hide(*missing: str) -> None:
        for name in [*of_ours(), *(name for name in sys.modules if name.partition(".")[0] in missing)]:
            monkeypatch.delitem(sys.modules, name)

        class Missing:
            def find_spec(self, name: str, path: object = None, target: object = None) -> None:
                if (top := name.partition(".")[0]) in missing:
                    raise ModuleNotFoundError(f"No module named {top!r}", name=top)

        monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])

    before = {name: sys.modules[name] for name in of_ours()}
    yield hide
    for name in of_ours():
        del sys.modules[name]
        package, _, module = name.rpartition(".")
        vars(sys.modules[package]).pop(module, None)
    for name, module_before in before.items():
        package, _, module = name.rpartition(".")
        sys.modules[name] = module_before
        setattr(sys.modules[package], module, module_before)


@pytest.mark.parametrize("missing", ["matplotlib", "pyarrow"])
def test_without_the_extra_it_says_what_to_install(
    missing: str, tmp_path: Path, hide: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    log_run(tmp_path / "heat")
    hide(missing)
    command = ["plot", str(tmp_path / "heat")]
    if missing != "matplotlib":
        command = ["export", str(tmp_path / "heat"), "--to", str(tmp_path / "m.parquet")]
    assert main(command) == 2
    needed_by = "plot" if missing == "matplotlib" else "a Parquet file"
    assert capsys.readouterr().err == (
        f"stream-study: {needed_by} needs {missing}, which is not installed: pip install '.[analysis]' in the folder "
        "of Stream Server, or with its wheel in the place of the dot\n"
    )


def test_without_bokeh_serve_says_what_to_install(
    hide: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    hide("bokeh")
    assert main(["serve"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("stream-study: serve needs bokeh, which is not installed: pip install '.[dashboard]' ")


def test_a_page_takes_no_folder_and_no_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log_run(tmp_path / "heat")
    page = tmp_path / "heat.html"
    for option in (["--to", str(tmp_path)], ["--format", "svg"]):
        assert main(["plot", str(tmp_path / "heat"), "--html", str(page), *option]) == 2
        assert "leave out --to and --format" in capsys.readouterr().err
    assert not page.exists()


def test_serve_shows_the_runs_below_a_folder_and_prints_the_link(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from stream_server.dashboard import serving

    def serve(folder: Path, port: int, tell: Callable[[str], None]) -> None:
        tell(f"http://localhost:{port}/{folder.name}")

    monkeypatch.setattr(serving, "serve", serve)
    assert main(["serve", str(tmp_path / "runs"), "--port", "5123"]) == 0
    assert capsys.readouterr().out == "http://localhost:5123/runs\n"


@pytest.mark.parametrize("arguments", [[], ["heat", "a", "b"], ["--blank", "a", "b"], ["--list", "heat"]])
def test_new_takes_an_example_and_a_folder_or_one_folder_or_nothing(arguments: list[str]) -> None:
    assert main(["new", *arguments]) == 2


@pytest.mark.parametrize("shape", ["--long", "--wide"])
def test_a_csv_file_needs_no_package_of_the_extra_and_no_pandas(
    shape: str, tmp_path: Path, hide: Callable[..., None]
) -> None:
    log_run(tmp_path / "heat")
    hide(*EXTRAS)
    assert main(["export", str(tmp_path / "heat"), "--to", str(tmp_path / "m.csv"), shape]) == 0


def test_it_reads_files_only() -> None:
    code = (
        "import sys; from stream_server.analysis import export, plot;"
        "from stream_server.commands import cli; cli.parser();"
        "print(*sorted({'torch', 'mpi4py', 'zmq', 'tensorboard', 'stream_server.server'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert loaded.stdout.strip() == ""
