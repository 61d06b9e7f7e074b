"""Costs in the cache: their key, whether an entry is valid, and whether it still holds."""

from __future__ import annotations

import contextlib
import functools
import logging
import time
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.memory import freed_memory_is_kept
from placeit.core.units import about_seconds
from placeit.measuring.measure import Watching
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Profiled, Segmenter
from placeit.profiler.cache import Cache, Kept, are_numbers, are_times
from placeit.profiler.links import LinkCosts, device_key
from placeit.profiler.passes import Passes, Progress, unslowed
from placeit.runtime.runtime import Runtime

__all__ = ["contradicted", "cost_key", "costs_of", "find"]

_log = logging.getLogger("placeit")
_CHECKS = 3  # blocks of runs that tell whether cached costs still hold
_RUNS = 3  # runs in a block of a model that takes long, the first one, which does not count, included
_MARGIN = 1.1  # factor between the intervals of then and now that changes nothing: no two processes are alike


def cost_key(grouping: Grouping, cluster: Cluster, runtime: Runtime) -> dict[str, Any]:
    """Return the conditions that measured costs hold for, in JSON-compatible form."""
    return {
        "what": "group costs" if runtime.streams is None else "group costs on streams",  # which copy what segments make
        "model": runtime.model.identity,
        "groups": grouping.group_of.tolist(),
        "devices": [device_key(device) for device in cluster.devices],
        # the other devices decide in which form the model is cut, and in which order tensors cross borders
        "parts": type(runtime.model).__qualname__,
        "channels last": sorted(runtime.book.channels_last),
        "programs": [device.program_key for device in runtime.devices],
        "precision": runtime.precision,
        "inputs": runtime.model.given_digest,
        "freed memory": freed_memory_is_kept(),
    }


def find(cache: Cache, key: Any, can: NDArray[np.bool_]) -> Kept | None:
    """Return the cached costs of groups that can run on devices as ``can``, ``bool[G, D]``, says; None if there are none."""
    return cache.find(key, functools.partial(_valid, can=can))


def costs_of(found: Kept, links: LinkCosts, cluster: Cluster, *, cached: bool) -> Costs:
    """Return measured costs from the form that the cache keeps, with the links of this session."""
    kept = found.value
    core = np.array([[np.inf if x is None else x for x in row] for row in kept["core"]])
    cut, groups, error = kept["sampling"]
    spread = max((high / low - 1.0 for low, high in filter(None, kept["whole"])), default=0.0)
    names = cluster.names
    known = {
        pair: replace(link, latency=kept["latency"][names.index(pair[0])][names.index(pair[1])])
        if link.origin == "measured" and pair not in cluster.links
        else link
        for pair, link in links.cluster.links.items()
    }
    return Costs(
        core,
        np.array(kept["cut"]),
        np.array(kept["dispatch"]),
        replace(links.cluster, links=known),
        np.array(kept["load"]),
        np.array(kept["read"]),
        Profiled(found.written, found.load, cached, cut, groups, error, spread, *kept["blocks"]),
        host=np.array(kept["host"]),
    )


def contradicted(
    kept: Kept,
    grouping: Grouping,
    runtime: Runtime,
    can: NDArray[np.bool_],
    budget_s: float,
    watch: Watching,
    progress: Progress | None,
) -> bool:
    """Return whether the whole model's time has changed on some device since the costs were measured; if so, warn.

    The model is run in up to three blocks on each device, in turn. Its time has changed if the interval of these times lies
    beyond the cached interval by more than a margin. If there is no time for one block, the result is False.
    """
    before = {d: tuple(ends) for d, ends in enumerate(kept.value["whole"]) if ends is not None}
    once = sum(high for _, high in before.values())
    if not before or _RUNS * once > budget_s:
        return False
    deadline = clock.now() + budget_s
    if progress is not None:
        progress("checking costs", 0.0)
    groups = len(can)
    with contextlib.ExitStack() as stack:
        runtime = unslowed(runtime, grouping, stack)
        segmenter = Segmenter(grouping, Costs.zero(groups, runtime.cluster))
        now: dict[int, Passes] = {}
        for d in before:
            executor = stack.enter_context(runtime.executor(segmenter.plan(np.full(groups, d, np.int32))))
            now[d] = Passes(executor, runtime.model.sample_requests(), watch)
            now[d].run()
            now[d].forget()
        for turn in range(_CHECKS):
            if turn > 0 and clock.now() + _RUNS * once > deadline:
                break
            for passes in now.values():
                passes.block(turn)
        after = {d: passes.interval for d, passes in now.items()}
    changed = [
        f"on {runtime.cluster.names[d]} the model takes {_span(*after[d])}, and took {_span(low, high)} then"
        for d, (low, high) in before.items()
        if after[d][0] > high * _MARGIN or after[d][1] * _MARGIN < low
    ]
    if changed:
        age = about_seconds(time.time() - kept.written)
        _log.warning(
            "The costs in the cache, %s old, are no longer valid: %s. They are measured again.", age, "; ".join(changed)
        )
    return bool(changed)


def _span(low: float, high: float) -> str:
    return f"{low * 1e3:.3g} .. {high * 1e3:.3g} ms"


def _valid(kept: Any, can: NDArray[np.bool_]) -> bool:
    """Return whether a cached value can be one that :func:`profile` has stored: times of all groups that can run."""
    groups, devices = can.shape
    if not isinstance(kept, dict) or not isinstance(kept.get("core"), list):
        return False
    core = kept["core"]
    if not all(isinstance(row, list) for row in core) or [[x is not None for x in row] for row in core] != can.tolist():
        return False
    return (
        are_times([[0.0 if x is None else x for x in row] for row in core], groups, devices)
        and are_times(kept.get("cut"), groups, devices)
        and are_times(kept.get("dispatch"), devices)
        and are_times(kept.get("latency"), devices, devices)
        and are_numbers(kept.get("load"), groups, devices)
        and are_times(kept.get("read"), devices)
        and are_times(kept.get("host"), devices + 1)
        and _is_blocks(kept.get("blocks"))
        and _is_sampling(kept.get("sampling"))
        and isinstance(kept.get("whole"), list)
        and len(kept["whole"]) == devices
        and not any(ends is not None and not can[:, d].all() for d, ends in enumerate(kept["whole"]))
        and (any(ends is not None for ends in kept["whole"]) or not can.all(axis=0).any())
        and all(ends is None or (are_times(ends, 2) and 0 < ends[0] <= ends[1]) for ends in kept["whole"])
        and all(ends is None or any(row[d] > 0 for row in core) for d, ends in enumerate(kept["whole"]))
    )


def _is_sampling(kept: Any) -> bool:
    """Return whether a cached value is the number of groups cut off, the number of all, and the error of predictions."""
    if not isinstance(kept, list) or len(kept) != 3 or not all(type(count) is int for count in kept[:2]):
        return False
    return 0 < kept[0] <= kept[1] and (kept[2] is None or bool(are_times(kept[2])))


def _is_blocks(kept: Any) -> bool:
    """Return whether a cached value is the number of blocks, the number of disturbed ones, and whether these count."""
    if not isinstance(kept, list) or len(kept) != 3 or not all(type(count) is int for count in kept[:2]):
        return False
    return 0 <= kept[1] <= kept[0] and type(kept[2]) is bool
