"""Tensor expressions, cut into shards: task graphs that can be executed.

An expression is a few whole-tensor ops written like Einstein sums (:mod:`~placeit.learning.workloads.tensors.expression`). A
partition of each op's indices (:mod:`~placeit.learning.workloads.tensors.partition`) turns it into ops on blocks
(:mod:`~placeit.learning.workloads.tensors.sharding`): a program that runs and a task graph that can be placed
(:mod:`~placeit.learning.workloads.tensors.program`), whole or in segments (:mod:`~placeit.learning.workloads.tensors.segment`).
"""

from placeit.learning.workloads.tensors.program import Block, BlockProgram, BlockTensor, MetaOp, ProgramOp, WholeTensor
from placeit.learning.workloads.tensors.segment import ProgramSegment
from placeit.learning.workloads.tensors.sharding import shard

__all__ = ["Block", "BlockProgram", "BlockTensor", "MetaOp", "ProgramOp", "ProgramSegment", "WholeTensor", "shard"]
