"""Health checks and reflection over gRPC, for Kubernetes, load balancers and tools such as grpcurl."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf import descriptor_pb2, descriptor_pool
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2

from placeit.serve.arriving import Room
from placeit.serve.refusal import RefusedError, Status, invalid
from placeit.serve.rpc_messages import refusing
from placeit.serve.service import Service

__all__ = ["probes"]

_HEALTH: Final = "grpc.health.v1.Health"
_REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)  # their messages are the same
_ARRIVING: Final = 256  # most of these requests that are arriving; other requests take no room from them
_ARRIVING_S: Final = 1.0  # seconds in which they have to arrive
_WATCHES: Final = 256  # most watches that are open
_WATCH_S: Final = 1.0  # seconds between two looks at the health for a watch
_STATES: Final = health_pb2.HealthCheckResponse


def probes(
    service: Service, name: str, pool: descriptor_pool.DescriptorPool, check: Callable[[Any], None]
) -> list[grpc.GenericRpcHandler]:
    """Return the handlers of ``grpc.health.v1`` and of reflection.

    Args:
        service: its health is reported.
        name: full name of the protocol's service, which has the health of the server.
        pool: has the protocol's messages; the messages of the health service are added to it.
        check: raises RefusedError if a call, by its context, may not use reflection. Health needs no permission.
    """
    arriving, watches = Room(_ARRIVING, "health checks are arriving"), Room(_WATCHES, "watches are open")
    file = descriptor_pb2.FileDescriptorProto()
    health_pb2.DESCRIPTOR.CopyToProto(file)
    pool.Add(file)
    reflected = reflection.aio.ReflectionServicer((name, _HEALTH, *_REFLECTION[1:]), pool)

    def state(asked: str) -> Any:
        if asked not in ("", name):
            return None
        return _STATES.SERVING if service.ready else _STATES.NOT_SERVING

    async def received(context: Any, kind: Any) -> Any:
        """Return the next request of a call; None at its end. Raises RefusedError."""
        async with arriving.arrival(_ARRIVING_S) as one:
            arriving.take(one, 1)
            sent = await context.read()
        try:
            return None if sent is grpc.aio.EOF else kind.FromString(sent)
        except DecodeError:
            raise invalid(f"This is not a {kind.DESCRIPTOR.name} in protobuf.") from None

    async def health(_: Any, context: Any) -> bytes:
        answer = _STATES()
        with refusing(context):
            asked = (await received(context, health_pb2.HealthCheckRequest) or health_pb2.HealthCheckRequest()).service
            found = state(asked)
            if found is None:
                raise RefusedError(Status.UNKNOWN, f"There is no service '{asked}' here; there is '{name}'.")
            answer.status = found
        return bytes(answer.SerializeToString())

    async def watch(_: Any, context: Any) -> AsyncIterator[bytes]:
        with refusing(context):
            asked = (await received(context, health_pb2.HealthCheckRequest) or health_pb2.HealthCheckRequest()).service
            async with watches.arrival() as one:
                watches.take(one, 1)
                watches.arrived(one)
                said = None
                while True:
                    found = state(asked)
                    found = _STATES.SERVICE_UNKNOWN if found is None else found
                    if found != said:
                        yield _STATES(status=found).SerializeToString()
                    said = found
                    if service.draining:
                        return
                    await asyncio.sleep(_WATCH_S)

    async def reflect(_: Any, context: Any) -> AsyncIterator[bytes]:
        async def requests() -> AsyncIterator[Any]:
            while (one := await received(context, reflection_pb2.ServerReflectionRequest)) is not None:
                yield one

        with refusing(context):
            check(context)
            async for answer in reflected.ServerReflectionInfo(requests(), context):
                yield answer.SerializeToString()

    handlers = {
        _HEALTH: {
            "Check": grpc.stream_unary_rpc_method_handler(health),
            "Watch": grpc.stream_stream_rpc_method_handler(watch),
        },
        **{one: {"ServerReflectionInfo": grpc.stream_stream_rpc_method_handler(reflect)} for one in _REFLECTION},
    }
    return [grpc.method_handlers_generic_handler(*one) for one in handlers.items()]
