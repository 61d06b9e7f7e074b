"""Measure the overhead of starting a segment on a device, and of sending a tensor to another device."""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.core import clock
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.memory import freed_memory_is_kept
from placeit.core.records import RecordError, check_shape, record
from placeit.devices.host import cpu_name
from placeit.devices.kinds import kind_of
from placeit.measuring.budget import STEP_S
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache, Number, Seconds
from placeit.profiler.machine_load import MachineLoad
from placeit.runtime.compiling import Compiling
from placeit.runtime.devices.kinds import device_kind
from placeit.runtime.drivers import drive
from placeit.runtime.runtime import Runtime

__all__ = ["LinkCosts", "device_key", "probe"]

_HOPS = 12  # segments of a chain
_SMALL, _LARGE = 256, 1 << 19  # elements of the tensors of the two chains
_ITEM_BYTES = 4  # bytes of an element
_PASSES, _WARMUP = 11, 2  # number of counted runs of each chain, and of warm-up runs


@dataclass(frozen=True, eq=False)
class LinkCosts:
    """Costs of starting segments and of links.

    Attributes:
        dispatch: ``float64[D]``, seconds from the end of one segment to the end of the next on the same device, when the next
            computes next to nothing.
        empty: ``float64[D]``, the part of ``dispatch`` that such a segment itself takes.
        cluster: the cluster, with measured links where it described none.
    """

    dispatch: NDArray[np.float64]
    empty: NDArray[np.float64]
    cluster: Cluster


def device_key(device: Device) -> dict[str, Any]:
    """Return the properties of a device that measured costs depend on: the device, its driver, and its slowdown."""
    return {
        "kind": device.kind,
        "runtime": "" if device.where.node else device_kind(device).version(),  # for devices of nodes, the driver includes it
        "machine": cpu_name(),
        "runs_on": str(device.where),
        "full_name": device.full_name,
        "cores": list(device.cores),
        "slowdown": device.slowdown,
        "driver": device.driver,
    }


def probe(
    cluster: Cluster,
    *,
    chain: Callable[[int, int], Model] | None = None,
    precision: str = "f32",
    cache: Cache | None = None,
    refresh: bool = False,
    deadline: float = math.inf,
    compiling: Compiling | None = None,
) -> LinkCosts:
    """Measure the dispatch time of each device, and all links that the cluster does not describe.

    A chain of 12 element-wise segments runs on each device, and alternates between each two devices, with a small and with a
    large tensor. The additional time of a hop between two devices is the cost of the link: its latency, with the small tensor,
    and its bandwidth, from the additional time with the large tensor. Both directions are measured together, and each is
    assigned half of the time.

    Args:
        cluster: real devices.
        chain: :meth:`placeit.backends.base.Model.chain` of the model that will run; None for a chain that runs on all devices,
            in the format of OpenVINO, ONNX Runtime or PyTorch, as the devices require.
        precision: inference precision of every device.
        cache: cache for results; None for no cache.
        refresh: whether to measure cached links again.
        deadline: time by :func:`placeit.core.clock.now` after which measuring stops, with one run or more of each chain. Then,
            nothing is cached.
        compiling: counter of compiled programs, to which the chains are added.
    """
    if chain is None:
        cluster, chain = _any_chain(cluster)
    names = cluster.names
    key = {
        "what": "links",
        "devices": [device_key(device) for device in cluster.devices],
        "known": sorted([names.index(src), names.index(dst)] for src, dst in cluster.links),
        "precision": precision,
        "freed memory": freed_memory_is_kept(),
    }
    unknown = [[names.index(src), names.index(dst)] for src, dst in cluster.missing_links()]
    kept = None
    if cache is not None and not refresh:
        kept = cache.get(key, functools.partial(_valid, devices=len(names), unknown=unknown))
    if kept is None:
        load = MachineLoad()
        kept, passes = _measure(cluster, precision, chain, deadline, compiling)
        if cache is not None and passes == _PASSES:
            cache.put(key, kept, load=load.cores())
    measured = {
        (names[i], names[j]): Link(float("inf") if rate is None else rate, delay) for i, j, rate, delay in kept["links"]
    }
    known = replace(cluster, links={**measured, **cluster.links})
    return LinkCosts(np.array(kept["dispatch"]), np.array(kept["empty"]), known)


def _any_chain(cluster: Cluster) -> tuple[Cluster, Callable[[int, int], Model]]:
    """Return a cluster whose runtimes can all run the same kind of chain, and a function that creates such chains."""
    formats = [kind_of(device).formats for device in cluster.devices]
    if all("openvino" in taken for taken in formats):
        from placeit.backends.openvino.model import relu_chain

        return cluster, relu_chain
    model: Model
    pairs = zip(cluster.devices, formats, strict=True)
    if any("onnx" in taken or ("openvino" in taken and not device.core_set) for device, taken in pairs):
        from placeit.backends.onnx.joined import relu_chain as onnx_chain

        model = onnx_chain(1, 1)
    else:
        from placeit.backends.torch.model import relu_chain as torch_chain

        model = torch_chain(1, 1)
    return drive(cluster, model), model.chain


@dataclass(frozen=True)
class _CachedLinks:
    """Cached link costs: seconds of dispatch and of empty segments by device, and the links.

    A link is its source, its destination, its bandwidth in bytes per second or None, and its latency in seconds.
    """

    dispatch: tuple[Seconds, ...]
    empty: tuple[Seconds, ...]
    links: tuple[tuple[int, int, Number | None, Seconds], ...]


def _valid(value: Any, devices: int, unknown: list[list[int]]) -> bool:
    """Return True if a value is a result of :func:`_measure` for these devices and links, else raise RecordError."""
    kept = record(_CachedLinks, value)
    check_shape("dispatch", kept.dispatch, devices)
    check_shape("empty", kept.empty, devices)
    check_shape("links", kept.links, len(unknown))
    if any((src, dst) not in [link[:2] for link in kept.links] for src, dst in unknown):
        raise RecordError("links", "must have all links between the devices")
    if any(rate is not None and rate <= 0 for *_, rate, _ in kept.links):
        raise RecordError("links", "must have positive bandwidths")
    return True


def _measure(
    cluster: Cluster, precision: str, chain: Callable[[int, int], Model], deadline: float, compiling: Compiling | None
) -> tuple[dict[str, Any], int]:
    """Return measured times in the format of the cache (:class:`_CachedLinks`), and the minimum number of runs of a chain."""
    names, unknown = cluster.names, set(cluster.missing_links())
    cluster = replace(cluster, links={})  # an emulated link would also slow down the real link in the other direction
    devices = range(len(cluster))
    wanted = [(i, j) for i in devices for j in devices if i < j and {(names[i], names[j]), (names[j], names[i])} & unknown]
    routes = [(d, d) for d in devices] + wanted
    hop: dict[tuple[int, tuple[int, int]], float] = {}
    empty: dict[tuple[int, tuple[int, int]], float] = {}
    passes = _PASSES
    for elements in (_SMALL, _LARGE) if wanted else (_SMALL,):
        model = chain(elements, _HOPS)
        grouping = Grouping.singletons(model.graph)
        with Runtime(model, grouping, cluster, precision=precision, compiling=compiling) as runtime:
            for route, (seconds, inside, count) in _time_routes(runtime, grouping, routes, deadline).items():
                hop[elements, route], empty[elements, route], passes = seconds, inside, min(passes, count)
    links: list[tuple[int, int, float | None, float]] = []
    for i, j in wanted:
        small, large = (max(0.0, hop[n, (i, j)] - (hop[n, (i, i)] + hop[n, (j, j)]) / 2) for n in (_SMALL, _LARGE))
        rate = (_LARGE - _SMALL) * _ITEM_BYTES / (large - small) if large > small else None
        links += [(a, b, rate, small) for a, b in ((i, j), (j, i)) if (names[a], names[b]) in unknown]
    dispatch = [hop[_SMALL, (d, d)] for d in devices]
    kept = {"dispatch": dispatch, "empty": [min(empty[_SMALL, (d, d)], dispatch[d]) for d in devices], "links": links}
    return kept, passes


def _time_routes(
    runtime: Runtime, grouping: Grouping, routes: list[tuple[int, int]], deadline: float
) -> dict[tuple[int, int], tuple[float, float, int]]:
    """Run chains between two devices in turn: median seconds per hop, seconds of a segment, and number of runs, by route."""
    groups = len(grouping.groups)
    segmenter = Segmenter(grouping, Costs.zero(len(grouping.groups), runtime.cluster))
    samples: dict[tuple[int, int], list[float]] = {route: [] for route in routes}
    with contextlib.ExitStack() as stack:
        plans = {route: segmenter.plan([route[g % 2] for g in range(groups)], merge=False) for route in routes}
        executors = {route: stack.enter_context(runtime.executor(plan)) for route, plan in plans.items()}
        deadline = max(deadline, clock.now() + STEP_S)
        for turn in range(_PASSES + _WARMUP):
            for route, executor in executors.items():
                executor.time()
                begin, end = executor.window  # without the host's part of a request, which is measured with the model
                samples[route].append(end - begin)
            if clock.now() >= deadline:
                break
            if turn < _WARMUP:
                for taken in samples.values():
                    taken.clear()
        inside = {route: float(executor.segment_seconds().sum()) for route, executor in executors.items()}
    return {route: (float(np.median(values)) / _HOPS, inside[route] / _HOPS, len(values)) for route, values in samples.items()}
