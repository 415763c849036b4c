"""`python -m tests.docs.pictures`: pictures of the console and the page for docs/guide, from real runs.

It runs the heat example twice, which takes some minutes, and needs Chromium and Pillow.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from PIL import Image, ImageChops
from rich.console import Console
from rich.text import Text

import tests.support.in_terminal
from tests.dashboard.browser import Browser, chromium

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "docs" / "guide" / "pictures"
WIDTH = 100
NUM_VALIDATIONS = 4
LIMIT_S = 600.0
BEGIN_OF_FRAME = re.compile(r"(?:\x1b\[2K|\x1b\[1A|\r)+")
FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
ANY_ID = re.compile(r"terminal-\d+")
WINDOW = (1125, 2400)


def main() -> None:
    """Run the studies and take the pictures."""
    with tempfile.TemporaryDirectory(prefix="heat-") as place:
        folder = Path(place) / "my-heat"
        shutil.copytree(REPOSITORY / "configs" / "heat", folder)
        _end(_start(folder, "wide", "study.simulations=90", "training.draws_per_sample=5"))
        study = _start(folder, "heat", "training.draws_per_sample=10")
        _take_page(folder)
        (PICTURES / "console.svg").write_text(console_svg(_end(study)))


def console_svg(output: str) -> str:
    """The live panel as it was halfway, and the summary, from the output of a study in a terminal."""
    frames = [Text.from_ansi(frame) for frame in BEGIN_OF_FRAME.split(output)]
    panels = [frame for frame in frames if " simulations " in frame.plain and " loss " in frame.plain]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(panels[len(panels) // 2])
    summary = frames[-1].plain
    console.print(Text.from_ansi(summary[summary.index("heat: ") :]))
    svg = console.export_svg(title="mpirun -n 2 stream-server --config study.json")
    # Its fonts would come from elsewhere, and its names would differ each time.
    return ANY_ID.sub("terminal", FONT.sub("", svg))


def _start(folder: Path, name: str, *overrides: str) -> "subprocess.Popen[str]":
    terminal = [sys.executable, str(Path(tests.support.in_terminal.__file__)), str(WIDTH), "40"]
    server = ["mpirun", "-n", "2", "stream-server", "--config", "study.json", "--set", f"study.name={name}"]
    for override in overrides:
        server += ["--set", override]
    return subprocess.Popen([*terminal, *server], cwd=folder, stdout=subprocess.PIPE, text=True)


def _end(study: "subprocess.Popen[str]") -> str:
    output, _ = study.communicate(timeout=LIMIT_S)
    assert study.returncode == 0, output
    return output


def _take_page(folder: Path) -> None:
    command = [sys.executable, "-m", "stream_server.commands.cli", "serve", "runs", "--port", "0"]
    with ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page = stack.enter_context(subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True))
        stack.callback(page.terminate)
        assert page.stdout is not None
        browser = stack.enter_context(chromium(profile))
        browser.driver.set_window_size(*WINDOW)
        browser.open(page.stdout.readline().strip())
        browser.choose("run", "heat")
        browser.wait_for(lambda: len(browser.curve("val/loss").get("y", [])) >= NUM_VALIDATIONS)
        _shoot(browser, "dashboard.png")
        browser.choose("compared", ["wide"])
        browser.wait_for(lambda: browser.curve("wide: val/loss"))
        _shoot(browser, "dashboard-compared.png", height=640)


def _shoot(browser: Browser, name: str, *, height: int | None = None) -> None:
    time.sleep(3.0)
    path = PICTURES / name
    browser.driver.save_screenshot(str(path))
    with Image.open(path) as image:
        shown = image.convert("RGB")
    box = ImageChops.difference(shown, Image.new("RGB", shown.size, "white")).getbbox()
    assert box is not None
    bottom = min(box[3] + 16, height or shown.height)
    shown.crop((0, 0, shown.width, bottom)).quantize(128).save(path, optimize=True)


if __name__ == "__main__":
    main()
