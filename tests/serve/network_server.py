"""A model with a tensor of every type, and what tests of network servers ask and hold."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.serve.network import NetworkServer
from placeit.serving.server import Server
from placeit.session import Session

TYPES = ("bool", "uint8", "int8", "int32", "int64", "float16", "float32", "float64")
SHAPE = (2, 3)

Arrays = dict[str, NDArray[Any]]


def values(seed: int = 0) -> Arrays:
    """Draw inputs of the model."""
    random = np.random.default_rng(seed)
    return {f"in_{name}": random.integers(0, 2 if name == "bool" else 100, SHAPE).astype(name) for name in TYPES}


def save_model(folder: Path, types: Sequence[str]) -> Path:
    """Write a model that transposes a matrix of each of some types."""
    kinds = {name: helper.np_dtype_to_tensor_dtype(np.dtype(name)) for name in types}
    nodes = [helper.make_node("Transpose", [f"in_{name}"], [f"out_{name}"], perm=[1, 0]) for name in types]
    inputs = [helper.make_tensor_value_info(f"in_{name}", kind, SHAPE) for name, kind in kinds.items()]
    outputs = [helper.make_tensor_value_info(f"out_{name}", kind, SHAPE[::-1]) for name, kind in kinds.items()]
    graph = helper.make_graph(nodes, "types", inputs, outputs)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), folder / "model.onnx")
    return folder / "model.onnx"


@contextlib.contextmanager
def open_on_a_core(path: Path, cache: Cache) -> Iterator[tuple[Session, Placement]]:
    with Session(path, [f"CPU@{allowed_cores()[0]}"], cache=cache) as session:
        session.profile()
        yield session, session.placement(np.zeros(len(session.grouping.groups), int))


@contextlib.contextmanager
def held(server: Server) -> Iterator[None]:
    """Have a server begin no request while the block runs: the thread of its device does something else."""
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        held.set()
        go_on.wait(120)

    (executor,) = server.executors
    executor._workers[0].submit(hold)  # type: ignore[attr-defined]
    held.wait(60)
    server.submit(values())  # as many as can be in flight
    try:
        yield
    finally:
        go_on.set()


def call(
    network: NetworkServer, path: str, body: bytes | str | None = None, method: str = "", **headers: str
) -> tuple[int, Any, dict[str, str]]:
    """Ask over HTTP, and return the status, the JSON or bytes of the answer, and its headers."""
    connection = HTTPConnection("127.0.0.1", network.port, timeout=60)
    try:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method or ("GET" if body is None else "POST"), path, body, given)
        answer = connection.getresponse()
        data = answer.read()
        found = {name.lower(): value for name, value in answer.getheaders()}
        plain = found.get("content-type") == "application/json" and "content-encoding" not in found
        return answer.status, json.loads(data) if plain else data, found
    finally:
        connection.close()
