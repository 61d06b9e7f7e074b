"""Times of kernels, from OpenVINO's performance counters."""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.openvino.state import expose_growing_states
from placeit.core.cluster import Device
from placeit.devices.openvino import compile_model, explaining
from placeit.runtime.devices.kernels import CountedKernel

__all__ = ["count_kernels", "counted_kernels"]


def count_kernels(
    model: Any, device: Device, precision: str, samples: Sequence[Sequence[NDArray[np.generic]]], passes: int
) -> list[list[CountedKernel]]:
    """Measure the time of each kernel in passes over a whole model, for each sample.

    OpenVINO fuses ops into kernels and reports the layers that each kernel computes.

    Args:
        model: an ``openvino.Model``.
        device: a device of OpenVINO on this machine.
        precision: inference precision.
        samples: inputs of each sample, in the model's order. With state, each sample continues from the one before.
        passes: number of passes over the model; times are means.

    Raises:
        DeviceError: the device cannot run the model.
    """
    found: list[list[CountedKernel]] = []
    # see CachingInstance of openvino.py
    exposed, growing = expose_growing_states(model) if device.where.family == "GPU" else (model, {})
    first, previous = len(model.outputs), None
    for sample in samples:  # the model is compiled for each, as counters are means over all runs of a compiled model
        compiled = compile_model(exposed, device, precision, PERF_COUNT=True)
        request = compiled.create_infer_request()
        for i, value in enumerate(sample):
            tensor = request.get_input_tensor(i)
            tensor.shape = value.shape
            tensor.data[...] = value
        for i, value in enumerate(growing.values()):
            request.set_input_tensor(len(sample) + i, value)
        with explaining(f"The model cannot be run on {device.name}"):
            _run_bound(device.cores, functools.partial(_run_after, previous, request, passes))
        found.append(counted_kernels(compiled))
        outputs = [request.get_output_tensor(first + i) for i in range(len(growing))]
        previous, growing = request, dict(zip(growing, outputs, strict=True))
    return found


def counted_kernels(compiled: Any) -> list[CountedKernel]:
    """Return the kernels of an ``openvino.CompiledModel`` with performance counters, as its plugin reports them."""
    found = []
    for kernel in compiled.get_runtime_model().get_ordered_ops():
        info = kernel.get_rt_info()
        spent = info["execTimeMcs"].astype(str)
        seconds = int(spent) * 1e-6 if spent.isdigit() else None  # else "not_executed"
        layers = info["originalLayersNames"].astype(str)
        found.append(CountedKernel(kernel.get_friendly_name(), info["layerType"].astype(str), layers, seconds))
    return found


def _run_after(previous: Any, request: Any, passes: int) -> None:
    """Run a request several times, each time from the state that ``previous`` left; None for the initial state."""
    for _ in range(passes):
        states = {} if previous is None else {state.name: state.state for state in previous.query_state()}
        for state in request.query_state():
            if previous is None:
                state.reset()
            else:
                state.state = states[state.name]
        request.infer()


def _run_bound(cores: tuple[int, ...], job: functools.partial[None]) -> None:
    """Run a job on a thread bound to some cores, wait for it, and raise what it raises."""
    with ThreadPoolExecutor(1, "placeit counters") as thread:
        if cores:
            thread.submit(os.sched_setaffinity, 0, cores).result()
        thread.submit(job).result()
