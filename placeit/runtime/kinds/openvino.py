"""CPU core sets, GPUs, NPUs and other devices that OpenVINO drives, one request at a time."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from placeit.backends.base import ConvertsOps
from placeit.core.address import Address, format_cores
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.nearest import nearest
from placeit.core.telemetry import import_openvino
from placeit.devices.host import allowed_cores, memory_bytes
from placeit.devices.opencl import driver_versions
from placeit.devices.openvino import explaining, openvino_core, supported_nodes, target_name, what_openvino_says
from placeit.devices.trial import why_unusable
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.nodes.remote_calls import call_with_program

if TYPE_CHECKING:
    from placeit.backends.base import Model
    from placeit.backends.openvino.model import OpenVinoModel
    from placeit.planning.coarsen import Grouping

__all__ = ["KIND", "DrivenByOpenVino"]

_FAMILIES = ("CPU", "GPU", "NPU")  # correctly spelt names of hardware that OpenVINO drives
_SHORTER = (("bf16", "bf16"), ("f16", "fp16"))  # precisions that may be faster than f32, and OpenVINO's tags for them


class DrivenByOpenVino(DeviceKind):
    """Devices on which OpenVINO runs segments, in any of its modes."""

    label = "OpenVINO"
    package = "openvino"

    def version(self) -> str:
        """Return OpenVINO's version."""
        return f"OpenVINO {import_openvino().get_version()}"

    def supported(self, model: Model, device: Device) -> Collection[str]:
        """Return the ops that OpenVINO's plugin supports, or for other formats its converter. Raises DeviceError."""
        if isinstance(model, ConvertsOps) and "openvino" in model.formats:
            return model.converted_ops("openvino")
        read = _read(model, device)
        nodes = call_with_program(_supported, "openvino", read.ov_model, device)
        return set(read.graph.names) - {op for node, op in read.view.op_of.items() if node not in nodes}

    def kernels(self, model: Model, grouping: Grouping, device: Device, precision: str, passes: int) -> Sequence[Kernel] | None:
        """Measure kernels by OpenVINO's counters, in passes over the whole model. Raises DeviceError.

        Returns None for a model whose segments are converted, since their kernels do not name the ops of the model.
        """
        from placeit.runtime.devices.counters import count_kernels

        if isinstance(model, ConvertsOps) and "openvino" in model.formats:
            return None
        read, samples = _read(model, device), model.sample_requests()
        inputs = [list(sample.inputs.values()) for sample in samples]
        found = []
        for sample, counted in zip(
            samples, call_with_program(count_kernels, "openvino", read.ov_model, device, precision, inputs, passes), strict=True
        ):
            for kernel in counted:
                ops = tuple(grouping.graph.index[op] for op in read.view.ops_named(kernel.layers))
                if ops and kernel.seconds is not None:  # kernels that stand for no op convert layouts
                    found.append(Kernel(ops, sample.share * kernel.seconds))
        return found

    def open_sizes(self, device: Device) -> bool:  # noqa: ARG002
        """Return True: OpenVINO compiles for all sizes, or for each."""
        return True


class _OpenVinoKind(DrivenByOpenVino):
    """Devices that run one request at a time: see :class:`placeit.runtime.devices.openvino.OpenVinoDevice`."""

    hardware = _FAMILIES
    elsewhere = "drives CPUs, GPUs and NPUs, not {}"
    on_nodes = True
    one_precision = "has neither bf16 nor f16"

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a device. Raises DeviceError."""
        from placeit.runtime.devices.openvino import OpenVinoDevice

        return OpenVinoDevice(device, precision=precision)

    def counting(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a device whose programs count the time of each kernel. Raises DeviceError."""
        from placeit.runtime.devices.openvino import OpenVinoDevice

        return OpenVinoDevice(device, precision=precision, properties={"PERF_COUNT": True})

    def throughput_mode(self, cores: Device) -> Device | None:
        """Return a core set in OpenVINO's throughput mode, which divides it among streams."""
        return cores.driven_by("throughput") if cores.core_set else None

    def compiled(self, cores: Device) -> Device | None:
        """Return OpenVINO's device on a core set of PyTorch, whose models can be converted for it; None for other core sets."""
        return cores.driven_by("openvino") if cores.kind == "torch" else None

    def other_precision(self, device: Device, precision: str) -> str | None:
        """Return ``f32``, or a shorter precision that the hardware has; None if it has none."""
        if precision != "f32":
            return "f32"
        return next((name for name, tag in _SHORTER if tag in device.tags), None)

    def found(self) -> list[Device]:
        """Return the devices that OpenVINO lists. Each has run an op, or says why it is unusable."""
        devices: list[Device] = []
        for address in map(Address, openvino_core().available_devices):
            try:
                devices.append(self.tried(_describe(address)))
            except DeviceError as error:
                devices.append(Device(name=str(address), address=address, unusable=str(error)))
        return devices

    def devices(self) -> list[Device]:
        """Return the devices that OpenVINO lists, and each core as a core set. Raises DeviceError."""
        devices = self.found()
        if "CPU" in openvino_core().available_devices:
            devices += [_describe(Address("CPU", (number,))) for number in allowed_cores()]
        return devices

    def tried(self, device: Device) -> Device:
        """Run an op on a device; the result says if and why it cannot. Core sets are not tried."""
        return device if device.where.cores else replace(device, unusable=why_unusable(device))

    def find(self, address: Address) -> Device:
        """Return a device by its address. Raises DeviceError if OpenVINO does not list it."""
        core = openvino_core()
        found: list[str] = core.available_devices
        # OpenVINO lists a single GPU as GPU and several as GPU.0, GPU.1; both GPU and GPU.0 work in both cases
        if address.unit in {Address(name).unit for name in found}:
            return _describe(address)
        families = {name.partition(".")[0] for name in found}
        hint = "" if address.family in _FAMILIES else nearest(address.hardware, families)
        raise DeviceError(
            f"There is no device '{address}' on this machine. OpenVINO finds: {', '.join(found)}{hint}."
            f"{_reason(core, address.family)}"
        )


KIND = _OpenVinoKind()


def _read(model: Model, device: Device) -> OpenVinoModel:
    from placeit.backends.openvino.model import OpenVinoModel

    if not isinstance(model, OpenVinoModel):
        raise DeviceError(
            f"OpenVINO drives {device.name}, and it did not read {model.path}: convert the model with `placeit export`, or "
            "choose other devices."
        )
    return model


def _supported(model: Any, device: Device) -> frozenset[str]:
    with explaining(f"OpenVINO does not say what {device.name} supports"):
        return supported_nodes(model, target_name(device))


def _describe(address: Address) -> Device:
    """Return an OpenVINO device with its properties. Raises DeviceError if it does not answer, or its cores are not allowed."""
    allowed = allowed_cores() if address.core_set else ()
    missing = sorted(set(address.cores) - set(allowed))
    if missing:
        raise DeviceError(
            f"The device '{address}' wants core{'s' if len(missing) > 1 else ''} {format_cores(missing)}, which this process "
            f"may not use; it may use {format_cores(allowed)}. Choose among those, or give the process more (taskset, cpuset)."
        )
    core, hardware = openvino_core(), address.hardware
    try:
        full_name = str(core.get_property(hardware, "FULL_DEVICE_NAME"))
        told = _told(core, hardware)
        driver = "OpenVINO " + next(iter(core.get_versions(hardware).values())).build_number
    except RuntimeError as error:
        raise DeviceError(f"OpenVINO lists the device '{address}' but cannot use it: {what_openvino_says(error)}") from error
    tags = {str(capability).lower() for capability in told.get("OPTIMIZATION_CAPABILITIES", ())}
    memory, version = float("inf"), None
    if address.core_set:
        memory = memory_bytes()
    else:
        memory = float(told.get(f"{address.family}_DEVICE_TOTAL_MEM_SIZE", float("inf")))
        version = told.get(f"{address.family}_DRIVER_VERSION")
        if version is None and address.family == "GPU":
            version = driver_versions().get(str(told.get("DEVICE_UUID")))
        if "DEVICE_TYPE" in told:
            kind = told["DEVICE_TYPE"].name.lower()
            tags.add(kind)
            if kind == "integrated":  # its memory is a part of the host's
                memory = min(memory, memory_bytes())
    return Device(
        name=str(address),
        address=address,
        full_name=full_name,
        memory_bytes=memory,
        all_cores=() if address.cores else allowed,
        tags=frozenset(tags),
        driver=f"{driver}, driver {version}" if version else driver,
    )


def _told(core: Any, hardware: str) -> dict[str, Any]:
    """Return the properties that a plugin reports for a device. Raises RuntimeError if it does not answer."""
    family, supported = hardware.partition(".")[0], core.get_property(hardware, "SUPPORTED_PROPERTIES")
    own = [f"{family}_DEVICE_TOTAL_MEM_SIZE", f"{family}_DRIVER_VERSION"]
    told: dict[str, Any] = {}
    for name in ("OPTIMIZATION_CAPABILITIES", "DEVICE_TYPE", "DEVICE_UUID", *own):
        if name in supported:
            with contextlib.suppress(TypeError):  # a type that the Python binding does not know
                told[name] = core.get_property(hardware, name)
    return told


def _reason(core: Any, family: str) -> str:
    """Return why OpenVINO has no device of a family: its plugin does not load or finds none, mostly for lack of a driver."""
    try:
        if not core.get_property(family, "AVAILABLE_DEVICES"):
            return " OpenVINO has a plugin for such devices, which finds none: its driver may be missing, or too old."
    except RuntimeError as error:
        found = re.search(r'Cannot load library ".*?": (.*)', what_openvino_says(error))
        if found:
            return f" Its plugin does not load, which mostly means that a driver is missing: {found[1].rstrip('.')}."
    return ""
