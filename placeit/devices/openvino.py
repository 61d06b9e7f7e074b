"""Compile properties for OpenVINO's devices, and the precisions in which the devices compute."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping
from typing import Any

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.devices.compiled import compile_cached
from placeit.devices.openvino_errors import explaining, what_openvino_says
from placeit.devices.openvino_shared import openvino_core

__all__ = [
    "DYNAMIC_QUANTIZATION",
    "check_precision",
    "compile_model",
    "compile_properties",
    "computes_in",
    "explaining",
    "for_model",
    "openvino_core",
    "supported_nodes",
    "target_name",
    "what_openvino_says",
    "writable_properties",
]

_ONE_CORE, _CORES, _ALL_CORES, _OTHERS = "one core", "several cores", "all cores", "other plugins"
_PRECISION = "INFERENCE_PRECISION_HINT"
DYNAMIC_QUANTIZATION = "DYNAMIC_QUANTIZATION_GROUP_SIZE"
"""Property of OpenVINO's CPU plugin: the number of activations with one scale that products with compressed weights round to 8
bits; 0 to round none. By default it rounds with the precision f32 as well, where the processor has instructions for it."""
_PROPERTIES: Mapping[str, Mapping[str, Any]] = {
    # With a stream of one thread, errors in kernels are lost: infer returns without an error, with the outputs of the run
    # before. It also starts two threads for each compiled model. Without streams, inference runs in the calling thread only,
    # and errors arrive. It is as fast if the model was compiled in an arena of one thread. With two or more threads no error
    # is lost.
    _ONE_CORE: {"NUM_STREAMS": "0", "INFERENCE_NUM_THREADS": 1, "ENABLE_CPU_PINNING": False},
    _CORES: {"NUM_STREAMS": "1", "INFERENCE_NUM_THREADS": len, "ENABLE_CPU_PINNING": False},
    # OpenVINO divides the whole machine, as it does without placeit for a model that is compiled for low latency.
    _ALL_CORES: {"PERFORMANCE_HINT": "LATENCY"},
    "GPU": {"NUM_STREAMS": "1"},  # as text: its plugin refuses an integer
    # With LATENCY, a model uses as many of the NPU's tiles as it profits from. Streams are not of the hardware (read-only up to
    # 2025.4, then a number of host threads).
    "NPU": {"PERFORMANCE_HINT": "LATENCY"},
    _OTHERS: {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": "1"},
}
"""Compile properties for each kind of device, besides the precision, as far as the plugin says that they can be set.

A function is called with the cores of the device. These properties do not change results, so one that a plugin lacks is left
out. The precision changes results: if it cannot be set, the device must compute in no other (:func:`check_precision`).
"""
_CAPABILITIES = {"f32": "FP32", "f16": "FP16", "bf16": "BF16"}


def compile_model(model: Any, device: Device, precision: str, *, identity: str = "", **properties: Any) -> Any:
    """Compile an ``openvino.Model`` for a device, with optional further properties, or take it from the cache on disk.

    ``identity`` is the key for :func:`placeit.devices.compiled.is_kept`. Raises DeviceError.
    """
    with explaining(f"OpenVINO cannot compile a model for {device.name}"):
        config = for_model(model, compile_properties(device, precision)) | properties
        return compile_cached(openvino_core(), model, target_name(device), config, identity)


def for_model(model: Any, properties: Mapping[str, Any]) -> dict[str, Any]:
    """Return compile properties for a model: without the one for dynamic quantisation if the model sets it itself."""
    own = model.has_rt_info(["runtime_options", DYNAMIC_QUANTIZATION])
    return {name: value for name, value in properties.items() if name != DYNAMIC_QUANTIZATION or not own}


_ANSWERS: weakref.WeakKeyDictionary[Any, dict[tuple[Any, str], frozenset[str]]] = weakref.WeakKeyDictionary()


def supported_nodes(model: Any, target: str) -> frozenset[str]:
    """Return the friendly names of the nodes of an ``openvino.Model`` that a plugin supports. Results are cached.

    Raises OpenVINO's errors.
    """
    answers, core = _ANSWERS.setdefault(model, {}), openvino_core()
    if (core, target) not in answers:
        answers[core, target] = frozenset(core.query_model(model, target))
    return answers[core, target]


def target_name(device: Device) -> str:
    """Return OpenVINO's name of a device, or of the device that it is a part of."""
    return device.where.hardware


def compile_properties(device: Device, precision: str) -> dict[str, Any]:
    """Return the properties for compiling a model for a device, from the table, as far as its plugin says they can be set.

    Raises:
        DeviceError: the device does not compute in the precision, or its plugin does not report what it supports.
    """
    check_precision(device, precision)
    if not device.core_set:
        kind = device.where.family if device.where.family in _PROPERTIES else _OTHERS
    elif len(device.cores) <= 1:
        kind = _ONE_CORE
    else:
        kind = _ALL_CORES if device.where.whole_cpu else _CORES
    exact = {DYNAMIC_QUANTIZATION: 0} if device.core_set and precision == "f32" else {}
    wanted = exact | {name: value(device.cores) if callable(value) else value for name, value in _PROPERTIES[kind].items()}
    with explaining(f"OpenVINO does not say what can be set for {device.name}"):
        writable = writable_properties(target_name(device))
    return {name: value for name, value in ({_PRECISION: precision} | wanted).items() if name in writable}


def check_precision(device: Device, precision: str) -> None:
    """Check that a device computes in a precision, according to its plugin.

    Raises:
        DeviceError: it does not, or it also computes in others and its plugin has no property to choose one.
    """
    if device.core_set:
        return
    computes = computes_in(device)
    with explaining(f"OpenVINO does not say what can be set for {device.name}"):
        settable = _PRECISION in writable_properties(target_name(device))
    if precision in computes and (settable or len(computes) == 1):
        return
    if not computes and settable:  # compiling will show it
        return
    what = f"{device.name} computes in {' and '.join(computes) or 'a precision that its plugin does not name'}"
    if precision in computes:
        raise DeviceError(f"{what}, and its plugin has no property to choose {precision} by: leave {device.name} out.")
    ways = [f'pass --precision {computes[0]} (precision="{computes[0]}" in Python)'] if computes else []
    raise DeviceError(f"{what}, not in {precision}: {', or '.join([*ways, f'leave {device.name} out'])}.")


@functools.cache
def writable_properties(target: str) -> frozenset[str]:
    """Return the names of the properties that can be set, according to a device's plugin. Raises OpenVINO's errors."""
    supported = openvino_core().get_property(target, "SUPPORTED_PROPERTIES")
    return frozenset(name for name, mutability in supported.items() if "W" in mutability)


def computes_in(device: Device) -> tuple[str, ...]:
    """Return the precisions that a device computes in, according to its plugin; empty if unknown. Raises DeviceError."""
    if device.core_set:  # its plugin accepts all of them, and computes in f32 where the processor lacks one
        return tuple(_CAPABILITIES)
    with explaining(f"OpenVINO does not say what {device.name} computes in"):
        capabilities = _capabilities(target_name(device))
    return tuple(precision for precision, capability in _CAPABILITIES.items() if capability in capabilities)


@functools.cache
def _capabilities(target: str) -> frozenset[str]:
    core = openvino_core()
    if "OPTIMIZATION_CAPABILITIES" not in core.get_property(target, "SUPPORTED_PROPERTIES"):
        return frozenset()
    return frozenset(core.get_property(target, "OPTIMIZATION_CAPABILITIES"))
