"""`stream-study serve` as a browser shows it: one server and one Chromium for all of these tests."""

import http.client
import http.server
import json
import re
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import pytest

from stream_server.commands.cli import main
from stream_server.machine.study_lock import RUN_LOCK, SERVER_LOCK, StudyLock
from stream_server.messages.launcher_link import Failed
from tests.analysis.logged_run import log_run
from tests.dashboard.browser import Browser, chromium
from tests.dashboard.made_runs import add_attempts, add_to_journal, make_run
from tests.server.training.validation.test_validation_record import Doubling, record, samples
from tests.study.ends.test_signals import ENDLESS
from tests.support.runs import NUMPY_STUDY, start_study
from tests.support.timing import until

# A browser that gets a tenth of a core draws nothing for minutes.
pytestmark = [pytest.mark.slow, pytest.mark.quiet]
LIMIT_S = 60.0
NUM_MANY = 2000
# As if the page had escaped nothing.
PLANT_SCRIPT = """
const planted = document.createElement("div");
planted.innerHTML = "<img src='data:,' onerror='window.taken=1'><img src=http://127.0.0.2:1/x>";
document.body.append(planted);
const script = document.createElement("script");
script.textContent = "window.taken=2";
document.body.append(script);
planted.remove();
script.remove();
"""


# A service worker: the browser asks it, as long as it knows it, for all that is at the host and port of its server.
WORKER = b"""
self.addEventListener("fetch", it => it.respondWith(new Response("<title>taken</title>" + it.request.url,
                                                                 {headers: {"Content-Type": "text/html"}})));
"""
REGISTERS = b"""<script>
navigator.serviceWorker.register("/worker.js").then(() => navigator.serviceWorker.ready)
  .then(() => { document.title = "left" });
</script>"""


class Leaves(http.server.BaseHTTPRequestHandler):
    """Leaves a service worker in the browser of whoever comes."""

    def do_GET(self) -> None:
        is_worker = self.path == "/worker.js"
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if is_worker else "text/html")
        self.end_headers()
        self.wfile.write(WORKER if is_worker else REGISTERS)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@contextmanager
def served(folder: Path, port: int = 0) -> Iterator[str]:
    """`stream-study serve FOLDER`, on a free port or a given one; gives the link that it prints."""
    command = [sys.executable, "-m", "stream_server.commands.cli", "serve", str(folder), "--port", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(LIMIT_S) == 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("served")


@pytest.fixture(scope="module")
def link(folder: Path) -> Iterator[str]:
    with served(folder) as link:
        yield link


@pytest.fixture(scope="module")
def opened(link: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with chromium(tmp_path_factory.mktemp("profile")) as browser:
        browser.open(link)
        yield browser


@pytest.fixture
def browser(opened: Browser, folder: Path) -> Iterator[Browser]:
    """The page over a folder in which there is nothing yet, and will be nothing after the test."""
    yield opened
    assert opened.complaints() == []
    for run in folder.iterdir():
        shutil.rmtree(run)
    opened.wait_for(lambda: opened.is_visible("hint"))


def by_address(link: str) -> str:
    """The link for a program that does not know of names below localhost, as browsers do."""
    return re.sub("//[^:]+", "//127.0.0.1", link)


def answer_to(link: str, path: str, headers: dict[str, str]) -> int:
    """The status of the answer to one request."""
    connection = http.client.HTTPConnection(urlsplit(by_address(link)).netloc, timeout=LIMIT_S)
    try:
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_an_empty_folder_says_what_to_do_and_a_run_that_comes_is_shown(browser: Browser, folder: Path) -> None:
    browser.shows("hint", "stream-study new heat my-study")
    make_run(folder / "heat")
    browser.wait_for(lambda: browser.curve("train/loss").get("x") == [10, 20, 30, 40, 50])
    assert browser.curve("val/loss")["y"] == [0.1, 0.05]
    assert browser.curve("trained, with repeats")["y"] == [100.0] * 5
    assert browser.curve("in the buffer")["y"] == [50.0] * 5
    assert set(browser.columns("ranks")["phase"]) == {"step", "wait for data"}
    assert browser.columns("timeline")["simulation"] == [0, 1, 2, 3, 4, 4, 5]
    assert browser.columns("timeline")["state"].count("failed") == 1
    assert len(browser.columns("space")["x"]) == 6
    record(folder / "heat", Doubling(), samples(4))
    browser.wait_for(lambda: browser.is_visible("sample"))
    browser.shows("predictions", "after batch 10")
    browser.wait_for(lambda: browser.columns("picture Prediction")["dw"] == [2])
    browser.wait_for(lambda: browser.columns("space")["error"].count(None) == 4)
    assert browser.columns("picture Truth")["image"] == [[1, 2, 3, 4]]
    browser.choose("sample", browser.choices("sample")[-1])
    browser.wait_for(lambda: browser.columns("picture Truth")["image"] == [[13, 14, 15, 16]])
    by_state = browser.columns("space")["colour"]
    browser.choose("colour", "error")
    browser.wait_for(lambda: browser.columns("space")["colour"] != by_state)
    browser.shows("status", "killed")
    browser.shows("log_text", "rank 0 &lt;b&gt;begins")
    browser.choose("log", "a simulation")
    browser.choose("simulation", 4)
    browser.shows("log_text", "simulation 4, attempt 1")


@pytest.mark.full
def test_the_page_says_that_it_loads_until_it_has(browser: Browser, link: str) -> None:
    jar = urllib.request.HTTPCookieProcessor()
    with urllib.request.build_opener(urllib.request.ProxyHandler({}), jar).open(by_address(link), timeout=120) as page:
        assert "Stream Study is loading" in page.read().decode()
    assert browser.driver.find_elements("css selector", "[data-root-id]:empty") == []


def test_who_comes_without_the_token_reads_what_to_open(link: str) -> None:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with pytest.raises(urllib.error.HTTPError, match="Open the link that stream-study serve printed"):
        opener.open(by_address(link).partition("?")[0], timeout=120)


def test_nothing_is_fetched_from_anywhere_else_and_the_token_leaves_the_address(browser: Browser, link: str) -> None:
    own = urlsplit(link)
    assert browser.driver.current_url == f"http://{own.netloc}{own.path}"
    assert browser.fetched_from() == {f"http://{own.netloc}", f"ws://{own.netloc}"}


def test_the_cookie_is_for_this_page_alone(browser: Browser, link: str) -> None:
    """Of another server of the same host, at another port, a browser asks other paths."""
    (cookie,) = browser.driver.get_cookies()
    assert cookie["path"] == urlsplit(link).path != "/"
    assert cookie["httpOnly"]


def test_what_another_server_has_left_in_the_browser_does_not_get_the_page(
    browser: Browser, link: str, folder: Path
) -> None:
    """Before us, another user had the port that we have now, and the browser was there once."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Leaves) as stranger:
        port = stranger.server_port
        answers = Thread(target=stranger.serve_forever, args=(0.1,))
        answers.start()
        try:
            browser.driver.get(f"http://127.0.0.1:{port}/")
            until(lambda: browser.driver.title == "left")
        finally:
            stranger.shutdown()
            answers.join()
    with served(folder, port) as second:
        browser.driver.get(second)
        assert browser.driver.title.startswith("Stream Study")
        browser.open(link)


def test_no_script_runs_that_is_not_of_this_server_and_none_is_loaded_from_another(browser: Browser) -> None:
    browser.driver.execute_script(PLANT_SCRIPT)
    told: list[str] = []

    def are_told() -> bool:
        told.extend(browser.complaints())
        return sum("Content Security Policy" in it for it in told) == 3

    until(are_told)
    assert browser.driver.execute_script("return window.taken ?? 0") == 0


@pytest.mark.parametrize("path", ["", "?token=wrong", "ws", "autoload.js", "metadata", "static/js/bokeh.min.js"])
def test_without_the_token_there_is_nothing_but_403(link: str, path: str) -> None:
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a"}
    for place in ("/", urlsplit(link).path):
        assert answer_to(link, place + path, upgrade if path == "ws" else {}) == 403


def test_with_the_token_a_websocket_of_another_page_gets_403(browser: Browser, link: str) -> None:
    own = urlsplit(by_address(link))
    upgrade = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "a"}
    (known,) = browser.driver.get_cookies()
    cookie = {"Cookie": f"{known['name']}={known['value']}"}
    assert answer_to(link, own.path, cookie) == 200
    assert answer_to(link, f"{own.path}ws", upgrade | cookie | {"Origin": f"http://{own.netloc}"}) == 101
    assert answer_to(link, f"{own.path}ws", upgrade | cookie | {"Origin": "http://127.0.0.1:1"}) == 403


def test_it_follows_a_run_over_a_restart_of_its_server_that_takes_back_batches(browser: Browser, folder: Path) -> None:
    run = make_run(folder / "heat", num_running=1)
    with StudyLock(run / RUN_LOCK, "stream-launcher"):
        browser.wait_for(lambda: browser.curve("train/loss").get("x") == [10, 20, 30, 40, 50])
        browser.shows("status", "starting")
        assert browser.columns("timeline")["state"][-1] == "running"
        width = browser.columns("timeline")["right"][-1]
        with StudyLock(run / SERVER_LOCK, "stream-server"):
            browser.shows("status", "running")
            log_run(run, range(40, 80, 10), after=30)
            add_attempts(run, 6, is_running=False)
            browser.wait_for(lambda: browser.curve("train/loss")["x"] == [10, 20, 30, 40, 50, 60, 70])
            browser.wait_for(lambda: browser.columns("timeline")["simulation"][-1] == 6)
        assert browser.columns("timeline")["right"][-2] > width
    browser.wait_for(lambda: "running" not in browser.columns("timeline")["state"])
    browser.shows("status", "killed")


@pytest.mark.full
def test_runs_are_compared_and_a_damaged_one_says_so(browser: Browser, folder: Path) -> None:
    make_run(folder / "a" / "heat")
    damaged = make_run(folder / "b")
    with (damaged / "metrics" / "metrics.jsonl").open("a") as file:
        file.write("gibberish\n")
    (damaged / "report.json").write_text("{")
    browser.choose("run", "b")
    browser.shows("problems", "metrics.jsonl is damaged")
    browser.shows("problems", "report.json is damaged")
    browser.choose("compared", ["a/heat"])
    browser.wait_for(lambda: browser.curve("a/heat: train/loss").get("x") == [10, 20, 30, 40, 50])
    browser.choose("compared", [])


@pytest.mark.full
def test_two_thousand_simulations_are_shown_and_followed(browser: Browser, folder: Path) -> None:
    run = make_run(folder / "many", num_simulations=NUM_MANY, num_running=8)
    with StudyLock(run / RUN_LOCK, "stream-launcher"):
        browser.wait_for(lambda: len(browser.columns("space").get("x", [])) == NUM_MANY)
        browser.wait_for(lambda: len(browser.columns("timeline")["state"]) == NUM_MANY * 6 // 5)
        browser.fetched_from()
        before = browser.columns("timeline")["right"][-1]
        browser.wait_for(lambda: browser.columns("timeline")["right"][-1] > before)


def test_its_stop_button_stops_a_study_once_it_is_confirmed(browser: Browser, folder: Path) -> None:
    (folder / "runs").mkdir()
    settings = ENDLESS | {"simulation.command": ["python", "endless.py", "0.1"]}
    with start_study(NUMPY_STUDY, folder / "runs" / "run", mpi=None, settings=settings) as live:
        browser.wait_for(lambda: len(browser.curve("received").get("y", [])) > 1)
        browser.wait_for(lambda: "running" in browser.columns("space")["state"])
        browser.click("Stop …")
        browser.shows("question", "runs/run")
        browser.click("No")
        browser.wait_for(lambda: not browser.is_visible("question"))
        browser.click("Stop …")
        browser.click("Yes")
        done = live.end()
        browser.shows("status", "stopped")
        browser.shows("account", "balanced")
    assert (done.exit_code, done.report["exit_reason"]) == (75, "saved")


def test_a_folder_that_is_not_there_and_a_port_in_use_are_named(
    link: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = re.findall(r":(\d+)/", link)[0]
    for arguments, words in ([str(tmp_path / "no")], "there is no folder"), ([str(tmp_path), "--port", port], port):
        assert main(["serve", *arguments]) == 2
        output, errors = capsys.readouterr()
        assert output == ""
        assert words in errors


# Neither a script of its own, nor one that MathJax would make of it.
HOSTILE = "<img src=x onerror='window.taken=1'><mark>$$\\href{javascript:window.taken=2}{\\rule{60em}{20em}}$$"
# Bokeh's elements are in shadows, which no selector looks into.
TAKEN_FOR_HTML = """
const found = [];
const look = root => root.querySelectorAll('*').forEach(it => {
  if (['IMG', 'MARK', 'A', 'MJX-CONTAINER'].includes(it.tagName.toUpperCase())) found.push(it.outerHTML);
  if (it.shadowRoot) look(it.shadowRoot);
});
look(document);
return [window.taken ?? 0, ...found];
"""


def make_hostile_run(folder: Path) -> None:
    """A run in which everything that has a name or a text has this one."""
    run = make_run(folder / HOSTILE)
    (run / "study.json").write_text(json.dumps({"study": {"name": HOSTILE}}))
    (run / "parameters.csv").write_text(f'simulation,"{HOSTILE}"\n0,0.5\n1,1.5\n')
    line = {"batch": 60, "update": 30, "sample": 600, "wall_s": 6.0}
    with (run / "metrics" / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(line | {f"val/{HOSTILE}/loss": 0.5}) + "\n")
    with (run / "metrics" / "rank-0.jsonl").open("a") as file:
        file.write(json.dumps(line | {f"time/{HOSTILE}": 0.5}) + "\n")
    (run / "logs" / f"server-{HOSTILE}.log").write_text(HOSTILE)
    (run / "simulations" / "0" / "attempt-0" / "output.log").write_text(HOSTILE)
    add_to_journal(run, [Failed(simulation=0, attempt=0, reason=HOSTILE)])
    record(run, Doubling(), samples(4), unit=HOSTILE)
    report = {
        "exit_code": 70,
        "message": HOSTILE,
        "simulations": {HOSTILE: 1},
        "samples": {"expected": 60, "windows": {HOSTILE: 1}},
        "unbalanced": [HOSTILE],
    }
    (run / "report.json").write_text(json.dumps(report))


def test_no_name_or_text_of_a_run_becomes_a_part_of_the_page(browser: Browser, folder: Path) -> None:
    make_run(folder / "heat")
    make_hostile_run(folder)
    browser.wait_for(lambda: HOSTILE in [name for name, _ in browser.choices("run")])
    browser.choose("run", HOSTILE)
    browser.choose("compared", ["heat"])
    browser.wait_for(lambda: browser.curve(f"{HOSTILE}: val/{HOSTILE}/loss").get("x"))
    browser.choose("compared", [])
    browser.wait_for(lambda: browser.curve(f"val/{HOSTILE}/loss").get("x"))
    browser.wait_for(lambda: browser.is_visible("sample"))
    browser.choose("log", f"server-{HOSTILE}")
    for text in ("status", "account", "log_text", "phases"):
        browser.shows(text, "&lt;mark&gt;")
    assert HOSTILE in browser.columns("timeline")["reason"]
    assert HOSTILE in browser.columns("ranks")["phase"]
    browser.choose("log", "a simulation")
    browser.choose("simulation", 0)
    browser.shows("log_text", "&lt;mark&gt;")
    assert browser.driver.execute_script(TAKEN_FOR_HTML) == [0]
    browser.choose("run", "heat")
    browser.choose("compared", [HOSTILE])
    browser.wait_for(lambda: browser.curve(f"{HOSTILE}: train/loss").get("x"))
    assert browser.driver.execute_script(TAKEN_FOR_HTML) == [0]
    browser.choose("compared", [])


@pytest.mark.full
def test_a_single_run_is_served_too(opened: Browser, tmp_path: Path) -> None:
    run = make_run(tmp_path / "alone")
    report = {
        "exit_code": 0,
        "exit_reason": "finished",
        "balanced": True,
        "samples": {"expected": 60, "rejected": {"late": 2}},
    }
    (run / "report.json").write_text(json.dumps(report))
    with served(run) as link:
        opened.open(link)
        until(lambda: opened.curve("train/loss").get("x") == [10, 20, 30, 40, 50])
        opened.shows("account", "<td>60</td>")
        opened.shows("account", "<td>2</td>")
