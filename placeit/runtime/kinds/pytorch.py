"""Devices that PyTorch drives: the host runs core sets, and streams run accelerators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from placeit.backends.base import Format, Model, TorchKernels
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.extras import import_extra, installed
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.nodes.remote_calls import call_with_program

if TYPE_CHECKING:
    from placeit.runtime.devices.accelerator import Streams

__all__ = ["KIND", "TorchKind"]


class TorchKind(DeviceKind):
    """Core sets (:class:`placeit.runtime.devices.pytorch.TorchDevice`) and accelerators, for PyTorch models."""

    label = "PyTorch"
    formats: tuple[Format, ...] = ("torch",)
    package = "torch"
    hardware: tuple[str, ...] | None = ("CPU", "cuda")
    elsewhere = "runs on the CPU and on NVIDIA GPUs (torch:CPU@0, torch:cuda:0), not on {}"
    bundle_format: Format | None = "openvino"
    on_nodes = True

    def other_precision(self, device: Device, precision: str) -> str | None:  # noqa: ARG002
        """Return ``bf16``, or ``f32`` for a shorter one."""
        return "bf16" if precision == "f32" else "f32"

    def installed(self) -> bool:
        """Return whether PyTorch is installed."""
        return installed("torch")

    def version(self) -> str:
        """Return PyTorch's version."""
        import torch

        return f"PyTorch {torch.__version__}"

    def driver(self, device: Device) -> str:
        """Return PyTorch with its version, and the driver of a GPU. Raises DeviceError if PyTorch is not installed."""
        import_extra(f"The device '{device.name}'", "torch", "torch", DeviceError)
        return super().driver(device)

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a device. Raises DeviceError."""
        if device.core_set:
            from placeit.runtime.devices.pytorch import TorchDevice

            return TorchDevice(device, precision=precision)
        from placeit.runtime.accelerators.stream_device import StreamDevice
        from placeit.runtime.accelerators.torch_library import open_accelerator

        return StreamDevice(open_accelerator([device], precision))

    def streams(self, devices: Sequence[Device], precision: str) -> Streams | None:
        """Drive accelerators of one family, and core sets beside them, through streams. Raises DeviceError."""
        own = {device.where.family for device in devices if device.kind == "torch" and not device.core_set}
        if len(own) != 1 or any(device.kind != "torch" for device in devices):
            return None
        from placeit.runtime.accelerators.torch_library import open_accelerator

        return open_accelerator(devices, precision)

    def supported(self, model: Model, device: Device) -> Collection[str]:
        """Return the ops that PyTorch has kernels for. Raises DeviceError if the model is not a PyTorch model."""
        if not isinstance(model, TorchKernels):
            raise DeviceError(f"PyTorch drives {device.name}, and {model.path} is not a PyTorch model: choose other devices.")
        if not device.where.node:
            return model.with_kernel(device.where.family.upper())
        graph = model.graph
        whole = model.segment("torch", range(len(graph)), [], [])
        calls = [name for name, kind in zip(graph.names, graph.kinds, strict=True) if kind not in ("Parameter", "Result")]
        return set(graph.names) - {calls[number] for number in call_with_program(_without_kernel, "torch", whole, device)}

    def open_sizes(self, device: Device) -> bool:
        """Return whether the device is a core set: streams run one size."""
        return device.core_set


def _without_kernel(module: Any, device: Device) -> list[int]:
    from placeit.backends.torch.supported_ops import calls_without_kernel

    return calls_without_kernel(module, device.where.family.upper())


KIND = TorchKind()
