"""Requests that are wrong in every way: each gets one clear answer, and the next good one is served."""

from __future__ import annotations

import gzip
import json
import re
import socket
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc

from placeit.serve.network import NetworkServer
from placeit.serve.tensors import DATATYPES
from tests.serve.network_server import SHAPE, Arrays, call, values

INFER = "/v2/models/types/infer"
messages = tritonclient.grpc.service_pb2


def asking(**changes: Any) -> dict[str, Any]:
    """A request whose tensors are JSON, with changes to its input of the type int8."""
    tensors = [
        {"name": name, "shape": list(SHAPE), "datatype": DATATYPES[value.dtype.name], "data": value.tolist()}
        for name, value in values().items()
    ]
    one = next(tensor for tensor in tensors if tensor["name"] == "in_int8")
    one.update(changes)
    return {"inputs": tensors}


def without(name: str) -> dict[str, Any]:
    request = asking()
    for tensor in request["inputs"]:
        tensor.pop(name, None)
    return request


def with_float(text: str) -> str:
    """A request whose first number of the type float32 is written so."""
    request = asking()
    tensor = next(tensor for tensor in request["inputs"] if tensor["datatype"] == "FP32")
    tensor["data"] = ["HERE", 1, 2, 3, 4, 5]
    return json.dumps(request).replace('"HERE"', text)


def doubled() -> dict[str, Any]:
    request = asking()
    request["inputs"].append(request["inputs"][0])
    return request


BAD: dict[str, tuple[Any, str]] = {
    "nothing": ("", "of this request is not valid"),
    "no JSON": ("{", "of this request is not valid"),
    "not in UTF-8": (b'{"id": "\xff"}', "of this request is not valid"),
    "a list": ("[]", "has to be an object"),
    "nested deeply": ("[" * 10_000, "nested too deeply"),
    "many lists": ("[" * 100_000, "more lists than"),
    "many objects": (f'{{"inputs": [{"{}," * 50_000}{{}}]}}', "more objects than"),
    "many texts": (json.dumps({"p": {f"{n:x}": [] for n in range(4000)}, "q": ["x" * 8] * 4000 + ["y"] * 9000}), "more"),
    "many values": (json.dumps({"inputs": [{"name": "in_bool", "data": [1] * 50_000}]}), "more values than"),
    "no inputs": ({}, "'inputs' is missing"),
    "inputs that are no list": ({"inputs": {}}, "'inputs' has to be a list"),
    "inputs that are no objects": ({"inputs": [1]}, "'inputs' has to be a list of objects"),
    "a missing input": ({"inputs": asking()["inputs"][1:]}, "'in_bool' is missing"),
    "an input twice": (doubled(), "'in_bool' is there 2 times"),
    "an unknown input": (asking(name="other"), "no input 'other'"),
    "a name that no text can be": (json.dumps(asking(name="HERE")).replace("HERE", "\\ud800"), "no input"),
    "a name of a megabyte": (asking(name="x" * 1_000_000), "no input 'xxx"),
    "a number as a name": (asking(name=1), "'name' has to be text"),
    "no shape": (without("shape"), "'shape' is missing"),
    "no data": (without("data"), "neither 'data' nor the parameter 'binary_data_size'"),
    "no type": (without("datatype"), "'datatype' is missing"),
    "another type": (asking(datatype="INT16"), "sent as INT16; the model takes INT8"),
    "BF16": (asking(datatype="BF16"), "sent as BF16, a type that no model has here; the model takes INT8"),
    "BYTES": (asking(datatype="BYTES", data=["a"] * 6), "sent as BYTES, a type that no model has"),
    "another shape": (asking(shape=[3, 2]), r"shape \[3, 2\]; the model takes \[2, 3\]"),
    "a negative size": (asking(shape=[-2, -3]), "whole numbers of at least 0"),
    "a huge size": (asking(shape=[2**62, 2**62]), r"the model takes \[2, 3\]"),
    "a size beyond all integers": (asking(shape=[10**400]), r"the model takes \[2, 3\]"),
    "a size with a fraction": (asking(shape=[2.0, 3]), "whole numbers"),
    "a size that is true": (asking(shape=[True, 6]), "whole numbers"),
    "too few values": (asking(data=[1, 2, 3]), r"3 values; its shape \[2, 3\] takes 6"),
    "lists of another shape": (asking(data=[[1, 2], [3, 4], [5, 6]]), r"lists of the shape \[3, 2\]"),
    "lists of different lengths": (asking(data=[[1, 2, 3], [4, 5]]), "lists of different lengths"),
    "lists of different depths": (asking(data=[1, 2, 3, 4, 5, [6]]), "lists of different depths"),
    "a list and a number": (asking(data=[[1, 2, 3], 4]), "lists of different lengths"),
    "data that is no list": (asking(data="123456"), "not a list of values"),
    "fractions as integers": (asking(data=[1.5] * 6), "fractions; it is INT8"),
    "truth as integers": (asking(data=[True] * 6), "true or false; it is INT8"),
    "text as integers": (asking(data=["1"] * 6), "text; it is INT8"),
    "null as integers": (asking(data=[None] * 6), "null or objects; it is INT8"),
    "integers that are too large": (asking(data=[128] * 6), "values that INT8 cannot hold"),
    "integers beyond all floats": (with_float("1" + "0" * 400), "values that FP32 cannot hold"),
    "integers of very many digits": (with_float("1" * 10_000), "of this request is not valid"),
    "floats beyond the type": (with_float("1e39"), "values that FP32 cannot hold"),
    "floats beyond all types": (with_float("1e999"), "values that FP32 cannot hold"),
    "NaN": (with_float("NaN"), "NaN is not valid JSON: send tensors with such values in binary form"),
    "Infinity": (with_float("-Infinity"), "-Infinity is not valid JSON"),
    "data and bytes": (asking(parameters={"binary_data_size": 6}), "has 'data', and the parameter"),
    "shared memory of no size": (asking(parameters={"shared_memory_region": "x"}), "needs the text 'shared_memory_region'"),
    "shared memory and data": (
        asking(parameters={"shared_memory_region": "x", "shared_memory_byte_size": 6}),
        "both in shared memory and in the request",
    ),
    "unknown outputs": (asking() | {"outputs": [{"name": "other"}]}, "no output 'other'"),
    "an output twice": (asking() | {"outputs": [{"name": "out_bool"}] * 2}, "'out_bool' is there 2 times"),
    "too many classes": (
        asking() | {"outputs": [{"name": "out_bool", "parameters": {"classification": 10_001}}]},
        "'classification' has to be a whole number of classes, and at most 10000",
    ),
    "a sequence without a name": (asking() | {"parameters": {"sequence_start": True}}, "needs its name"),
    "a sequence of a long name": (asking() | {"parameters": {"sequence_id": "x" * 257, "sequence_start": True}}, "at most 256"),
    "a sequence of no name": (asking() | {"parameters": {"sequence_id": [7]}}, "'sequence_id' has to be a number or a text"),
    "a start that is none": (
        asking() | {"parameters": {"sequence_id": 7, "sequence_start": 1}},
        "'sequence_end' are true or false",
    ),
    "a negative time": (asking() | {"parameters": {"timeout": -1}}, "'timeout' has to be a whole number of microseconds"),
    "a time that is text": (asking() | {"parameters": {"timeout": "1"}}, "'timeout' has to be"),
    "a number as the id": (asking() | {"id": 1}, "'id' has to be text"),
    "parameters that are no object": (asking() | {"parameters": []}, "'parameters' has to be an object"),
}


@pytest.fixture
def made(network: Callable[..., NetworkServer]) -> Iterator[NetworkServer]:
    """A server that serves a good request when all is over."""
    made = network(max_bytes=1 << 21)
    yield made
    status, answer, _ = call(made, INFER, json.dumps(asking()))
    assert status == 200, answer


def test_what_is_wrong_with_a_request_is_said(made: NetworkServer) -> None:
    for what, (request, said) in BAD.items():
        body = request if isinstance(request, str | bytes) else json.dumps(request)
        status, answer, _ = call(made, INFER, body)
        assert (what, status) == (what, 400)
        assert re.search(said, answer["error"]), (what, answer)
        assert len(answer["error"]) < 1100, what


def binary(given: Arrays, sizes: dict[str, Any] | None = None) -> tuple[bytes, bytes]:
    """The JSON and the bytes of a request; sizes differ from the true ones as said."""
    tensors = [
        {
            "name": name,
            "shape": list(SHAPE),
            "datatype": DATATYPES[value.dtype.name],
            "parameters": {"binary_data_size": (sizes or {}).get(name, value.nbytes)},
        }
        for name, value in given.items()
    ]
    return json.dumps({"inputs": tensors}).encode(), b"".join(value.tobytes() for value in given.values())


def test_bytes_that_do_not_fit_are_refused(made: NetworkServer) -> None:
    head, tail = binary(values())
    truth = b"\2" * 6 + tail[6:]
    cases: list[tuple[bytes, bytes, str, str]] = [
        (head, tail + b"x", str(len(head)), "1 bytes belong to no input"),
        (head, tail[:-1], str(len(head)), "47 bytes are left for it"),
        (head, tail, str(len(head) - 1), "of this request is not valid"),
        (head, tail, "-1", "inference-header-content-length is '-1'"),
        (head, tail, "x", "inference-header-content-length is 'x'"),
        (head, tail, "9" * 30, "inference-header-content-length is '9"),
        (head, tail, str(len(head + tail) + 1), "the body has"),
        (head, truth, str(len(head)), "'in_bool' has bytes other than 0 and 1; it is BOOL"),
    ]
    for size in (5, -6, 2**62, 10**400, 6.0, "6", True):
        other = binary(values(), {"in_bool": size})[0]
        cases.append((other, tail, str(len(other)), "'in_bool' has 5 bytes" if size == 5 else "'in_bool' has no 'data'"))
    for front, back, length, said in cases:
        status, answer, _ = call(made, INFER, front + back, Inference_Header_Content_Length=length)
        assert (status, said) == (400, said)
        assert said in answer["error"]


def test_what_is_not_there_is_not_found(made: NetworkServer) -> None:
    good = json.dumps(asking())
    for path, body, said in (
        ("/v2/models/other/infer", good, "There is no model 'other' here; there are 'types'."),
        ("/v2/models/other/infer", "{", "no model 'other'"),
        ("/v2/models/types/versions/2/infer", good, "has no version '2'; it has '1'"),
        ("/v2/models/other", None, "no model 'other'"),
        ("/v2/models/other/ready", None, "no model 'other'"),
        ("/v2/models/other/stats", None, "no model 'other'"),
        ("/v2/models/%2e%2e%2fx/config", None, "There is no GET"),
        ("/", None, "There is no GET / here"),
        ("/v2/models/types/generate", good, "There is no POST"),
    ):
        status, answer, _ = call(made, path, body)
        assert (path, status) == (path, 404)
        assert said in answer["error"]
    assert call(made, INFER)[0] == 405


def test_json_has_no_outputs_that_are_not_finite(made: NetworkServer) -> None:
    head, tail = binary(values() | {"in_float32": np.full(SHAPE, np.nan, np.float32)})
    status, answer, _ = call(made, INFER, head + tail, Inference_Header_Content_Length=str(len(head)))
    assert status == 400
    assert (
        "'out_float32' has values that are not finite, for which JSON has no numbers: ask for it in binary" in answer["error"]
    )
    head = head.replace(b'{"inputs"', b'{"parameters": {"binary_data_output": true}, "inputs"')
    assert call(made, INFER, head + tail, Inference_Header_Content_Length=str(len(head)))[0] == 200


def test_what_is_too_large_is_refused_before_it_is_read(made: NetworkServer) -> None:
    """Declared, in chunks without an end, compressed, or as headers."""
    two_gigabytes = {"Content_Length": str(2 << 30), "Expect": "100-continue"}
    status, answer, _ = call(made, INFER, b"", **two_gigabytes)
    assert (status, answer["error"]) == (413, "The body of a request has at most 2097152 bytes here (--max-request-bytes).")
    for status, head, piece in (
        (b"413", b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n" + b" " * (1 << 16) + b"\r\n"),
        (b"431", b"", b"X: " + b"y" * (1 << 14) + b"\r\n"),
        (b"431", b"X: ", b"y" * (1 << 14)),
    ):
        with socket.create_connection(("127.0.0.1", made.port), timeout=60) as client:
            client.sendall(b"POST " + INFER.encode() + b" HTTP/1.1\r\nHost: localhost\r\n" + head)
            answer = b""
            try:
                for _ in range(1000):  # 64 MB
                    client.sendall(piece)
                answer = client.recv(100)
            except ConnectionError:  # in the midst of sending, once it is far too much
                answer = b"HTTP/1.1 " + status
            assert answer.startswith(b"HTTP/1.1 " + status)
    for encoding, body, status, said in (
        ("br", b"", 415, "The content encoding 'br' is not supported: gzip and deflate are."),
        ("gzip", b"xyz", 400, "The body is not compressed as its content encoding says"),
        ("gzip", gzip.compress(b"{}")[:-1], 400, "The compressed body ends too early."),
        ("gzip", gzip.compress(b"{}") + b"x", 400, "The compressed body ends too late."),
        ("gzip", gzip.compress(b"{}") * 2, 400, "The compressed body ends too late."),
        ("GZIP", gzip.compress(b"{}"), 400, "'inputs' is missing"),
        ("gzip", gzip.compress(bytes(3 << 20)), 413, "The body of a request has at most 2097152 bytes here"),
    ):
        found, answer, _ = call(made, INFER, body, Content_Encoding=encoding)
        assert (found, answer["error"][: len(said)]) == (status, said)


def raw(given: Arrays) -> Any:
    request = messages.ModelInferRequest(model_name="types")
    for name, value in given.items():
        request.inputs.add(name=name, datatype=DATATYPES[value.dtype.name], shape=value.shape)
        request.raw_input_contents.append(value.tobytes())
    return request


def changed(change: Callable[[Any], object]) -> Any:
    request = raw(values())
    change(request)
    return request


BAD_CALLS: dict[str, tuple[Callable[[Any], object], str, str]] = {
    "no model": (lambda r: r.ClearField("model_name"), "NOT_FOUND", "no model ''"),
    "another model": (lambda r: setattr(r, "model_name", "x" * 100_000), "NOT_FOUND", "no model 'xxx"),
    "another version": (lambda r: setattr(r, "model_version", "2"), "NOT_FOUND", "no version '2'"),
    "a missing input": (lambda r: r.inputs.pop(), "INVALID_ARGUMENT", "'in_float64' is missing"),
    "an input twice": (lambda r: r.inputs.add(name="in_bool"), "INVALID_ARGUMENT", "'in_bool' is there 2 times"),
    "an unknown input": (lambda r: r.inputs.add(name="other"), "INVALID_ARGUMENT", "no input 'other'"),
    "another type": (lambda r: setattr(r.inputs[0], "datatype", "UINT8"), "INVALID_ARGUMENT", "model takes BOOL"),
    "BF16": (lambda r: setattr(r.inputs[0], "datatype", "BF16"), "INVALID_ARGUMENT", "BF16, a type that no model has"),
    "a negative size": (lambda r: r.inputs[0].shape.__setitem__(0, -2), "INVALID_ARGUMENT", r"shape \[-2, 3\]"),
    "a huge size": (lambda r: r.inputs[0].shape.__setitem__(0, 2**62), "INVALID_ARGUMENT", r"model takes \[2, 3\]"),
    "too few contents": (lambda r: r.raw_input_contents.pop(), "INVALID_ARGUMENT", "7 raw contents for 8 inputs"),
    "too few bytes": (lambda r: r.raw_input_contents.__setitem__(4, b"x"), "INVALID_ARGUMENT", "1 bytes; INT64 .* takes 48"),
    "both contents": (lambda r: r.inputs[0].contents.bool_contents.append(True), "INVALID_ARGUMENT", "both typed and raw"),
    "no contents": (lambda r: r.ClearField("raw_input_contents"), "INVALID_ARGUMENT", "0 values; its shape"),
    "shared memory": (
        lambda r: r.inputs[0].parameters["shared_memory_region"].CopyFrom(messages.InferParameter(string_param="x")),
        "INVALID_ARGUMENT",
        "needs the text 'shared_memory_region'",
    ),
    "an unknown output": (lambda r: r.outputs.add(name="other"), "INVALID_ARGUMENT", "no output 'other'"),
    "a sequence that nobody has begun": (
        lambda r: r.parameters["sequence_id"].CopyFrom(messages.InferParameter(int64_param=1)),
        "NOT_FOUND",
        "no sequence 1",
    ),
    "a sequence of no name": (
        lambda r: r.parameters["sequence_id"].CopyFrom(messages.InferParameter(bool_param=True)),
        "INVALID_ARGUMENT",
        "'sequence_id' has to be",
    ),
    "a negative time": (
        lambda r: r.parameters["timeout"].CopyFrom(messages.InferParameter(int64_param=-1)),
        "INVALID_ARGUMENT",
        "'timeout' has to be",
    ),
    "too many bytes": (lambda r: r.raw_input_contents.append(bytes(1 << 21)), "RESOURCE_EXHAUSTED", "larger than max"),
}


def test_what_is_wrong_with_a_call_is_said(made: NetworkServer) -> None:
    with grpc.insecure_channel(made.grpc_address) as channel:
        stub = tritonclient.grpc.service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for what, (change, code, said) in BAD_CALLS.items():
            with pytest.raises(grpc.RpcError) as caught:
                stub.ModelInfer(changed(change), timeout=60)
            error: Any = caught.value
            assert (what, error.code().name) == (what, code)
            assert re.search(said, error.details()), (what, error.details())
        garbage = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        cut_short, behind_group = b"\x3a" + b"\xff" * 8 + b"\x7f" + bytes(1 << 15), b"\x0b\x0c" + b"\x2a\x00" * (1 << 14)
        for message in (b"\xff" * 100, cut_short, behind_group):
            with pytest.raises(grpc.RpcError, match=r"INVALID_ARGUMENT[^$]*not a ModelInferRequest in protobuf"):
                garbage(message, timeout=60)
        bomb = changed(lambda request: request.raw_input_contents.append(bytes(1 << 26)))
        with pytest.raises(grpc.RpcError, match="RESOURCE_EXHAUSTED"):
            stub.ModelInfer(bomb, timeout=60, compression=grpc.Compression.Gzip)
        found = stub.ModelInfer(raw(values()), timeout=60)
    assert found.raw_output_contents[0] == values()["in_bool"].T.tobytes()
