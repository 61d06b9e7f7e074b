"""Inputs of Tarnawski et al., Efficient Algorithms for Device Placement of DNN Graph Operators (NeurIPS 2020).

``msr_inputs/`` holds five inputs of their public repository for the most loaded device of an inference pipeline, under the MIT
licence beside them. Further ones are read from ``msr/*.json`` in the folder that ``PLACEIT_DATA`` names.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from placeit.bench.msr import MsrInput

__all__ = ["least_load", "most_loaded", "msr_inputs"]


def msr_inputs() -> Sequence[MsrInput]:
    """Read all inputs that there are, by name."""
    folders = [Path(__file__).parent / "msr_inputs", *(Path(name) / "msr" for name in [os.environ.get("PLACEIT_DATA")] if name)]
    files = {path.name.partition(".")[0]: path for folder in folders for path in folder.glob("*.json*")}
    return [MsrInput.read(files[name]) for name in sorted(files)]


def most_loaded(given: MsrInput, placement: NDArray[np.int32]) -> float:
    """Return the load of the most loaded device by the authors' rules, for the device of each group; node by node."""
    of = placement[given.group].tolist()
    load, held = [0.0] * given.seconds.shape[1], [0.0] * given.seconds.shape[1]
    for v, d in enumerate(of):
        load[d] += float(given.seconds[v, d])
        held[d] += float(given.size[v])
    moved = {(u, d) for u, v in given.edges.tolist() if of[u] != of[v] for d in (of[u], of[v]) if d >= given.cpus}
    for u, d in moved:
        load[d] += float(given.transfer[u])
    return float("inf") if max(held[given.cpus :]) > given.memory else max(load)


def least_load(given: MsrInput) -> float:
    """A lower bound: the longest group, or the work divided into any fractions, on one kind of CPU and of accelerator."""
    compute, accelerators = given.problem.compute, given.seconds.shape[1] - given.cpus
    slow, fast = compute[:, 0] if given.cpus else np.full(len(compute), np.inf), compute[:, -1]
    longest = float(compute.min(axis=1).max())
    order = np.argsort(np.divide(slow, fast, out=np.zeros(len(slow)), where=np.isfinite(fast) & (fast > 0)))
    cpu, rest = 0.0, float(np.where(np.isfinite(fast), fast, 0.0).sum())
    for v in order.tolist() if given.cpus else ():
        after, left = cpu + slow[v], rest - (fast[v] if np.isfinite(fast[v]) else 0.0)
        if after / given.cpus >= left / accelerators:  # the point at which both are equally loaded is in this group
            share = (rest / accelerators - cpu / given.cpus) / (slow[v] / given.cpus + (rest - left) / accelerators)
            return max(longest, float(cpu + max(0.0, share) * slow[v]) / given.cpus)
        cpu, rest = float(after), float(left)
    return float(max(longest, rest / accelerators))
