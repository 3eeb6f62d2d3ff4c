"""Check the pages of the built site: links, anchors, files of other hosts, and reachability.

python docs/check_site.py docs/_build/html
"""

import sys
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

# Attributes whose address a browser loads with the page.
_LOADED = {
    ("img", "src"),
    ("script", "src"),
    ("iframe", "src"),
    ("source", "srcset"),
    ("link", "href"),
}
_MAX_CLICKS = 2


@dataclass
class Page(HTMLParser):
    """A parsed page.

    Attributes:
        anchors: The ids of its elements.
        links: The addresses in its links.
        loaded: The addresses of the files that a browser loads with it.
    """

    anchors: set[str] = field(default_factory=set)
    links: set[str] = field(default_factory=set)
    loaded: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect the addresses and ids of an element."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value:
                self.links.add(value)
            elif (tag, name) in _LOADED and value and not value.startswith("data:"):
                self.loaded.add(value)


def check_site(site: Path) -> list[str]:
    """Return one line for each problem of the pages in a folder."""
    pages = {path: Page() for path in sorted(site.rglob("*.html"))}
    for path, page in pages.items():
        page.feed(path.read_text("utf-8"))
    problems, targets = [], {}
    for path, page in pages.items():
        name = path.relative_to(site).as_posix()
        is_other_host = [address for address in page.loaded if urlsplit(address).netloc]
        problems += [f"{name} loads {address}" for address in is_other_host]
        targets[path] = set()
        for address in sorted(page.links | page.loaded):
            parts = urlsplit(address)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            targets[path].add(target)
            if not target.is_file():
                problems.append(f"{name} links to a missing file: {address}")
            elif parts.fragment and target in pages:
                if unquote(parts.fragment) not in pages[target].anchors:
                    problems.append(f"{name} links to a missing anchor: {address}")
    start = site / "index.html"
    reached, front = {start}, {start}
    for _ in range(_MAX_CLICKS):
        front = {target for path in front for target in targets[path]} & set(pages) - reached
        reached |= front
    problems += [
        f"{path.relative_to(site)} is more than {_MAX_CLICKS} clicks from the start page"
        for path in sorted(set(pages) - reached)
    ]
    print(f"{len(pages)} pages, {len(problems)} problems")
    return problems


if __name__ == "__main__":
    sys.exit("\n".join(check_site(Path(sys.argv[1]).resolve())) or None)
