"""Links and paths in the documentation lead to something that is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "configs").glob("*/*.md")])
# What a release changed stays as it was said then.
LIVING = [page for page in PAGES if page.name != "CHANGELOG.md"]
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)\s]*))?\)")
PATH = re.compile(r"`((?:stream_server|tests|docs|configs|benchmarks)/[\w./-]+\.\w+)")
# Made at run time, or by a user.
NOT_OURS = re.compile(r"\.(?:jsonl?|csv|txt)$")


def named(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and most renderers make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_each_link_leads_to_a_file_and_to_a_heading_in_it(page: Path) -> None:
    broken = []
    for target, anchor in LINK.findall(page.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        found = (page.parent / target).resolve() if target else page
        if not found.exists() or (anchor and anchor not in anchors(found)):
            broken.append(f"{target}#{anchor}")
    assert broken == []


@pytest.mark.parametrize("page", LIVING, ids=named)
def test_each_path_that_is_named_is_there(page: Path) -> None:
    missing = {
        path for path in PATH.findall(page.read_text()) if not NOT_OURS.search(path) and not (ROOT / path).exists()
    }
    assert missing == set()


def test_the_index_of_the_documentation_names_every_page() -> None:
    index = ROOT / "docs" / "pages.md"
    linked = {(index.parent / target).resolve() for target, _ in LINK.findall(index.read_text())} | {index}
    # DESIGN.md links the decisions.
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent.name != "decisions"]
    assert {named(page) for page in pages if page.resolve() not in linked} == set()
