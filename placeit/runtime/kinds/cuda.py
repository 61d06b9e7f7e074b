"""NVIDIA GPUs as hardware: which model runs there decides whether PyTorch or ONNX Runtime drives them."""

from __future__ import annotations

from dataclasses import replace

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError
from placeit.core.extras import install, installed
from placeit.devices.kinds import Kind
from placeit.devices.nvml import Gpu, gpus, why_not
from placeit.devices.openvino import openvino_core

__all__ = ["KIND"]

_LACKING = (
    f"no package that drives it is installed. ONNX models need CuPy and onnxruntime-gpu: {install('cuda')} onnxruntime-gpu. "
    "PyTorch models need a PyTorch built with CUDA."
)


class _NvidiaGpus(Kind):
    """GPUs that the NVIDIA driver lists, if the package nvidia-ml-py is installed."""

    formats = ()
    on_nodes = True

    def devices(self) -> list[Device]:
        """Return the GPUs of this machine; they are unusable if no package that drives them is installed."""
        lacking = "" if installed("cupy") or installed("torch") else _LACKING
        return [replace(_device(gpu), unusable=lacking) for gpu in gpus()]

    def find(self, address: Address) -> Device:
        """Return a GPU, or a part of one, by its address. Raises DeviceError if the driver does not list it."""
        for gpu in gpus():
            if gpu.name == address.hardware:
                of = "" if address.part == (1, 1) else ", part {} of {}".format(*address.part)
                return replace(_device(gpu), name=str(address), address=address, full_name=f"{gpu.full_name}{of}")
        raise DeviceError(
            f"placeit finds no NVIDIA GPU '{address.hardware}' on this machine: {why_not(address.hardware)}. "
            f"OpenVINO finds: {', '.join(openvino_core().available_devices)}."
        )


KIND = _NvidiaGpus()


def _device(gpu: Gpu) -> Device:
    return Device(
        name=gpu.name,
        kind="cuda",
        address=Address(gpu.name),
        full_name=gpu.full_name,
        memory_bytes=gpu.memory_bytes,
        driver=f"NVIDIA {gpu.driver}",
    )
