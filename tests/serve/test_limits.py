"""Full queues, deadlines, clients that are slow or leave, servers that end: each is said as the protocols say it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import onnx
import pytest
import tritonclient.grpc
from onnx import TensorProto, helper, numpy_helper
from uvicorn import Config
from uvicorn.server import ServerState

from placeit.core.memory import own_use
from placeit.core.placement import Placement
from placeit.profiler.cache import Cache
from placeit.serve.http_connection import Connection, Crowd
from placeit.serve.network import NetworkServer
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from placeit.session import Session
from tests.serve.network_server import call, held, open_on_a_core, values
from tests.serve.test_hostile import INFER, asking, changed, messages, raw

GOOD = json.dumps(asking())


@pytest.fixture
def large(tmp_path: Path, cache: Cache) -> Iterator[tuple[Session, Placement]]:
    """A model with an input of 4 MB."""
    node = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1 << 20]) for name in "xy"]
    graph = helper.make_graph([node], "large", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "large.onnx")
    with open_on_a_core(tmp_path / "large.onnx", cache) as found:
        yield found


@contextlib.contextmanager
def stub_of(network: NetworkServer) -> Iterator[Any]:
    with grpc.insecure_channel(network.grpc_address) as channel:
        yield tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)


def asked(pool: ThreadPoolExecutor, network: NetworkServer, server: Server, requests: int) -> list[Future[Any]]:
    """Send requests over HTTP, and wait until they are in the queue."""
    answers = [pool.submit(call, network, INFER, GOOD) for _ in range(requests)]
    until(lambda: server.waiting == requests)
    return answers


def until(condition: Callable[[], object]) -> None:
    """Wait for what other threads do; a test that waits in vain runs into its time-out."""
    while not condition():
        time.sleep(0.005)


def test_a_connection_is_closed_whole_when_nobody_waits_for_its_end_any_more() -> None:
    async def check() -> None:
        loop, made, state = asyncio.get_running_loop(), list[Connection](), ServerState()
        crowd = Crowd(1)

        def connected() -> Connection:
            config = Config(application_of_nothing, log_config=None)
            made.append(Connection(config, state, {}, timeout_s=60, max_bytes=1, crowd=crowd))
            return made[-1]

        listening = await loop.create_server(connected, "127.0.0.1", 0)
        _, writer = await asyncio.open_connection(*listening.sockets[0].getsockname())
        while not state.connections:
            await asyncio.sleep(0.001)
        stay = made[0].on_leave(lambda: pytest.fail("nobody waits any more"))
        made[0].transport.abort()
        stay()
        while not made[0].transport.is_closing() or state.connections:
            await asyncio.sleep(0.001)
        writer.close()
        listening.close()

    asyncio.run(check())


async def application_of_nothing(scope: Any, receive: Any, send: Any) -> None:
    pytest.fail("no request was sent")


def timed(microseconds: int) -> Any:
    request = raw(values())
    request.parameters["timeout"].int64_param = microseconds
    return request


def test_a_full_queue_is_said_at_once_and_others_are_answered(network: Callable[..., NetworkServer], server: Server) -> None:
    made = network()
    with stub_of(made) as stub, ThreadPoolExecutor(3) as pool, held(server):
        answers = asked(pool, made, server, 3)
        status, answer, _ = call(made, INFER, GOOD)
        assert status == 503
        assert "3 requests wait already" in answer["error"]
        with pytest.raises(grpc.RpcError) as caught:
            stub.ModelInfer(raw(values()), timeout=60)
        assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert call(made, "/v2/health/ready")[0] == 200  # which the requests that wait do not keep from being said
    assert [answer.result(60)[0] for answer in answers] == [200] * 3


def test_a_deadline_ends_requests_that_wait(network: Callable[..., NetworkServer], server: Server) -> None:
    made = network()
    with stub_of(made) as stub:
        with held(server):
            status, answer, _ = call(made, INFER, json.dumps(asking() | {"parameters": {"timeout": 20_000}}))
            assert status == 504
            assert answer["error"].startswith(("The time limit", "The deadline of this request"))  # the first one
            for request, timeout in ((timed(20_000), 60), (raw(values()), 0.02)):
                with pytest.raises(grpc.RpcError) as caught:
                    stub.ModelInfer(request, timeout=timeout)
                assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            until(lambda: server.stats().waiting == 0)
        assert len(stub.ModelInfer(timed(60_000_000), timeout=60).raw_output_contents) == 8
        assert len(stub.ModelInfer(timed(0), timeout=60).raw_output_contents) == 8
    assert call(made, INFER, json.dumps(asking() | {"parameters": {"timeout": 10**400}}))[0] == 200


def test_a_request_whose_client_leaves_is_taken_out(network: Callable[..., NetworkServer], server: Server) -> None:
    made = network()
    with stub_of(made) as stub, held(server):
        client = socket.create_connection(("127.0.0.1", made.port), timeout=60)
        client.sendall(f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(GOOD)}\r\n\r\n{GOOD}".encode())
        coming = stub.ModelInfer.future(raw(values()))
        until(lambda: server.waiting == 2)
        client.close()
        coming.cancel()
        until(lambda: server.stats().waiting == 0)
    assert server.stats().outcomes["cancelled"] == 2
    assert call(made, INFER, GOOD)[0] == 200


def test_clients_that_are_slow_are_left(network: Callable[..., NetworkServer]) -> None:
    """Before a request, in its head, in its body, between chunks, and in the midst of what is refused."""
    made = network(timeout_s=0.2, max_bytes=1000)
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\n"
    for sent, answer in (
        ("", b"HTTP/1.1 408"),
        (head, b"HTTP/1.1 408"),
        (head + "Content-Length: 100\r\n\r\nx", b"HTTP/1.1 408"),
        (head + "Transfer-Encoding: chunked\r\n\r\n1\r\nx\r\n", b"HTTP/1.1 408"),
        (head + "Content-Length: 2000\r\n\r\nx", b"HTTP/1.1 413"),
        ("GARBAGE\r\n\r\n", b"HTTP/1.1 400"),
    ):
        with socket.create_connection(("127.0.0.1", made.port), timeout=120) as client:
            client.sendall(sent.encode())
            with client.makefile("rb") as file:  # until the server has left
                assert file.read().startswith(answer), sent


def test_a_client_that_takes_no_answers_is_left(network: Callable[..., NetworkServer]) -> None:
    made = network(timeout_s=0.2)
    made.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # of connections, too: or the kernel would keep megabytes
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
        client.settimeout(120)
        client.connect(("127.0.0.1", made.port))
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 60)
        client.recv(1)
        until(lambda: made.connections == 0)
    with socket.create_connection(("127.0.0.1", made.port), timeout=60) as client, pytest.raises(ConnectionError):
        client.sendall(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n" * 1_000_000)  # far more than are read ahead
    assert call(made, "/v2/health/live")[0] == 200


def test_a_server_that_ends_finishes_what_it_has_accepted_and_takes_no_more(
    network: Callable[..., NetworkServer], server: Server
) -> None:
    made = network()
    with stub_of(made) as stub, ThreadPoolExecutor(3) as pool:
        with held(server):
            answers = asked(pool, made, server, 2)
            coming = stub.ModelInfer.future(raw(values()))
            until(lambda: server.waiting == 3)
            closing = pool.submit(made.close)
            until(lambda: call(made, "/v2/health/ready")[0] == 503)
            assert call(made, "/v2/health/live")[0] == 200
            assert call(made, "/v2/models/types/ready")[0] == 503
            status, answer, _ = call(made, INFER, GOOD)
            assert status == 503
            assert "about to end" in answer["error"]
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(raw(values()), timeout=60)
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
            assert not closing.done()
        assert [answer.result(60)[0] for answer in answers] == [200, 200]
        assert len(coming.result(60).raw_output_contents) == 8
        closing.result(60)
    with pytest.raises(ConnectionError):
        call(made, "/v2/health/live")
    assert server.submit(values()).result(60)  # which stays open


def test_a_connection_that_is_accepted_while_the_server_ends_is_closed(
    network: Callable[..., NetworkServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is made after the server has closed all connections that it knows."""
    close, clients, late = asyncio.base_events.Server.close, list[socket.socket](), list[asyncio.Task[Any]]()

    def accepting(server: asyncio.base_events.Server) -> None:
        for listening in server.sockets:
            clients.append(socket.create_connection(listening.getsockname(), timeout=60))
            with socket.socket(fileno=os.dup(listening.fileno())) as same:
                accepted, _ = same.accept()
            made = server.get_loop().connect_accepted_socket(server._protocol_factory, accepted)  # type: ignore[attr-defined]
            late.append(asyncio.ensure_future(made))
        close(server)

    made = network(timeout_s=10_000)
    monkeypatch.setattr(asyncio.base_events.Server, "close", accepting)
    made.close()
    (client,) = clients
    with client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_a_model_that_nothing_runs_is_not_ready(network: Callable[..., NetworkServer], server: Server) -> None:
    made = network()
    server.close()
    until(lambda: call(made, "/v2/health/ready")[0] == 503)
    status, answer, _ = call(made, INFER, GOOD)
    assert (status, answer["error"]) == (503, "This server is closed: make a new one.")
    assert call(made, "/v2/repository/index", "")[1][0]["state"] == "UNAVAILABLE"


def test_large_json_does_not_keep_others_waiting(
    network: Callable[..., NetworkServer], server: Server, large: tuple[Session, Placement]
) -> None:
    """While a large document is read, which then is refused, others are answered."""
    session, placement = large
    with session.serve(placement) as other:
        made, others = network(beside=ServedModel("large", other, session.model.inputs, session.model.outputs)), 0
        connection = HTTPConnection("127.0.0.1", made.port, timeout=120)
        asked = {"name": "x", "shape": [1, 1 << 20], "datatype": "FP32", "data": np.arange(1_000_000).tolist()}
        connection.request("POST", "/v2/models/large/infer", json.dumps({"inputs": [asked]}))
        while not select.select([connection.sock], [], [], 0)[0]:
            assert call(made, "/v2/health/live")[0] == 200
            others += 1
        answer = connection.getresponse()
        assert (answer.status, "1000000 values" in json.loads(answer.read())["error"]) == (400, True)
        connection.close()
    assert others > 2
    status, refused, _ = call(made, INFER, " " * (17 << 20))
    assert status == 413
    assert "send large tensors in binary form" in refused["error"]


def answered(network: NetworkServer) -> None:
    """Send requests over both protocols until one is answered: which others keep from it for a second at most."""
    until(lambda: call(network, INFER, GOOD)[0] == 200)
    with stub_of(network) as stub:

        def infer() -> bool:
            coming = stub.ModelInfer.future(raw(values()), timeout=60)
            assert coming.code() in (grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED)
            return coming.code() is grpc.StatusCode.OK

        until(infer)


def test_bodies_of_which_a_part_is_missing_give_way_to_others_and_keep_no_small_ones_out(
    network: Callable[..., NetworkServer],
) -> None:
    made = network(max_bytes=100_000, room_bytes=1_600_000)
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=60)) for _ in range(16)]
        for client in clients:
            client.sendall(
                f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100000\r\n\r\n".encode() + bytes(99_999)
            )
        assert call(made, INFER, GOOD)[0] == 200
        until(lambda: call(made, INFER, GOOD + " " * 40_000)[0] == 200)
        assert clients[0].recv(100).startswith(b"HTTP/1.1 503")


def body_of(size: int, sent: int) -> bytes:
    """Return the head of a request with a body of a size, and a part of the body."""
    return f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n".encode() + b" " * sent


def test_requests_wait_for_room_which_both_protocols_share(network: Callable[..., NetworkServer], server: Server) -> None:
    """While one that runs has taken it: small ones are answered, those whose size is known wait, and others are refused."""
    made, large = network(max_bytes=100_000, room_bytes=100_000), GOOD + " " * (100_000 - len(GOOD))
    with stub_of(made) as stub, ThreadPoolExecutor(3) as pool:
        with held(server):
            first = pool.submit(call, made, INFER, large)
            until(lambda: server.waiting == 1)
            others = [pool.submit(call, made, INFER, large) for _ in range(2)]
            small = stub.ModelInfer.future(raw(values()), timeout=60)
            until(lambda: server.waiting == 2)
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(changed(lambda request: setattr(request, "id", "x" * 40_000)), timeout=60)
            assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert not any(one.done() for one in (first, *others, small))
        assert [one.result(60)[0] for one in (first, *others)] == [200] * 3
        assert len(small.result(60).raw_output_contents) == 8


def test_what_is_sent_takes_no_more_memory_than_its_room(network: Callable[..., NetworkServer]) -> None:
    """Bodies without an end, of known and of unknown sizes, heads without an end, and requests that are sent far ahead."""
    made, size = network(max_bytes=4 << 20, room_bytes=8 << 20), 4 << 20
    chunked = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode()
    head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nX: ".encode()
    ahead = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n" * 7000
    before = own_use().bytes
    with contextlib.ExitStack() as stack:
        for sent in (body_of(size, size - 1), chunked + bytes(size - 1), head + b"x" * 60_000, ahead):
            for _ in range(50):
                client = stack.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=0.02))
                with contextlib.suppress(OSError):  # the server does not read, or has closed the connection
                    client.sendall(sent)
            assert call(made, INFER, GOOD)[0] == 200
        assert own_use().bytes - before < 64e6
        until(lambda: call(made, INFER, GOOD + " " * 40_000)[0] == 200)


def test_free_memory_is_returned_to_the_system(network: Callable[..., NetworkServer], monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where some memory in between is in use."""
    monkeypatch.setattr("placeit.serve.network._TRIM_S", 0.05)
    network()
    kept = [np.ones(20_000, np.uint8) for _ in range(5000)]
    used = own_use().bytes
    del kept[1::2], kept[1::2], kept[1::2]
    until(lambda: own_use().bytes < used - 50e6)


def test_very_many_calls_at_once_are_answered_all(network: Callable[..., NetworkServer]) -> None:
    """Although the server has not begun the first of them when the last one comes."""
    made, go_on = network(), threading.Event()
    assert made._loop is not None
    with contextlib.ExitStack() as stack:
        stack.callback(go_on.set)
        made._loop.call_soon_threadsafe(go_on.wait, 60)
        options = [("grpc.use_local_subchannel_pool", 1)]
        channels = [stack.enter_context(grpc.insecure_channel(made.grpc_address, options)) for _ in range(8)]
        asking = [one.unary_unary("/inference.GRPCInferenceService/ServerLive") for one in channels]
        calls = [one.future(b"") for one in asking for _ in range(250)]
        threading.Event().wait(1)  # for the calls to arrive: it is right however many do
        go_on.set()
        for one in calls:
            assert one.result(60)


def test_calls_without_a_request_give_way_to_others(network: Callable[..., NetworkServer]) -> None:
    """More than arrive at a time, of which nothing comes but their heads."""
    made = network()
    with contextlib.ExitStack() as stack:
        done = threading.Event()
        for _ in range(5):
            options = [("grpc.use_local_subchannel_pool", 1)]
            channel = stack.enter_context(grpc.insecure_channel(made.grpc_address, options))
            asking = channel.stream_unary("/inference.GRPCInferenceService/ModelInfer")
            for _ in range(250):
                asking.future(_nothing(done))
        stack.callback(done.set)
        with stub_of(made) as stub:
            assert stub.ServerLive(messages.ServerLiveRequest(), timeout=60).live
            assert stub.ServerReady(messages.ServerReadyRequest(), timeout=60).ready
        answered(made)


def _nothing(done: threading.Event) -> Iterator[bytes]:
    done.wait(120)
    yield from ()


def test_calls_of_which_a_part_is_missing_give_way_to_others(network: Callable[..., NetworkServer]) -> None:
    made = network()
    with contextlib.ExitStack() as stack:
        clients = [stack.enter_context(_half_sent(made)) for _ in range(20)]
        answered(made)
        seen = [client.recv(1 << 16) for client in clients]
        assert all(seen)
    made.close()
    timely = network(timeout_s=0.5)
    with _half_sent(timely) as client:
        while b"not arrived in time" not in (found := client.recv(1 << 16)):
            assert found


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
def test_answers_of_calls_that_are_not_received_take_room_and_give_way(
    network: Callable[..., NetworkServer], tmp_path: Path, cache: Cache, method: str
) -> None:
    width = 1 << 18
    graph = helper.make_graph(
        [helper.make_node("Expand", ["x", "shape"], ["y"])],
        "wide",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, width])],
        [numpy_helper.from_array(np.array([1, width]), "shape")],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "wide.onnx")
    asking = messages.ModelInferRequest(model_name="wide", raw_input_contents=[bytes(4)])
    asking.inputs.add(name="x", datatype="FP32", shape=[1, 1])
    sent = asking.SerializeToString()
    with contextlib.ExitStack() as stack:
        session, placement = stack.enter_context(open_on_a_core(tmp_path / "wide.onnx", cache))
        other = stack.enter_context(session.serve(placement))
        beside = ServedModel("wide", other, session.model.inputs, session.model.outputs)
        made = network(beside=beside, room_bytes=8 << 20, max_bytes=1 << 20)
        client = stack.enter_context(_http2(made, window=0))
        message = struct.pack(">BI", 0, len(sent)) + sent
        for number in range(1, 65, 2):
            client.sendall(_frame(1, 4, number, _head_of(method)) + _frame(0, 1, number, message))
        until(lambda: made._room._left < 0)
        until(lambda: call(made, INFER, GOOD + " " * 40_000)[0] == 200)
        answered(made)


def _half_sent(made: NetworkServer) -> socket.socket:
    """Open a connection of HTTP/2 by hand, and send a call of which the last byte of its message is missing."""
    client = _http2(made)
    client.sendall(_frame(1, 4, 1, _head_of("ModelInfer")) + _frame(0, 0, 1, struct.pack(">BI", 0, 1000) + bytes(999)))
    return client


def _http2(made: NetworkServer, window: int = 65_535) -> socket.socket:
    """Open a connection of HTTP/2 by hand, whose client takes some bytes of each answer."""
    client = socket.create_connection(("127.0.0.1", made.grpc_port), timeout=60)
    client.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, struct.pack(">HI", 4, window)))
    return client


def _head_of(method: str) -> bytes:
    """Return the head of a call of a method, in literal fields of HPACK (RFC 7541, section 6.2.2)."""
    head = {":method": "POST", ":scheme": "http", ":path": f"/inference.GRPCInferenceService/{method}", ":authority": "x"}
    head |= {"te": "trailers", "content-type": "application/grpc"}
    return b"".join(b"\0" + bytes([len(n)]) + n.encode() + bytes([len(v)]) + v.encode() for n, v in head.items())


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def test_connections_without_a_request_give_way_to_new_ones(network: Callable[..., NetworkServer]) -> None:
    made = network(connections=8)
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(socket.create_connection(("127.0.0.1", made.port), timeout=60)) for _ in range(12)]
        assert call(made, INFER, GOOD)[0] == 200
        assert idle[0].recv(1) == b""
        until(lambda: made.connections <= 8)


@pytest.mark.parametrize(
    "sent",
    [
        b"\x0a\x05types" + b"\x2a\x00" * 100_000,  # inputs
        b"\x0a\x05types" + b"\x32\x00" * 100_000,  # outputs
        b"\x0a\x05types" + b"\x3a\x00" * 100_000,  # raw contents
        b"\x0a\x05types" + b"\x22\x08\x0a\x04abcd\x12\x00" * 10_000,  # parameters
        b"\x0a\x05types\x2a\x90\xa1\x0f" + b"\x22\x08\x0a\x04abcd\x12\x00" * 25_000,  # parameters of an input
    ],
)
def test_messages_of_many_fields_are_refused_before_they_are_parsed(network: Callable[..., NetworkServer], sent: bytes) -> None:
    made = network()
    with grpc.insecure_channel(made.grpc_address) as channel:
        with pytest.raises(grpc.RpcError, match=r"INVALID_ARGUMENT[^$]*more than 4096 fields"):
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(sent, timeout=60)
        with pytest.raises(grpc.RpcError, match=r"INVALID_ARGUMENT[^$]*not a ModelInferRequest in protobuf"):
            channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(b"\xff" * 100_000, timeout=60)


def test_a_call_that_no_model_can_take_is_refused_before_it_is_kept(network: Callable[..., NetworkServer]) -> None:
    sent = b"\x0a\x05types" + b"\x3a\x80\x80\x80\x01" + bytes(1 << 21)  # 2 MiB of raw contents
    with (
        grpc.insecure_channel(network().grpc_address) as channel,
        pytest.raises(grpc.RpcError, match=r"RESOURCE_EXHAUSTED[^$]*larger than max"),
    ):
        channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")(sent, timeout=60)
