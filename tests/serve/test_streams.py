"""Clients send requests over a stream of gRPC, with Triton's client, or with its messages where that hides something."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from placeit.core.placement import Placement
from placeit.serve.network import NetworkServer
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from placeit.session import Session
from tests.serve.network_server import held, values
from tests.serve.test_clients import tensors
from tests.serve.test_hostile import messages, raw
from tests.serve.test_limits import large, stub_of, until
from tests.serve.test_network_sequences import arrays, decoder, served

__all__ = ["decoder", "large", "served"]  # fixtures


@contextlib.contextmanager
def streaming(network: NetworkServer) -> Iterator[tuple[Any, queue.Queue[Any]]]:
    """A client with an open stream, and what comes over it: results and errors."""
    came: queue.Queue[Any] = queue.Queue()
    with tritonclient.grpc.InferenceServerClient(network.grpc_address) as client:
        client.start_stream(lambda result, error: came.put(result if error is None else error))
        yield client, came


def request(number: int) -> Any:
    """A request whose id and inputs have a number."""
    made = raw(values(number))
    made.id = str(number)
    return made


@pytest.fixture
def sending() -> Iterator[Callable[..., Iterator[Any]]]:
    """Returns requests to send, after which a stream waits for more until the test ends."""
    made = []

    def send(*requests: Any) -> Iterator[Any]:
        made.append(queue.SimpleQueue[Any]())
        for one in requests:
            made[-1].put(one)
        return iter(made[-1].get, None)

    yield send
    for one in made:
        one.put(None)


def test_answers_and_errors_come_by_the_ids_of_their_requests(network: Callable[..., NetworkServer]) -> None:
    with streaming(network()) as (client, came):
        for number in range(3):
            options = {"enable_empty_final_response": number == 2}
            client.async_stream_infer("types", tensors(client, values(number)), request_id=str(number), **options)
        found = {one.get_response().id: one for one in (came.get(timeout=60) for _ in range(3))}
        for number in range(3):
            np.testing.assert_array_equal(found[str(number)].as_numpy("out_int64"), values(number)["in_int64"].T)
            final = found[str(number)].get_response().parameters
            assert {name: value.bool_param for name, value in final.items()} == {"triton_final_response": True} or number < 2
        client.async_stream_infer("types", tensors(client, {"in_bool": values()["in_bool"]}), request_id="wrong")
        error = came.get(timeout=60)
        assert isinstance(error, InferenceServerException)
        assert "'in_uint8' is missing" in error.message()
        client.async_stream_infer("types", tensors(client, values(5)), request_id="5")
        client.stop_stream()  # which waits for the answers
        assert came.get_nowait().get_response().id == "5"
        assert came.empty()


def test_what_is_wrong_with_one_request_is_said_with_its_id_and_others_go_on(network: Callable[..., NetworkServer]) -> None:
    wrong, many = request(1), request(2)
    wrong.inputs[3].shape[0] = 3
    for number in range(5000):
        many.outputs.add(name=str(number))
    with stub_of(network(max_bytes=1 << 20)) as stub:
        answers = [*stub.ModelStreamInfer(iter([request(0), wrong, many, request(3)]), timeout=60)]
        found = {one.infer_response.id: one for one in answers}
        assert {name: bool(one.infer_response.outputs) for name, one in found.items()} == {"0": 1, "1": 0, "": 0, "3": 1}
        assert "the model takes [2, 3]" in found["1"].error_message
        assert "more than 4096 fields" in found[""].error_message
        wrong.raw_input_contents.append(bytes(1 << 21))
        coming = stub.ModelStreamInfer(iter([wrong]), timeout=60)
        with pytest.raises(grpc.RpcError, match=r"RESOURCE_EXHAUSTED[^$]*larger than max"):
            next(coming)
        with network(token=b"secret") as other, stub_of(other) as closed:
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                next(closed.ModelStreamInfer(iter([request(0)]), timeout=60))
            brought = [("authorization", "Bearer secret")]
            (answer,) = closed.ModelStreamInfer(iter([request(0)]), timeout=60, metadata=brought)
            assert answer.infer_response.id == "0"


def test_requests_of_a_sequence_run_in_their_order(served: tuple[NetworkServer, ServedModel]) -> None:
    network, model = served
    tokens = [3, 1, 4, 1, 5]
    with streaming(network) as (client, came):
        for place, token in enumerate(tokens):
            ends = {"sequence_start": place == 0, "sequence_end": place == 4}
            given = tensors(client, arrays([token], place))
            client.async_stream_infer("decoder", given, request_id=str(place), sequence_id=7, **ends)
        client.stop_stream()
        found = [came.get_nowait() for _ in tokens]
        assert [one.get_response().id for one in found] == ["0", "1", "2", "3", "4"]
        whole = client.infer("decoder", tensors(client, arrays(tokens))).as_numpy("logits")
    np.testing.assert_allclose(found[-1].as_numpy("logits")[0, -1], whole[0, -1], atol=0.02)  # OpenVINO keeps caches in 8 bits
    assert len(model.sequences) == 0


def test_a_request_of_a_sequence_does_not_overtake_one_that_is_read_more_slowly(
    network: Callable[..., NetworkServer], large: tuple[Session, Placement]
) -> None:
    session, placement = large
    asked = [messages.ModelInferRequest(model_name="large", id=name) for name in ("typed", "raw", "raw again")]
    for one in asked:
        one.inputs.add(name="x", datatype="FP32", shape=[1, 1 << 20])
        one.parameters["sequence_id"].int64_param = 7
    asked[0].parameters["sequence_start"].bool_param = True
    asked[0].inputs[0].contents.fp32_contents.extend(np.ones(1 << 20, np.float32))  # which another thread reads
    for one in asked[1:]:
        one.raw_input_contents.append(bytes(4 << 20))
    with session.serve(placement) as other:
        made = network(beside=ServedModel("large", other, session.model.inputs, session.model.outputs))
        with grpc.insecure_channel(made.grpc_address, [("grpc.max_receive_message_length", -1)]) as channel:
            stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
            answers = [*stub.ModelStreamInfer(iter(asked), timeout=60)]
    assert [one.error_message for one in answers] == [""] * 3
    assert [one.infer_response.id for one in answers] == ["typed", "raw", "raw again"]


def test_requests_of_a_client_that_leaves_are_taken_out(
    network: Callable[..., NetworkServer], server: Server, sending: Callable[..., Iterator[Any]]
) -> None:
    made = network()
    with stub_of(made) as stub:
        with held(server):
            coming = stub.ModelStreamInfer(sending(request(0), request(1)))
            until(lambda: server.waiting == 2)
            coming.cancel()
            until(lambda: server.stats().waiting == 0)
        assert server.stats().outcomes["cancelled"] == 2
        (answer,) = stub.ModelStreamInfer(iter([request(2)]), timeout=60)
        assert answer.infer_response.id == "2"


def test_a_full_queue_is_said_and_a_stream_is_read_no_further_than_it_is_answered(
    opened: tuple[Session, Placement], network: Callable[..., NetworkServer], server: Server
) -> None:
    session, placement = opened
    with session.serve(placement, in_flight=1, queue=1000) as roomy:
        made = network(beside=ServedModel("roomy", roomy, session.model.inputs, session.model.outputs))
        with stub_of(made) as stub:
            with held(server):
                coming = stub.ModelStreamInfer(iter([request(number) for number in range(5)]), timeout=60)
                for _ in range(2):  # as three may wait
                    assert "3 requests wait already" in next(coming).error_message
            assert sorted(int(one.infer_response.id) for one in coming) == [0, 1, 2]
            asked = [request(number) for number in range(200)]
            for one in asked:
                one.model_name = "roomy"
            with held(roomy):
                coming = stub.ModelStreamInfer(iter(asked), timeout=60)
                until(lambda: roomy.waiting == 64)
                assert stub.ServerReady(messages.ServerReadyRequest(), timeout=60).ready
                assert roomy.waiting == 64
            assert sorted(int(one.infer_response.id) for one in coming) == [*range(200)]


@pytest.mark.parametrize(("levels", "order"), [(0, ["0", "1", "2"]), (2, ["2", "0", "1"])])
def test_requests_of_a_higher_priority_begin_first_if_the_server_has_priorities(
    network: Callable[..., NetworkServer], server: Server, levels: int, order: list[str]
) -> None:
    made, asked = network(priority_levels=levels), [request(number) for number in range(3)]
    for one, priority in zip(asked[1:], (3, 1), strict=True):  # of which there is no 3, and 1 is the first
        one.parameters["priority"].int64_param = priority
    with stub_of(made) as stub:
        with held(server):
            coming = stub.ModelStreamInfer(iter(asked), timeout=60)
            until(lambda: server.waiting == 3)
        assert [one.infer_response.id for one in coming] == order


def test_a_server_that_ends_answers_what_it_has_accepted_and_ends_streams(
    network: Callable[..., NetworkServer], server: Server, sending: Callable[..., Iterator[Any]]
) -> None:
    made = network()
    with stub_of(made) as stub:
        with held(server):
            coming = stub.ModelStreamInfer(sending(request(0)), timeout=60)
            idle = stub.ModelStreamInfer(sending(), timeout=60)
            until(lambda: server.waiting == 1)
            closing = threading.Thread(target=made.close)
            closing.start()
            with pytest.raises(grpc.RpcError, match=r"UNAVAILABLE[^$]*about to end"):
                next(idle)
        assert next(coming).infer_response.id == "0"
        with pytest.raises(grpc.RpcError, match=r"UNAVAILABLE[^$]*about to end"):
            next(coming)
        closing.join(60)
        assert not closing.is_alive()


def test_streams_that_wait_for_requests_give_way_to_others(
    network: Callable[..., NetworkServer], large: tuple[Session, Placement], sending: Callable[..., Iterator[Any]]
) -> None:
    session, placement = large
    with session.serve(placement) as other:  # for whose large requests there is room in 59 streams
        made = network(beside=ServedModel("large", other, session.model.inputs, session.model.outputs))
        with stub_of(made) as stub:
            waiting = [stub.ModelStreamInfer(sending(request(0)), timeout=60) for _ in range(70)]

            def answered() -> bool:
                try:
                    return [one.infer_response.id for one in stub.ModelStreamInfer(iter([request(1)]), timeout=60)] == ["1"]
                except grpc.RpcError:
                    return False

            until(answered)
            for one in waiting:
                one.cancel()
            assert {one.code().name for one in waiting} == {"CANCELLED", "RESOURCE_EXHAUSTED"}


def test_a_stream_whose_client_takes_no_answers_ends(
    network: Callable[..., NetworkServer], large: tuple[Session, Placement]
) -> None:
    session, placement = large
    asked = messages.ModelInferRequest(model_name="large", raw_input_contents=[bytes(4 << 20)])
    asked.inputs.add(name="x", datatype="FP32", shape=[1, 1 << 20])
    with session.serve(placement) as other:
        made = network(beside=ServedModel("large", other, session.model.inputs, session.model.outputs), timeout_s=0.2)

        def waits() -> int:
            """Return how many tasks of the server wait for its end: one more while there is a stream."""
            return sum("Event.wait" in repr(task.get_coro()) for task in asyncio.all_tasks(made._loop))

        before, answers = waits(), list[Any]()
        options = [("grpc.max_receive_message_length", -1)]
        with grpc.insecure_channel(made.grpc_address, options) as channel:
            coming = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel).ModelStreamInfer(iter([asked] * 8))
            until(lambda: other.stats().arrived)
            until(lambda: waits() == before)
            with pytest.raises(grpc.RpcError, match=r"DEADLINE_EXCEEDED[^$]*has not received its answers in time"):
                answers.extend(coming)
        assert len(answers) < 8
