"""Health checks and reflection over gRPC, by the clients of gRPC's own packages."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from placeit.serve.network import NetworkServer

NAME = "inference.GRPCInferenceService"
STATES = health_pb2.HealthCheckResponse


@pytest.fixture
def made(network: Callable[..., NetworkServer]) -> NetworkServer:
    return network(token=b"secret")


@pytest.fixture
def channel(made: NetworkServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(made.grpc_address) as channel:
        yield channel


def test_health_checks_need_no_token_and_know_the_service(channel: grpc.Channel) -> None:
    health = health_pb2_grpc.HealthStub(channel)
    for name in ("", NAME):
        assert health.Check(health_pb2.HealthCheckRequest(service=name), timeout=60).status == STATES.SERVING
    with pytest.raises(grpc.RpcError, match=f"There is no service 'other' here; there is '{NAME}'") as refused:
        health.Check(health_pb2.HealthCheckRequest(service="other"), timeout=60)
    assert refused.value.code() == grpc.StatusCode.NOT_FOUND
    check = channel.unary_unary("/grpc.health.v1.Health/Check")
    with pytest.raises(grpc.RpcError, match="This is not a HealthCheckRequest in protobuf"):
        check(b"\xff\xff", timeout=60)


def test_a_watch_ends_with_the_server(made: NetworkServer, channel: grpc.Channel) -> None:
    watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(), timeout=60)
    unknown = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest(service="other"), timeout=60)
    assert next(unknown).status == STATES.SERVICE_UNKNOWN
    assert next(watch).status == STATES.SERVING
    made.close()
    assert [one.status for one in watch] == [STATES.NOT_SERVING]


def test_calls_without_a_request_keep_no_health_check_out(made: NetworkServer, channel: grpc.Channel) -> None:
    with contextlib.ExitStack() as stack:
        done = threading.Event()
        calls = []
        for _ in range(2):
            options = [("grpc.use_local_subchannel_pool", 1)]
            other = stack.enter_context(grpc.insecure_channel(made.grpc_address, options))
            calls += [other.stream_unary("/grpc.health.v1.Health/Check").future(nothing(done)) for _ in range(250)]
        stack.callback(done.set)
        assert {call.code() for call in calls} <= {grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=60).status == STATES.SERVING


def nothing(done: threading.Event) -> Iterator[bytes]:
    done.wait(120)
    yield from ()


def test_reflection_describes_all_services(made: NetworkServer, channel: grpc.Channel) -> None:
    token = (("authorization", "Bearer secret"),)
    with pytest.raises(grpc.RpcError, match="requires a token"):
        list(ProtoReflectionDescriptorDatabase(channel).get_services())
    authorized = grpc.intercept_channel(channel, _Authorized(token))
    found = ProtoReflectionDescriptorDatabase(authorized)
    assert set(found.get_services()) == {NAME, "grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    pool = DescriptorPool(found)
    assert {method.name for method in pool.FindServiceByName(NAME).methods} >= {"ModelInfer", "ServerLive"}
    assert {method.name for method in pool.FindServiceByName("grpc.health.v1.Health").methods} >= {"Check", "Watch"}
    newer = authorized.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    asked = reflection_pb2.ServerReflectionRequest(list_services="").SerializeToString()
    (answer,) = newer(iter([asked]), timeout=60)
    assert len(reflection_pb2.ServerReflectionResponse.FromString(answer).list_services_response.service) == 3


class _Authorized(grpc.StreamStreamClientInterceptor):
    """Send metadata with each call."""

    def __init__(self, metadata: tuple[tuple[str, str], ...]) -> None:
        self._metadata = metadata

    def intercept_stream_stream(self, go_on: Any, details: Any, requests: Any) -> Any:
        changed = type("Details", (grpc.ClientCallDetails,), vars(details) | {"metadata": self._metadata})()
        return go_on(changed, requests)
