"""Find the ops that PyTorch can run on a kind of device."""

from __future__ import annotations

import operator
from collections.abc import Iterable
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from placeit.backends.torch.open_sizes import is_size
from placeit.backends.torch.program import indexed_value, meta_tensor

__all__ = ["calls_without_kernel", "without_kernel"]

_BASIC_TYPES = (torch.float32, torch.float64)
"""Element types for which every kernel of a device works."""


def without_kernel(nodes: Iterable[Node], dispatch_key: str) -> set[Node]:
    """Return the calls of ops that PyTorch cannot run on a kind of device.

    The dispatcher knows which ops have a kernel on the device, but not for which types. So each op that works with another type
    than float32 and float64 is called there once, on zeros of its shapes.

    Args:
        nodes: calls of ops, with fake tensors in ``meta["val"]``.
        dispatch_key: PyTorch's name of the kind, ``CPU`` or ``CUDA``. In a build without it no op has a kernel, though the
            dispatcher would report one for ops that are composed of others.
    """
    if not _registered("aten::empty.memory_format", dispatch_key):
        return set(nodes)
    missing: set[Node] = set()
    cached: dict[str, bool] = {}  # whether a kernel exists, by call
    for node in nodes:
        target: Any = node.target
        call = str((target, *map_arg((node.args, node.kwargs), _signature)))
        if call not in cached:
            cached[call] = _registered(target.name(), dispatch_key) and (
                _types(node).issubset(_BASIC_TYPES) or _runs(node, dispatch_key.lower())
            )
        if not cached[call]:
            missing.add(node)
    return missing


def calls_without_kernel(module: GraphModule, dispatch_key: str) -> list[int]:
    """Return the numbers of the calls of ops in a segment that PyTorch cannot run on a kind of device.

    Calls are counted in the order of the graph, without indexing of results and arithmetic on sizes.
    """
    nodes = list(module.graph.nodes)
    for node in nodes:
        if node.op == "get_attr":
            node.meta["val"] = getattr(module, str(node.target))
        elif node.target is operator.getitem:
            node.meta["val"] = meta_tensor(indexed_value(node))
    calls = [node for node in nodes if node.op == "call_function" and node.target is not operator.getitem and not is_size(node)]
    missing = without_kernel(calls, dispatch_key)
    return [number for number, node in enumerate(calls) if node in missing]


def _registered(op: str, dispatch_key: str) -> bool:
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(op, dispatch_key)


def _signature(read: Node) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: (tensor.dtype, tuple(tensor.shape)), read.meta["val"])


def _types(node: Node) -> set[torch.dtype]:
    leaves = pytree.tree_leaves([used.meta["val"] for used in (node, *node.all_input_nodes)])
    return {leaf.dtype for leaf in leaves if isinstance(leaf, torch.Tensor)}


def _runs(node: Node, device: str) -> bool:
    """Return whether the kernel of a call exists, by calling it on zeros.

    Errors other than a missing kernel are due to the zeros, or to the machine.
    """

    def zeros(read: Node) -> Any:
        return pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: torch.zeros((), dtype=tensor.dtype, device=device).expand(tensor.shape),
            read.meta["val"],
        )

    target: Any = node.target
    try:
        with torch.inference_mode():
            target(*map_arg(node.args, zeros), **map_arg(node.kwargs, zeros))
    except NotImplementedError:
        return False
    except (RuntimeError, ValueError, TypeError, LookupError):
        pass
    return True
