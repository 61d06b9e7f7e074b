"""Programs of ops on blocks of tensors, with their task graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.graph import OpGraph
from placeit.core.problem import Problem
from placeit.devices.described import roofline_seconds

__all__ = ["Block", "BlockProgram", "BlockTensor", "MetaOp", "ProgramOp", "WholeTensor"]


@dataclass(frozen=True)
class BlockTensor:
    """A block of a tensor, which an op computes or which is a part of an input.

    Attributes:
        name: unique in the program.
        shape: its dimensions.
        dtype: its element type.
    """

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def nbytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class ProgramOp:
    """An op of a program.

    Attributes:
        name: unique in the program.
        kind: as in the DOPPLER paper, Appendix E.1: ``matmul``, ``formation``, ``select`` ...
        run: computes the output from the inputs, in order. The output is a new contiguous tensor on the inputs' device. The
            function does not change inputs, returns no views of them, and does not wait for a device.
        inputs: tensor numbers.
        output: tensor number.
        flops: floating-point operations.
        bytes: bytes read and written.
    """

    name: str
    kind: str
    run: Callable[..., Tensor]
    inputs: tuple[int, ...]
    output: int
    flops: float
    bytes: float


@dataclass(frozen=True)
class Block:
    """Position of a block in a whole tensor.

    Attributes:
        tensor: tensor number.
        region: a slice for each dimension.
    """

    tensor: int
    region: tuple[slice, ...]


@dataclass(frozen=True)
class WholeTensor:
    """An input or output of a program, in blocks.

    Attributes:
        shape: shape of the whole tensor.
        dtype: its element type.
        blocks: the blocks into which it is cut.
        sample: for inputs, draws a random value.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    blocks: tuple[Block, ...]
    sample: Callable[[torch.Generator], Tensor] | None = None


@dataclass(frozen=True)
class MetaOp:
    """All ops into which one op is cut (DOPPLER, Appendix A and Algorithm 4).

    Attributes:
        name: name of the op, or of the layout into which a tensor is copied.
        shard_ops: names of the expensive ops, one for each shard; empty if a tensor is only copied.
        reduce_ops: names of the cheap ops that assemble blocks from the shards; they do not depend on each other.
    """

    name: str
    shard_ops: tuple[str, ...]
    reduce_ops: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class BlockProgram:
    """A program of ops on blocks, with its task graph.

    Attributes:
        tensors: all blocks, of inputs and of results.
        ops: in topological order.
        inputs: by name.
        outputs: by name.
        meta_ops: in topological order; each op belongs to one meta-op.
    """

    tensors: tuple[BlockTensor, ...]
    ops: tuple[ProgramOp, ...]
    inputs: Mapping[str, WholeTensor]
    outputs: Mapping[str, WholeTensor]
    meta_ops: tuple[MetaOp, ...]

    @cached_property
    def graph(self) -> OpGraph:
        """The task graph: ``V`` ops with one tensor each.

        Inputs are not ops. The inputs that an op reads count as its ``param_bytes``: they are on its device before a run
        starts, as in the cost graphs that the authors of DOPPLER have published. An input with several readers counts for each
        of them.
        """
        producer = {op.output: v for v, op in enumerate(self.ops)}
        outputs = [self.tensors[op.output] for op in self.ops]
        edges = [(producer[t], v) for v, op in enumerate(self.ops) for t in dict.fromkeys(op.inputs) if t in producer]
        input_bytes = [sum(self.tensors[t].nbytes for t in set(op.inputs) if t not in producer) for op in self.ops]
        return OpGraph(
            names=tuple(op.name for op in self.ops),
            kinds=tuple(op.kind for op in self.ops),
            flops=np.array([op.flops for op in self.ops], np.float64),
            param_bytes=np.array(input_bytes, np.float64),
            tensor_op=np.arange(len(self.ops), dtype=np.int32),
            tensor_port=np.zeros(len(self.ops), np.int32),
            tensor_bytes=np.array([tensor.nbytes for tensor in outputs], np.float64),
            tensor_shapes=tuple(tensor.shape for tensor in outputs),
            tensor_dtypes=tuple(str(tensor.dtype).removeprefix("torch.") for tensor in outputs),
            edges=np.array(edges, np.int32).reshape(-1, 2),
            edge_tensor=np.array([u for u, _ in edges], np.int32),
        ).verify()

    def problem(self, cluster: Cluster) -> Problem:
        """Return the problem of placing the program on described devices, with costs by the roofline model.

        Raises:
            ClusterError: a device has no figures, or a link is unknown.
        """
        graph = self.graph
        bytes_moved = [op.bytes for op in self.ops]
        return Problem.from_arrays(
            np.stack([roofline_seconds(graph.flops, bytes_moved, device) for device in cluster.devices], axis=1),
            graph.edges,
            graph.tensor_bytes[graph.edge_tensor],
            cluster.bandwidth(),
            cluster.latency(),
            edge_tensor=graph.edge_tensor,
            param_bytes=graph.param_bytes,
            memory=[device.memory_bytes for device in cluster.devices],
            conflicts=cluster.conflicts(),
            op_names=graph.names,
            device_names=cluster.names,
            graph_hash=graph.hash,
            kinds=graph.kinds,
            output_shapes=graph.output_shapes,
        )

    def random_inputs(self, seed: int = 0) -> dict[str, Tensor]:
        """Draw whole inputs by name; they depend on the seed, not on how the program is cut."""
        generator = torch.Generator().manual_seed(seed)
        return {name: whole.sample(generator) for name, whole in sorted(self.inputs.items()) if whole.sample is not None}

    def split(self, inputs: Mapping[str, Tensor]) -> dict[int, Tensor]:
        """Cut whole inputs into contiguous blocks, by tensor number.

        Raises:
            UsageError: an input is missing or unknown, or has another shape or type.
        """
        for name in sorted(inputs.keys() ^ self.inputs.keys()):
            what = "is missing" if name in self.inputs else "is unknown"
            raise UsageError(f"Input '{name}' {what}; the program takes {', '.join(sorted(self.inputs))}.")
        blocks: dict[int, Tensor] = {}
        for name, whole in self.inputs.items():
            value = inputs[name]
            if tuple(value.shape) != whole.shape or value.dtype != whole.dtype:
                raise UsageError(
                    f"Input '{name}' is {value.dtype} of shape {tuple(value.shape)}; the program takes {whole.dtype} of shape "
                    f"{whole.shape}."
                )
            blocks |= {block.tensor: value[block.region].contiguous() for block in whole.blocks}
        return blocks

    def join(self, blocks: Mapping[int, Tensor]) -> dict[str, Tensor]:
        """Assemble whole outputs from their blocks, given by tensor number."""
        outputs = {}
        for name, whole in self.outputs.items():
            outputs[name] = blocks[whole.blocks[0].tensor].new_empty(whole.shape)
            for block in whole.blocks:
                outputs[name][block.region] = blocks[block.tensor]
        return outputs

    @torch.no_grad()
    def run(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Run the ops one by one on the device of the inputs, and free every block after its last reader.

        Raises:
            UsageError: the inputs do not fit; see :meth:`split`.
        """
        values = self.split(inputs)
        keep = {block.tensor for whole in self.outputs.values() for block in whole.blocks}
        last = {tensor: v for v, op in enumerate(self.ops) for tensor in op.inputs if tensor not in keep}
        for v, op in enumerate(self.ops):
            values[op.output] = op.run(*(values[tensor] for tensor in op.inputs))
            for tensor in set(op.inputs):
                if last.get(tensor) == v:
                    del values[tensor]
        return self.join(values)
