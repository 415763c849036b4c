"""One HTML file with all that there is to see of a run, to be sent to a colleague."""

import json
from html import escape
from pathlib import Path
from typing import Any

from stream_server.analysis.figures import image_of
from stream_server.analysis.plot import pictures_of
from stream_server.analysis.reading import RunFolder
from stream_server.analysis.run_status import status_of
from stream_server.errors import ConfigError
from stream_server.storage.disk import open_output

DOTS_PER_INCH = 110

STYLE = """\
body { font: 15px/1.45 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; color: #222 }
figure { margin: 1.5rem 0 } img { max-width: 100% } h2 { margin-top: 2.2rem; border-bottom: 1px solid #ddd }
table { border-collapse: collapse } td { padding: .15rem 1rem .15rem 0; vertical-align: top }
td:first-child { color: #666; white-space: nowrap }
pre { background: #f6f6f6; padding: .8rem; overflow-x: auto; font-size: 12px }
"""


def write_page(run: RunFolder, to: Path) -> None:
    """Write the page: pictures, account, settings and versions in one file, which loads nothing from elsewhere.

    Raises:
        ConfigError: the run has no metrics yet, or the file cannot be written.
    """
    text = page(run)
    try:
        with open(to, "w", encoding="utf-8", opener=open_output) as file:
            file.write(text)
    except OSError as error:
        raise ConfigError(f"{to} cannot be written: {error}") from error


def page(run: RunFolder) -> str:
    """The text of the page.

    Raises:
        ConfigError: the run has no metrics yet, or a file is damaged.
    """
    settings = run.settings
    name = escape(str(settings.get("study", {}).get("name", run.name)))
    status = status_of(run)
    samples, versions = status.report.get("samples", {}), status.report.get("versions", {})
    pictures = "\n".join(
        f"<figure>{image_of(picture.figure, escape(picture.caption), DOTS_PER_INCH)}</figure>"
        for picture in pictures_of(run)
    )
    sections = {
        "Pictures": pictures,
        "Account of the samples": _table([(key.replace("_", " "), _shown(value)) for key, value in samples.items()]),
        "Settings": f"<pre>{escape(json.dumps(settings, indent=2, ensure_ascii=False))}</pre>",
        "Versions": _table(list(versions.items())),
    }
    body = "\n".join(f"<h2>{title}</h2>\n{content}" for title, content in sections.items() if content)
    return (
        f'<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n<title>{name}</title>\n'
        f"<style>\n{STYLE}</style>\n</head>\n<body>\n<h1>{name}</h1>\n{_table(status.rows())}\n{body}\n"
        "</body>\n</html>\n"
    )


def _table(rows: list[tuple[str, str]]) -> str:
    cells = "\n".join(f"<tr><td>{escape(title)}</td><td>{escape(str(text))}</td></tr>" for title, text in rows)
    return f"<table>\n{cells}\n</table>" if rows else ""


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key.replace('_', ' ')} {number}" for key, number in value.items()) or "none"
    return f"{value:,}" if isinstance(value, int) else str(value)
