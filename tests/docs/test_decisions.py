"""The decisions are short, and linked at both ends: from DESIGN.md, and with the files that each explains."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DESIGN = ROOT / "DESIGN.md"
DECISIONS = sorted((ROOT / "docs" / "decisions").glob("*.md"))
SECTIONS = ["Context", "Options", "Measured", "Decision", "Files"]

every_decision = pytest.mark.parametrize("decision", DECISIONS, ids=lambda path: path.stem[:4])


def files_of(decision: Path) -> list[str]:
    return re.findall(r"^- `(.+)`$", decision.read_text().partition("\n## Files\n")[2], re.MULTILINE)


def test_design_is_a_map_of_25_kb() -> None:
    text = DESIGN.read_text()
    assert len(text.encode()) <= 25_000
    assert [line for line in text.splitlines() if len(line) > 120] == []


def test_decisions_are_numbered_once_each() -> None:
    numbers = [path.name[:4] for path in DECISIONS]
    assert numbers == [f"{number:04}" for number in range(1, len(DECISIONS) + 1)]


@every_decision
def test_a_decision_fits_on_a_screen_and_says_why(decision: Path) -> None:
    lines = decision.read_text().splitlines()
    assert len(lines) <= 60
    assert [line for line in lines if len(line) > 120] == []
    assert lines[0].startswith(f"# {decision.name[:4]}: ")
    headings = [line.removeprefix("## ") for line in lines if line.startswith("## ")]
    assert headings == [section for section in SECTIONS if section in headings]
    assert {"Context", "Decision", "Files"} <= set(headings)


@every_decision
def test_design_links_a_decision(decision: Path) -> None:
    assert f"](docs/decisions/{decision.name})" in DESIGN.read_text()


@every_decision
def test_a_decision_names_files_that_name_it(decision: Path) -> None:
    files = files_of(decision)
    assert files
    assert [file for file in files if not (ROOT / file).is_file()] == []
    assert [file for file in files if f"decisions/{decision.name}" not in (ROOT / file).read_text()] == []


def test_a_decision_that_is_named_in_the_code_is_there_and_names_the_file() -> None:
    sources = [path for kind in ("py", "c", "h", "f90") for path in (ROOT / "stream_server").rglob(f"*.{kind}")]
    assert sources
    for source in sources:
        for name in re.findall(r"docs/decisions/([\w.-]+)", source.read_text()):
            decision = ROOT / "docs" / "decisions" / name
            assert decision in DECISIONS, f"{source} names {name}"
            assert source.relative_to(ROOT).as_posix() in files_of(decision), f"{name} lacks {source}"
