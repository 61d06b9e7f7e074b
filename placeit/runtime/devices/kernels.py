"""The kernels that a device runs in a pass over a whole model, and the ops that each of them computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.planning.coarsen import Grouping

__all__ = ["Kernel", "group_shares"]


@dataclass(frozen=True)
class Kernel:
    """Ops that a device computes as one.

    Attributes:
        ops: their numbers in the task graph; at least one.
        seconds: seconds that they take together, in one pass over the model or in a number that is the same for all kernels.
    """

    ops: tuple[int, ...]
    seconds: float


def group_shares(kernels: Sequence[Kernel], grouping: Grouping) -> NDArray[np.float64]:
    """Return each group's share of a pass, ``float64[G]``; the shares sum to one.

    A kernel's time is divided evenly among the groups of its ops.
    """
    shares = np.zeros(len(grouping.groups))
    for kernel in kernels:
        groups = {int(grouping.group_of[op]) for op in kernel.ops}
        for group in groups:
            shares[group] += kernel.seconds / len(groups)
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))
