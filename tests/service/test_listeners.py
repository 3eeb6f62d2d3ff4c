"""Closing a listening socket neither resets a connection nor disturbs another process."""

import errno
import select
import socket
import subprocess
import sys

import pytest
from copy_artifact import make
from running_service import site

from keras_bahdanau_runtime.service import listeners
from keras_bahdanau_runtime.service.server import listen

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="Only Linux has socket filters.")

CLOSE = """
import socket, sys
from keras_bahdanau_runtime.service import listeners
listeners.hold(listener := socket.socket(fileno=int(sys.argv[1])))
assert listeners.close(listener) == []
"""


def start_to_connect(address):
    client = socket.socket(socket.AF_INET6 if ":" in address[0] else socket.AF_INET)
    client.setblocking(False)
    assert client.connect_ex(address) == errno.EINPROGRESS
    return client


def test_a_client_that_connects_after_the_last_accept_is_refused(tmp_path):
    """The copy of the socket extends the time between the last accept and the last close."""
    with site({"copy": make(tmp_path / "copy")}) as service:
        listener = service.service._listener.dup()
    with listener, start_to_connect(listener.getsockname()) as client:
        assert not select.select([listener], [client], [], 0)[0]
        listener.close()
        select.select([], [client], [])
        assert client.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNREFUSED


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_connections_that_wait_at_the_end_are_returned(host):
    with listen(host, 0) as listener, socket.socket(listener.family) as client:
        listeners.hold(listener)
        client.connect(listener.getsockname())
        [waiting] = listeners.close(listener.dup())
        with waiting, start_to_connect(listener.getsockname()):
            client.sendall(b"a")
            assert waiting.recv(1) == b"a"
            assert not select.select([listener], [], [], 0)[0]


def test_a_service_still_accepts_when_another_process_closes_the_socket(tmp_path):
    with site({"copy": make(tmp_path / "copy")}) as service:
        listener = service.service._listener.fileno()
        command = [sys.executable, "-c", CLOSE, str(listener)]
        subprocess.run(command, pass_fds=[listener], check=True)
        assert service.web.get("/v2").status_code == 200
