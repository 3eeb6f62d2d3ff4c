"""A service that is replaced loses no request of clients that reach it through a load balancer."""

import contextlib
import dataclasses
import http.client
import sys
import threading

import grpc
import httpx
import pytest
from copy_artifact import make
from grpc_health.v1 import health_pb2, health_pb2_grpc
from load_balancer import balancing
from running_service import site
from tritonclient.grpc import service_pb2, service_pb2_grpc

from keras_bahdanau_runtime.service import connection
from keras_bahdanau_runtime.service import grpc as rpc
from keras_bahdanau_runtime.service.settings import Limits

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals.")

CLIENTS = 8
HOUR = 3600


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    return make(tmp_path_factory.mktemp("rolling") / "copy")


@contextlib.contextmanager
def stopping_after_the_block(site):
    """Stop a service that accepts requests until the end of the block."""
    service = site.service
    service.settings = dataclasses.replace(service.settings, drain_delay=HOUR)
    stopping = site.submit(service.stop())
    try:
        while not service.repository.is_terminating:
            assert not stopping.done()
        yield
    finally:
        site.skip(HOUR)
    assert stopping.result()


class Clients:
    """Clients that send requests one after another, each in a thread.

    Args:
        connect: Context manager that yields a function, which sends one request and raises an
            exception if it fails. Its argument is the number of the client.
    """

    def __init__(self, connect):
        self.errors, self._answers, self._is_done = [], threading.Semaphore(0), threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(connect, number)) for number in range(CLIENTS)
        ]

    def _run(self, connect, number):
        with connect(number) as send:
            while not self._is_done.is_set():
                try:
                    send()
                except Exception as error:
                    self.errors.append(repr(error))
                self._answers.release()

    def await_answers(self, count=10 * CLIENTS):
        """Wait for further answers or errors."""
        while self._answers.acquire(blocking=False):
            pass
        for _ in range(count):
            self._answers.acquire()

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *error):
        self._is_done.set()
        for thread in self._threads:
            thread.join()


def test_no_request_behind_a_load_balancer_that_removes_a_service_late_is_lost(artifact):
    @contextlib.contextmanager
    def connect(number):
        headers = {"Connection": "close"} if number % 2 else {}
        url = f"http://127.0.0.1:{balancer.port}"
        with httpx.Client(base_url=url, headers=headers, timeout=60) as web:
            yield lambda: web.post("/translate", json={"text": "a man"}).raise_for_status()

    with site({"copy": artifact}) as old, site({"copy": artifact}) as new:
        backends = [(each.web.base_url.host, each.web.base_url.port) for each in (old, new)]
        with balancing(backends) as balancer, Clients(connect) as clients:
            clients.await_answers()
            with stopping_after_the_block(old):
                for path in ("/v2/health/ready", "/v2/models/copy/ready"):
                    response = old.web.get(path)
                    assert response.status_code == 503 and response.headers["retry-after"] == "1"
                connected = balancer.connections[backends[0]]
                while balancer.connections[backends[0]] < connected + 2 * CLIENTS:
                    clients.await_answers(1)  # new connections still reach it
                balancer.backends = backends[1:]
                while balancer.open_connections[backends[0]]:
                    clients.await_answers(1)  # clients with open connections leave it
            clients.await_answers()
        assert clients.errors == []


def test_no_grpc_call_of_a_connection_that_stays_is_lost(artifact, monkeypatch):
    # The time limits of calls are longer than the time that the test skips.
    monkeypatch.setattr(rpc, "BODY_SECONDS", 2 * HOUR)
    limits = Limits(timeout=2 * HOUR)
    call = service_pb2.ModelInferRequest(
        model_name="copy", inputs=[{"name": "text", "datatype": "BYTES", "shape": [1]}]
    )
    call.inputs[0].contents.bytes_contents.append(b"a man")

    @contextlib.contextmanager
    def connect(number):
        own_connection = [("grpc.use_local_subchannel_pool", 1)]
        address = f"127.0.0.1:{balancer.port}"
        with grpc.insecure_channel(address, own_connection) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            yield lambda: stub.ModelInfer(call, timeout=60)

    with (
        site({"copy": artifact}, grpc_port=0, limits=limits) as old,
        site({"copy": artifact}, grpc_port=0) as new,
        grpc.insecure_channel(old.service.grpc_address) as channel,
    ):
        backends = [
            ("127.0.0.1", int(each.service.grpc_address.rpartition(":")[2])) for each in (old, new)
        ]
        with balancing(backends) as balancer, Clients(connect) as clients:
            clients.await_answers()
            with stopping_after_the_block(old):
                health = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
                assert health.status == health_pb2.HealthCheckResponse.NOT_SERVING
                server = service_pb2_grpc.GRPCInferenceServiceStub(channel)
                assert not server.ServerReady(service_pb2.ServerReadyRequest()).ready
                balancer.backends = backends[1:]
                clients.await_answers()
                assert balancer.open_connections[backends[0]] > 0
            while balancer.open_connections[backends[0]]:
                clients.await_answers(1)
            clients.await_answers()
        assert clients.errors == []


def test_a_request_on_an_idle_connection_is_accepted_until_it_closes(artifact, monkeypatch):
    monkeypatch.setattr(connection, "LAST_SECONDS", 60.0)
    with site({"copy": artifact}, drain_delay=0.001) as service:
        client = http.client.HTTPConnection(
            service.web.base_url.host, service.web.base_url.port, timeout=60
        )
        client.auto_open = False  # no second connection
        with contextlib.closing(client):
            client.connect()
            client.request("GET", "/v2")
            response = client.getresponse()
            assert response.status == 200 and response.read()
            stopping = service.submit(service.service.stop())
            while not service.service._http.should_exit:
                pass
            client.request("POST", "/translate", b'{"text": "a b"}')
            response = client.getresponse()
            assert (response.status, response.getheader("connection")) == (200, "close")
        assert stopping.result()
