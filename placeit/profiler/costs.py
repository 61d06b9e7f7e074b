"""Measures what groups cost on devices: whole models and cut ones, in place, pass after pass."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.backends.coarsen import Grouping
from placeit.cluster import Cluster, Device
from placeit.errors import InfeasibleError
from placeit.profiler.cache import Cache, are_times
from placeit.profiler.links import device_key, probe
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Costs, Plan, Segmenter

__all__ = ["Progress", "profile", "supported"]

Progress = Callable[[str, float], None]
"""``progress(what, share)``: what is being done, and which share of it is done."""

_WARM_UP, _FEWEST, _MOST = 2, 4, 12  # passes: not counted, and of those that are


def supported(model: Model, grouping: Grouping, cluster: Cluster) -> NDArray[np.bool_]:
    """Ask each device's runtime which groups it can run: ``bool[G, D]``.

    Raises:
        InfeasibleError: some op, or some group as a whole, can run on no device.
        DeviceError: a runtime does not answer.
    """
    graph = grouping.graph
    can = np.ones((len(graph), len(cluster)), bool)
    answers: dict[tuple[str, str], Collection[str]] = {}
    for d, device in enumerate(cluster.devices):
        hardware = device.kind, device.runs_on.partition("@")[0]
        if hardware not in answers:
            answers[hardware] = device_kind(device).supported(model, device)
        can[:, d] = [name in answers[hardware] for name in graph.names]
    nowhere = np.flatnonzero(~can.any(axis=1))
    if len(nowhere):
        v = int(nowhere[0])
        raise InfeasibleError(
            f"None of the devices {', '.join(cluster.names)} supports op '{graph.names[v]}' ({graph.kinds[v]}): "
            f"{_advice(cluster)}."
        )
    groups = np.ones((len(grouping.groups), len(cluster)), bool)
    np.logical_and.at(groups, grouping.group_of, can)
    nowhere = np.flatnonzero(~groups.any(axis=1))
    if len(nowhere):
        members = grouping.members(int(nowhere[0]))
        raise InfeasibleError(
            f"None of the devices {', '.join(cluster.names)} supports all of the ops '{members[0]}' to '{members[-1]}', which "
            f"are placed together: allow more groups, or {_advice(cluster)}."
        )
    return groups


def _advice(cluster: Cluster) -> str:
    if any(device.cores and device.kind != "ort" for device in cluster.devices):
        return "compute it in another way, or in another type, or add a device that supports it"
    return "add a device that supports it, such as CPU"


def profile(
    model: Model,
    grouping: Grouping,
    cluster: Cluster,
    runtime: Runtime,
    *,
    budget: float = 30.0,
    cache: Cache | None = None,
    progress: Progress | None = None,
) -> Costs:
    """Measure every group on every device that can run it.

    On each device the whole model and the model cut into its groups are run in turn, pass after pass, so that every group is
    timed in place, with the cache contents that a real pass leaves it; what counts is the lower quartile of the passes, because
    what disturbs a machine only ever adds time. The time of the whole model is divided among
    the groups by the runtime's own per-op counters; what a group takes beyond its share when it is cut off is its ``cut``.
    Devices that no one can run the whole model on get the cut times only.

    Args:
        model: the model.
        grouping: its groups.
        cluster: real devices; links without figures are probed.
        runtime: runs the measurements.
        budget: seconds to spend, compiling included; between 4 and 12 passes of each kind are made on a device.
        cache: where to look for earlier results and keep new ones.
        progress: called between passes.
    """
    can = supported(model, grouping, cluster)
    groups, devices = can.shape
    core_s, cut_s = np.full((groups, devices), np.inf), np.zeros((groups, devices))
    if progress is not None:
        progress("probing links", 0.0)
    links = probe(cluster, chain=model.chain, precision=runtime.precision, cache=cache)
    for d, device in enumerate(cluster.devices):
        key = _key(grouping, device, runtime)
        kept = cache.get(key, functools.partial(_valid, can=can[:, d])) if cache is not None else None
        if kept is None:
            share = budget / len(cluster)
            measured = _measure(grouping, runtime, can, d, float(links.dispatch[d]), share, progress)
            kept = {"core": [None if np.isinf(x) else x for x in measured[0].tolist()], "cut": measured[1].tolist()}
            if cache is not None:
                cache.put(key, kept)
        core_s[:, d] = [np.inf if x is None else x for x in kept["core"]]
        cut_s[:, d] = kept["cut"]
    return Costs(core_s, cut_s, links.dispatch, links.cluster)


def _measure(
    grouping: Grouping,
    runtime: Runtime,
    can: NDArray[np.bool_],
    d: int,
    dispatch: float,
    budget: float,
    progress: Progress | None,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return core and cut seconds of every group on device ``d``."""
    groups = len(can)
    deadline = time.perf_counter() + budget
    # groups that d cannot run run wherever they can, untimed, so that d's are still measured in place
    placement = np.where(can[:, d], d, can.argmax(axis=1))
    segmenter = Segmenter(grouping, Costs.free(groups, runtime.cluster))
    cut = _passes_of(runtime, segmenter.plan(placement, merge=False))
    whole = _passes_of(runtime, segmenter.plan(placement)) if can[:, d].all() else None
    times: list[NDArray[np.float64]] = []
    totals: list[float] = []
    name = runtime.cluster.names[d]
    warm_up, last = _WARM_UP, 0.0
    while len(totals) < _FEWEST or (len(totals) < _MOST and time.perf_counter() + last < deadline):
        before = time.perf_counter()
        alone = next(cut)
        together = float(next(whole).sum()) if whole is not None else 0.0
        last = time.perf_counter() - before
        if warm_up > 0:  # nothing of it counts, not even the time
            warm_up -= 1
            continue
        times.append(alone)
        totals.append(together)
        if progress is not None:
            progress(f"profiling {groups} groups on {name}", len(totals) / _MOST)
    alone = np.percentile(times, 25, axis=0)
    alone[~can[:, d]] = np.inf
    if whole is None:
        return np.maximum(alone - dispatch, 0.0), np.zeros(groups)
    total = float(np.percentile(totals, 25))
    device = runtime.cluster.devices[d]
    shares = device_kind(device).group_shares(runtime.model, grouping, device, runtime.precision, len(totals))
    # a model that takes little more than a dispatch is below what can be told apart
    core_s = shares * max(0.1 * total, total - dispatch)
    return core_s, np.maximum(alone - dispatch - core_s, 0.0)


def _passes_of(runtime: Runtime, plan: Plan) -> Iterator[NDArray[np.float64]]:
    """Run a plan again and again, and give the seconds of each of its segments."""
    with runtime.executor(plan) as executor:
        executor.set_inputs(runtime.model.random_inputs())
        while True:
            executor.time()
            yield executor.segment_seconds(last=True)


def _valid(kept: Any, can: NDArray[np.bool_]) -> bool:
    """Whether a value from the cache is what :func:`profile` puts there: times of all groups, and none where none can run."""
    if not isinstance(kept, dict) or not isinstance(kept.get("core"), list):
        return False
    core = kept["core"]
    return (
        [x is not None for x in core] == can.tolist()
        and are_times([0.0 if x is None else x for x in core], len(can))
        and are_times(kept.get("cut"), len(can))
    )


def _key(grouping: Grouping, device: Device, runtime: Runtime) -> dict[str, Any]:
    return {
        "what": "group costs" if runtime.streams is None else "group costs on streams",  # which copy what segments make
        "graph": grouping.graph.hash,
        "groups": grouping.group_of.tolist(),
        "device": device_key(device),
        "precision": runtime.precision,
    }
