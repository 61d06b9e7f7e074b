"""Estimate the memory that a segment uses while it runs."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch._subclasses import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

__all__ = ["peak_bytes"]


def peak_bytes(module: GraphModule) -> int:
    """Return the peak memory of the tensors that a segment makes during a run, in bytes.

    The segment is run on fake tensors, which have shapes, strides and storages, but no data: a view counts as zero, and a
    reshape counts if it has to copy. A value is freed after its last use, as in the code that ``torch.fx`` generates; returned
    values live to the end. Inputs and weights do not count. The memory that a kernel allocates for itself is unknown, and so is
    the rounding of sizes by an allocator.

    Args:
        module: a module from :meth:`placeit.backends.torch.model.TorchModel.segment`. Its inputs are contiguous in a run, as
            the buffers of executors are.
    """
    nodes = list(module.graph.nodes)
    last = {read: node for node in nodes for read in node.all_input_nodes}
    dying: dict[Node, list[Node]] = {}
    for read, node in last.items():
        dying.setdefault(node, []).append(read)
    values: dict[Node, Any] = {}
    external: dict[int, torch.UntypedStorage] = {}  # of inputs and weights, by id, which is valid as long as the object lives
    holders: Counter[int] = Counter()  # number of values in each storage that the segment itself makes
    alive = peak = 0

    def storages(node: Node) -> dict[int, int]:
        """Return the sizes of the segment's own storages that a value uses."""
        leaves = [leaf.untyped_storage() for leaf in pytree.tree_leaves(values[node]) if isinstance(leaf, torch.Tensor)]
        return {storage._cdata: storage.nbytes() for storage in leaves if storage._cdata not in external}

    fake = FakeTensorMode()
    with fake, torch.no_grad():
        for node in nodes:
            if node.op == "output":
                break
            if node.op == "call_function":
                target: Any = node.target
                values[node] = target(*map_arg(node.args, values.get), **map_arg(node.kwargs, values.get))
            else:
                if node.op == "placeholder":
                    values[node] = torch.empty(node.meta["val"].shape, dtype=node.meta["val"].dtype)
                else:
                    values[node] = fake.from_tensor(module.get_buffer(str(node.target)), static_shapes=True)
                storage = values[node].untyped_storage()
                external[storage._cdata] = storage
            for number, size in storages(node).items():
                alive += size if not holders[number] else 0
                holders[number] += 1
            peak = max(peak, alive)
            for read in (*dying.get(node, ()), *([node] if node not in last else [])):
                for number, size in storages(read).items():
                    holders[number] -= 1
                    alive -= size if not holders[number] else 0
                del values[read]
    return peak
