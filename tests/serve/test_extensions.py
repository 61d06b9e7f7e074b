"""Triton's extensions, by Triton's clients: tensors in shared memory, classes, BF16, settings."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import logging
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tritonclient.utils import InferenceServerException, shared_memory

from placeit.backends.base import TensorSpec
from placeit.profiler.cache import Cache
from placeit.serve.network import NetworkServer, Options
from placeit.serve.refusal import RefusedError
from placeit.serve.rpc_messages import Messages
from placeit.serve.served_model import ServedModel
from placeit.serve.service import Service
from placeit.serve.tensors import of_contents
from placeit.serving.server import Server
from tests.serve.network_server import SHAPE, call, open_on_a_core, values
from tests.serve.test_clients import PROTOCOLS, client_of, tensors
from tests.serve.test_hostile import asking

INFER = "/v2/models/types/infer"


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(protocol: str, network: Callable[..., NetworkServer]) -> Iterator[Any]:
    with client_of(protocol, network(shared_memory=True)) as made:
        yield made


def options(client: Any) -> dict[str, bool]:
    return {} if isinstance(client, tritonclient.http.InferenceServerClient) else {"as_json": True}


@contextlib.contextmanager
def region(size: int) -> Iterator[Any]:
    made = shared_memory.create_shared_memory_region("some", f"placeit-test-{os.getpid()}", size)
    try:
        yield made
    finally:
        shared_memory.destroy_shared_memory_region(made)


def in_memory(client: Any, protocol: str, given: Any, made: Any, **output: Any) -> Any:
    """Ask with one input and one output in a region, at 8 and 64 bytes, and the others sent."""
    shared_memory.set_shared_memory_region(made, [given["in_float32"]], offset=8)
    sent = tensors(client, {name: value for name, value in given.items() if name != "in_float32"})
    lies = PROTOCOLS[protocol].InferInput("in_float32", SHAPE, "FP32")
    lies.set_shared_memory("some", 24, offset=8)
    wanted = [PROTOCOLS[protocol].InferRequestedOutput(name) for name in ("out_float32", "out_int64")]
    wanted[0].set_shared_memory("some", output.get("size", 24), offset=64)
    return client.infer("types", [lies, *sent], outputs=wanted)


def test_tensors_in_shared_memory_are_read_and_written_there(client: Any, protocol: str) -> None:
    given = values(4)
    with region(256) as made:
        key = f"placeit-test-{os.getpid()}"
        client.register_system_shared_memory("some", key, 128)
        status = client.get_system_shared_memory_status(**options(client))
        (found,) = status["regions"].values() if options(client) else status
        assert (found["name"], found["key"], int(found["byte_size"])) == ("some", key, 128)
        for _ in range(2):
            answer = in_memory(client, protocol, given, made)
        written = shared_memory.get_contents_as_numpy(made, np.float32, SHAPE[::-1], offset=64)
        np.testing.assert_array_equal(written, given["in_float32"].T)
        np.testing.assert_array_equal(answer.as_numpy("out_int64"), given["in_int64"].T)
        with pytest.raises(
            InferenceServerException, match="The output 'out_float32' has 24 bytes; there are 20 for it in 'some'"
        ):
            in_memory(client, protocol, given, made, size=20)
        for name, other, size, said in (
            ("some", key, 128, "The region 'some' is registered already"),
            ("more", key, 1 << 40, rf"has 256 bytes, and not {1 << 40}"),
            ("more", "../etc/passwd", 8, "does not name an object of shared memory"),
            ("x" * 256, key, 8, "The name of a region has at most 255 characters"),
            ("more", "/placeit-no-such", 8, "cannot be opened: No such file"),
        ):
            with pytest.raises(InferenceServerException, match=said):
                client.register_system_shared_memory(name, other, size)
        os.truncate(f"/dev/shm/{key}", 16)
        with pytest.raises(InferenceServerException, match="The region 'some' has become smaller"):
            in_memory(client, protocol, given, _Nowhere())
        os.truncate(f"/dev/shm/{key}", 256)
    client.unregister_system_shared_memory("some")
    with pytest.raises(InferenceServerException, match="There is no region 'some': register it first"):
        client.get_system_shared_memory_status("some")


class _Nowhere:
    """A region to which tests write nothing."""

    class _mpsm_handle:  # noqa: N801
        buf = bytearray(256)


def test_memory_is_not_shared_unless_the_server_says_so(protocol: str, network: Callable[..., NetworkServer]) -> None:
    with client_of(protocol, network()) as client:
        assert not (client.get_system_shared_memory_status(**options(client)) or {}).__len__()
        with pytest.raises(InferenceServerException, match="start it with --shared-memory"):
            client.register_system_shared_memory("some", "/some", 8)


def test_classes_are_the_largest_values(client: Any, protocol: str) -> None:
    given = values(5)
    given["in_float32"][:] = [[1.5, -2, 9], [9, 0.25, 8]]
    wanted = [PROTOCOLS[protocol].InferRequestedOutput(name, class_count=3) for name in ("out_float32", "out_int32")]
    found = client.infer("types", tensors(client, given), outputs=wanted)
    assert found.as_numpy("out_float32").tolist() == [b"9.000000:1", b"9.000000:4", b"8.000000:5"]
    flat = given["in_int32"].T.reshape(-1)
    first = int(found.as_numpy("out_int32")[0].decode().partition(":")[0])
    assert first == flat.max()


def test_classes_are_texts_in_json(network: Callable[..., NetworkServer]) -> None:
    asked = asking() | {"outputs": [{"name": "out_bool", "parameters": {"classification": 1}}]}
    status, answer, _ = call(network(), INFER, json.dumps(asked))
    assert (status, answer["outputs"][0]["datatype"], answer["outputs"][0]["shape"]) == (200, "BYTES", [1])
    assert answer["outputs"][0]["data"][0].partition(":")[0] in ("0", "1")
    asked["outputs"][0]["parameters"]["classification"] = True
    status, answer, _ = call(network(), INFER, json.dumps(asked))
    assert (status, answer["error"].partition(",")[0]) == (
        400,
        "The parameter 'classification' has to be a whole number of classes",
    )


def test_fp32_may_be_sent_as_bf16(client: Any, protocol: str) -> None:
    given = values(6)
    given["in_float32"][:] = [[1.5, -2, np.inf], [2.0**-130, 0, 3.140625]]
    sent = tensors(client, {name: value for name, value in given.items() if name != "in_float32"})
    half = PROTOCOLS[protocol].InferInput("in_float32", SHAPE, "BF16")
    half.set_data_from_numpy(given["in_float32"])
    found = client.infer("types", [half, *sent]).as_numpy("out_float32")
    np.testing.assert_array_equal(found, given["in_float32"].T)


def test_bf16_has_no_numbers_in_json_and_no_typed_values(network: Callable[..., NetworkServer]) -> None:
    made = network()
    asked = asking()
    one = next(one for one in asked["inputs"] if one["name"] == "in_float32")
    one["datatype"] = "BF16"
    status, answer, _ = call(made, INFER, json.dumps(asked))
    assert (status, answer["error"]) == (400, "The input 'in_float32' is BF16: send it in binary form, or as FP32.")
    spec = TensorSpec("x", "x", SHAPE, "bfloat16")
    with pytest.raises(RefusedError, match="'x' is BF16, which has no typed contents: send it raw"):
        of_contents(Messages().InferTensorContents(fp32_contents=[0.5] * 6), spec)


@pytest.mark.parametrize("binary", [True, False], ids=["binary", "JSON"])
def test_texts_are_refused_and_the_next_request_is_answered(client: Any, protocol: str, binary: bool) -> None:
    """No device passes tensors of texts; clients are told the status of the protocol for a wrong type."""
    texts = PROTOCOLS[protocol].InferInput("in_float32", SHAPE, "BYTES")
    said = np.full(SHAPE, b"two", np.object_)
    given = values(4)
    rest = {name: value for name, value in given.items() if name != "in_float32"}
    texts.set_data_from_numpy(said, **({"binary_data": binary} if protocol == "http" else {}))
    with pytest.raises(InferenceServerException, match="sent as BYTES, a type that no model has here") as error:
        client.infer("types", [texts, *tensors(client, rest)])
    assert "such as tokens" in error.value.message()
    assert error.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    found = client.infer("types", tensors(client, given))
    np.testing.assert_array_equal(found.as_numpy("out_float16"), given["in_float16"].T)


def test_settings_can_be_read_and_not_changed(client: Any) -> None:
    for read, name, change in (
        (client.get_log_settings, "log_error", lambda: client.update_log_settings({"log_error": False})),
        (client.get_trace_settings, "trace_level", lambda: client.update_trace_settings(settings={"trace_level": ["OFF"]})),
    ):
        found = read(**options(client))
        assert name in found.get("settings", found)
        with pytest.raises(InferenceServerException, match="Clients cannot change the logs and traces of this server"):
            change()


def test_requests_have_spans_in_the_traces_of_their_clients(protocol: str, network: Callable[..., NetworkServer]) -> None:
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    parent = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    with client_of(protocol, network(tracer_provider=provider)) as client:
        assert client.get_trace_settings(**options(client))
        client.infer("types", tensors(client, values()), headers=parent)
        with pytest.raises(InferenceServerException):
            client.infer("types", tensors(client, {"in_bool": values()["in_bool"]}), headers=parent)
    spans = kept.get_finished_spans()
    first, second = (span for span in spans if span.name == "infer types")
    assert (first.status.status_code.name, second.status.status_code.name) == ("UNSET", "ERROR")
    for span in (first, second):
        assert f"{span.context.trace_id:032x}" == "0af7651916cd43dd8448eb211c80319c"
        assert span.parent is not None
        assert f"{span.parent.span_id:016x}" == "b7ad6b7169203331"
    stages = [span for span in spans if span.parent is not None and span.parent.span_id == first.context.span_id]
    assert [span.name for span in stages] == ["receive", "read", "queue", "run", "answer"]
    times = [time for span in stages for time in (span.start_time, span.end_time)]
    assert times == sorted(times)


class Broken(SpanProcessor):
    """Fails at each span."""

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        raise RuntimeError("out of order")


def test_requests_are_answered_and_end_if_their_spans_cannot_be_written(
    network: Callable[..., NetworkServer], caplog: pytest.LogCaptureFixture
) -> None:
    provider = TracerProvider()
    provider.add_span_processor(Broken())
    made = network(tracer_provider=provider)
    with caplog.at_level(logging.ERROR, "placeit"):
        assert [call(made, INFER, json.dumps(asking()))[0] for _ in range(2)] == [200, 200]
        made.close()  # waits for requests that have not ended
    (record,) = [record for record in caplog.records if record.name == "placeit"]
    assert record.message == "Requests are answered, but cannot be counted or traced: RuntimeError: out of order"


def test_a_request_of_several_runs_counts_as_a_success(server: Server) -> None:
    model = ServedModel("some", server, [], [])
    with Service([model]).accepted("some"):
        pass
    found = model.statistics()["inference_stats"]
    assert (found["success"]["count"], found["fail"]["count"], found["queue"]["count"]) == (1, 0, 0)


def test_metrics_have_the_names_of_triton_too(network: Callable[..., NetworkServer]) -> None:
    made = network()
    for request in (asking(), asking(), {}):
        call(made, INFER, json.dumps(request))
    page = call(made, "/metrics")[1].decode()
    assert 'nv_inference_request_success{model="types",version="1"} 2.0' in page
    assert 'nv_inference_request_failure{model="types",version="1"} 1.0' in page
    assert 'nv_inference_exec_count{model="types",version="1"} 2.0' in page
    assert 'nv_inference_pending_request_count{model="types",version="1"} 0.0' in page
    (spent,) = re.findall(r"nv_inference_compute_infer_duration_us{.*} (.*)", page)
    assert float(spent) > 0
    assert call(made, "/metrics", Accept="text/plain;version=x")[0] == 200  # not a version


def test_null_stands_for_what_is_left_out_and_priorities_are_numbers(network: Callable[..., NetworkServer]) -> None:
    made = network()
    asked = asking() | {"id": None, "parameters": None, "outputs": None}
    assert call(made, INFER, json.dumps(asked))[0] == 200
    nothing = dict.fromkeys(("timeout", "priority", "sequence_id", "sequence_start", "sequence_end", "binary_data_output"))
    outputs = [{"name": "out_bool", "parameters": dict.fromkeys(("classification", "binary_data"))}]
    asked = asking(parameters={"binary_data_size": None}) | {"parameters": nothing, "outputs": outputs}
    assert call(made, INFER, json.dumps(asked))[0] == 200
    assert call(made, "/v2/repository/models/types/load", '{"parameters": null}')[0] == 403  # it is read, and not allowed
    assert call(made, INFER, json.dumps(asking() | {"parameters": {"priority": 3}}))[0] == 200
    status, answer, _ = call(made, INFER, json.dumps(asking() | {"parameters": {"priority": "high"}}))
    assert (status, answer["error"]) == (400, "The parameter 'priority' has to be a whole number of at least 0.")


def test_large_answers_come_in_pieces_and_compressed_if_clients_ask_for_it(tmp_path: Path, cache: Cache) -> None:
    given = np.arange(300_000, dtype=np.float32).reshape(1, -1)
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, given.shape) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "wide", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "wide.onnx")
    tensor = {"name": "x", "shape": given.shape, "datatype": "FP32", "parameters": {"binary_data_size": given.nbytes}}
    head = json.dumps({"inputs": [tensor]}).encode()
    sent = {"Inference_Header_Content_Length": str(len(head))}
    with open_on_a_core(tmp_path / "wide.onnx", cache) as (session, placement), session.serve(placement) as server:
        served = ServedModel("wide", server, session.model.inputs, session.model.outputs)
        with NetworkServer([served], Options(port=0, grpc_port=None)) as made, client_of("http", made) as client:
            np.testing.assert_array_equal(client.infer("wide", tensors(client, {"x": given})).as_numpy("y"), given)
            for accepted, packed in (("gzip, deflate", True), ("deflate, gzip;q=0", False)):
                status, answer, headers = call(
                    made, "/v2/models/wide/infer", head + given.tobytes(), Accept_Encoding=accepted, **sent
                )
                assert (status, headers.get("content-encoding")) == (200, "gzip" if packed else None), accepted
                found = json.loads(gzip.decompress(answer)) if packed else answer
                assert found["outputs"][0]["data"] == given.reshape(-1).tolist()


def test_brief_work_does_not_wait_for_long_work(server: Server) -> None:
    async def check() -> None:
        service, go_on = Service([ServedModel("some", server, [], [])]), threading.Event()
        long = [asyncio.ensure_future(service.apart(go_on.wait, 60)) for _ in range(3)]
        assert await service.apart(int, "7", brief=True) == 7
        assert not any(one.done() for one in long)
        go_on.set()
        assert await asyncio.gather(*long) == [True] * 3

    asyncio.run(check())
