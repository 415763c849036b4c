"""Rows for people, shown as lines in a terminal and as a table in a notebook."""

from collections.abc import Iterator, Sequence
from html import escape

MAX_WIDTH = 14


class Summary:
    """Rows of a name and a text. `str()` gives lines, and a notebook shows a table."""

    def __init__(self, title: str, rows: Sequence[tuple[str, str]]) -> None:
        self.title = title
        self.rows = tuple((name, text) for name, text in rows if name or text)

    def __iter__(self) -> Iterator[tuple[str, str]]:
        return iter(self.rows)

    def __str__(self) -> str:
        return "\n".join(f"{name:<{MAX_WIDTH}}{text}".rstrip() for name, text in self.rows)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = "".join(
            f'<tr><th style="text-align:left">{escape(name)}</th><td style="text-align:left">{_lines(text)}</td></tr>'
            for name, text in self.rows
        )
        return f"<table><caption>{escape(self.title)}</caption>{rows}</table>"


def _lines(text: str) -> str:
    if "\n" in text:
        return f'<pre style="margin:0">{escape(text)}</pre>'
    return escape(text)
