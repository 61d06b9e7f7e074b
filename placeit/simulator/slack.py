"""The slack of ops: how much later each could start without a longer makespan."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from placeit.core.problem import Problem
from placeit.simulator.simulate import Schedule

__all__ = ["slack"]

_ROUNDING = 1e-12  # rounding errors of sums of times, as a share of the makespan


@dataclass(frozen=True, order=True)
class _Event:
    """An op or a transfer. Events sort after all events that they wait for, even if some of those take no time."""

    start: float
    finish: float
    rank: float
    number: int


def slack(problem: Problem, schedule: Schedule) -> NDArray[np.float64]:
    """Return the seconds by which each op could start later without a longer makespan, ``float64[V]``.

    Each device and each link keeps the order that it has in the schedule, and so do devices that conflict. An op without slack
    is on the critical path.

    Args:
        problem: the problem that was simulated.
        schedule: the schedule of one request, by rules under which a link moves one tensor at a time.
    """
    ops, moves, place = len(problem), schedule.transfers, schedule.device
    rank = np.argsort(problem.order)
    producer = dict(zip(problem.edge_tensor.tolist(), problem.edges[:, 0].tolist(), strict=True))
    events = [_Event(float(schedule.start[v]), float(schedule.finish[v]), float(rank[v]), v) for v in range(ops)]
    transfers: dict[tuple[int, int], int] = {}  # number of the event, by tensor and destination
    on: dict[tuple[int, ...], list[_Event]] = {}  # events on each device, and on each link
    for i, (t, src, dst) in enumerate(zip(moves.tensor.tolist(), moves.src.tolist(), moves.dst.tolist(), strict=True)):
        event = _Event(float(moves.start[i]), float(moves.finish[i]), float(rank[producer[t]]) + 0.5, ops + i)
        events.append(event)
        transfers[t, dst] = event.number
        on.setdefault((src, dst), []).append(event)
    for v in range(ops):
        on.setdefault((int(place[v]),), []).append(events[v])
    after: list[set[int]] = [set() for _ in events]
    for (u, v), t in zip(problem.edges.tolist(), problem.edge_tensor.tolist(), strict=True):
        transfer = transfers.get((t, int(place[v])))
        if transfer is None:
            after[u].add(v)
        else:
            after[u].add(transfer)
            after[transfer].add(v)
    for resource, queue in on.items():
        queue.sort()
        for first, second in pairwise(queue):
            after[first.number].add(second.number)
        if len(resource) > 1:  # a link
            continue
        for other in np.flatnonzero(problem.conflicts[resource[0]]).tolist():
            others = sorted(on.get((other,), ()))
            for event in queue:
                at = bisect_left(others, event)
                after[event.number].update(one.number for one in others[at : at + 1])
    end = float(schedule.finish.max())  # the host's part of the makespan comes after it
    late = np.full(len(events), end)  # latest end of each event
    for event in sorted(events, reverse=True):
        for follower in after[event.number]:
            duration = events[follower].finish - events[follower].start
            late[event.number] = min(late[event.number], late[follower] - duration)
    spare = late[:ops] - schedule.finish
    return np.where(spare > _ROUNDING * end, spare, 0.0)
