"""Derive facts from the pairs of devices that never run at the same time (``Problem.conflicts``)."""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

__all__ = ["beside", "cliques", "cover", "shares_beside", "together"]


def together(conflicts: NDArray[np.bool_]) -> tuple[int, ...]:
    """Devices that can all run at once: as many as are found, ascending. All of them if none conflict."""
    return _chosen(conflicts, [])


def beside(conflicts: NDArray[np.bool_], device: int) -> tuple[int, ...]:
    """Devices that can all run while one does: as many as are found, ascending.

    Those that conflict with fewest come first, so of ``CPU@2-3``, ``CPU@2`` and ``CPU@3`` the last two run beside ``CPU@0``.

    Args:
        conflicts: ``bool[D, D]``.
        device: the one.
    """
    return tuple(other for other in _chosen(conflicts, [device]) if other != device)


def _chosen(conflicts: NDArray[np.bool_], chosen: list[int]) -> tuple[int, ...]:
    for other in np.argsort(conflicts.sum(axis=1), kind="stable").tolist():
        if other not in chosen and not conflicts[other, chosen].any():
            chosen.append(other)
    return tuple(sorted(chosen))


def shares_beside(conflicts: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return which share of all that can run :func:`beside` a device another one keeps busy, ``float64[D, D]``.

    Without conflicts that is one in ``D - 1``. A wide device counts as all the devices whose cores it takes.
    """
    devices = len(conflicts)
    takes = conflicts | np.eye(devices, dtype=bool)
    share = np.zeros((devices, devices))
    for device in range(devices):
        others = list(beside(conflicts, device))
        if others:
            share[device] = takes[:, others].sum(axis=1) / len(others)
            share[device, takes[device]] = 0.0
    return share


def cliques(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Sets of devices of which only one runs at a time, ``bool[C, D]``; none can take another device.

    Every device, and every pair that conflicts, is in one at least; a device without conflicts is one by itself.
    """
    return _cliques(conflicts.tobytes(), len(conflicts)).copy()


def exclusive(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of the :func:`cliques` that are of several devices, ``bool[C, D]``: only one of these runs at a time."""
    found = cliques(conflicts)
    several: NDArray[np.bool_] = found[found.sum(axis=1) > 1]
    return several


@functools.lru_cache(maxsize=64)  # problems of the same devices ask for the same
def _cliques(table: bytes, devices: int) -> NDArray[np.bool_]:
    conflicts = np.frombuffer(table, np.bool_).reshape(devices, devices)
    found: dict[bytes, NDArray[np.bool_]] = {}
    for a, b in np.argwhere(np.triu(conflicts | np.eye(devices, dtype=bool))).tolist():
        members = np.zeros(devices, bool)
        members[[a, b]] = True
        for other in range(devices):
            if conflicts[other, members].all():
                members[other] = True
        found.setdefault(members.tobytes(), members)
    return np.array(list(found.values()))


def cover(conflicts: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Few of the :func:`cliques` that all devices are in: no more devices than these can run at once, ``bool[C, D]``."""
    left, known = np.ones(len(conflicts), bool), cliques(conflicts)
    chosen = []
    while left.any():
        chosen.append(int((known & left).sum(axis=1).argmax()))
        left &= ~known[chosen[-1]]
    return known[chosen]
