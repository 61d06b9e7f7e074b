"""What stands in for hardware and packages that are missing here, and the models for PyTorch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.runtime.accelerators import ort_program
from placeit.runtime.accelerators.stream_accelerator import StreamAccelerator
from placeit.runtime.accelerators.torch_library import TorchLibrary
from placeit.runtime.devices import ort
from placeit.testing.features import SIZE, Layers, Models
from placeit.workbench.options import Inputs
from tests.eager_streams import run_at_once
from tests.plugin_site import install_sample
from tests.recorded_plugins import NPU, forget, see


@contextmanager
def npu() -> Iterator[None]:
    """Have OpenVINO list an NPU, which answers as a real one did, and computes on the CPU."""
    with pytest.MonkeyPatch.context() as patch:
        see(patch, NPU=NPU)
        yield
    forget()


@contextmanager
def streams() -> Iterator[None]:
    """Give PyTorch's device ``cpu`` streams and events, and let it pass for NVIDIA GPUs."""
    with pytest.MonkeyPatch.context() as patch:
        run_at_once(patch)
        patch.setattr(ort_program, "check_device", _checked)
        patch.setattr(ort, "provider", lambda _: ort_program.provider(None))
        patch.setattr(ort_program, "_library", lambda name: TorchLibrary("cpu"))
        patch.setattr(ort_program, "StreamAccelerator", _on_cpu)
        yield


def _on_cpu(gpus: Sequence[Device], library: TorchLibrary) -> StreamAccelerator:
    return StreamAccelerator([replace(gpu, address=_CPU[gpu.name]) for gpu in gpus], library)


_check_device = ort_program.check_device


def _checked(device: Device, precision: str) -> None:
    """Check what needs no GPU."""
    _check_device(replace(device, address=Address("CPU")), precision)


_CPU = {"cuda:0": Address("cpu"), "cuda:1": Address("cpu:0")}


def torch_gpus() -> Cluster:
    return Cluster(tuple(Device(name, "torch", cpu) for name, cpu in _CPU.items()))


def ort_gpus() -> Cluster:
    return Cluster(tuple(Device(name, "ort", Address(name)) for name in _CPU))


@contextmanager
def plug_in() -> Iterator[None]:
    """Install the sample plug-in for this process."""
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        for path in install_sample(Path(folder)):
            patch.syspath_prepend(path)
        importlib.invalidate_caches()
        yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "placeit_round_robin"]:
        del sys.modules[name]


class _Fixed(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for k, weights in enumerate(Layers().weights):
            self.register_buffer(f"w_{k}", torch.from_numpy(weights))

    def forward(self, x: torch.Tensor, past_0: torch.Tensor, past_1: torch.Tensor) -> dict[str, torch.Tensor]:
        first = past_0 + x
        second = past_1 + torch.tanh(first @ self.w_0)
        return {"y": torch.tanh(second @ self.w_1), "present_0": first, "present_1": second}


class _Stateful(_Fixed):
    def __init__(self) -> None:
        super().__init__()
        for k in range(2):
            self.register_buffer(f"total_{k}", torch.zeros(1, SIZE))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        self.total_0 += x
        self.total_1 += torch.tanh(self.total_0 @ self.w_0)
        return {"y": torch.tanh(self.total_1 @ self.w_1)}


def torch_models(folder: Path) -> Models:
    """Export the model with PyTorch."""

    def exported(module: torch.nn.Module, name: str, *inputs: str, rows: torch.export.Dim | None = None) -> Path:
        examples = {name: torch.zeros(1 if rows is None else 2, SIZE) for name in inputs}
        sizes = None if rows is None else {name: {0: rows} for name in inputs}
        torch.export.save(torch.export.export(module, (), examples, dynamic_shapes=sizes), folder / name)
        return folder / name

    inputs = "x", "past_0", "past_1"
    sized = exported(_Fixed(), "sized.pt2", *inputs, rows=torch.export.Dim("rows", min=1, max=SIZE))
    return Models(
        fixed=(exported(_Fixed(), "layers.pt2", *inputs), None),
        sized=(sized, Inputs(shapes=dict.fromkeys(inputs, (f"1..{SIZE}@4", SIZE)))),
        stateful=(exported(_Stateful(), "stateful.pt2", "x"), None),
    )
