"""Divides the time of a whole PyTorch model among its groups by timing every op of it."""

from __future__ import annotations

import os
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from placeit.backends.coarsen import Grouping
from placeit.backends.torch import Model
from placeit.backends.torch_program import quiet
from placeit.backends.torch_segment import OP, extract
from placeit.cluster import Device
from placeit.runtime.devices.torch_cpu import explaining, use_threads

__all__ = ["group_shares"]


def group_shares(model: Model, grouping: Grouping, device: Device, *, passes: int = 10) -> NDArray[np.float64]:
    """Measure each group's share of a pass over the whole model on a CPU core set: ``float64[G]``, which sums to one.

    PyTorch runs ops one after the other, so the time of a group is the sum of its ops' times.

    Raises:
        DeviceError: the model cannot be run.
    """
    module = extract(model, range(len(model.graph)), [], [])
    inputs = [torch.from_numpy(value) for value in model.random_inputs().values()]
    timer = _Timer(module)

    def measure() -> None:
        if device.cores:
            os.sched_setaffinity(0, device.cores)
        use_threads(max(1, len(device.cores)))
        with torch.inference_mode(), quiet():
            for _ in range(passes):
                timer.run(*inputs)

    with ThreadPoolExecutor(1, "placeit counters") as thread, explaining(f"The model cannot be run on {device.name}"):
        thread.submit(measure).result()
    shares = np.zeros(len(grouping.groups))
    for v, seconds in timer.seconds.items():
        shares[grouping.group_of[v]] += seconds
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))


class _Timer(torch.fx.Interpreter):
    """Runs a segment op by op, and adds up the seconds of each."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.seconds: defaultdict[int, float] = defaultdict(float)

    def run_node(self, n: torch.fx.Node) -> Any:
        """Run an op."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        begin = perf_counter()
        made = getattr(self, n.op)(n.target, args, kwargs)
        if OP in n.meta:
            self.seconds[n.meta[OP]] += perf_counter() - begin
        return made
