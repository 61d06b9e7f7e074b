"""``placeit serve`` while its model is loaded anew hundreds of times, and while it is attacked: what good clients see of it."""

from __future__ import annotations

import contextlib
import json
import math
import multiprocessing
import random
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Self

import grpc
import numpy as np

from benchmarks._harness import Report
from benchmarks._models import progress
from benchmarks._serve_attacks import attack
from benchmarks._serve_child import WIDTH, save_layers
from placeit.serve.rpc_messages import Messages
from placeit.session import Session

MODEL, LAYERS = "layers", (1, 2)  # number of layers of the two bundles that take turns
MAX_BYTES = 4 << 20
_TRIES, _AGAIN_S = 4, 0.5  # of a good client whose request is refused for now, and the seconds between them
_SLOWER = 1.5  # most times that p99 of good clients may grow by under attack
_GROWTH_BYTES = 64e6
_WARM_S, _SETTLE_S = 2.0, 6.0  # before the first reload; for connections of attackers that have gone to be closed
_HEADER = "Inference-Header-Content-Length"


class _Server:
    """A server in a process."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-m", "placeit", "serve", "--repository", str(folder), "--control", "--port", "0"]
        command += ["--grpc-port", "0", "--client-timeout", "5s", "--max-request-bytes", str(MAX_BYTES), "--quiet"]
        command += ["--queue", "256"]  # more than there are good clients
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        self.said: list[str] = []
        ports = dict[str, int]()
        assert self._process.stderr is not None
        for line in self._process.stderr:
            self.said.append(line)
            if found := re.match(r"(http|grpc): .*:(\d+)/?$", line.strip()):
                ports[found[1]] = int(found[2])
            if len(ports) == 2:
                break
        else:
            raise RuntimeError("".join(self.said))
        self.port, self.rpc = ports["http"], ports["grpc"]
        self._reader = threading.Thread(target=self.said.extend, args=(self._process.stderr,))
        self._reader.start()

    def bytes(self, which: str = "RssAnon") -> float:
        """Return the bytes of memory of a kind that the process has, by default only those that it has to itself."""
        status = Path(f"/proc/{self._process.pid}/status").read_text(encoding="ascii")
        (found,) = re.findall(rf"{which}:\s*(\d+) kB", status)
        return 1024.0 * int(found)

    def forget_peak(self) -> None:
        """Have ``VmHWM`` begin anew, at the bytes that the process has now (proc_pid_clear_refs(5))."""
        Path(f"/proc/{self._process.pid}/clear_refs").write_text("5", encoding="ascii")

    def close(self) -> int:
        """End the process, and return its exit code. A second call has no effect."""
        if self._process.poll() is None:
            self._process.terminate()
        code = self._process.wait(120)
        self._reader.join()
        assert self._process.stderr is not None
        self._process.stderr.close()
        return code


@dataclass(frozen=True)
class _Crowd:
    """Numbers of good clients over each protocol, and the mean seconds between two requests of one."""

    http: int
    rpc: int
    pause_s: float


_BUSY, _MANY = _Crowd(8, 4, 0.005), _Crowd(160, 40, 0.5)


class _Good:
    """Clients that ask a server all the time, over both protocols, and compare each answer with the right ones.

    They also watch its memory.

    Attributes:
        outcomes: ``right``, ``wrong``, and the reasons of requests without an answer.
        refused: how often a request was to be sent again later, which was done.
        seconds: of each request that was answered, by the protocol.
    """

    def __init__(self, server: _Server, given: np.ndarray[Any, Any], right: Sequence[bytes], crowd: _Crowd) -> None:
        self._server, self._right, self._pause_s = server, right, crowd.pause_s
        self.outcomes, self.refused = Counter[str](), 0
        self.seconds: dict[str, list[float]] = {"http": [], "rpc": []}
        self._over = threading.Event()
        tensor = {"name": "x0", "shape": given.shape, "datatype": "FP32", "parameters": {"binary_data_size": given.nbytes}}
        head = json.dumps({"inputs": [tensor], "parameters": {"binary_data_output": True}}).encode()
        self._body, self._head = head + given.tobytes(), {_HEADER: str(len(head))}
        request = Messages().ModelInferRequest(model_name=MODEL, raw_input_contents=[given.tobytes()])
        request.inputs.add(name="x0", datatype="FP32", shape=given.shape)
        self._request = request.SerializeToString()
        ways = [("http", self._http)] * crowd.http + [("rpc", self._rpc)] * crowd.rpc
        self._threads = [threading.Thread(target=self._ask, args=way) for way in ways]

    def __enter__(self) -> Self:
        self._server.forget_peak()
        self._own, self._all = self._server.bytes(), self._server.bytes("VmRSS")
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, protocol: str, way: Callable[[], contextlib.AbstractContextManager[Callable[[], bytes]]]) -> None:
        with way() as ask:
            while not self._over.wait(2 * self._pause_s * random.random()):
                begin = time.perf_counter()
                answer = self._answer(ask)
                if answer is None:
                    continue
                self.seconds[protocol].append(time.perf_counter() - begin)
                self.outcomes["right" if answer.endswith(tuple(self._right)) else "wrong"] += 1

    def _answer(self, ask: Callable[[], bytes]) -> bytes | None:
        """Ask, and again after a refusal that says so; return the answer, or None after recording what was said."""
        for left in reversed(range(_TRIES)):
            try:
                return ask()
            except (OSError, HTTPException, RuntimeError, grpc.RpcError) as error:
                said = f"{error.code().name} {error.details()}" if isinstance(error, grpc.RpcError) else repr(error)
                if left and "try again later" in said:
                    self.refused += 1
                    time.sleep(_AGAIN_S)
                    continue
                self.outcomes[said[:100]] += 1
                break
        return None

    @contextlib.contextmanager
    def _http(self) -> Iterator[Callable[[], bytes]]:
        connection = HTTPConnection("127.0.0.1", self._server.port, timeout=60)

        def ask() -> bytes:
            try:
                connection.request("POST", f"/v2/models/{MODEL}/infer", self._body, self._head)
                answer = connection.getresponse()
                data = answer.read()
            except (OSError, HTTPException):
                connection.close()  # the next request opens it again
                raise
            if answer.status != 200:
                raise RuntimeError(f"{answer.status} {data[:200]!r}")
            return data

        yield ask
        connection.close()

    @contextlib.contextmanager
    def _rpc(self) -> Iterator[Callable[[], bytes]]:
        messages = Messages()
        with grpc.insecure_channel(f"127.0.0.1:{self._server.rpc}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            call = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer")
            yield lambda: messages.ModelInferResponse.FromString(call(self._request, timeout=60)).raw_output_contents[0]

    def p99(self, *protocols: str) -> float:
        """Return the 99th percentile of the seconds until an answer, over all or some protocols; NaN without answers."""
        seconds = [one for protocol in protocols or self.seconds for one in self.seconds[protocol]]
        return float(np.quantile(seconds, 0.99)) if seconds else math.nan

    def told(self, report: Report, what: str, most: float) -> None:
        """Add the outcomes to a report.

        Args:
            report: the report.
            what: was done to the server.
            most: bytes that the server may have more now than at the start of the clients.
        """
        asked = sum(self.outcomes.values())
        time.sleep(_SETTLE_S)
        grown, peak = self._server.bytes() - self._own, self._server.bytes("VmHWM") - self._all
        report.row(
            what=what,
            requests=asked,
            clients=len(self._threads),
            p99_ms=1e3 * self.p99(),
            **{f"p99_{protocol}_ms": 1e3 * self.p99(protocol) for protocol in self.seconds},
            grown_mb=grown / 1e6,
            peak_mb=peak / 1e6,
        )
        lost = {said: count for said, count in self.outcomes.items() if said not in ("right", "wrong")}
        for said, count in lost.items():
            report.note(f"{what}: {count} lost: {said}")
        report.claim(f"requests lost, {what}", sum(lost.values()) if asked else None, "", at_most=0)
        report.claim(f"wrong answers, {what}", self.outcomes["wrong"] if asked else None, "", at_most=0)
        report.claim(f"memory that the server has gained, {what}", grown / 1e6, "MB", at_most=most / 1e6)
        report.claim(f"most memory that the server has had more during {what}", peak / 1e6, "MB")


def _bundles(folder: Path, device: str) -> tuple[list[Path], np.ndarray[Any, Any], list[bytes]]:
    """Write two bundles of one name; return their paths, an input, and the output of each."""
    given = np.random.default_rng(1).standard_normal((1, WIDTH)).astype(np.float32)
    made, right = list[Path](), list[bytes]()
    for layers in LAYERS:
        with Session(save_layers(folder / f"{layers}.onnx", layers), [device], cache=None) as session:
            session.profile()
            placement = session.placement(np.zeros(len(session.grouping.groups), int))
            made.append(folder / f"{layers}.placeit")
            session.build(placement, made[-1])
            with session.serve(placement) as server:
                right.append(server.submit({"x0": given}).result()["out"].tobytes())
    return made, given, right


def _reload(server: _Server, bundle: Path, path: Path) -> None:
    """Put another bundle into the place of a model's, and have it loaded."""
    copy = path.with_suffix(".copy")
    shutil.copyfile(bundle, copy)
    copy.replace(path)
    connection = HTTPConnection("127.0.0.1", server.port, timeout=120)
    connection.request("POST", f"/v2/repository/models/{MODEL}/load", b"{}")
    answer = connection.getresponse()
    data = answer.read()
    connection.close()
    if answer.status != 200:
        raise RuntimeError(f"A reload got {answer.status} {data[:200]!r}")


@contextlib.contextmanager
def _attackers(server: _Server) -> Iterator[dict[str, int]]:
    """Attack a server from another process in the block. Yields the number of attacks by kind, which is known after it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    attacker = context.Process(target=attack, args=(theirs, server.port, server.rpc, MODEL, MAX_BYTES))
    attacker.start()
    ours.recv()
    made = dict[str, int]()
    try:
        ours.send("begin")
        yield made
    finally:
        ours.send(None)
        made |= ours.recv()
        attacker.join()


def attacked(report: Report, device: str, *, seconds: float, reloads: int) -> None:
    """Load a model anew many times, and then attack its server in all ways at once, beside good clients.

    Before that, another server on the same machine is attacked: what good clients see then is that attackers, and a server that
    is attacked, take time from all others on the same cores.

    Args:
        report: gets rows and claims: requests lost, wrong answers, and memory gained.
        device: that runs the model.
        seconds: for which to attack.
        reloads: number of reloads.
    """
    with tempfile.TemporaryDirectory() as kept, contextlib.ExitStack() as stack:
        progress("writing bundles")
        bundles, given, right = _bundles(Path(kept), device)
        folder = Path(kept) / "bundles"
        folder.mkdir()
        path = folder / f"{MODEL}.placeit"
        shutil.copyfile(bundles[0], path)
        server = _Server(folder)
        stack.callback(server.close)
        with _Good(server, given, right, _BUSY):
            time.sleep(_WARM_S)
            for turn in range(max(2, reloads // 10)):  # the first ones fill what allocators keep
                _reload(server, bundles[turn % 2], path)
        with _Good(server, given, right, _BUSY) as good:
            for turn in range(reloads):
                _reload(server, bundles[turn % 2], path)
                if turn % 50 == 0:
                    progress(f"reload {turn}: {server.bytes() / 1e6:.0f} MB")
        good.told(report, "reloads", _GROWTH_BYTES)
        with _Good(server, given, right, _MANY) as before:
            time.sleep(min(60.0, seconds / 2))
        before.told(report, "no attacks", _GROWTH_BYTES)
        other = _Server(folder)
        stack.callback(other.close)
        with _attackers(other), _Good(server, given, right, _MANY) as beside:
            time.sleep(min(60.0, seconds / 2))
        other.close()
        beside.told(report, "attacks on another server", _GROWTH_BYTES)
        with _attackers(server) as made, _Good(server, given, right, _MANY) as good:
            until = time.monotonic() + seconds
            while (left := until - time.monotonic()) > 0:
                time.sleep(min(10.0, left))
                progress(f"attacked: {good.outcomes.total()} requests, {server.bytes() / 1e6:.0f} MB")
        good.told(report, "attacks", _GROWTH_BYTES)
        report.claim("p99 during attacks on another server over p99 without them", beside.p99() / before.p99(), "")
        report.claim("p99 during attacks over p99 without them", good.p99() / before.p99(), "", at_most=_SLOWER)
        report.row(what="number of attacks", **made)
        stack.pop_all()
        report.claim("exit code of the server", server.close(), "", at_most=0)
