"""Random placement problems for tests."""

from __future__ import annotations

import numpy as np

from placeit.core.problem import Problem

__all__ = ["random_problem"]


def random_problem(
    ops: int, devices: int, seed: int = 0, *, everywhere: float = 0.7, tight: bool = False, conflicts: float = 0.0
) -> Problem:
    """Make a random placement problem.

    Args:
        ops: number of ops.
        devices: number of devices.
        seed: seed of the generator.
        everywhere: probability that an op can run on a device (each op can run on at least one).
        tight: whether ops have weights, and devices so little memory that most placements do not fit.
        conflicts: probability that two devices never run at the same time.
    """
    rng = np.random.default_rng(seed)
    compute = rng.uniform(1e-3, 1e-2, (ops, 1)) * rng.uniform(0.5, 2.0, (ops, devices))
    home = rng.integers(devices, size=ops)
    able = rng.random((ops, devices)) < everywhere
    able[np.arange(ops), home] = True
    compute[~able] = np.inf
    edges = [(u, v) for v in range(1, ops) for u in np.unique(rng.integers(max(0, v - 8), v, size=rng.integers(0, 3))).tolist()]
    weights = rng.integers(1, 1000, size=ops).astype(float) if tight else np.zeros(ops)
    room = np.bincount(home, weights=weights, minlength=devices) * 1.3
    return Problem.from_arrays(
        compute,
        np.array(edges, np.int32).reshape(-1, 2),
        rng.uniform(1e3, 1e6, len(edges)),
        rng.uniform(1e8, 1e9, (devices, devices)),
        rng.uniform(1e-5, 1e-3, (devices, devices)),
        param_bytes=weights,
        memory=room if tight else None,
        conflicts=(pairs := np.triu(rng.random((devices, devices)) < conflicts, 1)) | pairs.T,
    )
