"""What follows from which devices never run at the same time; see ``Problem.conflicts``."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["beside", "cliques", "shares_beside"]


def beside(conflicts: NDArray[np.bool_], device: int) -> tuple[int, ...]:
    """Devices that can all run while one does: as many as are found, ascending.

    Those that conflict with fewest come first, so of ``CPU@2-3``, ``CPU@2`` and ``CPU@3`` the last two run beside ``CPU@0``.

    Args:
        conflicts: ``bool[D, D]``.
        device: the one.
    """
    chosen = [device]
    for other in np.argsort(conflicts.sum(axis=1), kind="stable").tolist():
        if other != device and not conflicts[other, chosen].any():
            chosen.append(other)
    return tuple(sorted(chosen[1:]))


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
    found: dict[bytes, NDArray[np.bool_]] = {}
    for a, b in np.argwhere(np.triu(conflicts | np.eye(len(conflicts), dtype=bool))).tolist():
        members = np.zeros(len(conflicts), bool)
        members[[a, b]] = True
        for other in range(len(conflicts)):
            if conflicts[other, members].all():
                members[other] = True
        found.setdefault(members.tobytes(), members)
    return np.array(list(found.values()))
