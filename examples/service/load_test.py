"""Load test of a service, with Python's standard library only.

    python load_test.py test.en --url http://localhost:8000 --clients 1 16 64 --requests 1000

It prints rates and times by number of clients. Each client sends a line of the file, waits for its
translation, and sends another. A full queue (429) and a service that stops (503) are counted as
other answers, and so are lost connections.
"""

import argparse
import collections
import http.client
import itertools
import json
import threading
import time
import urllib.parse
from pathlib import Path


class Client:
    """A connection that is kept between requests."""

    def __init__(self, url, key):
        address = urllib.parse.urlsplit(url)
        kind = http.client.HTTPConnection
        if address.scheme == "https":
            kind = http.client.HTTPSConnection
        self._connection = kind(address.hostname, address.port, timeout=120)
        self._path = f"{address.path.rstrip('/')}/translate"
        self._headers = {"Content-Type": "application/json"}
        if key is not None:
            self._headers["Authorization"] = f"Bearer {key}"

    def translate(self, text):
        """Return the status of the response, or the name of the error of the connection."""
        try:
            body = json.dumps({"text": text})
            self._connection.request("POST", self._path, body, self._headers)
            response = self._connection.getresponse()
            response.read()
            return response.status
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()  # the next request opens it again
            return type(error).__name__


def run_load(url, key, texts, clients, requests):
    """Return the seconds of all translations, the other answers, and the seconds of the load."""
    remaining, lock = itertools.islice(itertools.cycle(texts), requests), threading.Lock()
    seconds, others = [], collections.Counter()

    def next_text():
        with lock:
            return next(remaining, None)

    def send():
        client = Client(url, key)
        while (text := next_text()) is not None:
            began = time.perf_counter()
            answer = client.translate(text)
            if answer == 200:
                seconds.append(time.perf_counter() - began)
            else:
                with lock:
                    others[answer] += 1

    threads = [threading.Thread(target=send) for _ in range(clients)]
    began = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(seconds), others, time.perf_counter() - began


def milliseconds(seconds, share):
    """Return a quantile of sorted seconds as text."""
    return f"{1000 * seconds[int(share * (len(seconds) - 1))]:.1f}" if seconds else "-"


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("texts", type=Path, help="UTF-8 file with one text per line")
    parser.add_argument("--url", default="http://localhost:8000")
    parser.add_argument("--key", help="API key")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--requests", type=int, default=1000, help="for each number of clients")
    arguments = parser.parse_args()
    texts = [line for line in arguments.texts.read_text("utf-8").splitlines() if line.strip()]
    print("clients  texts/s  median ms  p95 ms  p99 ms  others")
    for clients in arguments.clients:
        seconds, others, elapsed = run_load(
            arguments.url, arguments.key, texts, clients, arguments.requests
        )
        times = [milliseconds(seconds, share) for share in (0.5, 0.95, 0.99)]
        rate = f"{len(seconds) / elapsed:.1f}"
        others = ", ".join(f"{answer}: {count}" for answer, count in others.items())
        columns = (f"{clients:7}", f"{rate:>7}", f"{times[0]:>9}", *(f"{t:>6}" for t in times[1:]))
        print(*columns, others or "none", sep="  ")


if __name__ == "__main__":
    main()
