"""Probes what starting a segment costs on a device, and what handing a tensor to another device costs."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.backends.coarsen import Grouping
from placeit.cluster import Cluster, Device, Link
from placeit.profiler.cache import Cache, are_times
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Costs, Segmenter

__all__ = ["Links", "device_key", "probe"]

_HOPS = 12
_SMALL, _LARGE = 256, 1 << 19
_ITEM_BYTES = 4
_PASSES = 11


@dataclass(frozen=True, eq=False)
class Links:
    """What segments and links cost.

    Attributes:
        dispatch: ``float64[D]``, seconds from the end of one segment to the end of the next on the same device, when the next
            computes next to nothing.
        cluster: the cluster with the links that it lacked.
    """

    dispatch: NDArray[np.float64]
    cluster: Cluster


def device_key(device: Device) -> dict[str, Any]:
    """What measured costs depend on, besides what was measured: the device, its driver, and how much it is slowed."""
    return {
        "runs_on": device.runs_on,
        "full_name": device.full_name,
        "cores": list(device.cores),
        "slowdown": device.slowdown,
        "driver": device.driver,
    }


def probe(
    cluster: Cluster, *, chain: Callable[[int, int], Model] | None = None, precision: str = "f32", cache: Cache | None = None
) -> Links:
    """Measure dispatch on every device and every link that the cluster does not describe.

    A chain of 12 element-wise segments runs on one device and then back and forth between two, with a small and with a large
    tensor, all of them in turn. What a hop adds to a segment is the link: its latency with the small tensor, its bandwidth
    from what the large one adds to that. Going back and forth measures both directions together; each gets half.

    Args:
        cluster: real devices.
        chain: :meth:`placeit.backends.base.Model.chain` of the model that is to run there. Without it, one that runs on all of
            the devices: OpenVINO's, ONNX Runtime's where one of the devices asks for that, PyTorch's on NVIDIA GPUs.
        precision: inference precision of every device.
        cache: where to look for earlier results and keep new ones.
    """
    if chain is None:
        cluster, chain = _any_chain(cluster)
    names = cluster.names
    key = {
        "what": "links",
        "devices": [device_key(device) for device in cluster.devices],
        "known": sorted([names.index(src), names.index(dst)] for src, dst in cluster.links),
        "precision": precision,
    }
    unknown = [[names.index(src), names.index(dst)] for src, dst in cluster.missing_links()]
    kept = cache.get(key, functools.partial(_valid, devices=len(names), unknown=unknown)) if cache is not None else None
    if kept is None:
        kept = _measure(cluster, precision, chain)
        if cache is not None:
            cache.put(key, kept)
    measured = {
        (names[i], names[j]): Link(float("inf") if rate is None else rate, delay) for i, j, rate, delay in kept["links"]
    }
    return Links(np.array(kept["dispatch"]), replace(cluster, links={**measured, **cluster.links}))


def _any_chain(cluster: Cluster) -> tuple[Cluster, Callable[[int, int], Model]]:
    """Find what runs on all devices, and return the cluster as it is driven then."""
    kinds = {device.kind for device in cluster.devices}
    if kinds == {"openvino"}:
        from placeit.backends.openvino import relu_chain

        return cluster, relu_chain
    model: Model
    if "ort" in kinds or any(d.kind == "openvino" and not d.core_set for d in cluster.devices):
        from placeit.backends.onnx_segments import relu_chain as onnx_chain

        model = onnx_chain(1, 1)
    else:
        from placeit.backends.torch import relu_chain as torch_chain

        model = torch_chain(1, 1)
    return model.driven(cluster), model.chain


def _valid(kept: Any, devices: int, unknown: list[list[int]]) -> bool:
    """Whether a value from the cache is what :func:`_measure` returns for so many devices and these links."""
    if not isinstance(kept, dict) or not isinstance(kept.get("links"), list):
        return False
    links = kept["links"]
    return (
        are_times(kept.get("dispatch"), devices)
        and all(isinstance(link, list) and len(link) == 4 for link in links)
        and len(links) == len(unknown)
        and all(pair in [link[:2] for link in links] for pair in unknown)
        and all(are_times([delay], 1) and (rate is None or (are_times([rate], 1) and rate > 0)) for *_, rate, delay in links)
    )


def _measure(cluster: Cluster, precision: str, chain: Callable[[int, int], Model]) -> dict[str, Any]:
    """Return the dispatch times, and [source, destination, bytes per second or None, seconds] of links."""
    names, unknown = cluster.names, set(cluster.missing_links())
    cluster = replace(cluster, links={})  # an emulated link would count for the real one in the other direction, too
    devices = range(len(cluster))
    wanted = [(i, j) for i in devices for j in devices if i < j and {(names[i], names[j]), (names[j], names[i])} & unknown]
    routes = [(d, d) for d in devices] + wanted
    hop: dict[tuple[int, tuple[int, int]], float] = {}
    for elements in (_SMALL, _LARGE):
        model = chain(elements, _HOPS)
        grouping = Grouping.singletons(model.graph)
        with Runtime(model, grouping, cluster, precision=precision) as runtime:
            hop |= {(elements, route): seconds for route, seconds in _time_routes(runtime, grouping, routes).items()}
    links: list[tuple[int, int, float | None, float]] = []
    for i, j in wanted:
        small, large = (max(0.0, hop[n, (i, j)] - (hop[n, (i, i)] + hop[n, (j, j)]) / 2) for n in (_SMALL, _LARGE))
        rate = (_LARGE - _SMALL) * _ITEM_BYTES / (large - small) if large > small else None
        links += [(a, b, rate, small) for a, b in ((i, j), (j, i)) if (names[a], names[b]) in unknown]
    return {"dispatch": [hop[_SMALL, (d, d)] for d in devices], "links": links}


def _time_routes(runtime: Runtime, grouping: Grouping, routes: list[tuple[int, int]]) -> dict[tuple[int, int], float]:
    """Median seconds per hop of chains that alternate between two devices, the chains interleaved."""
    groups = len(grouping.groups)
    segmenter = Segmenter(grouping, Costs.free(len(grouping.groups), runtime.cluster))
    samples: dict[tuple[int, int], list[float]] = {route: [] for route in routes}
    with contextlib.ExitStack() as stack:
        plans = {route: segmenter.plan([route[g % 2] for g in range(groups)], merge=False) for route in routes}
        executors = {route: stack.enter_context(runtime.executor(plan)) for route, plan in plans.items()}
        for turn in range(_PASSES + 2):
            for route, executor in executors.items():
                seconds = executor.time()
                if turn >= 2:
                    samples[route].append(seconds)
    return {route: float(np.median(values)) / _HOPS for route, values in samples.items()}
