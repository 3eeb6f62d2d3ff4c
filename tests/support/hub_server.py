"""A server that speaks the download protocol of the Hugging Face Hub, in a thread.

The routes are those that `huggingface_hub.hf_hub_download` requests. Graphs are large files: their
address on the Hub leads to another host, which has them by their hash.
"""

import contextlib
import hashlib
import http.server
import re
import threading
from urllib.parse import unquote

import huggingface_hub.constants as constants

_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_LARGE_FILE = re.compile(r"/large/([0-9a-f]{64})")
LARGE_SUFFIX = ".onnx"


class Hub:
    """Repositories and the server.

    Attributes:
        url: The endpoint.
        requests: Method and path of each request, such as "HEAD /user/name/resolve/main/a.txt".
        gated: Names of repositories that nobody may download.
    """

    def __init__(self):
        self.requests, self.gated = [], set()
        self._commits, self._branches = {}, {}
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def stop(self):
        """Close the port, as if the network was down."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def commit(self, repository, files, branch="main"):
        """Replace the files of a branch; return the commit.

        `files` is a folder, or a dict of bytes by name.
        """
        if not isinstance(files, dict):
            paths = [path for path in files.rglob("*") if path.is_file()]
            files = {path.relative_to(files).as_posix(): path.read_bytes() for path in paths}
        commit = hashlib.sha1(repr((repository, sorted(files.items()))).encode()).hexdigest()
        self._commits[repository, commit] = files
        self._branches[repository, branch] = commit
        return commit

    def downloads(self):
        """Names of the files whose contents were requested, in order."""
        names = []
        for request in self.requests:
            if match := re.fullmatch(f"GET {_FILE.pattern}", request):
                names.append(match[3])
            elif re.fullmatch(f"GET {_LARGE_FILE.pattern}", request):
                names.append(request.removeprefix("GET "))
        return names

    def find(self, repository, revision, name):
        """Return the commit and the contents of a file, or the code of the Hub's error."""
        if repository in self.gated:
            return "GatedRepo"
        if repository not in {key[0] for key in self._commits}:
            return "RepoNotFound"
        commit = self._branches.get((repository, revision), revision)
        if (repository, commit) not in self._commits:
            return "RevisionNotFound"
        files = self._commits[repository, commit]
        return (commit, files[name]) if name in files else "EntryNotFound"

    def large_file(self, digest):
        for files in self._commits.values():
            for contents in files.values():
                if hashlib.sha256(contents).hexdigest() == digest:
                    return contents
        return None


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self._answer(has_body=False)

    def do_GET(self):
        self._answer(has_body=True)

    def log_message(self, *arguments):
        pass

    def _answer(self, has_body):
        self.hub.requests.append(f"{self.command} {self.path}")
        if match := _LARGE_FILE.fullmatch(self.path):
            contents = self.hub.large_file(match[1])
            self._send(404 if contents is None else 200, contents or b"", has_body)
            return
        match = _FILE.fullmatch(self.path)  # a slash in a revision is quoted
        result = self.hub.find(*map(unquote, match.groups())) if match else "EntryNotFound"
        if isinstance(result, str):
            status = {"GatedRepo": 403, "RepoNotFound": 401}.get(result, 404)
            self._send(status, b"", has_body, **{"X-Error-Code": result})
            return
        commit, contents = result
        digest = hashlib.sha256(contents).hexdigest()
        if match[3].endswith(LARGE_SUFFIX):
            headers = {"X-Linked-Etag": f'"{digest}"', "X-Linked-Size": str(len(contents))}
            # Another name of this machine, so that it is another host.
            headers["Location"] = f"http://localhost:{self.hub.port}/large/{digest}"
            self._send(302, b"", has_body, **headers, **{"X-Repo-Commit": commit})
            return
        etag = hashlib.sha1(b"blob %d\0" % len(contents) + contents).hexdigest()
        self._send(200, contents, has_body, **{"ETag": f'"{etag}"', "X-Repo-Commit": commit})

    def _send(self, status, contents, has_body, **headers):
        self.send_response(status)
        # An open connection would be answered after `stop`.
        headers |= {"Content-Length": str(len(contents)), "Connection": "close"}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if has_body:
            self.wfile.write(contents)


@contextlib.contextmanager
def running_hub():
    """Yield a `Hub` that is stopped at the end, unless the block has stopped it."""
    hub = Hub()
    try:
        yield hub
    finally:
        if hub._thread.is_alive():
            hub.stop()


def use_hub(monkeypatch, hub, cache):
    """Set what `huggingface_hub` reads from the environment when it is imported, and the rest."""
    for name, value in environment(hub, cache).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    template = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))


def environment(hub, cache):
    """The variables with which a child process uses the hub."""
    return {
        "HF_ENDPOINT": hub.url,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_IMPLICIT_TOKEN": "1",
        "HF_HUB_DISABLE_TELEMETRY": "1",
    }
