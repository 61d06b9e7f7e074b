"""The OpenVINO core of the process, and the compile properties of its devices."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.telemetry import import_openvino
from placeit.devices.compiled import compile_cached

__all__ = [
    "compile_model",
    "compile_properties",
    "explaining",
    "openvino_core",
    "target_name",
    "what_openvino_says",
    "writable_properties",
]

_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError)
"""C++ exceptions, as the bindings translate them."""


@functools.cache
def openvino_core() -> Any:
    """Return the OpenVINO core of the process; plugins and their thread pool are loaded once.

    It is never let go. OpenVINO's CPU plugin gives the thread that loads it a stack for signal handlers, and frees it with its
    core. Where cores overlap, or go on another thread, a freed stack stays in use, and the next signal, such as Ctrl-C, ends
    the process (2026.4).
    """
    return import_openvino().Core()  # slow to import, so not before somebody asks for devices


def compile_model(model: Any, device: Device, precision: str, *, identity: str = "", **properties: Any) -> Any:
    """Compile an ``openvino.Model`` for a device, with further properties if need be, or take it from the cache on disk.

    ``identity`` is what :func:`placeit.devices.compiled.is_kept` finds it by. Raises DeviceError.
    """
    with explaining(f"OpenVINO cannot compile a model for {device.name}"):
        config = compile_properties(device, precision) | properties
        return compile_cached(openvino_core(), model, target_name(device), config, identity)


@contextlib.contextmanager
def explaining(what: str) -> Iterator[None]:
    """Convert exceptions of OpenVINO to a DeviceError that says ``what`` failed."""
    try:
        yield
    except _FAILURES as error:
        raise DeviceError(f"{what}: {what_openvino_says(error)}") from error


def what_openvino_says(error: BaseException) -> str:
    """Return the last line of OpenVINO's message, which contains the cause."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def target_name(device: Device) -> str:
    """Return the OpenVINO device that a device is, or is a part of."""
    return device.where.hardware


def compile_properties(device: Device, precision: str) -> dict[str, Any]:
    """Return the properties for compiling a model for a device: those of the table below that its plugin says it supports.

    Raises:
        DeviceError: the plugin does not say what it supports.
    """
    if device.where.whole_cpu and len(device.cores) > 1:
        # all of the machine is OpenVINO's own to divide, as it is for whoever compiles a model for low latency without placeit
        return {"INFERENCE_PRECISION_HINT": precision, "PERFORMANCE_HINT": "LATENCY"}
    threads = len(device.cores)
    wanted: dict[str, Any] = {"INFERENCE_PRECISION_HINT": precision, "NUM_STREAMS": "1"}  # the GPU's plugin reads text only
    if device.core_set:
        wanted |= {"INFERENCE_NUM_THREADS": max(1, threads), "ENABLE_CPU_PINNING": False}
        if threads <= 1:
            # A stream of one thread loses what a kernel throws: infer returns without an error, with the outputs of the run
            # before. It also starts two threads for each compiled model. Without streams inference runs in the calling thread
            # and nowhere else, its errors arrive, and it takes as long. With two threads and more none gets lost.
            wanted["NUM_STREAMS"] = "0"
    with explaining(f"OpenVINO cannot compile a model for {device.name}"):
        writable = writable_properties(target_name(device))
    return {name: value for name, value in wanted.items() if name in writable}


@functools.cache
def writable_properties(target: str) -> frozenset[str]:
    """Return the names of the properties that a plugin says can be set, by its device. Raises what OpenVINO raises."""
    supported = openvino_core().get_property(target, "SUPPORTED_PROPERTIES")
    return frozenset(name for name, mutability in supported.items() if "W" in mutability)
