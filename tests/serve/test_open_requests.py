"""Clients ask models with open sizes for any size in range, over each protocol; other sizes are refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import helper
from tritonclient.utils import InferenceServerException

from placeit.core.sizes import LARGEST
from placeit.serve.network import NetworkServer, Options
from placeit.serve.served_model import ServedModel
from placeit.serve.tensors import DATATYPES
from placeit.session import Session
from placeit.workbench.options import Inputs
from tests.open_models import LENGTHS, OPEN, TWO, Arrays, Shapes, assert_close, at_one_size, attention, divided, values
from tests.serve.network_server import call

INFER = "/v2/models/encoder/infer"
OUTPUTS = ("tokens", "pooled")


@contextmanager
def serving(path: Path, shapes: Shapes) -> Iterator[NetworkServer]:
    """Serve a model in two parts as ``encoder`` on any free ports."""
    with ExitStack() as stack:
        session = stack.enter_context(Session(path, TWO[0], inputs=Inputs(shapes=shapes), cache=None))
        server = stack.enter_context(session.serve(divided(session, 2)))
        served = ServedModel("encoder", server, session.model.inputs, session.model.outputs)
        yield stack.enter_context(NetworkServer([served], Options(port=0, grpc_port=0)))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return attention(tmp_path_factory.mktemp("open"))


@pytest.fixture(scope="module")
def network(model: Path) -> Iterator[NetworkServer]:
    with (
        Session(model, TWO[0], inputs=Inputs(shapes=OPEN), cache=None) as session,
        session.serve(divided(session, 2)) as server,
    ):
        served = ServedModel("encoder", server, session.model.inputs, session.model.outputs)
        with NetworkServer([served], Options(port=0, grpc_port=0)) as network:
            yield network


@pytest.fixture(params=["http", "json", "grpc"])
def client(request: pytest.FixtureRequest, network: NetworkServer) -> Iterator[Any]:
    """A client of Triton's, the module it is of, and how it sends tensors."""
    module = tritonclient.grpc if request.param == "grpc" else tritonclient.http
    address = network.grpc_address if request.param == "grpc" else f"127.0.0.1:{network.port}"
    options = {} if request.param == "grpc" else {"binary_data": request.param == "http"}
    with module.InferenceServerClient(address) as made:
        yield made, module, options


def tensors(client: Any, inputs: Arrays) -> list[Any]:
    _, module, options = client
    found = []
    for name, value in inputs.items():
        found.append(module.InferInput(name, value.shape, DATATYPES[value.dtype.name]))
        found[-1].set_data_from_numpy(value, **options)
    return found


def test_every_size_in_range_is_answered(client: Any, model: Path) -> None:
    for length in LENGTHS:
        inputs = values(length)
        wanted = [client[1].InferRequestedOutput(name, **client[2]) for name in OUTPUTS]
        found = client[0].infer("encoder", tensors(client, inputs), outputs=wanted)
        assert_close({name: found.as_numpy(name) for name in OUTPUTS}, at_one_size(model, inputs))


def test_requests_with_the_same_json_differ_in_their_bytes_alone(network: NetworkServer, model: Path) -> None:
    def asked(inputs: Arrays, *, sent: int | None = None) -> tuple[int, Any, bytes]:
        listed = [
            {
                "name": name,
                "shape": value.shape,
                "datatype": DATATYPES[value.dtype.name],
                "parameters": {"binary_data_size": value.nbytes},
            }
            for name, value in inputs.items()
        ]
        text = json.dumps(
            {"inputs": listed, "outputs": [{"name": "pooled"}], "parameters": {"binary_data_output": True}}
        ).encode()
        body = (text + b"".join(value.tobytes() for value in inputs.values()))[: None if sent is None else len(text) + sent]
        status, found, headers = call(network, INFER, body, inference_header_content_length=str(len(text)))
        size = int(headers.get("inference-header-content-length", 0))
        return (status, json.loads(found[:size]), found[size:]) if size else (status, found, b"")

    for length in (3, 5, 3, 5):
        inputs = values(length)
        for shift in range(3):
            other = inputs | {"ids": (inputs["ids"] + shift) % 7}
            status, head, data = asked(other)
            assert (status, head["outputs"][0]["shape"]) == (200, [1, 8])
            assert_close(
                {"pooled": np.frombuffer(data, np.float32).reshape(1, 8)}, {"pooled": at_one_size(model, other)["pooled"]}
            )
        status, found, _ = asked(inputs, sent=11)
        assert status == 400
        assert "11 bytes are left for it" in found["error"]


@pytest.mark.parametrize("shape", [(1, 65), (2, 16), (1, 16, 1), (16,)])
def test_a_size_out_of_range_is_refused(client: Any, model: Path, shape: tuple[int, ...]) -> None:
    wrong: Arrays = {"ids": np.zeros(shape, np.int64), "mask": np.ones(shape, np.float32)}
    said = r"'ids' is sent with the shape \[.*\]; the model takes \[1, 1..64\]"
    with pytest.raises(InferenceServerException, match=said) as told:
        client[0].infer("encoder", tensors(client, wrong))
    assert told.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    with pytest.raises(InferenceServerException, match=r"do not fit each other: 'ids' \[1, 9\], 'mask' \[1, 8\]") as told:
        client[0].infer("encoder", tensors(client, {"ids": values(9)["ids"], "mask": values(8)["mask"]}))
    assert told.value.status() in ("400", "StatusCode.INVALID_ARGUMENT")
    inputs = values(5)
    found = client[0].infer("encoder", tensors(client, inputs))
    np.testing.assert_allclose(found.as_numpy("pooled"), at_one_size(model, inputs)["pooled"], rtol=1e-4, atol=1e-4)


def test_open_sizes_are_told_as_minus_one(client: Any) -> None:
    options = {"as_json": True} if client[1] is tritonclient.grpc else {}
    found = client[0].get_model_metadata("encoder", **options)
    shapes = {one["name"]: [*map(int, one["shape"])] for one in (*found["inputs"], *found["outputs"])}
    assert shapes == {"ids": [1, -1], "mask": [1, -1], "tokens": [1, -1, 8], "pooled": [1, 8]}
    config = client[0].get_model_config("encoder", **options)
    dims = {one["name"]: [*map(int, one["dims"])] for one in config.get("config", config)["input"]}
    assert dims == {"ids": [1, -1], "mask": [1, -1]}


def asking(shape: list[Any], count: int) -> str:
    inputs = [
        {"name": "ids", "shape": shape, "datatype": "INT64", "data": [1] * count},
        {"name": "mask", "shape": [1, 16], "datatype": "FP32", "data": [1] * 16},
    ]
    return json.dumps({"inputs": inputs})


def test_a_shape_takes_the_memory_of_what_is_sent_and_no_more(network: NetworkServer) -> None:
    for shape in ([1, LARGEST], [1, 10**400], [LARGEST] * 100, [1, -1], [1, 0], [0, 16], [1, True], [], [1, 16.0]):
        status, answer, _ = call(network, INFER, asking(shape, 16))
        assert status == 400, answer
        assert len(answer["error"]) < 1100
    status, answer, _ = call(network, INFER, asking([1, 64], 16))
    assert (status, answer["error"]) == (400, "The 'data' of the input 'ids' has 16 values; its shape [1, 64] takes 64.")


def sums(folder: Path, shape: list[str | int]) -> Path:
    """Write a model of one input, whose rows are added up."""
    x, y = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, of) for name, of in (("x", shape), ("y", [1, *shape[1:]]))
    )
    nodes = [helper.make_node("ReduceSum", ["x", "axes"], ["y"])]
    axes = helper.make_tensor("axes", onnx.TensorProto.INT64, [1], [0])
    graph = helper.make_graph(nodes, "sums", [x], [y], [axes])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "sums.onnx")
    return folder / "sums.onnx"


@pytest.mark.parametrize("sizes", [("1..8@2", 3), ("1..8@2", "1..9@3")])
def test_bytes_alone_tell_one_open_size(tmp_path: Path, sizes: tuple[str | int, ...]) -> None:
    path = sums(tmp_path, ["n", sizes[1] if isinstance(sizes[1], int) else "m"])
    with serving(path, {"x": sizes}) as network:
        for given in (np.ones((rows, 3), np.float32) for rows in (2, 7, 1)):
            status, answer, _ = call(network, INFER, given.tobytes(), Inference_Header_Content_Length="0")
            if sizes[1] != 3:
                assert (status, "several open sizes, [1..8, 1..9]" in answer["error"]) == (400, True)
                return
            head = json.loads(answer[: answer.index(b"}]}") + 3])
            assert (status, head["outputs"][0]["shape"]) == (200, [1, 3])
            np.testing.assert_array_equal(np.frombuffer(answer[-12:], np.float32), given.sum(0))
        for size in (0, 4, 11, 13, 9 * 12):
            status, answer, _ = call(network, INFER, bytes(size), Inference_Header_Content_Length="0")
            said = f"The input 'x' has {size} bytes; the model takes FP32 [1..8, 3]."
            assert (status, answer["error"]) == (400, said)
