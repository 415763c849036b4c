"""Hooks of mkdocs: the site is docs/ together with pages outside it, under the links that all of them have.

mkdocs knows the pages of one folder. The READMEs of the repository and of the examples, DESIGN.md and so on are
added here under the paths that they have in the repository. Links are written as they hold in the repository, so that
they work wherever its files are shown; here they are turned into those of the site, where docs/ is the root.

Why: docs/decisions/0089-documentation-as-a-site.md
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parent.parent
OUTSIDE = ("README.md", "DESIGN.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md", "configs/*/README.md")
# Code, in which brackets mean something else; or a link, of which the second group is the target.
CODE_OR_LINK = re.compile(r"^```.*?^```|`[^`\n]+`|(\]\()([^)#\s]+)", re.MULTILINE | re.DOTALL)
LANGUAGES = {".f90": "fortran", ".hpp": "cpp", ".txt": "cmake", "": "make"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages outside docs/, and put the pages that the nav does not name where it says FOLDER/*."""
    for pattern in OUTSIDE:
        for path in sorted(ROOT.glob(pattern)):
            uri = path.relative_to(ROOT).as_posix()
            files.append(File.generated(config, uri, content=path.read_text() + _files_of_example(path)))
    config.nav = _expanded(config.nav, sorted(file.src_uri for file in files.documentation_pages()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn the links of a page as it lies in the repository into those of the site."""
    uri = page.file.src_uri
    source = uri if (ROOT / uri).exists() else f"docs/{uri}"

    def in_site(found: re.Match[str]) -> str:
        opening, target = found.groups()
        if target is None or re.match(r"[a-z]+:", target):
            return found[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        path = f"{path}/README.md" if (ROOT / path).is_dir() else path
        return opening + posixpath.relpath(path.removeprefix("docs/"), posixpath.dirname(uri) or ".")

    return CODE_OR_LINK.sub(in_site, markdown)


def _files_of_example(readme: Path) -> str:
    """The files beside the README of an example, which a reader of the site has no other way to see."""
    if readme.parent == ROOT:
        return ""
    shown = (path for path in sorted(readme.parent.iterdir()) if path.is_file() and path != readme)
    blocks = (
        f"## {path.name}\n\n```{LANGUAGES.get(path.suffix, path.suffix[1:])}\n{path.read_text().rstrip()}\n```\n"
        for path in shown
    )
    return "\n" + "\n".join(blocks)


def _expanded(nav: Any, pages: list[str]) -> Any:
    """The nav with the pages that it does not name where it has a wildcard."""
    named = set(re.findall(r"[\w./-]+\.md", str(nav)))

    def expanded(entries: list[Any]) -> list[Any]:
        return [new for entry in entries for new in replaced(entry)]

    def replaced(entry: Any) -> list[Any]:
        if isinstance(entry, dict):
            return [{title: expanded(it) if isinstance(it, list) else it for title, it in entry.items()}]
        if not entry.endswith("/*"):
            return [entry]
        return [page for page in pages if page.startswith(entry[:-1]) and page not in named]

    return expanded(nav)
