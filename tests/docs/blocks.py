"""The code on the pages that users read: fenced blocks with their kind, and command lines wherever they are."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "guide").glob("*.md")),
    *sorted((ROOT / "docs" / "reference").glob("*.md")),
]
STUDIES = tuple(f"docs/guide/{name}.md" for name in ("coming-from", "first-study", "surrogates"))
HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
FENCE = re.compile(
    r"^(?:<!-- not (?P<excuse>checked|run): [^\n]+ -->\n)?```(?P<kind>\w*)\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
# A command of ours on a line of code, behind variables and mpirun, or within $(…).
COMMAND = re.compile(
    r"^(?:    |\s*\$ )?(?:\w+=\S+ )*(?:mpirun (?:-\w+ \S+ )*)?(?P<whole>stream-(?:server|launcher|study|follow)\b.*)$",
    re.M,
)
SUBSTITUTED = re.compile(r"\$\((stream-(?:server|launcher|study|follow) [^)]*)\)")
INLINE = re.compile(r"`(?:mpirun -n \S+ )?(stream-(?:server|launcher|study|follow) [^`]+)`")


@dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """A fenced block.

    `heading` is that of its section. `excuse`: "checked" or "run" if the page says above it why this cannot be done, in
    a comment such as `<!-- not run: it needs a study that has run -->`.
    """

    page: str
    heading: str
    line: int
    kind: str
    code: str
    excuse: str | None

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def blocks(*kinds: str) -> list[Block]:
    """The blocks of these kinds that are to be checked."""
    return [it for it in every_block() if it.kind in kinds and it.excuse != "checked"]


def every_block() -> Iterator[Block]:
    """Every fenced block of the pages."""
    for page in PAGES:
        text = page.read_text()
        for found in FENCE.finditer(text):
            yield Block(
                page=page.relative_to(ROOT).as_posix(),
                heading=next(reversed(HEADING.findall(text, 0, found.start())), ""),
                line=text.count("\n", 0, found.start("kind")) + 1,
                kind=found["kind"],
                code=found["code"],
                excuse=found["excuse"],
            )


def file_name(block: Block) -> str | None:
    """The name in the first line of a block, if it is a file."""
    found = re.match(r"# (\w+\.py)$", block.code, re.M)
    return found[1] if found else None


def files_by_section() -> dict[str, dict[str, str]]:
    """The files of each whole study on the pages of tutorials, by the heading that they stand under."""
    sections: dict[str, dict[str, str]] = {}
    for block in blocks("python", "json"):
        name = "study.json" if block.kind == "json" else file_name(block)
        if block.page in STUDIES and name:
            # A tutorial of one study has it under several headings.
            heading = block.page if block.page.endswith("first-study.md") else block.heading
            sections.setdefault(heading, {})[name] = block.code
    return {heading: files for heading, files in sections.items() if "simulation.py" in files}


def command_lines() -> list[tuple[str, list[str]]]:
    """Each command of ours that a reader may type, as words, with the page it is on."""
    found = []
    for page in PAGES:
        text = "\n".join([*(it["code"] for it in FENCE.finditer(page.read_text())), *_indented(page.read_text())])
        lines = [it["whole"] for it in COMMAND.finditer(text)] + SUBSTITUTED.findall(text)
        found += [(page.name, shlex.split(_typed(line), comments=True)) for line in lines]
    return found


def inline_commands() -> list[tuple[str, list[str]]]:
    """Each command of ours in a sentence, which may leave out what it needs, as words."""
    return [(page.name, it.split()) for page in PAGES for it in INLINE.findall(page.read_text())]


def _indented(text: str) -> list[str]:
    """The lines of indented blocks."""
    return [line for line in FENCE.sub("", text).splitlines() if line.startswith("    ")]


def _typed(line: str) -> str:
    """A command line without what the shell makes of it: a redirection, a second command."""
    return re.split(r" (?:&&|\||>|;) ?", line)[0]
