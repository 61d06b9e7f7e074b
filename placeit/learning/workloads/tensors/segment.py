"""A part of a program as a PyTorch module, to be run on a device."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.learning.workloads.tensors.program import ProgramOp

__all__ = ["ProgramSegment"]


class ProgramSegment(torch.nn.Module):
    """A module that runs some ops of a program, one after the other.

    Blocks of the program's inputs are buffers of the module, so that they move with it to a device. Intermediate tensors are
    freed after their last reader. An error in an op has a note that names the op: ``op: NAME``.

    Args:
        ops: ops of the program, in their order.
        enter: tensor numbers of the arguments, which other segments compute.
        leave: tensor numbers of the results.
        blocks: blocks of the program's inputs, by tensor number; see
            :meth:`placeit.learning.workloads.tensors.BlockProgram.split`.

    Raises:
        UsageError: an op reads a tensor that is neither computed before it, nor an argument, nor a block.

    Attributes:
        replayable: True, since the launches of the ops do not depend on values.
    """

    replayable = True

    def __init__(
        self, ops: Sequence[ProgramOp], enter: Sequence[int], leave: Sequence[int], blocks: Mapping[int, Tensor]
    ) -> None:
        super().__init__()
        self._ops, self._enter, self._leave = tuple(ops), tuple(enter), tuple(leave)
        self._blocks: dict[int, str] = {}
        available = set(enter)
        for op in self._ops:
            for tensor in op.inputs:
                if tensor in available:
                    continue
                if tensor not in blocks:
                    raise UsageError(f"Op '{op.name}' of a segment reads tensor {tensor}, which nothing there makes or gives.")
                self._blocks[tensor] = f"block{tensor}"
                self.register_buffer(self._blocks[tensor], blocks[tensor])
                available.add(tensor)
            available.add(op.output)
        last = {tensor: v for v, op in enumerate(self._ops) for tensor in op.inputs}
        self._dead: list[list[int]] = [[] for _ in self._ops]
        for tensor in last.keys() - set(leave):
            self._dead[last[tensor]].append(tensor)

    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Return the results, given the arguments."""
        # if there is a segment for each op, this is called once per op, and any time beyond the ops is overhead
        values: dict[int, Any] = dict(zip(self._enter, arguments, strict=True))
        for tensor, name in self._blocks.items():
            values[tensor] = self._buffers[name]
        for op, dead in zip(self._ops, self._dead, strict=True):
            try:
                values[op.output] = op.run(*[values[tensor] for tensor in op.inputs])
            except (RuntimeError, ValueError, TypeError, LookupError, MemoryError) as error:  # the errors that PyTorch raises
                error.add_note(f"op: {op.name}")
                raise
            for tensor in dead:
                del values[tensor]
        return tuple([values[tensor] for tensor in self._leave])
