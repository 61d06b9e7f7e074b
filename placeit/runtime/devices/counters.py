"""Divides the time of a whole model among its groups, by the runtime's per-kernel counters."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.cluster import Device
from placeit.devices.openvino import compile_model, explaining
from placeit.planning.coarsen import Grouping

__all__ = ["group_shares"]


def group_shares(
    model: OpenVinoModel, grouping: Grouping, device: Device, precision: str = "f32", *, passes: int = 10
) -> NDArray[np.float64]:
    """Measure each group's share of a pass over the whole model: ``float64[G]``, which sums to one.

    OpenVINO fuses ops into kernels and says which ops each kernel stands for; a kernel's time is divided evenly among the
    groups of its ops. Kernels that stand for no op (layout conversions) count for nobody, so they are shared by all in
    proportion.

    Raises:
        DeviceError: the device cannot run the model.
    """
    compiled = compile_model(model.ov_model, device, precision, PERF_COUNT=True)
    request = compiled.create_infer_request()
    for i, value in enumerate(model.sample_inputs().values()):
        request.get_input_tensor(i).data[...] = value
    with explaining(f"The model cannot be run on {device.name}"):
        _run_bound(device.cores, functools.partial(_repeat, request.infer, passes))
    graph = grouping.graph
    shares = np.zeros(len(grouping.groups))
    for kernel in compiled.get_runtime_model().get_ordered_ops():
        info = kernel.get_rt_info()
        spent, originals = info["execTimeMcs"].astype(str), info["originalLayersNames"].astype(str)
        if not spent.isdigit():
            continue  # "not_executed"
        groups = {int(grouping.group_of[graph.index[op]]) for op in model.view.ops_named(originals)}
        for group in groups:
            shares[group] += int(spent) / len(groups)
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))


def _repeat(run: functools.partial[None], passes: int) -> None:
    for _ in range(passes):
        run()


def _run_bound(cores: tuple[int, ...], job: functools.partial[None]) -> None:
    """Run a job on a thread bound to some cores, wait for it, and raise what it raises."""
    with ThreadPoolExecutor(1, "placeit counters") as thread:
        if cores:
            thread.submit(os.sched_setaffinity, 0, cores).result()
        thread.submit(job).result()
