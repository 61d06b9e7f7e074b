"""Costs of groups on devices that take many seconds to compile: eager times, multiplied by a measured ratio."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import numpy as np

from placeit.core import clock
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError, ExecutionError
from placeit.devices.kinds import kind_of
from placeit.measuring.measure import Watching
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.profiler.links import device_key
from placeit.profiler.passes import Passes, without_emulated_links
from placeit.runtime.runtime import Runtime

__all__ = ["as_eager", "by_ratio", "cached_ratio"]

_LOG = logging.getLogger(__name__)
_BLOCKS = 3  # blocks of runs of the compiled model
_MIN_SHARE = 0.05  # minimum share of a compiled model's time that is not the time to start its segment


class Measures(Protocol):
    """Function that measures costs on the devices of a runtime within a budget of seconds; None if there are no costs."""

    def __call__(self, cluster: Cluster, runtime: Runtime, *, budget_s: float) -> Costs | None: ...


def as_eager(device: Device) -> Device:
    """Return the device that runs models op by op on the same cores; a device that does not compile is returned as is."""
    kind = kind_of(device).compiles
    return replace(device, kind=kind, address=replace(device.where, runtime="")) if kind else device


def by_ratio(
    runtime: Runtime,
    measure: Measures,
    *,
    budget_s: float,
    cache: Cache | None,
    watch: Callable[[], Watching],
) -> Costs | None:
    """Measure the costs of groups, without compiling groups on devices that take many seconds to compile each.

    On such devices, groups run op by op, as on devices of the kind that they compile for
    (:attr:`placeit.devices.kinds.Kind.compiles`). These costs are multiplied by the ratio of the compiled to the eager time of
    the whole model. This compiles one program for all devices with the same number of cores, which a search also needs for its
    race. If there is no time to compile it, the last ratio that was measured on the device is used, or else 1.

    Args:
        runtime: runtime with the devices.
        measure: measures the costs.
        budget_s: maximum seconds of all measurements.
        cache: cache that stores the ratios; None for no cache.
        watch: creates a monitor of the machine.
    """
    cluster = runtime.cluster
    devices = tuple(map(as_eager, cluster.devices))
    if devices == cluster.devices:
        return measure(cluster, runtime, budget_s=budget_s)
    deadline = clock.now() + budget_s
    eager_cluster = replace(cluster, devices=devices)
    options: dict[str, Any] = {"precision": runtime.precision, "compiling": runtime.compiler.compiling}
    with Runtime(runtime.model, runtime.grouping, eager_cluster, **options) as eager:
        costs = measure(eager.cluster, eager, budget_s=budget_s / 2)
    if costs is None:
        return None
    costs = replace(costs, cluster=replace(cluster, links=costs.cluster.links))
    if costs.shared:
        return costs
    ratio = np.array([_ratio(costs, runtime, d, deadline, cache, watch) for d in range(len(cluster))])
    return replace(costs, core=costs.core * ratio, cut=costs.cut * ratio, load=costs.load * ratio)


def _ratio(
    costs: Costs, runtime: Runtime, d: int, deadline: float, cache: Cache | None, watch: Callable[[], Watching]
) -> float:
    """Return the compiled time of the whole model over its eager time, on a device; 1 if the device does not compile."""
    device = runtime.cluster.devices[d]
    cached = cached_ratio(device, runtime.precision, cache)
    if not kind_of(device).compiles:
        return cached
    plan = Segmenter(runtime.grouping, costs).plan(np.full(len(costs.core), d, np.int32))
    if not np.isfinite(costs.core[:, d]).all() or runtime.compiler.expected_s([plan]) > deadline - clock.now():
        return cached
    try:
        with contextlib.ExitStack() as stack, runtime.compiler.compiling.until(deadline):
            executor = stack.enter_context(without_emulated_links(runtime, runtime.grouping, stack).executor(plan))
            timed = Passes(executor, runtime.model.sample_requests(), watch(), runtime.reached)
            timed.run_warm(deadline)
            for turn in range(_BLOCKS):
                if clock.now() < deadline:  # else the warm run counts
                    timed.block(turn)
            seconds = float(timed.seconds.max())
    except (DeviceError, ExecutionError) as error:
        _LOG.info("The ratio of compiled to eager times on %s is unknown: %s", device.name, error)
        return cached
    ratio = max(seconds - float(costs.dispatch[d]), _MIN_SHARE * seconds) / float(costs.core[:, d].sum())
    if cache is not None:
        cache.put(_key(device, runtime.precision), ratio)
    return ratio


def cached_ratio(device: Device, precision: str, cache: Cache | None) -> float:
    """Return the last ratio that was measured on a device; 1 without one, or if the device does not compile."""
    if cache is None or not kind_of(device).compiles:
        return 1.0
    cached = cache.get(_key(device, precision), lambda value: isinstance(value, float) and value > 0)
    return 1.0 if cached is None else float(cached)


def _key(device: Device, precision: str) -> dict[str, Any]:
    return {"what": "compiled over eager", "device": device_key(device), "precision": precision}
