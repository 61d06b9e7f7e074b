"""PyTorch modules as programs for streams."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from itertools import chain
from typing import Any, TypeAlias
from weakref import WeakValueDictionary

import torch
from torch.fx import GraphModule
from torch.fx.node import map_aggregate
from torch.utils import _pytree as pytree

from placeit.backends.torch.segment_memory import peak_bytes
from placeit.core.errors import NoRoomError
from placeit.core.units import about_bytes
from placeit.runtime.devices.accelerator import Replayable

__all__ = ["ModuleProgram", "wait_for_default_stream"]

_Weight: TypeAlias = tuple[torch.device, int, int, tuple[int, ...], tuple[int, ...], torch.dtype]

_VARYING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded}
"""Tags of ops whose launches depend on values or on a seed."""

_copies: WeakValueDictionary[_Weight, torch.Tensor] = WeakValueDictionary()
"""Copies of weights on devices. Loaded programs of all plans share them, and keep them alive."""


class ModuleProgram:
    """A module that maps tensors to a tuple of tensors, such as a segment's ``in_format("torch")``.

    Args:
        module: the module, which is not moved. All programs on a device share a copy of the weights there; the CPU uses the
            weights in place.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._module = module
        self._tensors = {id(tensor): tensor for tensor in chain(module.parameters(), module.buffers())}

    def workspace_bytes(self, enough: float) -> int:
        """Return the bytes of a launch's intermediate tensors, including its outputs, which are copied.

        Returns 0 for a module that is not a graph: they are unknown. Memory that kernels allocate is not included: if it runs
        out, the launch fails, and later launches may succeed.
        """
        if not isinstance(self._module, GraphModule):
            return 0
        return self._total_bytes if self._total_bytes <= enough else self._peak_bytes

    @functools.cached_property
    def _total_bytes(self) -> int:
        """Bytes of all intermediate tensors together, as if none were freed and every view were a copy."""
        assert isinstance(self._module, GraphModule)  # noqa: S101
        made = (node.meta.get("val") for node in self._module.graph.nodes if node.op == "call_function")
        return sum(leaf.nbytes for value in made for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor))

    @functools.cached_property
    def _peak_bytes(self) -> int:
        assert isinstance(self._module, GraphModule)  # noqa: S101
        return peak_bytes(self._module)

    def weight_bytes(self, place: object) -> int:
        """Return the bytes of the parameters and buffers that are not on the device yet."""
        assert isinstance(place, torch.device)  # noqa: S101 (what TorchLibrary.place returns)
        if place.type == "cpu":
            return 0
        return sum(tensor.nbytes for tensor in self._tensors.values() if _weight(tensor, place) not in _copies)

    def load(self, place: object) -> LoadedModule:
        """Copy the weights to a device. Raises NoRoomError if they do not fit."""
        assert isinstance(place, torch.device)  # noqa: S101 (what TorchLibrary.place returns)
        if place.type == "cpu":
            return LoadedModule(self._module, self._module)
        moved: dict[int, torch.Tensor] = {}
        try:
            for key, tensor in self._tensors.items():
                there = _copies.get(_weight(tensor, place))
                if there is None:
                    there = _copies[_weight(tensor, place)] = tensor.detach().to(place, copy=True)
                moved[key] = there
        except torch.OutOfMemoryError as error:
            raise NoRoomError(f"{place} is out of memory for {about_bytes(self.weight_bytes(place))} of weights.") from error
        wait_for_default_stream(place)  # weights are copied on it, and no other stream waits for it
        # the copy of the module refers to the copies of the weights on the device
        loaded = copy.deepcopy(self._module, memo=dict(moved))
        if isinstance(loaded, GraphModule):  # a traced graph names its device in every op that makes a tensor
            for node in loaded.graph.nodes:
                node.args = map_aggregate(node.args, lambda value: place if isinstance(value, torch.device) else value)
                node.kwargs = map_aggregate(node.kwargs, lambda value: place if isinstance(value, torch.device) else value)
            loaded.recompile()
        return LoadedModule(loaded, self._module)


class LoadedModule:
    """A module on a device.

    Its results are copied to buffers on the same stream, so that a value has the same address for the life of an executor,
    whatever PyTorch's allocator does.

    Args:
        module: the module on the device.
        source: the module with the original weights. It is kept alive, since copies of weights are found by the addresses of
            the originals.

    Attributes:
        replayable: whether every launch at the same addresses launches the same kernels: no op depends on computed values or on
            a seed, and no user code runs.
    """

    def __init__(self, module: torch.nn.Module, source: torch.nn.Module) -> None:
        self._forward, self._source = module.forward, source
        self.replayable = _replayable(module)

    def launch(self, inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor]) -> None:
        """Call the module."""
        for output, result in zip(outputs, self._forward(*inputs), strict=True):
            output.copy_(result, non_blocking=True)


def wait_for_default_stream(place: torch.device) -> None:
    """Wait for everything launched on the current stream of a device, which is the default stream unless another was set.

    This does not wait for the whole device, since that is an error while a thread records a graph there.
    """
    module: Any = torch.get_device_module(place) if place.type != "meta" else None
    if hasattr(module, "current_stream"):
        module.current_stream(place).synchronize()
    elif module is not None:
        module.synchronize(place)


def _replayable(module: torch.nn.Module) -> bool:
    if not isinstance(module, GraphModule):
        return isinstance(module, Replayable) and module.replayable
    calls = [node.target for node in module.graph.nodes if node.op not in ("placeholder", "get_attr", "output")]
    return all(
        not _VARYING & set(call.tags)
        if isinstance(call, torch._ops.OpOverload)
        else getattr(call, "__module__", "") == "_operator"
        for call in calls
    )


def _weight(tensor: torch.Tensor, place: torch.device) -> _Weight:
    """Return the key of a weight, valid while it exists: its address and layout."""
    return place, tensor.data_ptr(), int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype
