"""Reads the time of each kernel of a whole model from the runtime's counters."""

from __future__ import annotations

import functools
import os
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from placeit.backends.openvino.model import OpenVinoModel
from placeit.backends.openvino.state import expose_growing_states
from placeit.core.cluster import Device
from placeit.core.graph import OpGraph
from placeit.devices.openvino import compile_model, explaining
from placeit.runtime.devices.kernels import Kernel

__all__ = ["kernels"]


def kernels(model: OpenVinoModel, graph: OpGraph, device: Device, precision: str = "f32", *, passes: int = 10) -> list[Kernel]:
    """Measure what each kernel takes in passes over the whole model.

    OpenVINO fuses ops into kernels and says which ops each kernel stands for. Kernels that stand for no op (layout conversions)
    are left out.

    Args:
        model: the model.
        graph: its task graph, which numbers the ops.
        device: a device of OpenVINO.
        precision: inference precision.
        passes: number of passes over the model; times are means.

    Raises:
        DeviceError: the device cannot run the model.
    """
    found: list[Kernel] = []
    # see CachingInstance of openvino.py
    whole, growing = expose_growing_states(model.ov_model) if device.where.family == "GPU" else (model.ov_model, {})
    before: Any = None
    for sample in model.sample_requests():  # counters are means over all runs of a compiled model
        compiled = compile_model(whole, device, precision, PERF_COUNT=True)
        request = compiled.create_infer_request()
        for i, value in enumerate(sample.inputs.values()):
            tensor = request.get_input_tensor(i)
            tensor.shape = value.shape
            tensor.data[...] = value
        for i, value in enumerate(growing.values()):
            request.set_input_tensor(len(sample.inputs) + i, value)
        with explaining(f"The model cannot be run on {device.name}"):
            run = functools.partial(_run_after, before, request)
            _run_bound(device.cores, functools.partial(_repeat, run, passes))
        found += _kernels(model, graph, compiled, sample.share)
        outputs = [request.get_output_tensor(len(model.outputs) + i) for i in range(len(growing))]
        before, growing = request, dict(zip(growing, outputs, strict=True))
    return found


def _run_after(before: Any, request: Any) -> None:
    """Run a request from the state that ``before``, another request, left the model in; None for the initial state."""
    states = {} if before is None else {state.name: state.state for state in before.query_state()}
    for state in request.query_state():
        if before is None:
            state.reset()
        else:
            state.state = states[state.name]
    request.infer()


def _kernels(model: OpenVinoModel, graph: OpGraph, compiled: Any, share: float) -> list[Kernel]:
    found = []
    for kernel in compiled.get_runtime_model().get_ordered_ops():
        info = kernel.get_rt_info()
        spent, originals = info["execTimeMcs"].astype(str), info["originalLayersNames"].astype(str)
        ops = tuple(graph.index[op] for op in model.view.ops_named(originals))
        if ops and spent.isdigit():  # else "not_executed"
            found.append(Kernel(ops, share * int(spent) * 1e-6))
    return found


def _repeat(run: functools.partial[None], passes: int) -> None:
    for _ in range(passes):
        run()


def _run_bound(cores: tuple[int, ...], job: functools.partial[None]) -> None:
    """Run a job on a thread bound to some cores, wait for it, and raise what it raises."""
    with ThreadPoolExecutor(1, "placeit counters") as thread:
        if cores:
            thread.submit(os.sched_setaffinity, 0, cores).result()
        thread.submit(job).result()
