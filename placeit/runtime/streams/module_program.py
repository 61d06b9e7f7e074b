"""PyTorch modules as programs for streams."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import chain
from typing import cast

import torch
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from placeit.errors import DeviceError
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Plan
from placeit.runtime.streams.work import Work

__all__ = ["ModuleProgram", "work_of"]


class ModuleProgram:
    """A module from tensors to a tuple of tensors, such as a segment's ``torch_module()``.

    What the module returns is copied to where its readers expect it, by the same stream: a value has one address for the life
    of an executor, whatever PyTorch's allocator does, and a graph can be captured.

    Args:
        module: stays where it is; a device gets its own copy of the weights.
        workspace_bytes: what a launch needs for what it makes meanwhile, outputs included; an estimate will do, as memory that
            runs out is an error that is survived.
    """

    def __init__(self, module: torch.nn.Module, *, workspace_bytes: int = 0) -> None:
        self._module, self.workspace_bytes = module, workspace_bytes
        self._tensors = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}
        self._loaded: torch.nn.Module | None = None
        self._loads = 0

    @property
    def weight_bytes(self) -> int:
        """Bytes of parameters and buffers; nothing once they are loaded."""
        return 0 if self._loaded is not None else sum(tensor.nbytes for tensor in self._tensors.values())

    def load(self, place: object) -> None:
        """Copy the weights to a device. Raises DeviceError if they do not fit."""
        self._loads += 1
        if self._loaded is not None:
            return
        assert isinstance(place, torch.device)  # noqa: S101 (what TorchAccelerator.place returns)
        try:
            # every reference to a weight in the copy becomes one to its copy on the device
            moved = {key: tensor.detach().to(place, copy=True) for key, tensor in self._tensors.items()}
        except torch.OutOfMemoryError as error:
            self._loads -= 1
            raise DeviceError(f"{place} is out of memory for {self.weight_bytes} bytes of weights.") from error
        if place.type not in ("cpu", "meta"):
            torch.get_device_module(place).synchronize(place)  # weights come by the default stream, which no other waits for
        self._loaded = copy.deepcopy(self._module, memo=dict(moved))
        if isinstance(self._loaded, GraphModule):  # what was traced on one device says so in every op that makes a tensor
            for node in self._loaded.graph.nodes:
                node.args = map_aggregate(node.args, lambda value: place if isinstance(value, torch.device) else value)
                node.kwargs = map_aggregate(node.kwargs, lambda value: place if isinstance(value, torch.device) else value)
            self._loaded.recompile()

    def launch(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Call the module."""
        assert self._loaded is not None  # noqa: S101 (an executor loads what it launches)
        results = self._loaded(*inputs)
        for output, result in zip(outputs, results, strict=True):
            output.copy_(result, non_blocking=True)

    def unload(self) -> None:
        """Let go of the copy when the last of those who loaded it does."""
        self._loads -= 1
        if not self._loads:
            self._loaded = None


def work_of(runtime: Runtime, plan: Plan) -> Work:
    """What a plan of a PyTorch model asks a stream executor to do.

    Args:
        runtime: of the model. It needs no devices of its own: ``Runtime(model, grouping, cluster, devices=())``.
        plan: its segments.

    Raises:
        DeviceError: the model is not a PyTorch one.
    """
    programs = [
        None if segment.free else ModuleProgram(cast("torch.nn.Module", runtime.source(segment).torch_module()))
        for segment in plan.segments
    ]
    return Work.of(runtime, plan, programs)
