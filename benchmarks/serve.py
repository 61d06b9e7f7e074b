"""The time that ``placeit serve`` adds to a request, and whether it loses any request at the limit of the devices.

One client sends requests, in turns, to a bare handler of Starlette that returns 1 kB, to one that runs a model of one layer on
it, and to a server of that model over HTTP and gRPC. The difference of two is the median of their differences in a turn: by the
clock, and in CPU time of the process that has all servers, which is reliable on a busy machine, too.

Then several clients at once send requests for a model that keeps both devices busy. Every answer is compared with the right
one.

Then the server and the handler that people write in its place, Starlette with OpenVINO's ``AsyncInferQueue``, take turns: at 1,
8 and 64 connections, and, with a model that keeps one core busy, at 0.5, 0.9, 1.2 and 2 times the capacity of that handler.

In the end, the model of a server in another process is loaded anew 500 times. Then that server is attacked in all ways at
once for ``--seconds``: by large JSON, messages of very many fields, connections, calls and bodies that do not end, and answers
that are not read. Beside both, the requests of other clients have to be answered, and rightly: 12 clients during reloads, and
200 during attacks, whose latency is compared with the latency without attacks, and while another server is attacked.
"""

from __future__ import annotations

import json
import multiprocessing
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from http.client import HTTPConnection
from typing import Any

import grpc
import numpy as np

from benchmarks._harness import Args, Report, main
from benchmarks._models import progress, two_cores
from benchmarks._serve_attacked import attacked
from benchmarks._serve_child import serve
from benchmarks._serve_loads import OURS, loads
from placeit.serve.rpc_messages import Messages

TURNS, QUICK_TURNS = 3000, 300
REQUESTS, QUICK_REQUESTS = 10_000, 500
CLIENTS, QUEUE = 16, 64
RELOADS, QUICK_RELOADS = 500, 10
SECONDS, QUICK_SECONDS = 60.0, 5.0
SMALL, SLOW, BOTH = 1, 100, 101  # layers of models: a small one, one for a core, and one for both cores
LOAD_S, QUICK_LOAD_S = 2.0, 0.2
_HEADER = "Inference-Header-Content-Length"


def run(args: Args, report: Report) -> None:
    devices = [f"CPU@{core}" for core in two_cores()]
    layers = {SMALL: devices, SLOW: devices[:1], BOTH: devices}
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(theirs, layers, QUEUE))
    progress("starting the servers")
    process.start()
    port, address, bare, given, right = ours.recv()
    assert process.pid is not None
    cpu = partial(time.clock_gettime, ~process.pid << 3 | 2)  # the clock that clock_getcpuclockid(3) returns on Linux
    _overheads(report, QUICK_TURNS if args.quick else TURNS, port, address, bare, given, cpu)
    progress("asking at the limit")
    model = str(BOTH)
    requests, begin = QUICK_REQUESTS if args.quick else REQUESTS, time.perf_counter()
    outcomes = _at_the_limit(port, model, requests, given, right[model])
    seconds = time.perf_counter() - begin
    ours.send("busy")
    busy = ours.recv()[model]
    shares = [busy.get(name, 0.0) / seconds for name in devices]
    report.row(
        what="at the limit",
        requests=requests,
        clients=CLIENTS,
        seconds=seconds,
        requests_per_second=requests / seconds,
        busy=float(np.mean(shares)),
    )
    report.claim("requests lost at the limit", requests - outcomes["right"] - outcomes["wrong"], "", at_most=0)
    report.claim("wrong answers at the limit", outcomes["wrong"], "", at_most=0)
    small, slow = (
        {name: (at, _request(*_body(str(count), given))) for name, at in ((OURS, port), ("AsyncInferQueue", bare))}
        for count in (SMALL, SLOW)
    )
    loads(report, small, slow, seconds=QUICK_LOAD_S if args.quick else LOAD_S, cpu=cpu)
    ours.send(None)
    process.join()
    seconds = (QUICK_SECONDS if args.quick else SECONDS) if args.seconds is None else args.seconds
    attacked(report, devices[0], seconds=seconds, reloads=QUICK_RELOADS if args.quick else RELOADS)


def _body(model: str, given: Any) -> tuple[str, bytes, dict[str, str]]:
    """Return path, body and headers of a request, its tensor in binary form."""
    tensor = {"name": "x0", "shape": given.shape, "datatype": "FP32", "parameters": {"binary_data_size": given.nbytes}}
    head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
    return f"/v2/models/{model}/infer", head + given.tobytes(), {_HEADER: str(len(head))}


def _request(path: str, body: bytes, headers: dict[str, str]) -> bytes:
    """Return a request as it is sent."""
    lines = [f"POST {path} HTTP/1.1", "Host: 127.0.0.1", *(f"{name}: {value}" for name, value in headers.items())]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def _asked(connection: HTTPConnection, path: str, body: bytes, headers: dict[str, str]) -> bytes:
    connection.request("POST", path, body, headers)
    answer = connection.getresponse()
    data = answer.read()
    if answer.status != 200:
        raise RuntimeError(f"{path}: {answer.status} {data[:200]!r}")
    return data


@contextmanager
def _grpc(address: str, given: Any) -> Iterator[Callable[[], Any]]:
    messages = Messages()
    request = messages.ModelInferRequest(model_name=str(SMALL), raw_input_contents=[given.tobytes()])
    request.inputs.add(name="x0", datatype="FP32", shape=given.shape)
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
        yield lambda: messages.ModelInferResponse.FromString(call(request.SerializeToString()))


def _overheads(report: Report, turns: int, port: int, address: str, bare: int, given: Any, cpu: Callable[[], float]) -> None:
    """Time each kind of request in turns."""
    model, plain = HTTPConnection("127.0.0.1", port), HTTPConnection("127.0.0.1", bare)
    with _grpc(address, given) as over_grpc:
        kinds: dict[str, Callable[[], Any]] = {
            "bare handler, echo": partial(_asked, plain, "/echo", given.tobytes(), {}),
            "bare handler, model": partial(_asked, plain, "/run", given.tobytes(), {}),
            "placeit serve, HTTP": partial(_asked, model, *_body(str(SMALL), given)),
            "placeit serve, gRPC": over_grpc,
        }
        times: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for turn in range(turns + turns // 10):
            if turn % 100 == 0:
                progress(f"turn {turn}")
            for kind, ask in kinds.items():
                begin = time.perf_counter(), cpu()
                ask()
                if turn >= turns // 10:  # earlier turns are warm-up
                    times[kind].append((time.perf_counter() - begin[0], cpu() - begin[1]))
    for connection in (model, plain):
        connection.close()
    spent = {kind: 1e3 * np.array(taken).T for kind, taken in times.items()}  # milliseconds of wall-clock time and of CPU time
    for kind, (wall, busy) in spent.items():
        p95 = np.quantile(wall, 0.95)
        report.row(what=kind, requests=turns, median_ms=np.median(wall), p95_ms=p95, cpu_ms=np.median(busy))
    echo, ran, http, _ = spent.values()
    for name, (wall, busy) in (("the same model", http - ran), ("nothing", http - echo)):
        bound = 0.3 if name == "the same model" else None
        report.claim(f"HTTP over a bare handler that runs {name}", np.median(wall), "ms", at_most=bound)
        report.claim(f"HTTP over a bare handler that runs {name}, CPU time", np.median(busy), "ms", at_most=bound)


def _at_the_limit(port: int, model: str, requests: int, given: Any, right: Any) -> Counter[str]:
    """Send requests for a model from many clients at once; return how many answers were right or wrong."""
    path, body, headers = _body(model, given)
    left, outcomes = iter(range(requests)), list[str]()

    def ask() -> None:
        connection = HTTPConnection("127.0.0.1", port)
        for _ in left:
            outcomes.append("right" if _asked(connection, path, body, headers).endswith(right.tobytes()) else "wrong")
        connection.close()

    clients = [threading.Thread(target=ask) for _ in range(CLIENTS)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    return Counter(outcomes)


if __name__ == "__main__":
    main("serve", run, seconds=SECONDS)
