"""The files that docs/guide/extending.md shows."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "guide" / "extending.md").read_text()
FILES = dict(re.findall(r"```python\n# (\w+\.py)\n(.*?)```", PAGE, re.DOTALL))


def write_examples(folder: Path) -> Path:
    """Put all files of the page into a folder."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder
