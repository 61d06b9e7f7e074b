"""What becomes of requests when nodes fail under load and come back: rounds of killing, stopping, cutting off and adding again.

A small model is split over nodes and a core of this process, in the middle of whose load one of the nodes fails. Its process
is killed (SIGKILL) or stopped (SIGSTOP); its network is cut off, and nobody told; or all of its processes are killed. In the
last two cases it is mended and added to the cluster again, while the load goes on. Requests come without a pause, as many in
flight as the server takes, and their outputs are compared with the reference. Each round opens a session anew; two nodes take
turns.

Nodes are joined by an emulated network of 100 Mbit/s and 5 ms (``_network.py``). Where there is none, because that takes root,
they are joined by the loopback interface, and processes are killed and stopped only.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Args, Report, main
from benchmarks._models import progress
from benchmarks._network import Network, cluster, network, reason_why_not
from placeit.backends.openvino.model import relu_chain
from placeit.core.errors import PlaceitError
from placeit.devices.host import allowed_cores
from placeit.devices.nodes import connection, local
from placeit.profiler.cache import Cache
from placeit.runtime.nodes.device import NodeDevice
from placeit.runtime.serving import Answer, Server
from placeit.session import Session

NODES = ("head", "edge1", "edge2")
ELEMENTS, OPS = 10_000, 12
PATIENCE_S = 3.0
LOADED_S = 2.0
"""Seconds of load before a failure, and after the first answer that follows it."""
MOST_S, ANSWER_S, BACK_S = 15.0, 60.0, 120.0
WAITING = 16  # requests that are submitted and not answered
KILLED, STOPPED, CUT, GONE = "killed", "stopped", "cut off", "killed with its node"


def run(args: Args, report: Report) -> None:
    with ExitStack() as stack:
        if why := reason_why_not():
            report.note(f"Nodes are on the loopback interface, and only killed and stopped. {why}")
            file = Path(stack.enter_context(tempfile.TemporaryDirectory()), "cluster.json")
            ray = local.start(NODES[:2], file)
            stack.callback(ray.stop, file)
            report.add(_churn(args, ray, None))
        else:
            made = stack.enter_context(network(NODES))
            ray = stack.enter_context(cluster(made))
            report.add(made.call(NODES[0], _churn, args, ray, made))
    for what in ("lost", "twice", "wrong"):
        report.claim(f"requests {what}", _column(report, what).sum(), "", at_most=0)
    report.claim("decision, worst", _column(report, "decided_s").max(), "s", at_most=1.0)
    gaps = _column(report, "next_answer_s")
    report.claim("from a failure to the next answer, median", float(np.median(gaps)), "s")
    report.claim("from a failure to the next answer, worst", gaps.max(), "s", at_most=MOST_S)
    for when in ("before", "after"):
        report.claim(f"latency {when} a failure, median", float(np.nanmedian(_column(report, f"{when}_ms"))), "ms")


def _column(report: Report, name: str) -> NDArray[np.float64]:
    return np.array([row[name] for row in report.rows], np.float64)  # None becomes NaN


def _churn(args: Args, ray: local.LocalCluster, made: Network | None) -> Report:
    """All rounds, on a cluster whose head is this process's node."""
    report = Report()
    hows, nodes = ((KILLED, STOPPED), NODES[:2]) if made is None else ((KILLED, STOPPED, CUT, GONE), NODES[1:])
    connection.connect(ray.address, token=ray.token, patience=PATIENCE_S)
    try:
        with tempfile.TemporaryDirectory() as folder:
            for number in range(6 if args.quick else 100):
                how, node = hows[number % len(hows)], nodes[number // len(hows) % len(nodes)]
                progress(f"round {number}: {node} is {how}")
                _Round(number, node, how, ray, made).run(args.seed, Cache(Path(folder)), report)
    finally:
        connection.disconnect()
    return report


class _Round:
    """Serve, have a node fail, and have it come back."""

    def __init__(self, number: int, node: str, how: str, ray: local.LocalCluster, made: Network | None) -> None:
        self._number, self._node, self._how, self._ray, self._made = number, node, how, ray, made

    def run(self, seed: int, cache: Cache, report: Report) -> None:
        cores = allowed_cores()
        others = [] if self._made is None else [f"{node}/CPU@{cores[-1]}" for node in NODES[1:] if node != self._node]
        model = relu_chain(ELEMENTS, OPS)
        with ExitStack() as stack:
            devices = [f"{self._node}/CPU@{cores[0]}", *others, f"CPU@{cores[-1]}"]
            session = stack.enter_context(Session(model, devices, cache=cache))
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
            if self._how in (CUT, GONE):
                with ThreadPoolExecutor(1) as pool:
                    back = pool.submit(self._come_back)
                    load.until(time.perf_counter() + BACK_S, enough=back.done)
                    back.result()
            load.until(time.perf_counter() + LOADED_S)
            counts, outcomes = load.counts(expected)
        anew = server.replacements[0] if server.replacements else None
        # what was on its way to this process when the node failed does not count
        resumed = ANSWER_S if anew is None else min(one.ended for one in outcomes if one.begun > failed) - failed
        before = [one.ended - one.arrived for one in outcomes if one.ended < failed]
        after = [one.ended - one.arrived for one in outcomes if one.arrived > failed + resumed]
        report.row(
            round=self._number,
            node=self._node,
            how=self._how,
            requests=len(outcomes),
            **{what: counts[what] for what in ("lost", "twice", "wrong")},
            next_answer_s=resumed,
            silent_s=None if anew is None else anew.silent_s,
            decided_s=None if anew is None else anew.decided_s,
            compiled_s=None if anew is None else anew.compiled_s,
            first_answer_s=None if anew is None else anew.answered_s,
            before_ms=float(np.median(before)) * 1e3 if before else None,
            after_ms=float(np.median(after)) * 1e3 if after else None,
        )

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
        """Mend a node, and add it to the cluster again, when Ray has given it up."""
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
    """Requests to a server, as many waiting at any time as are told."""

    def __init__(self, server: Server, inputs: Sequence[Mapping[str, NDArray[np.generic]]]) -> None:
        self._server, self._inputs = server, inputs
        self._answers: list[Answer] = []
        self._settled: Counter[int] = Counter()
        self._waiting: deque[Answer] = deque()

    def until(self, moment: float, *, enough: Callable[[], bool] = lambda: False) -> None:
        """Submit until a moment, or until it is enough."""
        while time.perf_counter() < moment and not enough():
            if len(self._waiting) >= WAITING and not self._waiting[0].done():
                with contextlib.suppress(TimeoutError):
                    self._waiting[0].exception(0.01)
                continue
            if len(self._waiting) >= WAITING:
                self._waiting.popleft()
            number = len(self._answers)
            answer = self._server.submit(self._inputs[number % len(self._inputs)], timeout=ANSWER_S)
            answer.add_done_callback(functools.partial(self._settle, number))
            self._answers.append(answer)
            self._waiting.append(answer)

    def _settle(self, number: int, _: object) -> None:
        self._settled[number] += 1

    def counts(self, expected: Sequence[Mapping[str, NDArray[np.generic]]]) -> tuple[Counter[str], list[Answer]]:
        """How many requests were lost, answered twice and answered wrong; and the answers."""
        counts: Counter[str] = Counter()
        answered = []
        for number, answer in enumerate(self._answers):
            counts["twice"] += self._settled[number] > 1
            try:
                outputs = answer.result(ANSWER_S)
            except (PlaceitError, TimeoutError):
                counts["lost"] += 1
                continue
            answered.append(answer)
            right = expected[number % len(expected)]
            counts["wrong"] += not all(np.allclose(outputs[name], value, rtol=1e-3, atol=1e-4) for name, value in right.items())
        return counts, answered


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main("churn", run)
