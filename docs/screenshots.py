"""Take screenshots of the built site in Chromium: light and dark, on a desktop and a phone.

python docs/screenshots.py docs/_build/html build/screenshots [PAGE ...]
"""

import sys
from pathlib import Path

from check_in_browser import DESKTOP, PHONE, missing, open_browser, serve, wait_for_demo

# The start page, its demo, a concept, a page of the reference, an example and a notebook.
PAGES = (
    "index",
    "demo/index",
    "concepts/attention",
    "reference/attention",
    "gallery/index",
    "gallery/forecasting",
    "notebooks/dates",
)
VIEWS = {
    "light": {"viewport": DESKTOP, "color_scheme": "light"},
    "dark": {"viewport": DESKTOP, "color_scheme": "dark"},
    "phone": {"viewport": PHONE, "color_scheme": "light", "device_scale_factor": 2},
    "phone-dark": {"viewport": PHONE, "color_scheme": "dark", "device_scale_factor": 2},
}


def take_screenshots(site: Path, folder: Path, pages: tuple[str, ...] = PAGES) -> None:
    """Write `PAGE-VIEW.png` for each page and view.

    Args:
        site: The built site.
        folder: Folder of the pictures.
        pages: Names of pages without the suffix.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with serve(site) as address, open_browser() as browser:
        for view, options in VIEWS.items():
            page = browser.new_page(**options)
            for name in pages:
                page.goto(f"{address}/{name}.html", wait_until="load")
                wait_for_demo(page)
                page.screenshot(path=folder / f"{name.replace('/', '-')}-{view}.png")
            page.close()


if __name__ == "__main__":
    if reason := missing():
        sys.exit(f"No screenshots. {reason}")
    take_screenshots(Path(sys.argv[1]).resolve(), Path(sys.argv[2]), tuple(sys.argv[3:]) or PAGES)
