"""Device networks that change: devices are lost and later replaced by slower ones (GiPH, section 5.1, Adaptivity)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import PlacementError, UsageError
from placeit.core.problem import Problem
from placeit.learning.workloads.device_networks import DeviceNetwork

__all__ = ["carry_placement", "churn"]


def churn(
    network: DeviceNetwork, rng: np.random.Generator, *, min_devices: int = 16, capacity: float = 0.5
) -> Iterator[DeviceNetwork]:
    """Yield a device network, and then an endless sequence of changed versions of it.

    Each network has a new number of devices, drawn uniformly from ``min_devices`` to the first network's number. If the number
    falls, random devices are lost; if it rises, the devices lost first are replaced. Devices keep their names; the replacement
    of ``device3`` is ``device3.1``, and its replacement is ``device3.2``. A replacement has the hardware types of the device
    that it replaces, at a lower capacity: its speed and the bandwidth of its links are multiplied by ``capacity``, and the
    delays of its links are divided by it. The last device with a type of hardware is never lost, so that each task can always
    run on some device.

    Differs from the paper, which gives 16 to 20 devices but neither the pace of changes nor the capacities.

    Args:
        network: the first network; the paper's has 20 devices.
        rng: random generator.
        min_devices: minimum number of devices, above the number of types of hardware.
        capacity: capacity of a replacement, as a share of the replaced device's; above 0, at most 1.

    Raises:
        UsageError: ``min_devices`` or ``capacity`` is out of its range.
    """
    count, types = len(network), network.supports.shape[1]
    if not types < min_devices < count:
        raise UsageError(
            f"A network of {count} devices with {types} types of hardware cannot shrink to {min_devices} devices: "
            "'min_devices' must be above the number of types and below the number of devices. Start with more devices, or with "
            "fewer types."
        )
    if not 0 < capacity <= 1:
        raise UsageError(f"The capacity of replacements is {capacity}; it must be above 0 and at most 1.")
    return _churn(network, rng, min_devices, capacity)


def _churn(network: DeviceNetwork, rng: np.random.Generator, min_devices: int, capacity: float) -> Iterator[DeviceNetwork]:
    count = len(network)
    # a slot holds a device and then its replacements; the slot of a lost device is empty until the device is replaced
    slots = np.arange(count)
    generation = np.zeros(count, np.int64)
    lost: list[int] = []
    present = np.ones(count, bool)
    yield network
    while True:
        current = count - len(lost)
        target = int(rng.choice([n for n in range(min_devices, count + 1) if n != current]))
        for _ in range(current - target):
            removable = present & ~(network.supports & (network.supports[present].sum(axis=0) == 1)).any(axis=1)
            slot = int(rng.choice(slots[removable]))
            present[slot] = False
            lost.append(slot)
        for _ in range(target - current):
            slot = lost.pop(0)
            present[slot] = True
            generation[slot] += 1
        yield _slowed(network, slots[present], generation[present], capacity)


def _slowed(network: DeviceNetwork, slots: NDArray[np.int64], generation: NDArray[np.int64], capacity: float) -> DeviceNetwork:
    """Return the devices in the given slots, slowed once per replacement; a link is slowed for both of its ends."""
    share = capacity**generation
    pair = share[:, None] * share[None, :]
    links = np.ix_(slots, slots)
    return DeviceNetwork(
        speed=network.speed[slots] * share,
        bandwidth=network.bandwidth[links] * pair,
        delay=network.delay[links] / pair,
        supports=network.supports[slots],
        names=tuple(
            f"{network.names[slot]}.{number}" if number else network.names[slot]
            for slot, number in zip(slots.tolist(), generation.tolist(), strict=True)
        ),
    )


def carry_placement(
    placement: NDArray[np.int32], before: Problem, after: Problem, rng: np.random.Generator
) -> NDArray[np.int32]:
    """Transfer a placement to a changed problem: ops stay on the devices of the same name.

    An op is placed on a random device that can run it if its device is lost or can no longer run it, or if the op is new.
    Memory is not checked; see :func:`placeit.placers.feasibility.repair`.

    Args:
        placement: ``int32[V]``, placement of ``before``.
        before: the problem that was placed.
        after: the problem to place, with ``W`` ops.
        rng: random generator.

    Returns:
        ``int32[W]``.

    Raises:
        PlacementError: the placement does not fit ``before``.
    """
    if len(placement) != len(before):
        raise PlacementError(f"The placement to carry over has {len(placement)} ops, and its problem has {len(before)}.")
    numbers = {name: d for d, name in enumerate(after.device_names)}
    device_of = {name: numbers.get(before.device_names[d]) for name, d in zip(before.op_names, placement.tolist(), strict=True)}
    carried = np.empty(len(after), np.int32)
    for v, name in enumerate(after.op_names):
        device = device_of.get(name)
        able = after.feasible[v]
        carried[v] = device if device is not None and able[device] else rng.choice(np.flatnonzero(able))
    return carried
