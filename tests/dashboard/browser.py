"""A headless Chromium that looks at a page of ours, and asks it what it shows."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.service import Service

from tests.needs import need
from tests.support.timing import until

CHROMIUM = "/usr/bin/chromium"
DRIVER = "/usr/bin/chromedriver"
# On a busy machine a page may get nothing done for the 30 s after which the driver gives up by default, and the driver
# not answer for the 120 s after which its client does.
SCRIPT_S = 300.0
# One process for all pages, and nothing that looks for updates.
OPTIONS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--renderer-process-limit=1",
    "--disable-features=SpareRendererForSitePerProcess,IsolateOrigins,site-per-process",
    "--window-size=1500,1650",
    # What is drawn is a quarter of the pixels.
    "--force-device-scale-factor=0.5",
)
# Bokeh's elements are in shadows, which no selector looks into.
CLICK = """
const found = [];
const look = root => root.querySelectorAll('*').forEach(it => {
  if (it.tagName === 'BUTTON' && it.textContent.trim() === arguments[0] && it.offsetParent !== null) found.push(it);
  if (it.shadowRoot) look(it.shadowRoot);
});
look(document);
if (found.length === 1 && !found[0].disabled) found[0].click();
return found.length === 1 && !found[0].disabled;
"""
# Models that were removed stay in the list until Bokeh gets round to it: the last one is that of now.
FIND = """
const known = Array.from(window.Bokeh?.documents[0]?._all_models.values() ?? []);
const model = known.filter(it => it.name === arguments[0]).at(-1)
"""


class Browser:
    """The page that is open now."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, link: str) -> None:
        """Open a link, and wait until the page is there."""
        self.driver.get(link)
        until(lambda: self.driver.execute_script("return !!(window.Bokeh && Bokeh.documents[0]?.is_idle)"))

    def text(self, name: str) -> str:
        """The HTML of one of the texts of the page."""
        return str(self._of_model(name, "model.text"))

    def columns(self, name: str) -> dict[str, list[Any]]:
        """The columns of a source, none if there is no such source."""
        found = self._of_model(
            name, "Object.fromEntries(Object.entries(model.data).map(([k, v]) => [k, Array.from(v)]))"
        )
        return found or {}

    def curve(self, label: str) -> dict[str, list[Any]]:
        """The points of the curve that the legend calls so, none if there is no such curve."""
        return self.columns(f"curve {label}")

    def choose(self, name: str, value: Any) -> None:
        """Set one of the choices, as whoever clicks on it does."""
        self._of_model(name, f"(model.value = {json.dumps(value)}, true)")

    def choices(self, name: str) -> list[str]:
        """What may be chosen there."""
        return list(self._of_model(name, "model.options") or [])

    def is_visible(self, name: str) -> bool:
        return bool(self._of_model(name, "model.visible"))

    def click(self, label: str) -> None:
        """Click on the button with this label as soon as it can be."""
        until(lambda: self.driver.execute_script(CLICK, label))

    def shows(self, name: str, words: str) -> None:
        """Wait until a text has these words."""
        until(lambda: words in self.text(name), told=lambda: self.text(name))

    def wait_for(self, condition: Callable[[], Any]) -> None:
        """Wait until something is so on the page."""
        until(condition, look_s=0.1, told=lambda: self.text("status") + self.text("problems"))

    def fetched_from(self) -> set[str]:
        """The scheme and host of everything that the browser asked for since the last time, websockets too."""
        urls = set()
        for entry in self.driver.get_log("performance"):
            message = json.loads(entry["message"])["message"]
            if message["method"] == "Network.requestWillBeSent":
                urls.add(message["params"]["request"]["url"])
            elif message["method"] == "Network.webSocketCreated":
                urls.add(message["params"]["url"])
        return {"/".join(url.split("/")[:3]) for url in urls if url.startswith(("http", "ws"))}

    def complaints(self) -> list[str]:
        """What scripts of the page reported as errors since the last time."""
        return [it["message"] for it in self.driver.get_log("browser") if it["level"] == "SEVERE"]

    def _of_model(self, name: str, expression: str) -> Any:
        return self.driver.execute_script(f"{FIND}; return model && ({expression})", name)


@contextmanager
def chromium(profile: Path) -> Iterator[Browser]:
    """A browser with a profile of its own."""
    need("a browser")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for option in (*OPTIONS, f"--user-data-dir={profile}"):
        options.add_argument(option)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER, env={**os.environ, "TMPDIR": str(profile)}))
    driver.command_executor.client_config.timeout = SCRIPT_S
    driver.set_script_timeout(SCRIPT_S)
    try:
        yield Browser(driver)
    finally:
        driver.quit()
