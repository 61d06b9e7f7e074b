"""Costs of groups on devices that take many seconds to compile: measured op by op, times a ratio of the whole model's times."""

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
from placeit.profiler.passes import Passes, unslowed
from placeit.runtime.runtime import Runtime

__all__ = ["by_ratio", "eagerly", "kept_ratio"]

_LOG = logging.getLogger(__name__)
_BLOCKS = 3  # blocks of runs of the compiled model
_LEAST = 0.05  # least share of the time that compiling may leave: shorter ones are mostly the start of a segment


class Measures(Protocol):
    """Measures costs on the open devices of a runtime within some seconds; returns None if it finds none."""

    def __call__(self, cluster: Cluster, runtime: Runtime, *, budget_s: float) -> Costs | None: ...


def eagerly(device: Device) -> Device:
    """Return a device that compiles as its cores run a model op by op, under the same name; another device as it is."""
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

    There, groups run op by op, as on devices of the kind that they compile for (:attr:`placeit.devices.kinds.Kind.compiles`),
    and these costs are multiplied by a ratio: the time of the whole model, compiled, over its time op by op. One program is
    compiled for that, for all devices of as many cores. A search races it anyway, as a single device. If there is no time to
    compile it, the ratio is the one of the model that was measured last on the device, or else 1.

    Args:
        runtime: the devices.
        measure: measures the costs.
        budget_s: seconds that all of it may take.
        cache: where ratios are kept; None if nowhere.
        watch: makes a monitor of the machine.
    """
    cluster = runtime.cluster
    devices = tuple(map(eagerly, cluster.devices))
    if devices == cluster.devices:
        return measure(cluster, runtime, budget_s=budget_s)
    deadline = clock.now() + budget_s
    there = replace(cluster, devices=devices)
    options: dict[str, Any] = {"precision": runtime.precision, "compiling": runtime.compiler.compiling}
    with Runtime(runtime.model, runtime.grouping, there, **options) as eager:
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
    """Return the time of the compiled model over its time op by op, on a device; 1 if the device does not compile."""
    device = runtime.cluster.devices[d]
    kept = kept_ratio(device, runtime.precision, cache)
    if not kind_of(device).compiles:
        return kept
    plan = Segmenter(runtime.grouping, costs).plan(np.full(len(costs.core), d, np.int32))
    takes, left = runtime.compiler.expected_s([plan]), deadline - clock.now()
    if not np.isfinite(costs.core[:, d]).all() or takes > left:
        return kept
    try:
        with contextlib.ExitStack() as stack, runtime.compiler.compiling.until(deadline):
            executor = stack.enter_context(unslowed(runtime, runtime.grouping, stack).executor(plan))
            timed = Passes(executor, runtime.model.sample_requests(), watch())
            timed.run_warm(deadline)
            for turn in range(_BLOCKS):
                timed.block(turn)
            seconds = float(timed.seconds.max())
    except (DeviceError, ExecutionError) as error:
        _LOG.info("The ratio of compiled and eager times on %s is not known: %s", device.name, error)
        return kept
    ratio = max(seconds - float(costs.dispatch[d]), _LEAST * seconds) / float(costs.core[:, d].sum())
    if cache is not None:
        cache.put(_key(device, runtime.precision), ratio)
    return ratio


def kept_ratio(device: Device, precision: str, cache: Cache | None) -> float:
    """Return the ratio of the model measured last on a device; 1 if none was measured, or the device does not compile."""
    if cache is None or not kind_of(device).compiles:
        return 1.0
    kept = cache.get(_key(device, precision), lambda value: isinstance(value, float) and value > 0)
    return 1.0 if kept is None else float(kept)


def _key(device: Device, precision: str) -> dict[str, Any]:
    return {"what": "compiled over eager", "device": device_key(device), "precision": precision}
