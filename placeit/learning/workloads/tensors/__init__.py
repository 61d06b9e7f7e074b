"""Tensor expressions that are cut into shards: task graphs that can be executed.

An expression consists of a few ops on whole tensors, written like Einstein sums
(:mod:`~placeit.learning.workloads.tensors.expression`). A partition of each op's indices
(:mod:`~placeit.learning.workloads.tensors.partition`) turns it into ops on blocks
(:mod:`~placeit.learning.workloads.tensors.sharding`). The result is a program with a task graph that can be placed
(:mod:`~placeit.learning.workloads.tensors.program`). It runs as a whole or in segments
(:mod:`~placeit.learning.workloads.tensors.segment`).
"""

from placeit.learning.workloads.tensors.program import Block, BlockProgram, BlockTensor, MetaOp, ProgramOp, WholeTensor
from placeit.learning.workloads.tensors.segment import ProgramSegment
from placeit.learning.workloads.tensors.sharding import shard

__all__ = ["Block", "BlockProgram", "BlockTensor", "MetaOp", "ProgramOp", "ProgramSegment", "WholeTensor", "shard"]
