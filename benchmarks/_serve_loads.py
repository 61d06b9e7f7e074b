"""Loads on ``placeit serve`` and on the handler that people write in its place: at each end, and at shares of its capacity."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from benchmarks._harness import Report
from benchmarks._models import progress

OURS: Final = "placeit serve"
CONNECTIONS: Final = 1, 8, 64
SHARES: Final = 0.5, 0.9, 1.2, 2.0  # of the capacity of the other handler
ROUNDS: Final = 5
_WARM_S: Final = 0.2
_TIMEOUT_S: Final = 30.0


@dataclass
class _Load:
    """What a load has found.

    Attributes:
        seconds: from the begin of the load to its last answer.
        latencies: of requests that were answered well, from when they were due.
        statuses: of all answers.
    """

    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)

    @property
    def rate(self) -> float:
        """Requests per second that were answered well."""
        return len(self.latencies) / self.seconds


class _Client:
    """A connection that sends the same request again and again."""

    def __init__(self, port: int, request: bytes) -> None:
        self._port, self._request = port, request
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self) -> int:
        """Send the request, and return the status of its answer."""
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(self._request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0]))
        return int(head[9:12])

    def close(self) -> None:
        """Close the connection."""
        if self._streams is not None:
            self._streams[1].close()


async def _closed(port: int, request: bytes, connections: int, seconds: float) -> _Load:
    """Ask over some connections, on each again once it was answered."""
    found, begin = _Load(), time.perf_counter() + _WARM_S
    until = begin + seconds

    async def ask() -> None:
        with contextlib.closing(_Client(port, request)) as client:
            while (asked := time.perf_counter()) < until or not found.statuses:  # on a busy machine
                status = await client.ask()
                if asked >= begin:
                    found.statuses[status] += 1
                    if status == 200:
                        found.latencies.append(time.perf_counter() - asked)

    await asyncio.gather(*(ask() for _ in range(connections)))
    found.seconds = time.perf_counter() - begin
    return found


async def _open(port: int, request: bytes, rate: float, seconds: float, seed: int) -> _Load:
    """Ask at random times, at a rate per second, whether or not earlier requests were answered."""
    found, begin, random_ = _Load(), time.perf_counter(), random.Random(seed)
    idle: list[_Client] = []
    asked: list[asyncio.Task[None]] = []

    async def ask(due: float) -> None:
        client = idle.pop() if idle else _Client(port, request)
        status = await asyncio.wait_for(client.ask(), _TIMEOUT_S)
        idle.append(client)
        found.statuses[status] += 1
        if status == 200:
            found.latencies.append(time.perf_counter() - due)

    due = begin
    while (due := due + random_.expovariate(rate)) < begin + seconds:
        if (left := due - time.perf_counter()) > 0:
            await asyncio.sleep(left)
        asked.append(asyncio.ensure_future(ask(due)))
    await asyncio.gather(*asked)
    found.seconds = time.perf_counter() - begin
    for client in idle:
        client.close()
    return found


def loads(
    report: Report,
    small: Mapping[str, tuple[int, bytes]],
    slow: Mapping[str, tuple[int, bytes]],
    *,
    seconds: float,
    cpu: Callable[[], float],
) -> None:
    """Time loads in turns.

    Args:
        report: takes the results.
        small: port and request of a small model, by who answers it; the last one is the handler to compare with.
        slow: the same of a model that keeps the devices busy.
        seconds: of each load in each round.
        cpu: CPU time of the process that answers.
    """
    *_, other = small
    ratios: dict[tuple[int, str], list[float]] = {}
    for connections in CONNECTIONS:
        found: dict[str, list[tuple[_Load, float]]] = {name: [] for name in small}
        for turn in range(ROUNDS):
            for name, (port, request) in small.items():
                progress(f"{connections} connections, round {turn}: {name}")
                begin = cpu()
                load = asyncio.run(_closed(port, request, connections, seconds))
                found[name].append((load, (cpu() - begin) / load.statuses.total() * load.seconds / (load.seconds + _WARM_S)))
        for name, taken in found.items():
            _row(report, f"{name}, {connections} connections", [load for load, _ in taken], [spent for _, spent in taken])
        pairs = [*zip(found[OURS], found[other], strict=True)]
        ratios[connections, "requests per second"] = [ours.rate / theirs.rate for (ours, _), (theirs, _) in pairs]
        ratios[connections, "CPU time"] = [ours / theirs for (_, ours), (_, theirs) in pairs]
    report.claim("CPU time of a request, 1 connection, over AsyncInferQueue", np.median(ratios[1, "CPU time"]), "", at_most=1.2)
    for connections in CONNECTIONS:
        share = np.median(ratios[connections, "requests per second"])
        least = 1.0 if connections == CONNECTIONS[-1] else None
        report.claim(f"requests per second, {connections} connections, over AsyncInferQueue", share, "", at_least=least)
    _shares(report, slow, seconds)


def _shares(report: Report, slow: Mapping[str, tuple[int, bytes]], seconds: float) -> None:
    """Time loads at shares of the capacity of the handler to compare with."""
    *_, other = slow
    capacities = {name: asyncio.run(_closed(*of, CONNECTIONS[-1], 2 * seconds)).rate for name, of in slow.items()}
    report.claim("capacity over AsyncInferQueue, model that keeps devices busy", capacities[OURS] / capacities[other], "")
    for share in SHARES:
        found: dict[str, list[_Load]] = {name: [] for name in slow}
        for turn in range(ROUNDS):
            for name, (port, request) in slow.items():
                progress(f"{share} times capacity, round {turn}: {name}")
                found[name].append(asyncio.run(_open(port, request, share * capacities[other], 2 * seconds, turn)))
        for name, taken in found.items():
            _row(report, f"{name}, {share:g} of capacity", taken)
        if share < 1:
            ratios = [_p99(ours) / _p99(theirs) for ours, theirs in zip(found[OURS], found[other], strict=True)]
            report.claim(f"p99 at {share:g} of capacity over AsyncInferQueue", np.median(ratios), "", at_most=1)
        else:
            most = min(share * capacities[other], capacities[OURS])
            served = np.median([load.rate for load in found[OURS]]) / most
            report.claim(f"share of what it can serve at {share:g} of capacity", served, "", at_least=0.95)


def _p99(load: _Load) -> float:
    return float(np.quantile(load.latencies, 0.99))


def _row(report: Report, what: str, loads: list[_Load], cpu: list[float] | None = None) -> None:
    statuses = sum((load.statuses for load in loads), Counter[int]())
    latencies = np.concatenate([load.latencies for load in loads])
    report.row(
        what=what,
        requests=statuses.total(),
        requests_per_second=np.median([load.rate for load in loads]),
        median_ms=1e3 * np.median(latencies),
        p99_ms=1e3 * np.quantile(latencies, 0.99),
        cpu_ms=None if cpu is None else 1e3 * np.median(cpu),
        refused=statuses.total() - statuses[200],
    )
