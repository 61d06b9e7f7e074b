"""Costs in the cache: their key, whether an entry is valid, and whether it still holds."""

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
from placeit.profiler.cache import Cache, Kept, Number, Seconds
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
        "refused": sorted(map(list, runtime.model.refused)),
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


@dataclass(frozen=True)
class _Costs:
    """What the cache keeps of costs, of G groups on D devices; see :class:`placeit.planning.segments.Costs`.

    Attributes:
        core: ``[G, D]``; None where a group cannot run.
        cut: ``[G, D]``.
        dispatch: ``[D]``.
        latency: ``[D, D]``, latency of links.
        load: ``[G, D]``.
        read: ``[D]``.
        host: ``[D + 1]``.
        blocks: the number of blocks, the number of disturbed ones, and whether these count.
        sampling: the number of groups cut off, the number of all, and the error of predictions; None if it is unknown.
        whole: ``[D]``, interval of the time of the whole model; None where it cannot run.
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
    """Return True for a value that :func:`profile` can have stored: times of all groups that can run. Raises RecordError."""
    kept = record(_Costs, value)
    devices = can.shape[1]
    if [[x is not None for x in row] for row in kept.core] != can.tolist():
        raise RecordError("core", "must have the times of all groups that can run on a device, and no others")
    for name, of in (("cut", can.shape), ("load", can.shape), ("latency", (devices, devices))):
        check_shape(name, getattr(kept, name), *of)
    for name, count in (("dispatch", devices), ("read", devices), ("whole", devices), ("host", devices + 1)):
        check_shape(name, getattr(kept, name), count)
    if not 0 <= kept.blocks[1] <= kept.blocks[0]:
        raise RecordError("blocks", "must not have more disturbed blocks than blocks")
    if not 0 < kept.sampling[0] <= kept.sampling[1]:
        raise RecordError("sampling", "must have one group or more, of all")
    whole = [bool(column.all()) for column in can.T]
    for d, ends in enumerate(kept.whole):
        if ends is not None and not (whole[d] and 0 < ends[0] <= ends[1] and any(row[d] for row in kept.core)):
            raise RecordError(f"whole[{d}]", "must be an interval of the time of groups that can all run there")
    if any(whole) and kept.whole == (None,) * devices:
        raise RecordError("whole", "must have an interval, since all groups can run on a device")
    return True
