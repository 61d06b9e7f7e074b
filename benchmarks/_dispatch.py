"""The time that an executor adds to segments: the time between two of them on one device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from placeit.planning.segments import Plan
from placeit.runtime.spans import Span
from placeit.session import Session

__all__ = ["gaps", "microseconds", "slower_after"]


def microseconds(samples: list[float], percentile: float) -> float | None:
    """Return a percentile of samples in seconds, in microseconds; None without samples."""
    return float(np.percentile(samples, percentile)) * 1e6 if samples else None


def gaps(
    session: Session, plan: Plan, runs: int = 20, ops: Mapping[str, tuple[float, float]] | None = None
) -> tuple[list[float], list[float]]:
    """Return the seconds from when a device is free and its next segment is ready to the start of that segment.

    Args:
        session: an open session, with the model of the plan.
        plan: the plan to run.
        runs: number of runs.
        ops: begin and end of each op in the last run, if ops record them: a segment then starts with its first op and ends with
            its last one, and the time before and after them counts as well.

        Returns: Gaps before segments that were ready when their device became free, and gaps before segments that it had to
            wait for.
    """
    executor = session.executor(plan)
    readers: dict[int, list[int]] = {}
    for producer, consumer in plan.problem.edges.tolist():
        readers.setdefault(consumer, []).append(producer)
    after, waits = [], []
    for turn in range(runs + 2):
        executor.time()
        if turn < 2:
            continue
        spans = executor.spans() if ops is None else [_narrowed(span, ops) for span in executor.spans()]
        begin = spans[0].start
        ends = {span.segment: span.finish for span in spans if span.segment is not None}
        for s in range(len(plan.segments)):  # in topological order: a segment that runs nothing ends when it is ready
            ends.setdefault(s, max((ends[p] for p in readers.get(s, ())), default=begin))
        last: dict[str, float] = {}
        for span in spans:
            if span.segment is None:
                continue
            ready = max((ends[p] for p in readers.get(span.segment, ())), default=begin)
            before = last.get(span.track, begin)
            last[span.track] = span.finish
            if before > begin and ready <= before:
                after.append(span.start - before)
            elif ready > begin:
                waits.append(span.start - max(ready, before))
    return after, waits


def slower_after(seconds: float, repeats: int = 31) -> float:
    """Return the slowdown of ordinary Python after a busy wait of ``seconds``, relative to running it again at once.

    This is not due to an executor: the machine slows down any code that has not run for a while. Other programs that use the
    caches in between would explain it, but this has not been shown.
    """
    table = {number: str(number) for number in range(200)}

    def ordinary() -> float:
        begin = time.perf_counter()
        for number in range(0, 200, 8):
            sorted((table[number], table[199 - number]))
        return time.perf_counter() - begin

    later, at_once = [], []
    for _ in range(repeats):
        until = time.perf_counter() + seconds
        while time.perf_counter() < until:
            pass
        later.append(ordinary())
        at_once.append(ordinary())
    return float(np.median(later) / np.median(at_once))


def _narrowed(span: Span, ops: Mapping[str, tuple[float, float]]) -> Span:
    if span.kind == "copy":
        return span
    times = [ops[name] for name in span.ops if name in ops]
    return replace(span, start=min(times)[0], finish=max(times)[1])
