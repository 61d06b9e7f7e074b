"""Weights that ops read from memory, and the rates at which devices read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MemoryReads"]


@dataclass(frozen=True, eq=False)
class MemoryReads:
    """Bytes of weights that ops read from memories that several devices share.

    Attributes:
        bytes: ``float64[V]``, bytes that each op reads in a run.
        devices: ``bool[M, D]``, the devices of each memory.
        bytes_per_s: ``float64[M]``, the rate at which all devices of a memory together read it.
    """

    bytes: NDArray[np.float64]
    devices: NDArray[np.bool_]
    bytes_per_s: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """Seconds for which each op occupies a memory, whichever of its devices reads, ``float64[M, V]``."""
        return np.asarray(self.bytes / self.bytes_per_s[:, None], np.float64)
