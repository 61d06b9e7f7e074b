"""Clients of the protocol that are not of this project get from a server what a session's run gives, bit for bit."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from prometheus_client.parser import text_string_to_metric_families

from placeit.backends.base import TensorSpec
from placeit.core.placement import Placement
from placeit.core.version import __version__
from placeit.serve.network import NetworkServer
from placeit.serve.refusal import RefusedError
from placeit.serve.rpc_messages import Messages
from placeit.serve.served_model import ServedModel
from placeit.serve.tensors import DATATYPES, of_contents
from placeit.serving.server import Server
from placeit.session import Session
from tests.serve.network_server import SHAPE, TYPES, Arrays, call, values
from tests.serve.test_hostile import asking

PROTOCOLS = {"http": tritonclient.http, "grpc": tritonclient.grpc}


@pytest.fixture(params=PROTOCOLS)
def client(request: pytest.FixtureRequest, network: Callable[..., NetworkServer]) -> Iterator[Any]:
    with client_of(request.param, network()) as made:
        yield made


@contextlib.contextmanager
def client_of(protocol: str, network: NetworkServer) -> Iterator[Any]:
    address = f"127.0.0.1:{network.port}" if protocol == "http" else network.grpc_address
    with PROTOCOLS[protocol].InferenceServerClient(address) as client:
        yield client


def tensors(client: Any, given: Arrays, **options: Any) -> list[Any]:
    kind = tritonclient.http.InferInput if isinstance(client, tritonclient.http.InferenceServerClient) else None
    found = []
    for name, value in given.items():
        found.append((kind or tritonclient.grpc.InferInput)(name, value.shape, DATATYPES[value.dtype.name]))
        found[-1].set_data_from_numpy(value, **options)
    return found


def extremes() -> Arrays:
    """The largest and least values of each type, negative zero, infinities and NaN."""
    found: Arrays = {}
    for name in TYPES:
        dtype = np.dtype(name)
        if dtype.kind == "f":
            limits = np.finfo(dtype)
            ends = [limits.max, limits.min, -0.0, np.inf, -np.inf, np.nan]
        else:
            limits = [0, 1] if dtype.kind == "b" else [np.iinfo(dtype).min, np.iinfo(dtype).max]
            ends = [*limits, *limits, *limits]
        found[f"in_{name}"] = np.array(ends, dtype).reshape(SHAPE)
    return found


def test_tensors_of_every_type_come_as_a_run_gives_them(client: Any, opened: tuple[Session, Placement], server: Server) -> None:
    session, placement = opened
    for given in (values(1), extremes()):
        wanted = server.submit(given).result(60)
        if all(np.isfinite(value).all() for value in given.values()):
            for name, value in session.run(placement, runs=1, warmup=0, inputs=given).outputs.items():
                assert wanted[name].tobytes() == value.tobytes()
        found = client.infer("types", tensors(client, given), request_id="abc", model_version="1")
        response = found.get_response()
        assert (response["id"] if isinstance(response, dict) else response.id) == "abc"
        for name in TYPES:
            value, right = found.as_numpy(f"out_{name}"), wanted[f"out_{name}"]
            assert (value.dtype, value.shape) == (right.dtype, right.shape)
            assert value.tobytes() == right.tobytes(), name


def test_outputs_can_be_chosen(client: Any) -> None:
    module = tritonclient.http if isinstance(client, tritonclient.http.InferenceServerClient) else tritonclient.grpc
    wanted = [module.InferRequestedOutput("out_int64"), module.InferRequestedOutput("out_bool")]
    given = values(2)
    found = client.infer("types", tensors(client, given), outputs=wanted)
    np.testing.assert_array_equal(found.as_numpy("out_int64"), given["in_int64"].T)
    assert found.as_numpy("out_float32") is None


def test_bodies_may_be_compressed_and_no_chosen_output_means_all(network: Callable[..., NetworkServer]) -> None:
    made, given = network(), values(2)
    with tritonclient.http.InferenceServerClient(f"127.0.0.1:{made.port}") as client:
        for encoding in ("gzip", "deflate"):
            found = client.infer("types", tensors(client, given), request_compression_algorithm=encoding)
            np.testing.assert_array_equal(found.as_numpy("out_int64"), given["in_int64"].T)
    status, answer, _ = call(made, "/v2/models/types/infer", json.dumps(asking() | {"outputs": []}))
    assert (status, len(answer["outputs"])) == (200, len(TYPES))


def test_health_is_told_as_json_too(network: Callable[..., NetworkServer]) -> None:
    """As clients of KServe read it."""
    made = network()
    assert call(made, "/v2/health/live")[:2] == (200, {"live": True})
    assert call(made, "/v2/health/ready")[:2] == (200, {"ready": True})
    assert call(made, "/v2/models/types/ready")[:2] == (200, {"name": "types", "ready": True})
    assert call(made, "/v2/")[1] == call(made, "/v2")[1]


def test_json_carries_numbers_exactly(network: Callable[..., NetworkServer], server: Server) -> None:
    """Flat or nested, of all types; the least and largest numbers, too."""
    made = network()
    given = {name: np.nan_to_num(value) for name, value in extremes().items()}
    wanted = server.submit(given).result(60)
    for flat in (True, False):
        inputs = [
            {
                "name": name,
                "shape": SHAPE,
                "datatype": DATATYPES[value.dtype.name],
                "data": (value.reshape(-1) if flat else value).tolist(),
            }
            for name, value in given.items()
        ]
        status, answer, _ = call(made, "/v2/models/types/infer", json.dumps({"inputs": inputs}))
        assert (status, answer["model_name"], answer["model_version"]) == (200, "types", "1"), answer
        for output in answer["outputs"]:
            name = output["name"].removeprefix("out_")
            right = wanted[output["name"]]
            assert (output["datatype"], tuple(output["shape"])) == (DATATYPES[name], right.shape)
            np.testing.assert_array_equal(np.array(output["data"], name).reshape(right.shape), right)


def test_typed_values_come_over_grpc_as_raw_ones_do() -> None:
    """Of every type but FP16, which the protocol has no field for."""
    fields = {"bool": "bool", "float32": "fp32", "float64": "fp64", "int64": "int64", "uint8": "uint"}
    for name, value in extremes().items():
        dtype = value.dtype.name
        contents = Messages().InferTensorContents()
        spec = TensorSpec(name, name, SHAPE, dtype)
        if dtype != "float16":
            getattr(contents, f"{fields.get(dtype, 'int')}_contents").extend(value.reshape(-1).tolist())
        if dtype == "float16":
            with pytest.raises(RefusedError, match="'in_float16' is FP16, which has no typed contents: send it raw"):
                of_contents(contents, spec)
        else:
            found = of_contents(contents, spec)
            assert (found.dtype, found.tobytes()) == (value.dtype, value.tobytes())
            contents.bytes_contents.append(b"x")
            with pytest.raises(RefusedError, match=r"belong in .* alone"):
                of_contents(contents, spec)


def test_a_model_beside_others_takes_typed_values_and_bytes_alone(
    network: Callable[..., NetworkServer], single: tuple[Session, Placement]
) -> None:
    session, placement = single
    value = np.arange(6, dtype=np.float32).reshape(SHAPE)
    with session.serve(placement) as server:
        made = network(beside=ServedModel("single", server, session.model.inputs, session.model.outputs))
        request = tritonclient.grpc.service_pb2.ModelInferRequest(model_name="single")
        request.inputs.add(name="in_float32", datatype="FP32", shape=SHAPE).contents.fp32_contents.extend(value.reshape(-1))
        with client_of("grpc", made) as client:
            found = client._client_stub.ModelInfer(request)  # the client itself sends raw contents only
        assert found.raw_output_contents[0] == value.T.tobytes()
        header = {"Inference_Header_Content_Length": "0"}
        status, answer, headers = call(made, "/v2/models/single/infer", value.tobytes(), **header)
        assert status == 200
        assert answer[int(headers["inference-header-content-length"]) :] == value.T.tobytes()
        status, answer, _ = call(made, "/v2/models/types/infer", value.tobytes(), **header)
        assert (status, answer["error"]) == (400, "The model 'types' has 8 inputs: a body without JSON is one of one input.")


def test_clients_send_small_and_large_tensors_as_json(network: Callable[..., NetworkServer]) -> None:
    made, given = network(), {name: value for name, value in values(3).items() if value.dtype != np.float16}
    with client_of("http", made) as client:
        half = tensors(client, {"in_float16": values(3)["in_float16"]})
        wanted = [tritonclient.http.InferRequestedOutput("out_float32", binary_data=False)]
        found = client.infer("types", [*tensors(client, given, binary_data=False), *half], outputs=wanted)
    np.testing.assert_array_equal(found.as_numpy("out_float32"), given["in_float32"].T)


def test_the_server_and_its_models_describe_themselves(client: Any) -> None:
    options = {} if isinstance(client, tritonclient.http.InferenceServerClient) else {"as_json": True}
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("types", "1")
    server = client.get_server_metadata(**options)
    assert (server["name"], server["version"]) == ("placeit", __version__)
    assert "binary_tensor_data" in server["extensions"]
    model = client.get_model_metadata("types", **options)
    assert (model["name"], model["versions"], model["platform"]) == ("types", ["1"], "placeit")
    for what, shape in (("inputs", SHAPE), ("outputs", SHAPE[::-1])):
        found = {one["name"].split("_")[1]: (one["datatype"], tuple(map(int, one["shape"]))) for one in model[what]}
        assert found == {name: (DATATYPES[name], shape) for name in TYPES}
    config = client.get_model_config("types", **options)
    config = config.get("config", config)
    assert [one["data_type"] for one in config["input"]] == [f"TYPE_{DATATYPES[name]}" for name in TYPES]
    index = client.get_model_repository_index(**options)
    assert [(one["name"], one["state"]) for one in (index["models"] if options else index)] == [("types", "READY")]


def test_requests_are_counted(client: Any, network: Callable[..., NetworkServer]) -> None:
    options = {} if isinstance(client, tritonclient.http.InferenceServerClient) else {"as_json": True}
    for _ in range(3):
        client.infer("types", tensors(client, values()))
    with pytest.raises(tritonclient.http.InferenceServerException):
        client.infer("types", tensors(client, {"in_bool": values()["in_bool"]}))
    (found,) = client.get_inference_statistics("types", **options)["model_stats"]
    counts = {what: int(spent.get("count", 0)) for what, spent in found["inference_stats"].items()}
    assert counts == {**dict.fromkeys(counts, 3), "fail": 1}
    assert int(found["inference_count"]) == 3
    assert all(int(spent["ns"]) > 0 for spent in found["inference_stats"].values())
    status, page, headers = call(network(), "/metrics")
    assert (status, headers["content-type"].split(";")[0]) == (200, "text/plain")
    samples = [one for family in text_string_to_metric_families(page.decode()) for one in family.samples]
    succeeded = {"model": "types", "version": "1", "outcome": "succeeded"}
    assert [one.value for one in samples if one.labels == succeeded] == [3]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_many_clients_get_their_own_answers(network: Callable[..., NetworkServer], protocol: str) -> None:
    made = network()

    def ask(number: int) -> int:
        right, given = 0, values(number)
        with client_of(protocol, made) as client:
            for _ in range(5):
                found = client.infer("types", tensors(client, given)).as_numpy("out_float64")
                right += bool((found == given["in_float64"].T).all())
        return right

    with ThreadPoolExecutor(3) as pool:  # as many as may wait
        assert list(pool.map(ask, range(3))) == [5, 5, 5]


def test_answers_of_http_come_in_one_piece_and_without_a_body_too(network: Callable[..., NetworkServer]) -> None:
    made, body = network(), json.dumps(asking()).encode()
    with socket.create_connection(("127.0.0.1", made.port), timeout=60) as client:

        def ask(line: str, *headers: str, sent: bytes = b"") -> tuple[bytes, bytes]:
            client.sendall("\r\n".join([f"{line} HTTP/1.1", "Host: localhost", *headers, "", ""]).encode() + sent)
            head, _, rest = client.recv(1 << 16).partition(b"\r\n\r\n")
            return head.split(b"\r\n")[0], rest

        infer, size = "POST /v2/models/types/infer", f"Content-Length: {len(body)}"
        for _ in range(2):
            line, found = ask(infer, size, sent=body)
            assert (line, json.loads(found)["model_name"]) == (b"HTTP/1.1 200 OK", "types")
        assert ask("HEAD /v2/health/live") == (b"HTTP/1.1 200 OK", b"")
        assert ask(infer, size, "Expect: 100-continue") == (b"HTTP/1.1 100 Continue", b"")
        client.sendall(body)
        assert client.recv(1 << 16).startswith(b"HTTP/1.1 200 OK")
        line, found = ask(infer, "Content-Length: 2", "Connection: close", sent=b"{}")
        assert (line, b"error" in found) == (b"HTTP/1.1 400 Bad Request", True)
        assert client.recv(1) == b""


def test_blanks_around_the_values_of_headers_have_no_effect(network: Callable[..., NetworkServer]) -> None:
    body = json.dumps(asking()).encode()
    size = f" \t{len(body)} \t "
    with contextlib.closing(HTTPConnection("127.0.0.1", network().port, timeout=60)) as client:
        headers = {"Inference-Header-Content-Length": size, "Host": "localhost ", "Content-Encoding": " identity "}
        client.request("POST", "/v2/models/types/infer", body, headers)
        answer = client.getresponse()
        assert (answer.status, json.load(answer)["model_name"]) == (200, "types")


@pytest.mark.parametrize("chunked", [False, True])
def test_clients_that_offer_http2_are_answered_over_http1(network: Callable[..., NetworkServer], *, chunked: bool) -> None:
    """As Java's client and ``curl --http2`` do, in each request."""
    made = network()
    offer = {"Connection": "Upgrade, HTTP2-Settings", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABkAAQCAAAAAAIAAAAA"}
    body = json.dumps(asking()).encode()
    with contextlib.closing(HTTPConnection("127.0.0.1", made.port, timeout=60)) as client:
        for _ in range(2):
            client.request("POST", "/v2/models/types/infer", iter([body]) if chunked else body, offer, encode_chunked=chunked)
            answer = client.getresponse()
            assert (answer.status, json.load(answer)["model_name"]) == (200, "types")
            client.request("GET", "/v2/health/ready", headers=offer)
            assert json.load(client.getresponse()) == {"ready": True}
