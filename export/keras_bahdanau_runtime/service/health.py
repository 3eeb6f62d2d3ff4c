"""The health of the models over gRPC, as `grpc.health.v1` has it."""

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from keras_bahdanau_runtime.service.errors import ServiceError
from keras_bahdanau_runtime.service.repository import Repository

_LOOK = 0.2  # seconds between two looks for those who watch


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]
    """The health of the service, "", and of each model by its name."""

    def __init__(self, repository: Repository) -> None:
        self._repository = repository

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN:
            await context.abort(grpc.StatusCode.NOT_FOUND, "There is no model of this name.")
        return health_pb2.HealthCheckResponse(status=status)

    async def Watch(self, request: Any, context: Any) -> None:
        told = None
        while True:
            draining = self._repository.draining
            status = self._status(request.service)
            if status != told:
                await context.write(health_pb2.HealthCheckResponse(status=status))
                told = status
            if draining:  # a server that stops waits for every call
                return
            await asyncio.sleep(_LOOK)

    def _status(self, name: str) -> Any:
        kinds, repository = health_pb2.HealthCheckResponse, self._repository
        serving = not repository.draining
        if not name:
            serving = serving and repository.ready
        else:
            try:
                repository.get(name)
            except ServiceError as error:
                if error.kind == "not_found":
                    return kinds.SERVICE_UNKNOWN
                serving = False
        return kinds.SERVING if serving else kinds.NOT_SERVING
