"""Segments of PyTorch programs as bytes, for PyTorch in another process.

``torch.export`` would trace a segment anew and rename its ops, by which errors name them, and ``pickle`` of a module keeps the
source of its code only.
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


class _Named(NamedTuple):
    """A node of the graph as an argument of another one."""

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


class _Line(NamedTuple):
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
    """Return a segment's graph, which is a pickle, and then each of its weights.

    Raises:
        DeviceError: the module is no graph of operators.
    """
    if not isinstance(module, GraphModule):
        raise DeviceError(f"A {type(module).__name__} is no graph of PyTorch's operators, and only those are sent to nodes.")
    weights = dict(module.named_buffers())
    try:
        graph = pickle.dumps((_lines(module), [*weights]))
    except (pickle.PicklingError, AttributeError, TypeError, RuntimeError) as error:
        raise DeviceError(f"A segment has an argument that cannot be sent to a node: {first_line(error)}.") from error
    return [graph, *map(_saved, weights.values())]


def _lines(module: GraphModule) -> list[_Line]:
    def named(node: Node) -> Any:
        return _Named(node.name)

    found = []
    for node in module.graph.nodes:
        target: Any = node.target
        if isinstance(target, torch._ops.OpOverload):
            target = _Operator(target.namespace, target._schema.name.partition("::")[2], target._overloadname)
        args, kwargs = (pytree.tree_map(lambda value: value, map_arg(given, named)) for given in (node.args, node.kwargs))
        value = pytree.tree_map(_shape, node.meta.get("val"))
        found.append(_Line(node.op, node.name, target, args, kwargs, value))
    return found


def _shape(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Shape(tuple(value.shape), value.dtype)
    return value if isinstance(value, int | float) else None


def _saved(weight: torch.Tensor) -> bytes:
    file = io.BytesIO()
    torch.save(weight.detach().clone(), file)  # not the whole memory that it is a part of
    return file.getvalue()


def from_files(files: Sequence[bytes], keys: Sequence[str]) -> GraphModule:
    """Return a module from what :func:`to_files` has made of it. The first file is unpickled: it must come from this user.

    Args:
        files: the graph and the weights.
        keys: equal for equal weights, which then share memory; empty for weights that do not.

    Raises:
        DeviceError: an operator does not exist in this process.
    """
    lines, names = pickle.loads(files[0])  # noqa: S301
    root, graph = torch.nn.Module(), Graph()
    for name, data, key in zip(names, files[1:], keys[1:], strict=True):
        weight = _weights.get(key) if key else None
        if weight is None:
            weight = torch.load(io.BytesIO(data), weights_only=True)
            if key:
                _weights[key] = weight
        root.register_buffer(name, weight)
    made: dict[str, Node] = {}

    def node(value: Any) -> Any:
        return made[value.name] if isinstance(value, _Named) else value

    for line in lines:
        target = _found(line.target) if isinstance(line.target, _Operator) else line.target
        args, kwargs = _mapped(line.args, node), _mapped(line.kwargs, node)
        made[line.name] = graph.create_node(line.op, target, args, kwargs, line.name)
        made[line.name].meta["val"] = _mapped(line.value, _tensor)
    return GraphModule(root, graph, "Segment")


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    return pytree.tree_map(change, value, is_leaf=lambda one: isinstance(one, _Named | _Shape))


def _tensor(value: Any) -> Any:
    return torch.empty(value.shape, dtype=value.dtype, device="meta") if isinstance(value, _Shape) else value


def _found(operator: _Operator) -> Any:
    try:
        return getattr(getattr(getattr(torch.ops, operator.namespace), operator.name), operator.overload)
    except AttributeError as error:
        raise DeviceError(
            f"PyTorch {torch.__version__} has no operator '{operator.namespace}::{operator.name}.{operator.overload}': import "
            "the package that defines it, or install another version."
        ) from error
