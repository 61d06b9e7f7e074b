"""The task graph of a lowered PyTorch program."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from placeit.backends.digest import constant_digest, digest
from placeit.backends.torch.flops import node_flops, written_outputs
from placeit.backends.torch.open_sizes import is_size
from placeit.backends.torch.program import Lowered, Value, indexed_value, op_name, reads
from placeit.core.graph import OpGraph
from placeit.core.weights import weights_of

__all__ = ["ProgramMap", "build_graph", "dtype_name"]


@dataclass(frozen=True, eq=False)
class ProgramMap:
    """Maps ops and tensors of a task graph to the nodes of the program.

    Attributes:
        nodes: for each op, its node: the placeholder of a ``Parameter``, or the call of an ATen op; None for a ``Result``.
        values: for each tensor, the value in the program.
        results: for each ``Result``, by op number, the returned value.
    """

    nodes: tuple[Node | None, ...]
    values: tuple[Value, ...]
    results: dict[int, Value]


def dtype_name(dtype: torch.dtype) -> str:
    """Return the NumPy spelling of an element type, if NumPy has one."""
    return str(dtype).removeprefix("torch.")


def build_graph(program: Lowered) -> tuple[OpGraph, ProgramMap]:
    """Build the task graph of a program.

    Ops are the inputs (kind ``Parameter``), the calls of ATen ops, and the outputs (kind ``Result``). A constant belongs to the
    ops that read it, and each of them counts all of its bytes, since each needs it on its device. An op that returns several
    tensors is one op; indexing its result is not an op.
    """
    names: dict[str, int] = {}
    kinds: list[str] = []
    nodes: list[Node | None] = []
    tensors: dict[Value, int] = {}
    tensor_op: list[int] = []
    tensor_port: list[int] = []
    values: list[torch.Tensor] = []
    flops: list[float] = []
    weights: list[dict[Hashable, float]] = []
    edges: list[tuple[int, int]] = []
    edge_tensor: list[int] = []

    def add(name: str, kind: str, node: Node | None, operations: float, read: list[Value]) -> int:
        while name in names:
            name += "_"
        op = names[name] = len(names)
        kinds.append(kind)
        nodes.append(node)
        flops.append(operations)
        weights.append({value: float(_bytes(program.constants[value])) for value in read if value in program.constants})
        for number in dict.fromkeys(tensors[value] for value in read if value not in program.constants):
            edges.append((tensor_op[number], op))
            edge_tensor.append(number)
        if node is not None:
            for port, (place, tensor) in enumerate(written_outputs(node.meta["val"])):
                tensors[node, place] = len(values)
                tensor_op.append(op)
                tensor_port.append(port)
                values.append(tensor)
        return op

    for name, node in program.inputs.items():
        add(name, "Parameter", node, 0.0, [])
    for node in program.ops:
        add(op_name(node), _kind(node), node, _flops(node), reads(node))
    results = {add(f"{name}/result", "Result", None, 0.0, [value]): value for name, value in program.outputs.items()}
    param_bytes, shared = weights_of(weights)
    return (
        OpGraph(
            names=tuple(names),
            kinds=tuple(kinds),
            flops=np.array(flops),
            param_bytes=param_bytes,
            tensor_op=np.array(tensor_op, np.int32),
            tensor_port=np.array(tensor_port, np.int32),
            tensor_bytes=np.array([_bytes(tensor) for tensor in values], np.float64),
            tensor_shapes=tuple(tuple(map(int, tensor.shape)) for tensor in values),
            tensor_dtypes=tuple(dtype_name(tensor.dtype) for tensor in values),
            edges=np.array(edges, np.int32).reshape(-1, 2),
            edge_tensor=np.array(edge_tensor, np.int32),
            content=_content(program),
            shared=shared,
        ).verify(),
        ProgramMap(tuple(nodes), tuple(tensors), results),
    )


def _content(program: Lowered) -> str:
    """Return a hash of the ops: overloads, arguments, inputs, and constants (:mod:`placeit.backends.digest`)."""
    place = {node: number for number, node in enumerate((*program.inputs.values(), *program.ops))}

    def named(read: Node) -> str:
        if is_size(read):
            return str((str(read.target), map_arg((read.args, read.kwargs), named)))
        node, ports = indexed_value(read)
        return f"%{place[node]}{ports}" if node in place else _constant(program.constants[node, ports])

    parts: list[object] = [(str(node.target), map_arg((node.args, node.kwargs), named)) for node in program.ops]
    parts += [
        place[value[0]] if value[0] in place else _constant(program.constants[value]) for value in program.outputs.values()
    ]
    return digest(parts)


def _constant(tensor: torch.Tensor) -> str:
    return constant_digest(
        dtype_name(tensor.dtype), tuple(tensor.shape), lambda: bytes(tensor.reshape(-1).view(torch.uint8).numpy())
    )


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _kind(node: Node) -> str:
    return str(node.target._schema.name.removeprefix("aten::"))  # type: ignore[union-attr]


def _flops(node: Node) -> float:
    args: Any
    kwargs: Any
    args, kwargs = map_arg((node.args, node.kwargs), lambda read: read.meta["val"])
    return node_flops(node.target, args, kwargs, node.meta["val"])
