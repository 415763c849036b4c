"""The table of docs/guide/restart.md: what a restart may change of study.json, as `RULES` has it.

`python -m tests.docs.change_table` writes it anew.
"""

import re
from pathlib import Path

from stream_server.config.changes import RULES, Rule

PAGE = Path(__file__).parents[2] / "docs" / "guide" / "restart.md"
HEAD = "| keys | a restart | why, or what follows |\n|---|---|---|\n"
TABLE = re.compile(r"\| keys \| a restart .*?(<!-- end of changes -->)", re.DOTALL)


def page_with_table(page: str) -> str:
    """The page with the table as it should be."""
    return TABLE.sub(lambda match: f"{HEAD}{chr(10).join(map(_row, RULES))}\n{match[1]}", page)


def _row(rule: Rule) -> str:
    keys = ", ".join(f"`{pattern}`" for pattern in rule.patterns)
    return f"| {keys} | {rule.permission} | {rule.reason} |"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
