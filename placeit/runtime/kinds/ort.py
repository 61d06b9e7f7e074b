"""Devices that ONNX Runtime drives: the host runs core sets, and streams run NVIDIA GPUs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.memory import trim_memory
from placeit.devices.onnxruntime import has_onnxruntime, onnxruntime, onnxruntime_failure
from placeit.runtime.devices.base import RuntimeDevice
from placeit.runtime.devices.kinds import DeviceKind
from placeit.runtime.nodes.remote_calls import call_at_device

if TYPE_CHECKING:
    from placeit.backends.base import Format, Model
    from placeit.runtime.devices.accelerator import Streams

__all__ = ["KIND"]


class _OrtKind(DeviceKind):
    """Core sets (:class:`placeit.runtime.devices.ort.OrtDevice`) and GPUs, for ONNX models and PyTorch models as ONNX."""

    label = "ONNX Runtime"
    formats: tuple[Format, ...] = ("onnx",)
    package = "onnxruntime"
    hardware = ("CPU", "cuda")
    elsewhere = "runs on the CPU and on NVIDIA GPUs (ort:CPU@0, ort:cuda:0), not on {}"
    whole_file: Format | None = "onnx"
    on_nodes = True

    def installed(self) -> bool:
        """Return whether ONNX Runtime is installed, with the package that reads its files, and can be imported."""
        return has_onnxruntime()

    def unusable(self) -> str:
        """Return why importing ONNX Runtime fails or ends a process; empty if it does not, or is not installed."""
        return onnxruntime_failure()

    def version(self) -> str:
        """Return ONNX Runtime's version. Raises DeviceError if it is not installed."""
        return f"ONNX Runtime {onnxruntime().__version__}"

    def open(self, device: Device, precision: str) -> RuntimeDevice:
        """Open a device. Raises DeviceError."""
        from placeit.runtime.devices.ort import OrtDevice, on_gpu

        if not on_gpu(device):
            return OrtDevice(device, precision=precision)
        from placeit.runtime.accelerators.ort_program import open_streams
        from placeit.runtime.accelerators.stream_device import StreamDevice

        return StreamDevice(open_streams([device], precision))

    def streams(self, devices: Sequence[Device], precision: str) -> Streams | None:
        """Drive GPUs through streams; None if one of the devices is something else. Raises DeviceError."""
        from placeit.runtime.devices.ort import on_gpu

        if not all(device.kind == "ort" and on_gpu(device) for device in devices):
            return None
        from placeit.runtime.accelerators.ort_program import open_streams

        return open_streams(devices, precision)

    def supported(self, model: Model, device: Device) -> Collection[str]:
        """Return the ops that ONNX Runtime has kernels for; to find out, make a session of one op of each kind.

        Of a PyTorch model, core sets run the ops that can be converted. Raises DeviceError if the device runs none of the ops,
        or if the model is neither an ONNX model nor can be converted.
        """
        from placeit.backends.base import ConvertsOps, OnnxKinds
        from placeit.backends.onnx.whole import WholeOnnxModel
        from placeit.runtime.devices.ort import on_gpu, refusals_here

        if isinstance(model, WholeOnnxModel):
            return model.graph.names
        if isinstance(model, ConvertsOps) and "onnx" in model.formats and not on_gpu(device):
            return model.converted_ops("onnx")
        if not isinstance(model, OnnxKinds):
            raise DeviceError(
                f"ONNX Runtime drives {device.name}, and {model.path} is not an ONNX model: write it as one (`placeit export "
                "model.pt2 -o model.onnx`), or choose other devices."
            )
        if model.states and on_gpu(device):
            raise DeviceError(
                f"{device.name}: ONNX Runtime keeps no state on GPUs, and {model.path} has some ('{model.states[0].name}'): "
                "choose other devices, or leave caches inputs with --state none."
            )
        kinds = list(model.onnx_kinds())
        version, answers = call_at_device(refusals_here, device, [example for _, example in kinds])
        trim_memory()  # an If has the weights of its branches
        found = {op for (ops, _), why in zip(kinds, answers, strict=True) if why is None for op in ops}
        refused = [why for why in answers if why is not None]
        if refused and not found:
            raise DeviceError(
                f"ONNX Runtime {version} can run nothing of {model.path} on {device.name}: {refused[0]}. Install a version "
                "of it that can, or choose devices that OpenVINO drives."
            )
        return found

    def compiled(self, cores: Device) -> Device | None:
        """Return ONNX Runtime's device on a core set of PyTorch, whose models can be converted; None for other core sets."""
        return cores.driven_by("ort") if cores.kind == "torch" and self.installed() else None

    def open_sizes(self, device: Device) -> bool:
        """Return whether the device is a core set: streams run one size."""
        return device.core_set


KIND = _OrtKind()
