"""The tests that `make test` runs, by what their files say."""

import ast
from functools import cache
from pathlib import Path


@cache
def unmarked(file: Path) -> frozenset[str]:
    """The names of the functions of a test file, but for those that are marked `full` with all their parameters."""
    functions = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)]
    return frozenset(it.name for it in functions if "pytest.mark.full" not in map(ast.unparse, it.decorator_list))
