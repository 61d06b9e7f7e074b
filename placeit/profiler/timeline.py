"""Analyse recorded spans: dependencies, states of devices, use of links, and critical paths."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from placeit.profiler.recorded import CriticalPath, LinkUse, RecordedPlan, RecordedRequest, RecordedSpan, States, Step

__all__ = ["critical_path", "dependencies", "link_use", "states"]

_Pairs = list[tuple[float, float]]


def dependencies(plan: RecordedPlan, spans: Sequence[RecordedSpan]) -> list[tuple[int, ...]]:
    """Return, for each span, the positions of the spans that computed or moved the tensors it reads.

    Tensors that no span computed, such as inputs of the model, have no such span.
    """
    computed: dict[tuple[int, int], int] = {}
    arrived: dict[tuple[int, int, str], list[int]] = {}
    for i, span in enumerate(spans):
        if span.segment is not None:
            computed[span.request, span.segment] = i
        elif span.tensor is not None:
            arrived.setdefault((span.request, span.tensor, span.where[-1]), []).append(i)
    for legs in arrived.values():
        legs.sort(key=lambda i: (spans[i].finish_s, spans[i].start_s))
    reads: list[list[int]] = [[] for _ in plan.segments]
    for t, tensor in enumerate(plan.tensors):
        for s in tensor.consumers:
            reads[s].append(t)

    def source(request: int, t: int) -> list[int]:
        producer = plan.tensors[t].producer
        found = None if producer is None else computed.get((request, producer))
        return [] if found is None else [found]

    waited: list[tuple[int, ...]] = []
    for i, span in enumerate(spans):
        found: list[int] = []
        if span.segment is not None:
            for t in reads[span.segment]:
                legs = arrived.get((span.request, t, span.where[0]), [])
                found += legs[-1:] or source(span.request, t)
        elif span.tensor is not None:
            legs = arrived[span.request, span.tensor, span.where[-1]]
            leg = legs.index(i)
            found = legs[leg - 1 : leg] if leg else source(span.request, span.tensor)
        waited.append(tuple(dict.fromkeys(found)))
    return waited


def states(
    plan: RecordedPlan,
    requests: Sequence[RecordedRequest],
    spans: Sequence[RecordedSpan],
    conflicts: Mapping[str, Sequence[str]],
    wall_s: float,
) -> tuple[States, ...]:
    """Divide the wall time among the states of each device.

    Args:
        plan: the plan that ran.
        requests: the requests, with the times when they were in flight.
        spans: the segments that ran and the tensors that moved.
        conflicts: for each device, the devices that it shares cores with.
        wall_s: wall time in seconds; it starts at 0.
    """
    waited = dependencies(plan, spans)
    every: list[dict[str, _Pairs]] = [{name: [] for name in conflicts} for _ in range(4)]
    running, sending, ready, short = every
    for i, span in enumerate(spans):
        where = span.where[0]
        if span.kind == "copy":
            if where in sending:
                sending[where].append((span.start_s, span.finish_s))
            continue
        begun = requests[span.request].begun_s
        there = min(span.start_s, max([begun, *(spans[j].finish_s for j in waited[i])]))
        running[where].append((span.start_s, span.finish_s))
        ready[where].append((there, span.start_s))
        short[where].append((begun, there))
    found = []
    for name, others in conflicts.items():
        beside = [pair for other in others for pair in running.get(other, ())]
        groups = [running[name], sending[name], ready[name], beside, short[name]]
        moments = np.unique(np.clip([0.0, wall_s, *(t for group in groups for pair in group for t in pair)], 0.0, wall_s))
        lengths = np.diff(moments)
        busy, sends, waits, conflict, lacks = (_covered(group, moments[:-1]) for group in groups)
        free = ~(busy | sends)
        kinds = {
            "executing_s": busy,
            "sending_s": sends & ~busy,
            "waiting_data_s": free & ~waits & lacks,
            "waiting_conflict_s": free & waits & conflict,
            "waiting_scheduler_s": free & waits & ~conflict,
            "idle_s": free & ~waits & ~lacks,
        }
        found.append(States(name, **{kind: float(lengths[when].sum()) for kind, when in kinds.items()}))
    return tuple(found)


def _covered(pairs: _Pairs, moments: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Return for each moment whether it is in an interval ``[start, end)``: ``bool[N]``."""
    starts, ends = (np.sort([pair[k] for pair in pairs]) for k in (0, 1))
    covered: NDArray[np.bool_] = np.searchsorted(starts, moments, "right") > np.searchsorted(ends, moments, "right")
    return covered


def link_use(plan: RecordedPlan, spans: Sequence[RecordedSpan]) -> tuple[LinkUse, ...]:
    """Return the use of each link. A tensor that crosses a link in several transfers counts once."""
    moved: dict[tuple[str, ...], list[RecordedSpan]] = {}
    for span in spans:
        if span.kind == "copy":
            moved.setdefault(span.where, []).append(span)
    found = []
    for (src, dst), some in moved.items():
        busy, reached = 0.0, 0.0
        for span in sorted(some, key=lambda span: span.start_s):
            busy += max(0.0, span.finish_s - max(reached, span.start_s))
            reached = max(reached, span.finish_s)
        tensors = {(span.request, span.tensor) for span in some}
        size = sum(plan.tensors[t].bytes for _, t in tensors if t is not None)
        found.append(LinkUse(src, dst, busy, size, len(tensors)))
    return tuple(found)


def critical_path(
    plan: RecordedPlan,
    requests: Sequence[RecordedRequest],
    spans: Sequence[RecordedSpan],
    conflicts: Mapping[str, Sequence[str]],
) -> CriticalPath | None:
    """Return the mean seconds of the parts of the requests' critical paths; None without requests.

    A critical path is traced backwards from the span of the request that ended last. Each step leads to the last span to end
    among the spans it waited for. These are the spans that computed or moved the tensors it reads, and the previous span of the
    request on the same device, on a device that shares cores with it, or on the same link. The time between two spans of the
    path is waiting time, including the time in which other requests ran.
    """
    if not requests:
        return None
    waited = dependencies(plan, spans)
    of_request: list[list[int]] = [[] for _ in requests]
    for i, span in enumerate(spans):
        of_request[span.request].append(i)
    paths = [_path(request, mine, spans, waited, conflicts) for request, mine in zip(requests, of_request, strict=True)]
    shares = [segment.cut_share for segment in plan.segments]
    known = all(share is not None for share, segment in zip(shares, plan.segments, strict=True) if segment.runs)
    sums = {"computing": 0.0, "cuts": 0.0, "transfer": 0.0, "waiting": 0.0}
    for path in paths:
        for step in path:
            seconds = step.finish_s - step.start_s
            segment = None if step.span is None else spans[step.span].segment
            share = (shares[segment] or 0.0) if segment is not None and known else 0.0
            sums["cuts"] += share * seconds
            sums[step.what] += (1 - share) * seconds
    latencies = [request.ended_s - request.arrived_s for request in requests]
    median = int(np.argsort(latencies, kind="stable")[(len(latencies) - 1) // 2])
    mean = {what: seconds / len(requests) for what, seconds in sums.items()}
    return CriticalPath(
        latency_s=fmean(latencies),
        computing_s=mean["computing"],
        cuts_s=mean["cuts"] if known else None,
        transfers_s=mean["transfer"],
        waiting_s=mean["waiting"],
        request=median,
        steps=tuple(paths[median]),
    )


def _path(
    request: RecordedRequest,
    mine: Sequence[int],
    spans: Sequence[RecordedSpan],
    waited: Sequence[tuple[int, ...]],
    conflicts: Mapping[str, Sequence[str]],
) -> list[Step]:
    steps: list[Step] = []
    until = request.ended_s

    def back_to(moment: float, span: int | None) -> None:
        nonlocal until
        moment = max(request.arrived_s, moment)
        if moment < until:
            copied = span is not None and spans[span].kind == "copy"
            steps.append(Step("waiting" if span is None else "transfer" if copied else "computing", span, moment, until))
            until = moment

    on: dict[tuple[str, ...], list[tuple[float, int]]] = {}
    for i in mine:
        on.setdefault(spans[i].where, []).append((spans[i].finish_s, i))
    for some in on.values():
        some.sort()
    left = set(mine)
    now = max(mine, key=lambda i: (spans[i].finish_s, spans[i].start_s), default=None)
    while now is not None:
        left.discard(now)
        back_to(spans[now].finish_s, None)
        back_to(spans[now].start_s, now)
        shared = conflicts.get(spans[now].where[0], ()) if spans[now].kind == "compute" else ()
        before = list(waited[now])
        for place in (spans[now].where, *((other,) for other in shared)):
            some = on.get(place, [])
            before += [i for _, i in some[: bisect_right(some, (spans[now].start_s, len(spans)))][-1:]]
        now = max((i for i in before if i in left), key=lambda i: spans[i].finish_s, default=None)
    back_to(request.arrived_s, None)
    return steps[::-1]
