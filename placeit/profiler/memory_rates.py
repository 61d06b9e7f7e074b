"""Bytes of weights that groups read, and memory bandwidths of devices, alone and together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Model
from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.graph import OpGraph
from placeit.core.memory_reads import MemoryReads
from placeit.core.records import record
from placeit.devices.kinds import driven_by_openvino
from placeit.devices.names import hardware_kind
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.profiler.cache import Cache
from placeit.profiler.links import device_key
from placeit.profiler.peaks import read_rate

__all__ = ["MIN_BYTES", "Rates", "group_reads", "shared_reads", "weights_read"]

MIN_BYTES, _MAX_BYTES = 1 << 25, 1 << 27
"""Bytes of weights below which caches hold most of them, so that no rate is measured; and above which rates are constant."""

Measure = Callable[[Device, int], float | None]


def weights_read(graph: OpGraph) -> NDArray[np.float64]:
    """Return the bytes of weights and state that each op reads in a run: ``float64[V]``.

    An op that computes nothing, such as ``Gather``, reads as many bytes as it writes. For an ``If`` they are unknown, and 0.
    """
    written = np.bincount(graph.tensor_op, graph.tensor_bytes, len(graph))
    read = np.where(graph.flops > 0, graph.param_bytes, np.minimum(graph.param_bytes, written))
    kinds = np.array(graph.kinds)
    return np.where(kinds == "If", 0.0, np.where(kinds == "ReadValue", written, read))


def group_reads(grouping: Grouping) -> NDArray[np.float64]:
    """Return the bytes of weights and state that each group reads in a run: ``float64[G]``."""
    return np.bincount(grouping.group_of, weights_read(grouping.graph), len(grouping.groups)).astype(np.float64)


class Rates:
    """Rates at which devices read weights of a given size from memory. They depend on the size because of caches.

    Args:
        size: bytes of the model's weights.
        cache: cache for rates; None for no cache.
        measure: measures the rate of a device for a number of bytes.
    """

    def __init__(self, size: float, cache: Cache | None, measure: Measure = read_rate) -> None:
        self.known = size >= MIN_BYTES
        self._size = 1 << int(min(max(size, 1), _MAX_BYTES)).bit_length() - 1
        self._cache, self._measure = cache, measure

    @classmethod
    def of_model(cls, model: Model, cache: Cache | None) -> Rates:
        """Return the rates for a model."""
        return cls(float(model.statistics()["parameter_bytes"]), cache)

    def of(self, device: Device) -> float | None:
        """Return the bytes per second that a device reads while no other device runs.

        The rate of a described device is part of its description. CPU core sets and other devices that OpenVINO drives are
        measured with OpenVINO, unless the rate is cached. Returns None for other devices, and if the model has less than 34 MB
        of weights.
        """
        if device.described:
            return device.bytes_per_s
        if not self.known or device.address is None or not (device.core_set or driven_by_openvino(device)):
            return None
        device = replace(device, kind=hardware_kind(device.address), address=replace(device.address, runtime=""))
        key = {"what": "memory rate", "device": device_key(device), "bytes": self._size}
        cached = None if self._cache is None else self._cache.get(key, lambda value: record(float, value) > 0)
        if cached is not None:
            return float(cached)
        rate = self._measure(device, self._size)
        if self._cache is not None and rate is not None:
            self._cache.put(key, rate)
        return rate


def shared_reads(grouping: Grouping, costs: Costs, rates: Rates) -> MemoryReads | None:
    """Return the memory reads of groups if several core sets of the cluster share the memory of this machine, else None.

    The rate of the memory is measured on all these cores together. It is at least the sum of the rates at which they read
    weights while they ran the model at the same time.

    Args:
        grouping: the groups.
        costs: their costs.
        rates: memory rates of devices.
    """
    cluster, read = costs.cluster, group_reads(grouping)
    local = np.array([device.core_set and not device.where.node for device in cluster.devices], bool)
    apart = [d for d in cluster.apart() if local[d]]
    if len(apart) < 2 or costs.shared or not rates.known:
        return None
    cores = {core for d in apart for core in cluster.devices[d].cores}
    rate = rates.of(Device("CPU", address=Address("CPU", tuple(sorted(cores))), driver=cluster.devices[apart[0]].driver))
    if rate is None:
        return None
    busy = (costs.core + np.maximum(costs.load, 0.0))[:, apart]
    seen = float((read.sum() / np.maximum(busy.sum(axis=0), 1e-12)).sum())  # a device that cannot run all groups adds 0
    return MemoryReads(read, local[None], np.array([max(rate, seen)]))
