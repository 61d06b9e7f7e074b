"""Segments of PyTorch programs as bytes, for PyTorch in another process.

``torch.export`` would trace a segment anew and rename its ops, whose names errors refer to. A pickled ``GraphModule`` has only
the source of its code.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from placeit.core.errors import DeviceError, first_line

__all__ = ["from_files", "to_files"]


class _NodeRef(NamedTuple):
    """A reference to a node of the graph, in the arguments of another node."""

    name: str


class _Operator(NamedTuple):
    """An operator of PyTorch, or of a library that extends it."""

    namespace: str
    name: str
    overload: str


class _Shape(NamedTuple):
    """Shape and type of a tensor that a node makes."""

    shape: tuple[int, ...]
    dtype: torch.dtype


class _NodeRecord(NamedTuple):
    """A node of the graph."""

    op: str
    name: str
    target: Any
    args: Any
    kwargs: Any
    value: Any


_weights: WeakValueDictionary[str, torch.Tensor] = WeakValueDictionary()
"""Weights of the modules that exist, by key, so that several modules share them."""


def to_files(module: torch.nn.Module) -> list[bytes]:
    """Return a segment as bytes: its pickled graph, then each of its weights.

    Raises:
        DeviceError: the module is no graph of operators.
    """
    if not isinstance(module, GraphModule):
        raise DeviceError(f"A {type(module).__name__} is no graph of PyTorch's operators, and only those are sent to nodes.")
    weights = dict(module.named_buffers())
    try:
        graph = pickle.dumps((_records(module), [*weights]))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise DeviceError(f"A segment has an argument that cannot be sent to a node: {first_line(error)}.") from error
    return [graph, *map(_saved, weights.values())]


def _records(module: GraphModule) -> list[_NodeRecord]:
    records = []
    for node in module.graph.nodes:
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            target = _Operator(target.namespace, target._schema.name.partition("::")[2], target._overloadname)
        args, kwargs = map_arg((node.args, node.kwargs), lambda read: _NodeRef(read.name))
        value = pytree.tree_map(_shape, node.meta.get("val"))
        records.append(_NodeRecord(node.op, node.name, target, args, kwargs, value))
    return records


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Shape(tuple(value.shape), value.dtype)
    return value if isinstance(value, int | float) else None


def _saved(weight: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(weight.detach().clone(), file)  # without the clone, all of its storage would be saved
    return file.getvalue()


def from_files(files: Sequence[bytes], keys: Sequence[str]) -> GraphModule:
    """Return the module that :func:`to_files` has converted to bytes. The first file is unpickled: it must be trusted.

    Args:
        files: the graph and the weights.
        keys: for each file, a key; weights with equal keys share memory. Empty for a weight that shares no memory.

    Raises:
        DeviceError: an operator does not exist in this process.
    """
    records, names = pickle.loads(files[0])  # noqa: S301
    root, graph = torch.nn.Module(), Graph()
    for name, data, key in zip(names, files[1:], keys[1:], strict=True):
        weight = _weights.get(key) if key else None
        if weight is None:
            weight = torch.load(io.BytesIO(data), weights_only=True)
            if key:
                _weights[key] = weight
        root.register_buffer(name, weight)
    nodes: dict[str, Node] = {}

    def resolved(value: Any) -> Any:
        return nodes[value.name] if isinstance(value, _NodeRef) else value

    for record in records:
        target = _operator(record.target) if isinstance(record.target, _Operator) else record.target
        args, kwargs = _replaced(record.args, resolved), _replaced(record.kwargs, resolved)
        nodes[record.name] = graph.create_node(record.op, target, args, kwargs, record.name)
        nodes[record.name].meta["val"] = _replaced(record.value, _tensor)
    return GraphModule(root, graph, "Segment")


def _replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    return pytree.tree_map(change, value, is_leaf=lambda one: isinstance(one, _NodeRef | _Shape))


def _tensor(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, _Shape) else value


def _operator(operator: _Operator) -> Any:
    try:
        return getattr(getattr(getattr(torch.ops, operator.namespace), operator.name), operator.overload)
    except AttributeError as error:
        raise DeviceError(
            f"PyTorch {torch.__version__} has no operator '{operator.namespace}::{operator.name}.{operator.overload}': import "
            "the package that defines it, or install another version."
        ) from error
