"""Links between the pages and to other files of the repository.

A link to a file outside of docs/ leads to the repository (`repository_url` in conf.py), or becomes
plain text without one. Links of included files are relative to those files.
"""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
# The pages that show files of the repository.
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "docs": "index.md",
    "examples": "gallery/index.md",
    "examples/README.md": "gallery/index.md",
    "benchmarks/README.md": "benchmarks.md",
}
# The files of which a page shows the whole text, so links to their sections are valid.
_INCLUDED = ("CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md")
_LINK = re.compile(r"(!?)\[((?:[^\[\]`]|`[^`]*`)+)\]\((?!\w+:|#)([^)#\s]+)(#[^)\s]*)?\)")
_INCLUDE = re.compile(r"^```\{include\} (\S+)\n```$", re.M)


def setup(app: "Sphinx") -> dict[str, Any]:
    """Rewrite the links of every Markdown page."""
    app.add_config_value("repository_url", "", "env", [str])
    app.connect("source-read", _rewrite_page)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _rewrite_page(app: "Sphinx", page: str, source: list[str]) -> None:
    if not app.env.doc2path(page).suffix == ".md":
        return
    path, url = DOCS / f"{page}.md", app.config.repository_url
    text = rewrite_links(source[0], path, path, url)

    def include(match: re.Match[str]) -> str:
        included = (path.parent / match[1]).resolve()
        app.env.note_dependency(str(included))
        return rewrite_links(included.read_text("utf-8"), included, path, url)

    source[0] = _INCLUDE.sub(include, text)


def rewrite_links(text: str, path: Path, page: Path, url: str) -> str:
    """Return Markdown with links that are valid in a page.

    Args:
        text: The Markdown of the file `path`.
        path: File to which its links are relative.
        page: The page that shows the text.
        url: Address of the repository; "" for none.
    """

    def rewrite(match: re.Match[str]) -> str:
        is_picture, label, target, anchor = match[1], match[2], match[3], match[4] or ""
        file = (path.parent / target).resolve()
        if not file.is_relative_to(ROOT) or not file.exists():
            return match[0]
        name = file.relative_to(ROOT).as_posix()
        page_file = DOCS / _PAGES[name] if name in _PAGES else file
        if page_file.is_relative_to(DOCS) and page_file.is_file():
            has_anchors = page_file == file or name in _INCLUDED
            anchor = anchor if has_anchors else ""
            return f"{is_picture}[{label}]({os.path.relpath(page_file, page.parent)}{anchor})"
        if not url or is_picture:
            return label
        kind = "tree" if file.is_dir() else "blob"
        return f"[{label}]({url.rstrip('/')}/{kind}/main/{name}{anchor})"

    parts = re.split(r"(^```[\s\S]*?^```$)", text, flags=re.M)
    parts[::2] = [_LINK.sub(rewrite, part) for part in parts[::2]]
    return "".join(parts)
