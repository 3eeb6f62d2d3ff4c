"""Open every page of the built site in Chromium: errors, other hosts, width, and contrast.

python docs/check_in_browser.py docs/_build/html

A page may not scroll horizontally, neither at the width of a desktop nor at that of a phone. Wide
tables scroll on their own, with a scroll bar that is visible. Code does so on a phone only. Text
has a contrast of at least 4.5 to its background. All of this is checked in both themes.
The search lists the page of each subject in `SEARCHES`.
The script checks nothing, and prints a message, if Chromium or Playwright is missing.
"""

import functools
import http.server
import itertools
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), None)
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
SEARCH_MILLISECONDS = 20_000
# A page that the search lists for each query.
SEARCHES = {
    "phoneme": "gallery/pronunciation.html",
    "pronunciation": "gallery/pronunciation.html",
    "confidence": "guides/confidence.html",
    "cron": "guides/nightly-jobs.html",
    "rolling update": "guides/production.html",
}
# Returns a description of everything that ends to the right of the window, but not of its children
# and not of what is inside of an element that scrolls; and of everything that is cut: its contents
# are wider than itself, and it has no scroll bar that is visible, or it is code on a desktop.
_TOO_WIDE = """(isDesktop) => {
  const width = document.documentElement.clientWidth
  const isWide = (element) => element.getBoundingClientRect().right > width + 1
  const scrolls = (element) => /auto|scroll/.test(getComputedStyle(element).overflowX)
  const found = []
  if (document.documentElement.scrollWidth > width) found.push("the page is wider than the window")
  const hasScrollBar = (element, style) => {
    const borders = parseFloat(style.borderTopWidth) + parseFloat(style.borderBottomWidth)
    const isStyled = getComputedStyle(element, "::-webkit-scrollbar").height !== "auto"
    const thumb = getComputedStyle(element, "::-webkit-scrollbar-thumb").backgroundColor
    return element.offsetHeight - element.clientHeight - borders >= 1
      && !(isStyled && thumb === "rgba(0, 0, 0, 0)")
  }
  const isCut = (element) => {
    const style = getComputedStyle(element)
    return style.overflowX !== "visible" && element.scrollWidth > element.clientWidth + 1
      && (!hasScrollBar(element, style) || isDesktop && element.localName === "pre")
  }
  const visit = (element) => {
    const text = element.textContent.trim().replace(/\\s+/g, " ").slice(0, 60)
    if (isCut(element)) found.push(`<${element.localName}> is cut: ${text}`)
    if (isWide(element)) {
      found.push(`<${element.localName}> is wider than the window: ${text}`)
    } else if (!scrolls(element)) {
      [...element.children].forEach(visit)
    }
  }
  document.querySelectorAll("article").forEach(visit)
  return found
}"""


# Returns texts with too little contrast (WCAG 2.2, section 1.4.3), one of each element and class.
_TOO_PALE = """() => {
  // Mixed colors are written like "color(srgb 0.5 0.6 0.9)", others like "rgb(127, 153, 230)".
  const channels = (color) => color.match(/[\\d.]+/g).map((value, index) =>
    color.startsWith("color") && index < 3 ? 255 * value : Number(value))
  const luminance = (color) => {
    const [red, green, blue] = color.map((value) =>
      value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
  }
  const background = (element) => {
    const color = channels(getComputedStyle(element).backgroundColor)
    if (color.length === 3 || color[3] > 0.5) return color
    return element.parentElement ? background(element.parentElement) : [255, 255, 255]
  }
  const found = {}
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT)
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement
    const text = texts.currentNode.textContent.trim()
    if (!text || !element.checkVisibility() || element.closest("script, style, svg")) continue
    if (channels(getComputedStyle(element).color)[3] === 0) continue  // hidden text
    const [dark, light] = [getComputedStyle(element).color, background(element)]
      .map((color) => luminance(typeof color === "string" ? channels(color) : color))
      .sort((a, b) => a - b)
    if ((light + 0.05) / (dark + 0.05) < 4.5)
      found[`${element.localName}.${element.className}`] = text.slice(0, 60)
  }
  return Object.values(found)
}"""


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """Print no line for each request."""


@contextmanager
def serve(site: Path) -> Iterator[str]:
    """Serve a folder at a free port of this machine, and yield its address."""
    handler = functools.partial(_Handler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def open_browser() -> Iterator[Any]:
    """Yield a headless Chromium that shows scroll bars."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox"],
            ignore_default_args=["--hide-scrollbars"],
        )
        try:
            yield browser
        finally:
            browser.close()


def wait_for_demo(page: Any) -> None:
    """Wait for the translation of the demo, if the page is the demo or has it in a frame."""
    frame = page.locator("iframe.demo")
    demo = frame.content_frame if frame.count() else page
    if frame.count():
        demo.locator("#source").click()
    if demo.locator("#alignment").count():
        demo.locator("#alignment").wait_for()


def check_in_browser(site: Path, searches: dict[str, str]) -> list[str]:
    """Return one line for each problem of the pages in a folder, and of these searches."""
    from playwright.sync_api import TimeoutError

    problems: list[str] = []
    paths = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    with serve(site) as address, open_browser() as browser:
        page = browser.new_page()
        current = ""

        def report(problem: str) -> None:
            problems.append(f"{current} {problem}")

        def check_request(request: Any) -> None:
            if not request.url.startswith((f"{address}/", "data:", "blob:")):
                report(f"requests {request.url}")

        def check_message(message: Any) -> None:
            if message.type in ("error", "warning"):
                report(f"logs {message.text}")

        page.on("request", check_request)
        page.on("console", check_message)
        page.on("pageerror", lambda error: report(f"raises {error}"))
        for current in paths:
            page.set_viewport_size(DESKTOP)
            page.goto(f"{address}/{current}", wait_until="load")
            wait_for_demo(page)
            for theme, size in itertools.product(("dark", "light"), (DESKTOP, PHONE)):
                page.emulate_media(color_scheme=theme)
                page.set_viewport_size(size)
                where = f"at {size['width']} pixels in the {theme} theme"
                for text in page.evaluate(_TOO_PALE):
                    report(f"{where}: too little contrast: {text}")
                for text in page.evaluate(_TOO_WIDE, size is DESKTOP):
                    report(f"{where}: {text}")
        page.set_viewport_size(DESKTOP)
        for query, expected in searches.items():
            current = f"search.html?q={query}"
            page.goto(f"{address}/{current}", wait_until="load")
            result = page.locator(f'#search-results a[href^="{expected}"]').first
            try:
                result.wait_for(timeout=SEARCH_MILLISECONDS)
            except TimeoutError:
                report(f"does not list {expected}")
    print(f"{len(paths)} pages in Chromium, {len(problems)} problems")
    return problems


def missing() -> str:
    """Return what is not installed, "" if the pages can be opened."""
    if CHROMIUM is None:
        return f"No browser is installed: {', '.join(NAMES)}."
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "Playwright is not installed."
    return ""


if __name__ == "__main__":
    if reason := missing():
        print(f"The pages are not opened in a browser. {reason}")
    else:
        sys.exit("\n".join(check_in_browser(Path(sys.argv[1]).resolve(), SEARCHES)) or None)
