"""The documentation as a site: it builds strictly, holds every page and needs no network to be read."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
# What a browser fetches by itself. A link that a reader follows may lead anywhere.
FETCHED = re.compile(r"<(?:script|img|iframe|source)\b[^>]*?\bsrc=[\"']?([^\"'\s>]+)|<link\b([^>]*)>")
FETCHING_RELATIONS = ("stylesheet", "icon", "preload", "preconnect", "dns-prefetch", "manifest")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, as `make docs` builds it; a link that leads nowhere or a page outside the nav fails the build."""
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        # Not --quiet: warnings that are not shown do not fail a strict build.
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "ignore"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


pytestmark = pytest.mark.slow


def fetched(html: str) -> list[str]:
    """The addresses that a page loads."""
    found = []
    for source, link in FETCHED.findall(html):
        address = re.search(r"\bhref=[\"']?([^\"'\s>]+)", link)
        if source:
            found.append(source)
        elif address and any(relation in link for relation in FETCHING_RELATIONS):
            found.append(address[1])
    return found


@pytest.mark.full
def test_every_page_of_the_repository_is_a_page_of_the_site(site: Path) -> None:
    pages = [*(ROOT / "docs").rglob("*.md")]
    expected = {site / path.relative_to(ROOT / "docs").with_suffix(".html") for path in pages}
    expected |= {site / "index.html", site / "DESIGN.html", site / "configs" / "heat" / "index.html"}
    assert {path for path in expected if not path.is_file()} == set()


def test_no_page_loads_anything_from_the_network(site: Path) -> None:
    styles = "\n".join(path.read_text() for path in site.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//[^\"')]*", styles) == []
    for page in site.rglob("*.html"):
        addresses = fetched(page.read_text())
        assert addresses, page
        assert [it for it in addresses if re.match(r"(?:https?:)?//", it)] == [], page


def test_a_page_shows_the_files_of_an_example(site: Path) -> None:
    text = re.sub(r"<[^>]+>", "", (site / "configs" / "lorenz" / "index.html").read_text())
    assert "class LorenzServer(TorchServer):" in text
