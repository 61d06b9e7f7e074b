"""Checks of the arguments of executors' calls, and the errors that callers get."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from placeit.backends.base import Arrays
from placeit.core.arrays import DLPackArray, GpuArray, gpu_array, host_array
from placeit.core.errors import ExecutionError, PlaceitError, UsageError
from placeit.runtime.devices.base import BufferSpec, RuntimeDevice
from placeit.runtime.devices.entries import ExplainsEntries, MakesErrors

__all__ = ["check_memory", "check_process", "check_requests", "checked_out", "failure_of", "segment_failure"]

_MAX_IN_FLIGHT = 1024  # requests of one executor


def failure_of(what: str, error: BaseException, prefix: str = "") -> ExecutionError:
    """Wrap ``error`` for the caller of a run as "what: reason", dropping ``prefix`` from the reason."""
    is_ours = isinstance(error, PlaceitError)
    failure = ExecutionError(f"{what}: {'' if is_ours else f'{type(error).__name__}: '}{str(error).removeprefix(prefix)}")
    failure.__cause__ = (error.__cause__ if is_ours else None) or error
    failure.device = error.device if isinstance(error, PlaceitError) else ""
    return failure


def segment_failure(first: str, device: RuntimeDevice, error: object) -> ExecutionError:
    """Return the error of a segment that failed on a device.

    Args:
        first: name of the segment's first op.
        device: the device.
        error: the exception that the run raised; any other object if a native entry reported the failure.
    """
    if isinstance(device, MakesErrors) and isinstance(error, BaseException) and not isinstance(error, PlaceitError):
        error = device.failure(error)
    if not isinstance(error, BaseException):
        error = ExecutionError(device.explain() if isinstance(device, ExplainsEntries) else "its device does not say why")
    prefix = f"Inference failed on {device.name}: "
    failure = failure_of(f"The segment that starts with '{first}' failed on {device.name}", error, prefix)
    failure.device = device.name
    return failure


def check_process(process: int) -> None:
    """Raise ExecutionError if this process was forked from ``process``: it lacks the threads of the devices."""
    if os.getpid() != process:
        raise ExecutionError(
            "This process was forked from the one that opened the session, and the threads that run it stayed there: open a "
            "session in this process."
        )


def checked_out(
    out: Mapping[str, Any], specs: Mapping[str, BufferSpec], inputs: Arrays
) -> dict[str, NDArray[np.generic] | GpuArray]:
    """Check arrays to write outputs to, and return them, as NumPy's arrays where they are on the host.

    Args:
        out: the caller's arrays, by name.
        specs: shape and type of each output of the model, by name.
        inputs: inputs of the same call, which must not share memory with outputs.

    Raises:
        UsageError: an output cannot be written to one of the arrays.
    """
    others: list[tuple[str, object]] = [(f"the input '{name}'", value) for name, value in inputs.items()]
    found: dict[str, NDArray[np.generic] | GpuArray] = {}
    for name, value in out.items():
        if name not in specs:
            raise UsageError(f"'out' has '{name}', and the model has no such output; its outputs are {', '.join(specs)}.")
        spec, what = specs[name], f"The array in 'out' for '{name}'"
        array: NDArray[np.generic] | GpuArray | None = gpu_array(what, value)
        if array is None and isinstance(value, np.ndarray | DLPackArray):
            array = host_array(what, value)
        if array is None or (isinstance(array, np.ndarray) and not array.flags.writeable):
            raise UsageError(f"'out' needs an array that can be written to for '{name}', of NumPy or another library.")
        found[name] = array
        shape = array.shape if spec.limits is not None else spec.shape
        if array.dtype != np.dtype(spec.dtype) or array.shape != shape:
            raise UsageError(f"'out' has {array.dtype} {list(array.shape)} for '{name}', which is {spec.dtype} {list(shape)}.")
        for other, memory in others:
            if isinstance(memory, np.ndarray) and isinstance(array, np.ndarray) and np.may_share_memory(array, memory):
                raise UsageError(f"'out' has an array for '{name}' that shares memory with {other}: use another one.")
        others.append((f"the array for '{name}'", array))
    return found


def check_memory(on: str) -> None:
    """Raise UsageError if ``on`` is not a memory that outputs can be in."""
    if on not in ("host", "device"):
        raise UsageError(f"'on' says whether outputs are on the 'host' or on the 'device' that computes them; got '{on}'.")


def check_requests(in_flight: int) -> None:
    """Raise UsageError if ``in_flight`` is below 1, or above 1024: each request in flight has buffers for all its tensors."""
    if not 1 <= in_flight <= _MAX_IN_FLIGHT:
        raise UsageError(f"There must be at least one request in flight, and at most {_MAX_IN_FLIGHT}; got {in_flight}.")
