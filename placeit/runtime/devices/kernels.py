"""The kernels that a device runs in a pass over a whole model, and the ops that each of them computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from placeit.planning.coarsen import Grouping

__all__ = ["CountedKernel", "CountsKernels", "Kernel", "group_shares"]


@dataclass(frozen=True)
class Kernel:
    """A kernel that a device runs, and the ops that it computes.

    Attributes:
        ops: numbers of the ops in the task graph; at least one.
        seconds: seconds that the kernel takes in one pass over the model, or in equally many passes for all kernels.
    """

    ops: tuple[int, ...]
    seconds: float


class CountedKernel(NamedTuple):
    """A kernel of a program, as its runtime reports it.

    Attributes:
        name: its name.
        kind: type of its computation.
        layers: names of the program's layers that it computes.
        seconds: mean seconds of a run; None if it did not run, or is not timed.
    """

    name: str
    kind: str
    layers: str
    seconds: float | None


@runtime_checkable
class CountsKernels(Protocol):
    """A program that may count the time of each of its kernels."""

    def counted(self) -> list[CountedKernel]:
        """Return the kernels; empty if their times are not counted."""


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
