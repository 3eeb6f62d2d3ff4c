"""Measure a site of an artifact in Chromium and Firefox: time, and equality with `Translator`.

    npm install onnxruntime-web@1.30.0 puppeteer-core
    python benchmarks/bench_site.py ARTIFACT TEXTS [TOKENIZER_TEXTS ...]

The site is served on this machine. A browser with a new profile opens it, and then opens it again
several times. Then it translates the first `--count` texts with the beam of the export, and the
tokenizer encodes the first 10,000 lines of the other files. Each result is compared with
`Translator` (batches of one text) and with the library `tokenizers`.
"""

import argparse
import functools
import http.server
import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "export"))

from keras_bahdanau_runtime import Translator  # noqa: E402
from keras_bahdanau_runtime.site import write_site  # noqa: E402
from keras_bahdanau_runtime.text.corpus import read_lines  # noqa: E402

BROWSERS = {"chrome": "chromium", "firefox": "firefox-esr"}  # Debian's packages
ENCODED_LINES = 10_000


class Handler(http.server.SimpleHTTPRequestHandler):
    """A handler that prints no line for each request."""

    def log_message(self, format, *args):
        """Print nothing."""


def measure(browser, address, work, packages):
    """Return the results of `drive_site.mjs`."""
    script = Path(__file__).with_name("drive_site.mjs")
    command = ["node", script, browser, shutil.which(BROWSERS[browser]), address, work, packages]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def print_results(browser, results, tokens, ids):
    """Print one line with the times and the equal results."""
    first, *again = results["opened"]
    milliseconds = sorted(results["milliseconds"])
    equal_tokens = sum(map(list.__eq__, results["tokens"], tokens))
    equal_ids = sum(map(list.__eq__, results["ids"], ids))
    print(
        f"{browser} {results['version']}: first translation {first:.2f} s, later visits "
        f"{' '.join(f'{seconds:.2f}' for seconds in again)} s; a text "
        f"{statistics.median(milliseconds):.1f} ms (99 of 100 below "
        f"{milliseconds[len(milliseconds) * 99 // 100]:.1f}); tokens equal {equal_tokens} of "
        f"{len(tokens)}; ids equal {equal_ids} of {len(ids)}; messages in the console: "
        f"{results['problems'] or 'none'}"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("artifact")
    parser.add_argument("texts")
    parser.add_argument("tokenizer_texts", nargs="*")
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--packages", type=Path, default=Path("node_modules"))
    arguments = parser.parse_args()
    translator = Translator(arguments.artifact)
    texts = read_lines(arguments.texts)[: arguments.count]
    share = ENCODED_LINES // max(1, len(arguments.tokenizer_texts))
    lines = [line for path in arguments.tokenizer_texts for line in read_lines(path)[:share]]
    expected = translator.translate(texts, batch_size=1)
    ids = translator.tokenizer.encode_sources(lines)
    with tempfile.TemporaryDirectory() as folder:
        site, work = Path(folder, "site"), Path(folder, "work.json")
        runtime = arguments.packages / "onnxruntime-web"
        size = write_site({"model": arguments.artifact}, site, runtime, examples=texts[:1])
        work.write_text(json.dumps({"texts": texts, "lines": lines}), "utf-8")
        print(f"site {size / 1e6:.2f} MB, {len(texts)} texts, {len(lines)} lines")
        handler = functools.partial(Handler, directory=str(site))
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
            threading.Thread(target=server.serve_forever, daemon=True).start()
            for browser in BROWSERS:
                if shutil.which(BROWSERS[browser]) is None:
                    print(f"{browser}: not installed")
                    continue
                address = f"http://127.0.0.1:{server.server_port}/"
                results = measure(browser, address, work, arguments.packages)
                print_results(browser, results, [each.tokens for each in expected], ids)
            server.shutdown()


if __name__ == "__main__":
    main()
