"""Write and read the segments of PyTorch programs that a bundle contains."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import torch
from torch.fx import GraphModule

from placeit.backends.torch.model import load
from placeit.backends.torch.open_sizes import dimensions
from placeit.backends.torch.state import with_buffer_updates
from placeit.backends.torch.tracing import as_model_error
from placeit.core.errors import ModelError

__all__ = ["read_segment", "write_segment"]

_exporting = threading.Lock()  # PyTorch exports, reads and lowers one program at a time


def write_segment(module: torch.nn.Module, file: Path, path: Path) -> None:
    """Write a segment to a file for :func:`read_segment`. Raises ModelError if it cannot be written.

    Args:
        module: the segment.
        file: path of the file.
        path: path of the model, for messages.
    """
    if not isinstance(module, GraphModule):
        raise ModelError(
            f"Segments of {path} are no programs of PyTorch, and cannot be in a bundle: build it of another model."
        )
    inputs = module.graph.find_nodes(op="placeholder")
    if any(not isinstance(size, int) for node in inputs for size in dimensions(node)):
        raise ModelError(f"{path} has open sizes, and PyTorch programs are written at one size: give one for each input.")
    examples = tuple(torch.zeros(tuple(node.meta["val"].shape), dtype=node.meta["val"].dtype) for node in inputs)
    with _exporting, as_model_error(f"Cannot write a segment of {path}"), torch.no_grad():
        torch.export.save(torch.export.export(with_buffer_updates(module), examples, strict=False), file)


def read_segment(path: Path, inputs: Sequence[int], outputs: Sequence[int]) -> GraphModule:
    """Read a segment, with inputs and outputs in the order of their numbers in the file. Raises ModelError."""
    with _exporting:
        model = load(path)
    module: GraphModule = model.segment("torch", range(len(model.graph)), (), ())
    graph = module.graph
    arguments, (end,) = graph.find_nodes(op="placeholder"), graph.find_nodes(op="output")
    for k in reversed(inputs):
        next(iter(graph.nodes)).prepend(arguments[k])
    end.args = (tuple(end.args[0][k] for k in outputs),)
    module.recompile()
    return module
