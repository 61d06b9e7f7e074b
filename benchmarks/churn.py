"""Requests while nodes fail under load and come back: rounds of killing, stopping, cutting off and adding again.

A small model is split over two nodes and a core of this process, and one of the nodes fails in the middle of the load. Its
process is killed (SIGKILL) or stopped (SIGSTOP); its network is cut off, without telling any process; or all of its processes
are killed. In the last two cases it is repaired and added to the cluster again, and the load goes on until the server uses it
again. The other devices are slowed, so that the server gains by using it. Requests arrive without a pause, as many in flight as
the server accepts, and their outputs are compared with the reference. Each round opens a new session; the two nodes fail in
turns.

Nodes are joined by an emulated network of 100 Mbit/s and 5 ms (``_network.py``). If that is not available, because it needs
root, they are joined by the loopback interface, and processes are only killed and stopped.

With --backend GPU, the device that fails is an emulated Intel GPU (``tests/emulated_gpu``) of the node edge1, in each round. It
computes on the CPU and is slow, so the other devices are slowed more.

There are 100 rounds, which take about an hour on two cores, and 6 with --quick, which take five minutes.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks._gpus import with_gpu
from benchmarks._harness import Args, Report, main
from benchmarks._models import progress
from benchmarks._network import Network, cluster, network, reason_why_not
from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.cluster import Cluster
from placeit.core.errors import PlaceitError
from placeit.core.telemetry import import_openvino
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.nodes import connection, local
from placeit.profiler.cache import Cache
from placeit.runtime.nodes.device import NodeDevice
from placeit.serving.server import Answer, Server
from placeit.session import Session
from tests.emulators import UnavailableError

NODES = ("head", "edge1", "edge2")
ROUNDS, QUICK = 100, 6
ROWS, COLUMNS, LAYERS = 64, 160, 12
SLOWER = {"CPU": 20.0, "GPU": 200.0}
"""Time of a segment on other devices, relative to a core's, by the device that fails: several times what the network takes."""
TIMEOUT_S = 3.0
LOADED_S = 2.0
"""Seconds of load before a failure, after the first answer that follows it, and after the first answer of a returned node."""
MAX_S, RECOVERED_S, ANSWER_S, BACK_S = 15.0, 1.5, 60.0, 120.0
USED_S = {"CPU": 60.0, "GPU": 180.0}
"""Seconds until a returned device is used; a GPU's programs take seconds to compile."""
WAITING = 16  # requests that are submitted and not answered
KILLED, STOPPED, CUT, GONE = "killed", "stopped", "cut off", "killed with its node"
PHASES = {
    "silent_s": "failure noticed after the last sign of life",
    "decided_s": "decision",
    "compiled_s": "compiling and loading",
    "first_answer_s": "first answer after that",
    "recovered_s": "from a failure that is noticed to the next answer",
    "next_answer_s": "from a failure to the next answer",
    "used_again_s": "from a node's return to its first answer",
}
MOST = {"decided_s": 1.0, "recovered_s": RECOVERED_S, "next_answer_s": MAX_S}


def run(args: Args, report: Report) -> None:
    count, device = QUICK if args.quick else ROUNDS, args.backend
    with ExitStack() as stack:
        if device == "GPU":
            try:
                with_gpu(local.Place())
            except UnavailableError as error:
                report.note(f"Nothing is measured. {error}")
                return
        if why := reason_why_not():
            report.note(f"Nodes are on the loopback interface, and only killed and stopped. {why}")
            file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "cluster.json")
            ray = local.start(NODES[:2], file, places={NODES[1]: with_gpu(local.Place())} if device == "GPU" else None)
            stack.callback(ray.stop, file)
            failing = NODES[1:2] if device == "GPU" else NODES[:2]
            report.add(churn(rounds(count, failing, (KILLED, STOPPED)), device, args.seed, ray, None))
        else:
            made = stack.enter_context(network(NODES, gpu=NODES[1] if device == "GPU" else ""))
            ray = stack.enter_context(cluster(made))
            failing = NODES[1:2] if device == "GPU" else NODES[1:]
            todo = rounds(count, failing, (KILLED, STOPPED, CUT, GONE))
            report.add(made.call(NODES[0], churn, todo, device, args.seed, ray, made))
    claim(report)


def claim(report: Report) -> None:
    """Add the claims about the rounds of a report."""
    for what in ("lost", "answered_twice", "wrong"):
        report.claim(f"requests {what.replace('_', ' ')}", _column(report, what).sum(), "", at_most=0)
    report.claim("rounds that ended by an error", sum("failed" in row for row in report.rows), "", at_most=0)
    report.claim("rounds without a replacement", int(np.isnan(_column(report, "decided_s")).sum()), "", at_most=0)
    back = [row["used_again_s"] for row in report.rows if row["how"] in (CUT, GONE) and "failed" not in row]
    report.claim("nodes that came back and were not used again", back.count(None) if back else None, "", at_most=0)
    for column, what in PHASES.items():
        report.claim(f"{what}, median", _of(np.median, report, column), "s")
        report.claim(f"{what}, worst", _of(np.max, report, column), "s", at_most=MOST.get(column))
    for column in ("before", "after", "again"):
        when = {"before": "before a failure", "after": "after it", "again": "with the node that came back"}[column]
        report.claim(f"latency {when}, median", _of(np.median, report, f"{column}_ms"), "ms")


def _column(report: Report, name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in report.rows if "failed" not in row], np.float64)  # None becomes NaN


def _of(total: Callable[[NDArray[np.float64]], float], report: Report, name: str) -> float | None:
    """Return a figure of a column over the rounds in which it was measured; None if it was never measured."""
    column = _column(report, name)
    measured = column[~np.isnan(column)]
    return float(total(measured)) if len(measured) else None


def rounds(count: int, nodes: Sequence[str], hows: Sequence[str]) -> list[tuple[str, str]]:
    """Yield which node fails, and how, for each of a number of rounds."""
    return [(nodes[number // len(hows) % len(nodes)], hows[number % len(hows)]) for number in range(count)]


def churn(todo: Sequence[tuple[str, str]], device: str, seed: int, ray: local.LocalCluster, made: Network | None) -> Report:
    """Run all rounds, on a cluster whose head is this process's node; ``device`` is CPU or GPU."""
    report = Report()
    connection.connect(ray.address, token=ray.token, patience=TIMEOUT_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number, (node, how) in enumerate(todo):
                progress(f"round {number}: {node} is {how}")
                try:
                    _Round(number, node, how, device, ray, made).run(seed, Cache(Path(folder)), report)
                except PlaceitError as error:
                    report.row(round=number, node=node, how=how, failed=str(error))
    finally:
        connection.disconnect()
    return report


def _model() -> OpenVinoModel:
    """Make a chain of products with square matrices."""
    ov: Any = import_openvino()
    ops, random = ov.opset13, np.random.default_rng(0)
    given = ops.parameter([ROWS, COLUMNS], ov.Type.f32, name="in")
    value = given.output(0)
    for _ in range(LAYERS):
        weights = random.standard_normal((COLUMNS, COLUMNS), np.float32) * np.float32((2 / COLUMNS) ** 0.5)
        value = ops.relu(ops.matmul(value, ops.constant(weights), False, False)).output(0)
    return describe(ov.Model([ops.result(value)], [given], "products"), Path("products"))


class _Round:
    """Serve, have a node fail, and have it come back."""

    def __init__(self, number: int, node: str, how: str, device: str, ray: local.LocalCluster, made: Network | None) -> None:
        self._number, self._node, self._how, self._device, self._ray, self._made = number, node, how, device, ray, made

    def run(self, seed: int, cache: Cache, report: Report) -> None:
        cores = allowed_cores()
        others = [] if self._made is None else [f"{node}/CPU@{cores[-1]}" for node in NODES[1:] if node != self._node]
        model = _model()
        with ExitStack() as stack:
            failing = f"{self._node}/{'GPU.0' if self._device == 'GPU' else f'CPU@{cores[0]}'}"
            found = discover([failing, *others, f"CPU@{cores[-1]}"]).devices
            devices = (found[0], *(replace(device, slowdown=SLOWER[self._device]) for device in found[1:]))
            session = stack.enter_context(Session(model, Cluster(devices), cache=cache))
            session.profile(budget_s=2.0)
            victim = session.runtime.devices[0]
            assert isinstance(victim, NodeDevice)
            stack.callback(_kill, [victim.pid])
            inputs = [model.random_inputs(seed + i) for i in range(3)]
            expected = [session.reference(values) for values in inputs]
            groups = len(session.grouping.groups)
            split = session.placement(np.arange(groups) * len(devices) // groups)
            server = stack.enter_context(session.serve(split, on_loss="replace"))
            load = _Load(server, inputs)
            load.until(time.perf_counter() + LOADED_S)
            failed = time.perf_counter()
            self._fail(victim)
            load.until(failed + ANSWER_S, enough=lambda: bool(server.replacements))
            anew = server.replacements[0] if server.replacements else None
            back = used = None
            if self._how in (CUT, GONE):
                back = self._back_under(load)
                used = self._used_again(victim.name, back, server, load)
            load.until(time.perf_counter() + LOADED_S)
            counts, outcomes = load.counts(expected)
        # answers that were under way to this process when the node failed do not count
        ended = [one.ended for one in outcomes if one.begun > failed]
        resumed = min(ended) if anew is not None and ended else failed + ANSWER_S
        report.row(
            round=self._number,
            node=self._node,
            how=self._how,
            device=self._device,
            requests=len(outcomes),
            lost=counts["lost"],
            answered_twice=server.repeated,
            wrong=counts["wrong"],
            next_answer_s=resumed - failed,
            recovered_s=None if anew is None else max(0.0, resumed - failed - anew.silent_s),
            silent_s=None if anew is None else anew.silent_s,
            decided_s=None if anew is None else anew.decided_s,
            compiled_s=None if anew is None else anew.compiled_s,
            first_answer_s=None if anew is None else anew.answered_s,
            used_again_s=None if back is None or used is None else used - back,
            requests_meanwhile=sum(end <= used for end in ended) if used is not None else None,
            before_ms=_latency(outcomes, -math.inf, failed),
            after_ms=_latency(outcomes, resumed, math.inf if used is None else used),
            again_ms=None if used is None else _latency(outcomes, used, math.inf),
        )

    def _back_under(self, load: _Load) -> float:
        """Add the node again, while the load goes on; return the time."""
        with ThreadPoolExecutor(1) as pool:
            coming = pool.submit(self._come_back)
            load.until(time.perf_counter() + BACK_S, enough=coming.done)
            coming.result()
        return time.perf_counter()

    def _used_again(self, name: str, back: float, server: Server, load: _Load) -> float | None:
        """Continue the load until the server uses a device again; return the time, or None if it does not."""
        load.until(back + USED_S[self._device], enough=lambda: any(name in one.devices for one in server.replacements[1:]))
        return time.perf_counter() if any(name in one.devices for one in server.replacements[1:]) else None

    def _fail(self, victim: NodeDevice) -> None:
        if self._how == KILLED:
            _kill([victim.pid])
        elif self._how == STOPPED:
            os.kill(victim.pid, signal.SIGSTOP)
        elif self._made is not None and self._how == CUT:
            self._made.cut(self._node)
        elif self._made is not None:
            _kill(self._made.pids(self._node))

    def _come_back(self) -> None:
        """Repair a node, and add it to the cluster again, when Ray has given it up."""
        assert self._made is not None
        self._wait(lambda: self._node not in connection.connected().nodes())
        while left := self._made.pids(self._node):
            _kill(left)
            time.sleep(0.1)
        self._made.mend(self._node)
        local.start_node(self._ray, self._node, self._made.place(self._node))
        self._wait(lambda: self._node in connection.connected().nodes())

    def _wait(self, there: Callable[[], bool]) -> None:
        deadline = time.perf_counter() + BACK_S / 2
        while not there():
            if time.perf_counter() > deadline:
                raise PlaceitError(f"Ray has not noticed what became of {self._node} for {BACK_S / 2:g} s.")
            time.sleep(0.1)


class _Load:
    """Requests to a server, with a given number waiting at any time."""

    def __init__(self, server: Server, inputs: Sequence[Mapping[str, NDArray[np.generic]]]) -> None:
        self._server, self._inputs = server, inputs
        self._answers: list[Answer] = []
        self._waiting: deque[Answer] = deque()
        self._refused = 0

    def until(self, moment: float, *, enough: Callable[[], bool] = lambda: False) -> None:
        """Submit requests until a time, or until a condition holds."""
        while time.perf_counter() < moment and not enough():
            if len(self._waiting) >= WAITING and not self._waiting[0].done():
                with contextlib.suppress(TimeoutError):
                    self._waiting[0].exception(0.01)
                continue
            if len(self._waiting) >= WAITING:
                self._waiting.popleft()
            try:
                answer = self._server.submit(self._inputs[len(self._answers) % len(self._inputs)], timeout=ANSWER_S)
            except PlaceitError:
                self._refused += 1
                time.sleep(0.1)
                continue
            self._answers.append(answer)
            self._waiting.append(answer)

    def counts(self, expected: Sequence[Mapping[str, NDArray[np.generic]]]) -> tuple[Counter[str], list[Answer]]:
        """Return how many requests were lost or answered wrong, and the answers."""
        counts, answered = Counter(lost=self._refused), []
        for number, answer in enumerate(self._answers):
            try:
                outputs = answer.result(ANSWER_S)
            except (PlaceitError, TimeoutError):
                counts["lost"] += 1
                continue
            answered.append(answer)
            right = expected[number % len(expected)]
            counts["wrong"] += not all(np.allclose(outputs[name], value, rtol=1e-3, atol=1e-4) for name, value in right.items())
        return counts, answered


def _latency(outcomes: Sequence[Answer], since: float, until: float) -> float | None:
    """Return the median milliseconds of the requests that arrived and ended between two moments; None without requests."""
    took = [one.ended - one.arrived for one in outcomes if since < one.arrived and one.ended <= until]
    return float(np.median(took)) * 1e3 if took else None


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main("churn", run, backends=("CPU", "GPU"))
