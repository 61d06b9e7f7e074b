"""Element types of inputs and outputs of a PyTorch program: bfloat16, which NumPy lacks, is float32 for callers."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node

__all__ = ["as_array", "convert_border"]


def as_array(tensor: torch.Tensor) -> NDArray[np.generic]:
    """Return a tensor as an array, in the same memory if possible. A bfloat16 tensor is converted to float32."""
    if tensor.dtype is torch.bfloat16:
        tensor = tensor.float()
    try:
        array: NDArray[np.generic] = tensor.numpy()
    except (RuntimeError, TypeError):  # it requires gradients, say
        array = tensor.numpy(force=True)  # several ops
    return array


def convert_border(program: ExportedProgram) -> None:
    """Change bfloat16 inputs and outputs of a program to float32, and convert them inside the program."""
    graph, signature = program.graph, program.graph_signature
    first = next(node for node in graph.nodes if node.op != "placeholder")
    for node, spec in zip(graph.find_nodes(op="placeholder"), signature.input_specs, strict=True):
        if spec.kind is InputKind.USER_INPUT and _is_bfloat16(node):
            readers = list(node.users)
            node.meta["val"] = node.meta["val"].float()
            call = _converted(node, torch.bfloat16, before=first)
            for reader in readers:
                reader.replace_input_with(node, call)
    (end,) = graph.find_nodes(op="output")
    results = list(end.args[0])
    for i, spec in enumerate(signature.output_specs):
        if spec.kind is OutputKind.USER_OUTPUT and _is_bfloat16(results[i]):
            results[i] = _converted(results[i], torch.float32, before=end)
    end.args = (tuple(results),)


def _converted(node: Node, dtype: torch.dtype, *, before: Node) -> Node:
    with node.graph.inserting_before(before):
        call: Node = node.graph.call_function(torch.ops.aten._to_copy.default, (node,), {"dtype": dtype})
    call.meta["val"] = node.meta["val"].to(dtype)
    return call


def _is_bfloat16(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return isinstance(value, torch.Tensor) and value.dtype is torch.bfloat16
