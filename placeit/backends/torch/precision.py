"""Segments of PyTorch programs in a shorter precision."""

from __future__ import annotations

import torch
from torch.fx import Graph, GraphModule, Node

from placeit.core.errors import DeviceError

__all__ = ["in_precision"]

_TYPES = {"f16": torch.float16, "bf16": torch.bfloat16}

_PRODUCTS = frozenset(
    (
        *("addbmm", "addmm", "addmv", "baddbmm", "bilinear", "bmm", "linear", "matmul", "mm", "mv"),
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution"),
        "scaled_dot_product_attention",
    )
)
"""Ops that are computed in the precision, as with ``torch.autocast``: their kernels add up in float32."""


def in_precision(module: torch.nn.Module, precision: str) -> torch.nn.Module:
    """Return a segment that computes products of float32 in a precision, with copies of their weights in that type.

    Other ops, inputs and outputs stay float32, and ops in other types stay as they are.

    Args:
        module: a module from :meth:`placeit.backends.torch.model.TorchModel.segment`, which is not changed.
        precision: ``f32``, ``f16`` or ``bf16``.

    Raises:
        DeviceError: the module is no graph of operators.
    """
    if precision == "f32":
        return module
    if not isinstance(module, GraphModule):
        raise DeviceError(f"A {type(module).__name__} computes in its own types, not in {precision}: use the precision f32.")
    return _PrecisionRewriter(module, _TYPES[precision]).result()


class _PrecisionRewriter:
    """Copies a segment's graph, and computes products in a shorter type."""

    def __init__(self, module: GraphModule, dtype: torch.dtype) -> None:
        self.module, self.dtype = module, dtype
        self.graph, self.root = Graph(), torch.nn.Module()
        self.full: dict[Node, Node] = {}  # the copy of each node, in its own type
        self.short: dict[Node, Node] = {}  # the copy of each node that a product reads, in the shorter type

    def result(self) -> GraphModule:
        for node in self.module.graph.nodes:
            if node.op == "get_attr":
                continue  # copied where they are read: most weights are needed in the shorter type only
            if _is_product(node):
                made = self.graph.node_copy(node, self._short_copy)
                made.meta["val"] = _like(node.meta["val"], self.dtype)
                self.full[node] = self._converted(made, torch.float32)
            else:
                self.full[node] = self.graph.node_copy(node, self._full_copy)
        return GraphModule(self.root, self.graph, "Segment")

    def _full_copy(self, read: Node) -> Node:
        if read not in self.full:
            name = str(read.target)
            self.root.register_buffer(name, self.module.get_buffer(name))
            self.full[read] = self.graph.get_attr(name)
        return self.full[read]

    def _short_copy(self, read: Node) -> Node:
        if _type_of(read, self.module) is not torch.float32:
            return self._full_copy(read)
        if read not in self.short:
            if read.op == "get_attr":
                name = f"{read.target}_short"
                self.root.register_buffer(name, self.module.get_buffer(str(read.target)).to(self.dtype))
                self.short[read] = self.graph.get_attr(name)
            else:
                self.short[read] = self._converted(self._full_copy(read), self.dtype)
        return self.short[read]

    def _converted(self, node: Node, dtype: torch.dtype) -> Node:
        call = self.graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
        call.meta["val"] = _like(node.meta["val"], dtype)
        return call


def _like(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor without data. Two threads cannot convert fake tensors at the same time."""
    return torch.empty(tuple(value.shape), dtype=dtype, device="meta")


def _is_product(node: Node) -> bool:
    made = node.meta.get("val")
    kind = getattr(getattr(node.target, "_schema", None), "name", "").removeprefix("aten::")
    return kind in _PRODUCTS and isinstance(made, torch.Tensor) and made.dtype is torch.float32


def _type_of(node: Node, module: GraphModule) -> torch.dtype | None:
    value = module.get_buffer(str(node.target)) if node.op == "get_attr" else node.meta.get("val")
    return value.dtype if isinstance(value, torch.Tensor) else None
