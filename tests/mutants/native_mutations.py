"""Small changes to a source in C or Fortran that a test should notice, found in its words.

Comments, texts and lines for the preprocessor are left alone; so are array bounds.
"""

import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

from tests.mutants.mutations import Mutant, _short

ROOM = "native"


@dataclass(frozen=True, kw_only=True, slots=True)
class Language:
    """The parts of a language that no mutant changes, the changes of its words, and the form of a function."""

    passed_over: re.Pattern[str]
    word: re.Pattern[str]
    opposites: dict[str, str]
    function: re.Pattern[str]
    nothing: str


C = Language(
    passed_over=re.compile(
        r"/\*.*?\*/|//[^\n]*|\"(?:\\.|[^\"\\])*\"|'(?:\\.|[^'\\])*'|^\s*#(?:\\\n|[^\n])*", re.DOTALL | re.MULTILINE
    ),
    word=re.compile(
        r"(?P<opposite>==|!=|(?<![<-])<=|(?<![>-])>=|\+=|-=|&&|\|\||\+\+|--|(?<= )[<>](?= )|\btrue\b|\bfalse\b)"
        r"|(?P<sum>(?<= )[+*-](?= ))"
        r"|(?P<number>(?<![\w.\[])\d+(?![\w.]))"
        r"|(?P<negation>!(?=[\w(]))"
        r"|(?P<condition>\bif \()"
        r"|(?P<result>\breturn [^;]+;)"
        r"|(?P<statement>^ +(?:\*?[a-z_][\w.>\[\]-]*(?:\[[^\]\n]*\])? [+|-]?= [^;{}]*|[a-z_]\w*\([^;{}]*\)"
        r"|(?:\+\+|--)[^;]*);$)",
        re.MULTILINE,
    ),
    opposites={
        "==": "!=",
        "!=": "==",
        "<=": "<",
        ">=": ">",
        "<": "<=",
        ">": ">=",
        "&&": "||",
        "||": "&&",
        "+=": "-=",
        "-=": "+=",
        "++": "--",
        "--": "++",
        "true": "false",
        "false": "true",
    },
    function=re.compile(r"^[a-z][^;=\n]*?\b(\w+)\((?![^{]*;)", re.MULTILINE),
    nothing=";",
)
FORTRAN = Language(
    passed_over=re.compile(
        r"'[^'\n]*'|\"[^\"\n]*\"|![^\n]*|^ *(?:use|integer|real|character|type|logical|import)\b[^\n]*", re.MULTILINE
    ),
    word=re.compile(
        r"(?P<opposite>==|/=|<=|>=|\.and\.|\.or\.|\.true\.|\.false\.|(?<= )[<>](?= ))"
        r"|(?P<sum>(?<= )[+*-](?= ))"
        r"|(?P<number>(?<![\w.%])\d+(?![\w.]))"
        r"|(?P<statement>^ +(?:call \w+\([^\n&]*\)|\w[\w%()]* = [^\n&]*)$)",
        re.MULTILINE,
    ),
    opposites={
        "==": "/=",
        "/=": "==",
        "<=": "<",
        ">=": ">",
        "<": "<=",
        ">": ">=",
        ".and.": ".or.",
        ".or.": ".and.",
        ".true.": ".false.",
        ".false.": ".true.",
    },
    function=re.compile(r"^ +(?:[a-z(),0-9= ]* )?(?:subroutine|function) (\w+)\(", re.MULTILINE),
    nothing="",
)
_SUMS = {"+": "-", "-": "+", "*": "+"}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    kind: str
    begin: int
    before: str
    after: str


def sample(file: Path, number: int, seed: int, is_another: Callable[[Mutant], bool]) -> list[Mutant]:
    """So many mutants of a source, of each kind of change as many as of another, and only those that `is_another`."""
    draws = random.Random(f"{seed} {file.name}")
    by_kind: dict[str, list[Mutant]] = defaultdict(list)
    for kind, mutant in mutants(file):
        by_kind[kind].append(mutant)
    kinds = sorted(by_kind)
    for kind in kinds:
        draws.shuffle(by_kind[kind])
    draws.shuffle(kinds)
    drawn: list[Mutant] = []
    for kind in cycle(kinds):
        if len(drawn) == number or not any(by_kind.values()):
            break
        if by_kind[kind] and is_another(mutant := by_kind[kind].pop()):
            drawn.append(mutant)
    return drawn


def mutants(file: Path) -> Iterator[tuple[str, Mutant]]:
    """All mutants of a source, each with the kind of its change."""
    language = FORTRAN if file.suffix == ".f90" else C
    source = file.read_text()
    blanked = _blanked(source, language)
    seen: Counter[str] = Counter()
    for it in _changes(source, blanked, language):
        end = it.begin + len(it.before)
        functions = [found[1] for found in language.function.finditer(blanked, 0, it.begin)]
        name = f"{ROOM}.{file.stem}:{functions[-1] if functions else ''}: {_short(it.before)} -> {_short(it.after)}"
        seen[name] += 1
        name += f" #{seen[name]}" if seen[name] > 1 else ""
        yield (
            it.kind,
            Mutant(
                room=ROOM,
                name=name,
                file=file,
                line=source.count("\n", 0, it.begin) + 1,
                last_line=source.count("\n", 0, end) + 1,
                text=source[: it.begin] + it.after + source[end:],
            ),
        )


def functions(file: Path) -> set[str]:
    """The names of the functions of a source, as they stand in the names of mutants."""
    language = FORTRAN if file.suffix == ".f90" else C
    return {it[1] for it in language.function.finditer(_blanked(file.read_text(), language))}


def _blanked(source: str, language: Language) -> str:
    return language.passed_over.sub(lambda it: re.sub(r"[^\n]", "\0", it[0]), source)


def _changes(source: str, blanked: str, language: Language) -> Iterator[_Change]:
    at = 0
    while found := language.word.search(blanked, at):
        kind, begin, before = str(found.lastgroup), found.start(), source[found.start() : found.end()]
        at = found.end()
        match kind:
            case "condition":
                closed = _closed(blanked, at)
                before, after = source[begin : closed + 1], f"if (!({source[at:closed]}))"
            case "result":
                at = begin + len("return ")
                after = "return -1;" if before in ("return STREAM_OK;", "return 0;") else "return 0;"
                if before in ("return false;", "return NULL;"):
                    continue
            case "statement":
                indent = len(before) - len(before.lstrip())
                begin, before, after = begin + indent, before[indent:], language.nothing
                at = begin + 1
            case "number":
                after = str(int(before) + 1)
            case "sum":
                after = _SUMS[before]
            case "negation":
                after = ""
            case _:
                after = language.opposites[before]
        yield _Change(kind=kind, begin=begin, before=before, after=after)


def _closed(text: str, at: int) -> int:
    """The place of the bracket that closes the one before `at`."""
    depth = 1
    while depth:
        depth += {"(": 1, ")": -1}.get(text[at], 0)
        at += 1
    return at - 1
