"""The server process of :mod:`benchmarks.serve`: a network server, and beside it a bare handler of Starlette."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import socket
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
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

from placeit.core.telemetry import import_openvino
from placeit.devices.openvino import openvino_core
from placeit.serve.network import NetworkServer, Options
from placeit.serve.served_model import ServedModel
from placeit.serving.server import Server
from placeit.session import Session

WIDTH = 256  # width of the model's input and output, so that each has 1 kB


def save_layers(path: Path, layers: int, *, width: int = WIDTH) -> Path:
    """Write a model of dense layers, with a batch size of 1."""
    random, nodes, weights = np.random.default_rng(0), [], []
    for layer in range(layers):
        values = (random.standard_normal((width, width)) / np.sqrt(width / 2)).astype(np.float32)
        weights.append(numpy_helper.from_array(values, f"w{layer}"))
        nodes += [
            helper.make_node("MatMul", [f"x{layer}", f"w{layer}"], [f"y{layer}"]),
            helper.make_node("Relu", [f"y{layer}"], [f"x{layer + 1}" if layer + 1 < layers else "out"]),
        ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in ("x0", "out")]
    graph = helper.make_graph(nodes, "layers", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def _by_openvino(path: Path, threads: int) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler as people write it: the protocol's binary tensors, and OpenVINO's AsyncInferQueue."""
    options = {"PERFORMANCE_HINT": "THROUGHPUT", "INFERENCE_NUM_THREADS": threads, "INFERENCE_PRECISION_HINT": "f32"}
    queue = import_openvino().AsyncInferQueue(openvino_core().compile_model(path, "CPU", options))
    free = asyncio.Semaphore(len(queue))

    def ended(request: Any, answer: asyncio.Future[np.ndarray[Any, Any]]) -> None:
        found = np.array(request.get_output_tensor(0).data)
        answer.get_loop().call_soon_threadsafe(answer.set_result, found)

    queue.set_callback(ended)

    async def infer(request: Request) -> Response:
        body = await request.body()
        size = int(request.headers["inference-header-content-length"])
        (asked,) = json.loads(body[:size])["inputs"]
        given = np.frombuffer(body, np.float32, offset=size).reshape(asked["shape"])
        answer: asyncio.Future[np.ndarray[Any, Any]] = asyncio.get_running_loop().create_future()
        async with free:
            queue.start_async({0: given}, answer)
            found = await answer
        entry = {"name": "out", "datatype": "FP32", "shape": found.shape, "parameters": {"binary_data_size": found.nbytes}}
        head = json.dumps({"model_name": path.stem, "outputs": [entry]}).encode()
        kind, headers = "application/octet-stream", {"inference-header-content-length": str(len(head))}
        return Response(head + found.tobytes(), media_type=kind, headers=headers)

    return infer


@contextlib.contextmanager
def _bare(server: Server, paths: Mapping[Path, int]) -> Iterator[int]:
    """Serve bare handlers; returns the port.

    ``/echo`` returns a body, ``/run`` runs the first model on it without any protocol, and ``/v2/models/NAME/infer`` runs a
    model by OpenVINO alone, on a number of threads.
    """

    async def echo(request: Request) -> Response:
        return Response(await request.body(), media_type="application/octet-stream")

    async def run(request: Request) -> Response:
        given = {"x0": np.frombuffer(await request.body(), np.float32).reshape(1, WIDTH)}
        found = await asyncio.wrap_future(server.submit(given, wait=False))
        return Response(found["out"].tobytes(), media_type="application/octet-stream")

    handlers = {"/echo": echo, "/run": run} | {
        f"/v2/models/{path.stem}/infer": _by_openvino(path, threads) for path, threads in paths.items()
    }
    app = Starlette(routes=[Route(path, handler, methods=["POST"]) for path, handler in handlers.items()])
    http = uvicorn.Server(uvicorn.Config(app, http="httptools", ws="none", lifespan="off", log_config=None, access_log=False))
    # a socket that does not say that it is one of TCP gets no TCP_NODELAY from asyncio, and answers are 40 ms late
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listening:
        listening.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=http.run, args=([listening],))
        thread.start()
        yield listening.getsockname()[1]
        http.should_exit = True
        thread.join()


def serve(connection: Connection, layers: Mapping[int, Sequence[str]], queue: int) -> None:
    """Serve models with numbers of layers, each whole on each of its devices and named by the number, until None arrives.

    Sends the port of the server, its address of gRPC, the port of the bare handlers, an input, and the right output by model;
    then, for each message, the seconds that devices were busy, by model.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        served, given = [], np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)
        right: dict[str, Any] = {}
        paths: dict[Path, int] = {}
        for count, devices in layers.items():
            path = save_layers(folder / f"{count}.onnx", count)
            paths[path] = len(devices)
            session = stack.enter_context(Session(path, list(devices), cache=None))
            session.profile()
            groups = len(session.grouping.groups)
            first, *others = (session.placement(np.full(groups, device)) for device in range(len(devices)))
            server = stack.enter_context(session.serve(replace(first, replicas=tuple(others)), queue=queue))
            served.append(ServedModel(str(count), server, session.model.inputs, session.model.outputs))
            right[str(count)] = server.submit({"x0": given}).result()["out"]
        bare = stack.enter_context(_bare(served[0].server, paths))
        made = stack.enter_context(NetworkServer(served, Options(port=0, grpc_port=0)))
        gc.collect()
        gc.freeze()  # as `placeit serve` does
        connection.send((made.port, made.grpc_address, bare, given, right))
        while connection.recv() is not None:
            connection.send({model.name: dict(model.server.busy) for model in served})
