"""Read and validate cached costs: their cache key, their format, and a check that they still match the machine."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.memory import freed_memory_is_kept
from placeit.core.records import RecordError, check_shape, record
from placeit.core.units import about_seconds
from placeit.measuring.measure import Watching
from placeit.planning.coarsen import Grouping
from placeit.planning.profiled import Profiled
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache, CachedValue, Number, Seconds
from placeit.profiler.links import LinkCosts, device_key
from placeit.profiler.passes import Passes, Progress, without_emulated_links
from placeit.runtime.runtime import Runtime

__all__ = ["cost_key", "costs_of", "find_costs", "outdated"]

_log = logging.getLogger("placeit")
_CHECK_BLOCKS = 3  # blocks of runs on each device, to check whether cached costs still hold
_BLOCK_RUNS = 3  # runs in a block of a slow model, including the first run, which does not count
_MARGIN = 1.1  # factor between the cached and the new interval that counts as no change, since processes differ a little


def cost_key(grouping: Grouping, cluster: Cluster, runtime: Runtime) -> dict[str, Any]:
    """Return the conditions under which costs are measured, as a JSON-compatible cache key."""
    return {
        "what": "group costs"
        if runtime.pool.streams is None
        else "group costs on streams",  # streams copy the outputs of segments
        "model": runtime.model.identity,
        # the graph has the mean of several typical sizes, or the first of them
        "sizes": {spec.name: spec.sizes(runtime.model.times) for spec in runtime.model.inputs if spec.limits is not None},
        "groups": grouping.group_of.tolist(),
        "devices": [device_key(device) for device in cluster.devices],
        # the other devices determine the class of the model, and the memory layout of tensors between segments
        "parts": type(runtime.model).__qualname__,
        "channels last": sorted(runtime.book.channels_last),
        "programs": [device.program_key for device in runtime.devices],
        "precision": runtime.precision,
        "inputs": runtime.model.given_digest,
        "refused": sorted(map(list, runtime.model.refused)),
        "freed memory": freed_memory_is_kept(),
    }


def find_costs(cache: Cache, key: Any, can: NDArray[np.bool_]) -> CachedValue | None:
    """Return the cached costs for a key, or None. ``can``, ``bool[G, D]``, says which device can run which group."""
    return cache.find(key, functools.partial(_valid, can=can))


def costs_of(found: CachedValue, links: LinkCosts, cluster: Cluster, *, cached: bool) -> Costs:
    """Convert costs from the format of the cache, and add the links of this session."""
    value = found.value
    core = np.array([[np.inf if x is None else x for x in row] for row in value["core"]])
    cut, groups, error = value["sampling"]
    spread = max((high / low - 1.0 for low, high in filter(None, value["whole"])), default=0.0)
    names = cluster.names
    with_latency = {
        pair: replace(link, latency=value["latency"][names.index(pair[0])][names.index(pair[1])])
        if link.origin == "measured" and pair not in cluster.links
        else link
        for pair, link in links.cluster.links.items()
    }
    return Costs(
        core,
        np.array(value["cut"]),
        np.array(value["dispatch"]),
        replace(links.cluster, links=with_latency),
        np.array(value["load"]),
        np.array(value["read"]),
        Profiled(found.written, found.load, cached, cut, groups, error, spread, *value["blocks"]),
        host=np.array(value["host"]),
    )


def outdated(
    cached: CachedValue,
    grouping: Grouping,
    runtime: Runtime,
    can: NDArray[np.bool_],
    budget_s: float,
    watch: Watching,
    progress: Progress | None,
) -> bool:
    """Return True, and log a warning, if the time of the whole model on some device differs from the cached time.

    The model runs in up to three blocks on each device, in turn. Its time has changed if the confidence interval of these
    blocks lies outside the cached interval by more than 10 %. Returns False if there is no time for one block.
    """
    before = {d: tuple(ends) for d, ends in enumerate(cached.value["whole"]) if ends is not None}
    run_s = sum(high for _, high in before.values())
    if not before or _BLOCK_RUNS * run_s > budget_s:
        return False
    deadline = clock.now() + budget_s
    if progress is not None:
        progress("checking costs", 0.0)
    groups = len(can)
    with contextlib.ExitStack() as stack:
        runtime = without_emulated_links(runtime, grouping, stack)
        segmenter = Segmenter(grouping, Costs.zero(groups, runtime.cluster))
        now: dict[int, Passes] = {}
        for d in before:
            executor = stack.enter_context(runtime.executor(segmenter.plan(np.full(groups, d, np.int32))))
            now[d] = Passes(executor, runtime.model.sample_requests(), watch, runtime.reached)
            now[d].run()
            now[d].forget()
        for turn in range(_CHECK_BLOCKS):
            if turn > 0 and clock.now() + _BLOCK_RUNS * run_s > deadline:
                break
            for passes in now.values():
                passes.block(turn)
        after = {d: passes.interval for d, passes in now.items()}
    changed = [
        f"on {runtime.cluster.names[d]} the model takes {_interval(*after[d])}, and took {_interval(low, high)} then"
        for d, (low, high) in before.items()
        if after[d][0] > high * _MARGIN or after[d][1] * _MARGIN < low
    ]
    if changed:
        age = about_seconds(time.time() - cached.written)
        _log.warning(
            "The costs in the cache, %s old, are no longer valid: %s. They are measured again.", age, "; ".join(changed)
        )
    return bool(changed)


def _interval(low: float, high: float) -> str:
    return f"{low * 1e3:.3g} .. {high * 1e3:.3g} ms"


@dataclass(frozen=True)
class _Costs:
    """Cached costs of G groups on D devices; see :class:`placeit.planning.segments.Costs`.

    Attributes:
        core: ``[G, D]``; None where a group cannot run.
        cut: ``[G, D]``.
        dispatch: ``[D]``.
        latency: ``[D, D]``, latency of links.
        load: ``[G, D]``.
        read: ``[D]``.
        host: ``[D + 1]``.
        blocks: number of blocks, number of disturbed blocks, and whether disturbed blocks count.
        sampling: number of groups that were cut off, number of groups that compute, and the error of predicted cut costs, None
            if unknown.
        whole: ``[D]``, confidence interval of the time of the whole model; None where it cannot run.
    """

    core: tuple[tuple[Seconds | None, ...], ...]
    cut: tuple[tuple[Seconds, ...], ...]
    dispatch: tuple[Seconds, ...]
    latency: tuple[tuple[Seconds, ...], ...]
    load: tuple[tuple[Number, ...], ...]
    read: tuple[Seconds, ...]
    host: tuple[Seconds, ...]
    blocks: tuple[int, int, bool]
    sampling: tuple[int, int, Seconds | None]
    whole: tuple[tuple[Seconds, Seconds] | None, ...]


def _valid(value: Any, can: NDArray[np.bool_]) -> bool:
    """Return True if a value has the format of cached costs and times of all groups that can run, else raise RecordError."""
    costs = record(_Costs, value)
    devices = can.shape[1]
    if [[x is not None for x in row] for row in costs.core] != can.tolist():
        raise RecordError("core", "must have the times of all groups that can run on a device, and no others")
    for name, of in (("cut", can.shape), ("load", can.shape), ("latency", (devices, devices))):
        check_shape(name, getattr(costs, name), *of)
    for name, count in (("dispatch", devices), ("read", devices), ("whole", devices), ("host", devices + 1)):
        check_shape(name, getattr(costs, name), count)
    if not 0 <= costs.blocks[1] <= costs.blocks[0]:
        raise RecordError("blocks", "must not have more disturbed blocks than blocks")
    if not 0 < costs.sampling[0] <= costs.sampling[1]:
        raise RecordError("sampling", "must have one group or more, of all")
    whole = [bool(column.all()) for column in can.T]
    for d, ends in enumerate(costs.whole):
        if ends is not None and not (whole[d] and 0 < ends[0] <= ends[1] and any(row[d] for row in costs.core)):
            raise RecordError(f"whole[{d}]", "must be an interval of the time of groups that can all run there")
    if any(whole) and costs.whole == (None,) * devices:
        raise RecordError("whole", "must have an interval, since all groups can run on a device")
    return True
