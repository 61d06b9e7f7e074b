"""Large tensors: what is copied, and on which thread."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from placeit.backends.base import Arrays
from placeit.profiler.cache import Cache
from placeit.serve import infer_json, rpc
from placeit.serve.network import NetworkServer, Options
from placeit.serve.served_model import ServedModel
from placeit.serve.tensors import of_bytes
from placeit.serving.server import Server
from placeit.session import Session
from tests.serve.network_server import open_on_a_core
from tests.serve.test_clients import PROTOCOLS, client_of

COUNT = 1 << 20  # values: 4 MiB, or 2 MiB as BF16, and as many BOOL


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory, cache: Cache) -> Iterator[tuple[Session, Server]]:
    path = tmp_path_factory.mktemp("large") / "large.onnx"
    graph = helper.make_graph(
        [helper.make_node("Where", ["flag", "x", "x"], ["y"])],
        "large",
        [
            helper.make_tensor_value_info("flag", TensorProto.BOOL, [COUNT]),
            helper.make_tensor_value_info("x", TensorProto.FLOAT, [COUNT]),
        ],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [COUNT])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    with open_on_a_core(path, cache) as (session, placement), session.serve(placement) as server:
        yield session, server


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_large_tensors_are_not_copied_on_the_event_loop(
    opened: tuple[Session, Server], protocol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FP32 is a view of what was received; BF16 is converted, BOOL checked and the answer joined on other threads."""
    session, server = opened
    loop = set[int]()  # threads that submit requests
    copying = set[int]()  # threads that read and join large tensors
    submitted: list[Arrays] = []
    submit = server.submit

    def submitting(inputs: Arrays, **options: Any) -> Any:
        loop.add(threading.get_ident())
        submitted.append(dict(inputs))
        return submit(inputs, **options)

    def reading(data: Any, spec: Any) -> NDArray[np.generic]:
        copying.add(threading.get_ident())
        return of_bytes(data, spec)

    class Writing(io.BytesIO):
        def write(self, data: Any) -> int:
            if len(data) > COUNT // 8:
                copying.add(threading.get_ident())
            return super().write(data)

    monkeypatch.setattr(server, "submit", submitting)
    for module in (infer_json, rpc):
        monkeypatch.setattr(module, "of_bytes", reading)
    x = np.arange(COUNT, dtype=np.float32) % 128
    flag = x > 3
    model = ServedModel("large", server, session.model.inputs, session.model.outputs)
    with NetworkServer([model], Options(port=0, grpc_port=0)) as network, client_of(protocol, network) as client:
        monkeypatch.setattr(io, "BytesIO", Writing)
        for kind in ("FP32", "BF16"):
            tensors = [
                PROTOCOLS[protocol].InferInput("x", x.shape, kind),
                PROTOCOLS[protocol].InferInput("flag", x.shape, "BOOL"),
            ]
            for tensor, value in zip(tensors, (x, flag), strict=True):
                tensor.set_data_from_numpy(value)
            np.testing.assert_array_equal(client.infer("large", tensors).as_numpy("y"), x)
        monkeypatch.undo()
    assert len(loop) == 1
    assert copying
    assert not copying & loop
    assert not any(submitted[0][name].flags.owndata for name in ("x", "flag"))
