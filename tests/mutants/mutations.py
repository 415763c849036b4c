"""Small changes to a module that a test should notice, found in its syntax tree.

What people read is left alone: docstrings, log lines, the words of errors and `__repr__`; so are annotations, asserts,
failpoints and decorators.
"""

import ast
import copy
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
TOLD = {"__repr__", "__str__"}
# The first name of a call whose arguments are words for people, or that is there for tests only.
WORDS = {"log", "logger", "logging", "warnings", "warn", "failpoints", "reached", "TypeVar", "cast", "field"}
TEXT = (ast.JoinedStr, ast.List, ast.Tuple)
_NOTHING = "pass"
_SHOWN = 60


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """A file with one change: `before` becomes `after` on `line`, in the function or class `place`.

    `text` is the whole file with the change. `name` stays the same while the lines around the change move.
    """

    room: str
    name: str
    file: Path
    line: int
    last_line: int
    text: str


@dataclass(frozen=True, kw_only=True, slots=True)
class _Change:
    node: ast.expr | ast.stmt
    after: str
    place: str


def mutants(file: Path, *, room: str, module: str) -> list[Mutant]:
    """All mutants of a module of Python."""
    source = file.read_text()
    starts = [0]
    data = source.encode()
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    seen: Counter[str] = Counter()
    made = []
    for change in _changes(ast.parse(source), ""):
        node = change.node
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        begin, end = starts[node.lineno - 1] + node.col_offset, starts[node.end_lineno - 1] + node.end_col_offset
        text = (data[:begin] + change.after.encode() + data[end:]).decode()
        name = f"{module}:{change.place}: {_short(ast.unparse(node))} -> {_short(change.after)}"
        seen[name] += 1
        name += f" #{seen[name]}" if seen[name] > 1 else ""
        made.append(Mutant(room=room, name=name, file=file, line=node.lineno, last_line=node.end_lineno, text=text))
    return made


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else line[: _SHOWN - 2] + " …"


def _changes(node: ast.AST, place: str) -> Iterator[_Change]:
    """The changes within a node, in the order of the source."""
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            if node.name in TOLD or _is_protocol(node):
                return
            place = f"{place}.{node.name}".lstrip(".")
        case (
            ast.If(test=ast.Name(id="TYPE_CHECKING")) | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom()
        ):
            return
        case ast.Assign(targets=[ast.Name(id=name)]) if name.startswith("__"):
            return
        case ast.Raise():
            yield _Change(node=node, after=_NOTHING, place=place)
            return
        case ast.Call() if _first_name(node.func) in WORDS:
            return
    yield from _changes_of(node, place)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "type_params", "bases"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _changes(child, place)


def _changes_of(node: ast.AST, place: str) -> Iterator[_Change]:
    """The changes of a node itself."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            yield _with(node, place, ops=[COMPARISONS[type(op)]()])
        case ast.BinOp(op=ast.Add()) if not (_is_text(node.left) or _is_text(node.right)):
            yield _with(node, place, op=ast.Sub())
        case ast.BinOp(op=ast.Sub()):
            yield _with(node, place, op=ast.Add())
        case ast.BinOp(op=ast.Mult()) if not (_is_text(node.left) or _is_text(node.right)):
            yield _with(node, place, op=ast.FloorDiv())
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            yield _Change(node=node, after=repr(value + 1), place=place)
        case ast.BoolOp():
            yield _with(node, place, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not()):
            yield _Change(node=node, after=f"({ast.unparse(node.operand)})", place=place)
        case ast.Return(value=ast.expr() as value) if not (isinstance(value, ast.Constant) and value.value is None):
            yield _Change(node=node, after="return None", place=place)
        case ast.If() | ast.IfExp():
            yield _Change(node=node.test, after="True", place=place)
            yield _Change(node=node.test, after="False", place=place)
        case ast.comprehension(ifs=[test, *_]):
            yield _Change(node=test, after="True", place=place)
        case ast.While():
            yield _Change(node=node.test, after="False", place=place)
        case ast.Expr(value=ast.Call() as call) if _first_name(call.func) not in WORDS:
            yield _Change(node=node, after=_NOTHING, place=place)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]) | ast.AugAssign() | ast.Delete():
            yield _Change(node=node, after=_NOTHING, place=place)
        case ast.ExceptHandler(type=ast.expr() as caught):
            yield _Change(node=caught, after="ZeroDivisionError", place=place)


def _with(node: ast.expr, place: str, **changed: object) -> _Change:
    other = copy.copy(node)
    for name, value in changed.items():
        setattr(other, name, value)
    return _Change(node=node, after=f"({ast.unparse(other)})", place=place)


def _first_name(node: ast.expr) -> str:
    while isinstance(node, ast.Attribute | ast.Call):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, TEXT) or (isinstance(node, ast.Constant) and isinstance(node.value, str | bytes))


def _is_protocol(node: ast.AST) -> bool:
    """Whether it is a `Protocol`, or a method without a body."""
    if isinstance(node, ast.ClassDef):
        return any(ast.unparse(base).startswith("Protocol") for base in node.bases)
    return any(
        "abstractmethod" in ast.unparse(it) or "overload" in ast.unparse(it)
        for it in getattr(node, "decorator_list", [])
    )
