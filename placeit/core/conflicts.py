"""Derive sets of devices from the pairs that never run at the same time (``Problem.conflicts``)."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

__all__ = ["beside", "cliques", "cover", "exclusive", "shares_beside", "together"]


def together(conflicts: NDArray[np.bool_]) -> tuple[int, ...]:
    """Return the devices of a greedy choice that can all run at once, ascending; all devices if none conflict."""
    return _greedy_choice(conflicts, [])


def beside(conflicts: NDArray[np.bool_], device: int) -> tuple[int, ...]:
    """Return the devices of a greedy choice that can all run while a given device runs, ascending.

    Devices with fewest conflicts are chosen first. Of ``CPU@2-3``, ``CPU@2`` and ``CPU@3``, the last two run beside ``CPU@0``.

    Args:
        conflicts: ``bool[D, D]``.
        device: the number of the running device.
    """
    return tuple(other for other in _greedy_choice(conflicts, [device]) if other != device)


def _greedy_choice(conflicts: NDArray[np.bool_], chosen: list[int]) -> tuple[int, ...]:
    """Extend a choice by devices that conflict with none of it, those with the fewest conflicts first."""
    for other in np.argsort(conflicts.sum(axis=1), kind="stable").tolist():
        if other not in chosen and not conflicts[other, chosen].any():
            chosen.append(other)
    return tuple(sorted(chosen))


def shares_beside(conflicts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return, for each device, the share of the devices :func:`beside` it that each other device occupies, ``float64[D, D]``.

    Without conflicts the share is ``1 / (D - 1)``. A wide device occupies all the devices whose cores it takes.
    """
    devices = len(conflicts)
    occupies = conflicts | np.eye(devices, dtype=bool)
    share = np.zeros((devices, devices))
    for device in range(devices):
        others = list(beside(conflicts, device))
        if others:
            share[device] = occupies[:, others].sum(axis=1) / len(others)
            share[device, occupies[device]] = 0.0
    return share


def cliques(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return maximal sets of devices of which only one runs at a time, ``bool[C, D]``.

    Every device, and every conflicting pair, is in at least one set; a device without conflicts is a set by itself.
    """
    return _cliques(conflicts.tobytes(), len(conflicts)).copy()


def exclusive(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the :func:`cliques` that have at least two devices, ``bool[C, D]``."""
    found = cliques(conflicts)
    return np.asarray(found[found.sum(axis=1) > 1], np.bool_)


@functools.lru_cache(maxsize=64)  # several problems have the same devices
def _cliques(table: bytes, devices: int) -> NDArray[np.bool_]:
    conflicts = np.frombuffer(table, np.bool_).reshape(devices, devices)
    found: dict[bytes, NDArray[np.bool_]] = {}
    neighbours = [np.flatnonzero(row).tolist() for row in conflicts]
    for a, b in np.argwhere(np.triu(conflicts | np.eye(devices, dtype=bool))).tolist():
        members = np.zeros(devices, bool)
        members[[a, b]] = True
        for other in neighbours[a]:
            if conflicts[other, members].all():
                members[other] = True
        found.setdefault(members.tobytes(), members)
    return np.array(list(found.values()))


def cover(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return a greedy choice of :func:`cliques` that covers all devices, ``bool[C, D]``: at most ``C`` devices run at once."""
    uncovered, candidates = np.ones(len(conflicts), bool), cliques(conflicts)
    chosen = []
    while uncovered.any():
        chosen.append(int((candidates & uncovered).sum(axis=1).argmax()))
        uncovered &= ~candidates[chosen[-1]]
    return candidates[chosen]
