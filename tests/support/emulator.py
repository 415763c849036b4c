"""A terminal of text: the lines that stand on the screen, and above it, after all that was written."""

import re

TOKEN = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])|([\r\n])|([^\x1b\r\n]+)")


def lines_shown(written: str, columns: int, lines: int = 40) -> list[str]:
    """Obeys ends of lines, and what rich uses to draw a panel again: cursor up, and erase the line."""
    rows, row, column = [""], 0, 0
    for argument, command, end, text in TOKEN.findall(written):
        if end == "\r":
            column = 0
        elif end == "\n":
            row, column = row + 1, 0
        elif command == "A":
            row = max(row - int(argument or 1), len(rows) - lines, 0)
        elif command == "K":
            rows[row] = ""
        for character in text:
            if column == columns:
                row, column = row + 1, 0
            rows += [""] * (row + 1 - len(rows))
            rows[row] = (rows[row].ljust(column)[:column] + character) + rows[row][column + 1 :]
            column += 1
        rows += [""] * (row + 1 - len(rows))
    return [line.rstrip() for line in rows]
