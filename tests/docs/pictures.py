"""Takes the pictures of the console and the page for docs/guide anew, from real runs: `python -m tests.docs.pictures`.

It runs the heat example twice, which takes some minutes, and needs Chromium and Pillow. Look at the pictures before you
keep them.
"""

import io
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from PIL import Image, ImageChops
from rich.console import Console
from rich.text import Text

import tests.support.in_terminal
from tests.dashboard.browser import Browser, chromium
from tests.support.runs import LEFT_BY_WORK

REPOSITORY = Path(__file__).parents[2]
PICTURES = REPOSITORY / "docs" / "guide" / "pictures"
COMMAND = ["mpirun", "-n", "2", "stream-server", "--config", "study.json"]
STUDY = [sys.executable, "-m", "stream_server.commands.cli"]
WIDTH = 100
NUM_VALIDATIONS = 4
LIMIT_S = 600.0
# A chart is drawn a moment after its numbers have come.
DRAWN_S = 3.0
BEGIN_OF_FRAME = re.compile(r"(?:\x1b\[2K|\x1b\[1A|\r)+")
FONT = re.compile(r"\s*@font-face \{.*?\}", re.DOTALL)
ANY_ID = re.compile(r"terminal-\d+")
WINDOW = (1125, 2800)
MARGIN = 16
COMPARED_HEIGHT = 515


def main() -> None:
    """Run the studies and take the pictures."""
    with tempfile.TemporaryDirectory(prefix="heat-") as place:
        folder = Path(place) / "my-heat"
        shutil.copytree(REPOSITORY / "configs" / "heat", folder, ignore=LEFT_BY_WORK)
        with running(folder, "heat", "study.simulations=40", "training.draws_per_sample=10") as study:
            (PICTURES / "console.svg").write_text(console_svg(output_of(study)))
        with running(folder, "more-draws", "training.draws_per_sample=40"), page_of(folder / "runs") as browser:
            take_page(browser)


@contextmanager
def running(folder: Path, name: str, *overrides: str) -> Iterator["subprocess.Popen[str]"]:
    """A study in a terminal; its output goes to a file, since a pipe that nobody reads would hold it up."""
    terminal = [sys.executable, str(Path(tests.support.in_terminal.__file__)), str(WIDTH), "40"]
    settings = [f"--set={it}" for it in (f"study.name={name}", *overrides)]
    with tempfile.TemporaryFile("w+") as output:
        study = subprocess.Popen([*terminal, *COMMAND, *settings], cwd=folder, stdout=output, text=True)
        study.stdout = output
        try:
            yield study
        finally:
            if study.poll() is None:
                subprocess.run([*STUDY, "stop", str(folder / "runs" / name)], check=True, timeout=LIMIT_S)
            study.wait(LIMIT_S)


def output_of(study: "subprocess.Popen[str]") -> str:
    """All that the study showed, once it has ended."""
    study.wait(LIMIT_S)
    assert study.stdout is not None
    study.stdout.seek(0)
    output = study.stdout.read()
    assert study.returncode == 0, output
    return output


def console_svg(output: str) -> str:
    """The live panel as it was on the way, and the summary, from the output of a study in a terminal."""
    frames = [Text.from_ansi(frame) for frame in BEGIN_OF_FRAME.split(output)]
    panels = [frame for frame in frames if " simulations " in frame.plain and " loss " in frame.plain]
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    # While simulations run, the panel tells what holds the study up.
    telling = [panel for panel in panels if " bottleneck " in panel.plain]
    console.print((telling or panels)[len(telling or panels) // 2])
    summary = frames[-1].plain
    console.print("\n[dim]… and at the end:[/dim]\n")
    console.print(Text.from_ansi(summary[summary.index("heat: ") :]))
    svg = console.export_svg(title=" ".join(COMMAND))
    # Its fonts would come from elsewhere, and its names would differ each time.
    return ANY_ID.sub("terminal", FONT.sub("", svg))


@contextmanager
def page_of(runs: Path) -> Iterator[Browser]:
    """`stream-study serve` over the runs, in a browser."""
    command = [*STUDY, "serve", runs.name, "--port", "0"]
    with ExitStack() as stack:
        profile = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        page = stack.enter_context(subprocess.Popen(command, cwd=runs.parent, stdout=subprocess.PIPE, text=True))
        stack.callback(page.terminate)
        assert page.stdout is not None
        browser = stack.enter_context(chromium(profile))
        browser.driver.set_window_size(*WINDOW)
        browser.open(page.stdout.readline().strip())
        yield browser


def take_page(browser: Browser) -> None:
    """The page over a study that runs, and the comparison with another one."""
    browser.choose("run", "more-draws")
    browser.wait_for(lambda: len(browser.curve("val/loss").get("y", [])) >= NUM_VALIDATIONS)
    shoot(browser, "dashboard.png")
    browser.choose("compared", ["heat"])
    browser.wait_for(lambda: browser.curve("heat: val/loss"))
    shoot(browser, "dashboard-compared.png", height=COMPARED_HEIGHT)


def shoot(browser: Browser, name: str, *, height: int | None = None) -> None:
    """The picture of the page, without the empty space below it."""
    time.sleep(DRAWN_S)
    path = PICTURES / name
    browser.driver.save_screenshot(str(path))
    with Image.open(path) as image:
        shown = image.convert("RGB")
    box = ImageChops.difference(shown, Image.new("RGB", shown.size, "white")).getbbox()
    assert box is not None
    bottom = min(box[3] + MARGIN, height or shown.height)
    shown.crop((0, 0, shown.width, bottom)).quantize(256).save(path, optimize=True)


if __name__ == "__main__":
    main()
