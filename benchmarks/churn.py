"""What becomes of requests when nodes die or hang under load: rounds of killing or stopping a device of a served model.

A small model is split over a node and a core of this process, in the middle of whose load the node's process is killed
(SIGKILL) or stopped (SIGSTOP). Requests come without a pause, as many in flight as the server takes, and their outputs are
compared with the reference. Each round opens a session anew; the nodes, the head of the cluster and another one, take turns.
Everything is on this machine: what a network adds is not in these figures.
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
from contextlib import ExitStack
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks._harness import Args, Report, main
from placeit.backends.openvino.model import relu_chain
from placeit.core.errors import PlaceitError
from placeit.devices.host import allowed_cores
from placeit.devices.nodes import connection, local
from placeit.profiler.cache import Cache
from placeit.runtime.nodes.device import NodeDevice
from placeit.runtime.serving import Answer, Server
from placeit.session import Session

NODES = ("head", "edge1")
ELEMENTS, OPS = 10_000, 12
PATIENCE_S = 2.0
LOADED_S = 2.0
"""Seconds of load before a failure, and after the first answer that follows it."""
MOST_S, ANSWER_S = 15.0, 60.0
WAITING = 16  # requests that are submitted and not answered
HOWS = (("killed", signal.SIGKILL), ("stopped", signal.SIGSTOP))


def run(args: Args, report: Report) -> None:
    rounds = 6 if args.quick else 100
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        file = Path(folder, "cluster.json")
        cluster = local.start(NODES, file)
        stack.callback(cluster.stop, file)
        connection.connect(cluster.address, token=cluster.token, patience=PATIENCE_S)
        stack.callback(connection.disconnect)
        cache = Cache(Path(folder, "cache"))
        found = [_round(number, args.seed, cache, report) for number in range(rounds)]
    for what in ("lost", "twice", "wrong"):
        report.claim(f"requests {what}", sum(counts[what] for counts, _, _ in found), "", at_most=0)
    report.claim("decision, worst", max(decided for _, _, decided in found), "s", at_most=1.0)
    gaps = np.array([seconds for _, seconds, _ in found])
    report.claim("from a failure to the next answer, median", float(np.median(gaps)), "s")
    report.claim("from a failure to the next answer, worst", float(gaps.max()), "s", at_most=MOST_S)


def _round(number: int, seed: int, cache: Cache, report: Report) -> tuple[Counter[str], float, float]:
    """Serve, have a device fail, and return what became of requests, and seconds to the next answer and of the decision."""
    cores = allowed_cores()
    node, (how, blow) = NODES[number // len(HOWS) % len(NODES)], HOWS[number % len(HOWS)]
    model = relu_chain(ELEMENTS, OPS)
    with ExitStack() as stack:
        session = stack.enter_context(Session(model, [f"{node}/CPU@{cores[0]}", f"CPU@{cores[-1]}"], cache=cache))
        session.profile(budget_s=2.0)
        victim = session.runtime.devices[0]
        assert isinstance(victim, NodeDevice)
        stack.callback(_let_go, victim.pid)
        inputs = [model.random_inputs(seed + i) for i in range(3)]
        expected = [session.reference(values) for values in inputs]
        groups = len(session.grouping.groups)
        server = stack.enter_context(session.serve(session.placement(np.arange(groups) * 2 // groups), on_loss="replace"))
        load = _Load(server, inputs)
        load.until(time.perf_counter() + LOADED_S)
        failed = time.perf_counter()
        os.kill(victim.pid, blow)
        load.until(failed + ANSWER_S, enough=lambda: bool(server.replacements))
        load.until(time.perf_counter() + LOADED_S)
    counts, outcomes = load.counts(expected)
    answered = sorted(answer.ended for answer in outcomes)
    anew = server.replacements[0] if server.replacements else None
    # what was on its way to this process when the device failed does not count
    resumed = ANSWER_S if anew is None else min(one.ended for one in outcomes if one.begun > failed) - failed
    before = [one.ended - one.arrived for one in outcomes if one.ended < failed]
    after = [one.ended - one.arrived for one in outcomes if one.arrived > failed + resumed]
    report.row(
        round=number,
        node=node,
        how=how,
        requests=len(answered),
        **{what: counts[what] for what in ("lost", "twice", "wrong")},
        next_answer_s=resumed,
        silent_s=None if anew is None else anew.silent_s,
        decided_s=None if anew is None else anew.decided_s,
        compiled_s=None if anew is None else anew.compiled_s,
        first_answer_s=None if anew is None else anew.answered_s,
        before_ms=float(np.median(before)) * 1e3 if before else None,
        after_ms=float(np.median(after)) * 1e3 if after else None,
    )
    return counts, resumed, np.nan if anew is None else anew.decided_s


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


def _let_go(pid: int) -> None:
    """End a process that was stopped."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main("churn", run)
