"""Take the screenshots of the service's web page, `page-light.png` and `page-dark.png`.

`python examples/service/take_screenshots.py quickstart/artifact docs/pictures` serves the artifact
of the quickstart on a free port, translates a date in Chromium, and moves the pointer to "avril".
It needs the extras `serve` and `cli`, the package playwright, and an installed Chromium.
"""

import argparse
import contextlib
import re
import shutil
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

TEXT, WORD = "vendredi 12 avril 2024", "avril"
WIDTH = 1100
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@contextlib.contextmanager
def serve(artifact):
    """Start the service and yield its address."""
    command = [sys.executable, "-m", "keras_bahdanau_cli", "serve", f"dates={artifact}"]
    command += ["--port", "0", "--grpc-port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            lines = iter(process.stderr.readline, "")
            addresses = (re.search(r"Serving .* at (http://\S+:\d+)", line) for line in lines)
            address = next(filter(None, addresses), None)
            if address is None:
                sys.exit("error: the service did not start")
            yield address[1]
        finally:
            process.terminate()


def main(arguments=None):
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path, help="artifact of the quickstart")
    parser.add_argument("folder", type=Path, help="folder of the pictures")
    options = parser.parse_args(arguments)
    executable = next(filter(None, map(shutil.which, BROWSERS)), None)
    with serve(options.artifact) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": WIDTH, "height": 900})
        page.goto(address)
        page.fill("#source", TEXT)
        page.keyboard.press("Control+Enter")
        word = page.locator("#source-words .word", has_text=WORD)
        word.wait_for()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)
            word.hover()
            page.screenshot(path=options.folder / f"page-{scheme}.png", full_page=True)
        browser.close()


if __name__ == "__main__":
    main()
