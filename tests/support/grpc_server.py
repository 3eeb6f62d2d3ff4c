"""A gRPC endpoint on a free port, whose model returns its inputs, and messages for it."""

import asyncio
import contextlib

import grpc
import pytest
import tritonclient.grpc as sync_client
from tritonclient.grpc import service_pb2, service_pb2_grpc

from keras_bahdanau_runtime.service import grpc as rpc
from keras_bahdanau_runtime.service import messages
from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.metrics import Metrics
from keras_bahdanau_runtime.service.protocol import DATATYPES, InferResponse, Tensor, TensorSpec

MESSAGE_BYTES = 2**20


class Identity:
    """A model that returns its inputs, or does what the parameter "do" says."""

    name, version, platform, versions = "identity", "3", "none", ["2", "3"]

    def __init__(self):
        self.inputs = self.outputs = [TensorSpec(kind, kind, (-1, 2)) for kind in DATATYPES]
        self.waiting, self.cancelled = asyncio.Event(), asyncio.Event()
        self.requests = []

    async def infer(self, request):
        self.requests.append(request)
        do = request.parameters.get("do", "")
        if do == "wait":
            self.waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
        elif do == "fail":
            raise RuntimeError("an internal secret")
        elif do:
            raise ServiceError(do, request.parameters["say"], retry_after=2)
        for tensor in request.inputs:
            if tensor.datatype not in (tensor.name, "FP16") or tensor.data.ndim > 3:
                raise ServiceError("invalid", f"No {tensor.datatype} of {tensor.data.shape}.")
        names = {output.name for output in request.outputs}
        outputs = [
            Tensor(tensor.name, tensor.datatype, tensor.data, tensor.parameters)
            for tensor in request.inputs
            if tensor.name in names or not names
        ]
        return InferResponse("identity", "3", outputs, request.id, request.parameters)

    def statistics(self):
        kinds = ("fail", "queue", "compute_input", "compute_infer", "compute_output")
        times = {kind: {"count": 0, "ns": 0} for kind in (*kinds, "cache_hit", "cache_miss")}
        return {
            "name": "identity",
            "version": "3",
            "last_inference": 17,
            "inference_count": 4,
            "execution_count": 2,
            "inference_stats": {"success": {"count": 2, "ns": 5000}, **times},
            "batch_stats": [],
        }


class OneModel:
    """A repository with one ready model and one broken model."""

    def __init__(self):
        self.model = Identity()
        self.is_ready, self.is_terminating = True, False
        self.calls = []

    def names(self):
        return [("identity", ["3"])]

    def has(self, name):
        return name == "identity"

    def get(self, name, version=""):
        if name == "broken":
            raise ServiceError("unavailable", "The model 'broken' is not there.", "model", 1)
        if name != "identity" or version not in ("", "3"):
            raise ServiceError("not_found", f"There is no model {name!r}.", "model")
        return self.model

    def statistics(self, name, version):
        return [self.get(name or "identity", version).statistics()]

    def index(self, ready):
        broken = {"name": "broken", "version": "", "state": "UNAVAILABLE", "reason": "damaged"}
        identity = {"name": "identity", "version": "3", "state": "READY", "reason": ""}
        return [identity] if ready else [identity, broken]

    def check_single_process(self):
        pass

    async def load(self, name):
        self.calls.append(("load", name))

    async def unload(self, name):
        if name != "identity":
            raise ServiceError("not_found", f"There is no model {name!r}.", "model")
        self.calls.append(("unload", name))


@contextlib.asynccontextmanager
async def connect(address):
    """Yield a stub of the inference service and its channel."""
    async with grpc.aio.insecure_channel(address) as channel:
        yield service_pb2_grpc.GRPCInferenceServiceStub(channel), channel


@contextlib.asynccontextmanager
async def start_server(repository, **options):
    """Start a server on a free port; yield its address."""
    server = await rpc.start(repository, "127.0.0.1:0", Metrics(), **options)
    try:
        yield f"127.0.0.1:{server.port}"
    finally:
        await server.stop(None)


@contextlib.contextmanager
def running_server():
    """Yield a `Server` and stop it at the end."""
    with asyncio.Runner() as runner:
        server = Server(runner)
        yield server
        server.client.close()
        server.run(server.server.stop(None))


class Server:
    """A running server, its event loop, and a client."""

    def __init__(self, runner):
        self.run = runner.run
        self.repository, self.metrics = OneModel(), Metrics()
        self.server = self.run(
            rpc.start(self.repository, "127.0.0.1:0", self.metrics, max_message_bytes=MESSAGE_BYTES)
        )
        self.address = f"127.0.0.1:{self.server.port}"
        self.client = sync_client.InferenceServerClient(self.address)

    def call(self, method, *args, **options):
        """Call a method of the client in another thread."""
        return self.run(asyncio.to_thread(getattr(self.client, method), *args, **options))

    def send(self, method, message):
        """Call a method with any message, even bytes."""

        async def call():
            async with connect(self.address) as (_, channel):
                function = channel.unary_unary(
                    f"/{messages.SERVICE}/{method}",
                    getattr(type(message), "SerializeToString", None),
                    getattr(service_pb2, f"{method}Response").FromString,
                )
                return await function(message)

        return self.run(call())

    def send_refused(self, method, message):
        """Call a method that must fail; return the error code and message."""
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            self.send(method, message)
        return caught.value.code().name, caught.value.details()


def infer_input(name, array, datatype=None):
    tensor = sync_client.InferInput(name, array.shape, datatype or name)
    tensor.set_data_from_numpy(array)
    return tensor


def infer_message(datatype="INT32", shape=(2,), raw=None, **contents):
    tensor = {"name": datatype, "datatype": datatype, "shape": shape}
    if contents:
        tensor["contents"] = contents
    return service_pb2.ModelInferRequest(
        model_name="identity",
        inputs=[tensor],
        raw_input_contents=[] if raw is None else [raw],
    )


def action_message(do, say=""):
    """Return a request that makes the model do something."""
    message = infer_message(raw=bytes(8))
    message.parameters["do"].string_param = do
    message.parameters["say"].string_param = say
    return message
