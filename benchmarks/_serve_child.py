"""The server process of :mod:`benchmarks.serve`: a network server, and beside it a bare handler of Starlette."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import uvicorn
from onnx import TensorProto, helper, numpy_helper
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from placeit.serve.network import NetworkServer, Options
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from placeit.session import Session

WIDTH = 256  # width of the model's input and output, so that each has 1 kB


def save_layers(path: Path, layers: int, *, width: int = WIDTH, batch: int | str = 1) -> Path:
    """Write a model of dense layers, whose batch size is open if it is a name."""
    random, nodes, weights = np.random.default_rng(0), [], []
    for layer in range(layers):
        values = (random.standard_normal((width, width)) / np.sqrt(width / 2)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"y{layer}"]),
            helper.make_node("Relu", [f"y{layer}"], [f"x{layer + 1}" if layer + 1 < layers else "out"]),
        ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [batch, width]) for name in ("x0", "out")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@contextlib.contextmanager
def _bare(server: Server) -> Iterator[int]:
    """Serve a handler that returns a body, and one that runs the model on it, without any protocol; returns the port."""

    async def echo(request: Request) -> Response:
        return Response(await request.body(), media_type="application/octet-stream")

    async def run(request: Request) -> Response:
        given = {"x0": np.frombuffer(await request.body(), np.float32).reshape(1, WIDTH)}
        found = await asyncio.wrap_future(server.submit(given, wait=False))
        return Response(found["out"].tobytes(), media_type="application/octet-stream")

    app = Starlette(routes=[Route("/echo", echo, methods=["POST"]), Route("/run", run, methods=["POST"])])
    http = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False))
    # a socket that does not say that it is one of TCP gets no TCP_NODELAY from asyncio, and answers are 40 ms late
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=http.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        http.should_exit = True
        thread.join()


def serve(connection: Connection, devices: Sequence[str], layers: Sequence[int], queue: int) -> None:
    """Serve one model on each device, with the given numbers of layers and named by them, until a message arrives.

    Sends the port of the server, its address of gRPC, the port of the bare handler, which runs the first model, an input, and
    the right output by model; in the end the seconds that devices were busy, by model.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served, given = [], np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)
        right: dict[str, Any] = {}
        for count in layers:
            session = stack.enter_context(Session(save_layers(folder / f"{count}.onnx", count), list(devices), cache=None))
            session.profile()
            groups = len(session.grouping.groups)
            first, *others = (session.placement(np.full(groups, device)) for device in range(len(devices)))
            server = stack.enter_context(session.serve(replace(first, replicas=tuple(others)), queue=queue))
            served.append(ServedModel(str(count), server, session.model.inputs, session.model.outputs))
            right[str(count)] = server.submit({"x0": given}).result()["out"]
        bare = stack.enter_context(_bare(served[0].server))
        made = stack.enter_context(NetworkServer(served, Options(port=0, grpc_port=0)))
        connection.send((made.port, made.grpc_address, bare, given, right))
        connection.recv()
        connection.send({model.name: dict(model.server.busy) for model in served})
