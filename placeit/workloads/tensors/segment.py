"""A part of a program as a PyTorch module, which is what devices run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from placeit.errors import UsageError
from placeit.workloads.tensors.program import ProgramOp

__all__ = ["ProgramSegment"]


class ProgramSegment(torch.nn.Module):
    """Runs some ops of a program, one after the other, from tensors to a tuple of tensors.

    Blocks of the program's inputs are its buffers, so they move with it to a device. What it makes on the way is freed after
    its last reader.

    Args:
        ops: of the program, in its order.
        enter: tensor numbers of the arguments: what other ops make.
        leave: tensor numbers of the results.
        blocks: of the program's inputs, by tensor number; see :meth:`placeit.workloads.tensors.Program.split`.

    Raises:
        UsageError: an op reads a tensor that is neither made before it, nor an argument, nor a block.
    """

    def __init__(
        self, ops: Sequence[ProgramOp], enter: Sequence[int], leave: Sequence[int], blocks: Mapping[int, Tensor]
    ) -> None:
        super().__init__()
        self._ops, self._enter, self._leave = tuple(ops), tuple(enter), tuple(leave)
        self._blocks: list[int] = []
        known = set(enter)
        for op in self._ops:
            for tensor in op.inputs:
                if tensor in known:
                    continue
                if tensor not in blocks:
                    raise UsageError(f"Op '{op.name}' of a segment reads tensor {tensor}, which nothing there makes or gives.")
                self.register_buffer(f"block{tensor}", blocks[tensor])
                self._blocks.append(tensor)
                known.add(tensor)
            known.add(op.output)
        last = {tensor: v for v, op in enumerate(self._ops) for tensor in op.inputs}
        self._dead: list[list[int]] = [[] for _ in self._ops]
        for tensor in last.keys() - set(leave):
            self._dead[last[tensor]].append(tensor)

    @torch.no_grad()
    def forward(self, *arguments: Tensor) -> tuple[Tensor, ...]:
        """Run the ops."""
        values = dict(zip(self._enter, arguments, strict=True))
        values |= {tensor: self.get_buffer(f"block{tensor}") for tensor in self._blocks}
        for op, dead in zip(self._ops, self._dead, strict=True):
            values[op.output] = op.run(*[values[tensor] for tensor in op.inputs])
            for tensor in dead:
                del values[tensor]
        return tuple(values[tensor] for tensor in self._leave)
