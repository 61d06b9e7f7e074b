"""Repeated blocks of a graph: one block is placed, and the placement is copied to the other blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import InfeasibleError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.feasibility import repair

__all__ = ["Repeated", "repeated_blocks"]


@dataclass(frozen=True)
class Repeated:
    """Place one of a graph's repeated blocks by another placer, and copy its placement to the other blocks.

    Source: DOPPLER (Yao et al. 2025), Appendix K. Very large graphs consist mostly of blocks that follow each other, such as
    the layers of a transformer (:func:`repeated_blocks`). The other placer is given a smaller problem. In it, each op of the
    block stands for the corresponding ops of all blocks and costs as much as they do together; ops outside of blocks are placed
    one by one. Its placements are copied to all blocks and valued on the whole graph. If there are no repeated blocks, or no
    device has room for the weights of an op in all blocks, the other placer places the whole graph.
    """

    placer: str = option("annealing", "placer of the block and the rest, with its options, as in doppler:updates=9,samples=4")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement.

        Raises:
            UsageError: there is no such placer, or it is this one.
            InfeasibleError: no feasible placement is found.
        """
        from placeit.placers.registry import parse_placer

        inner = parse_placer(self.placer)
        if isinstance(inner, Repeated):
            raise UsageError("'placer' of the placer 'repeated' is 'repeated' itself; name another one.")
        blocks = repeated_blocks(problem)
        if not len(blocks):
            return inner.place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)
        small, folded_op = _fold(problem, blocks)

        def graph_cost(placements: NDArray[np.int32]) -> NDArray[np.float64]:
            return cost(np.ascontiguousarray(placements[:, folded_op]))

        try:
            placement = inner.place(small, graph_cost, seed=seed, evaluations=evaluations, deadline=deadline)[folded_op]
            # the small problem does not count copies of weights that several ops read
            return repair(problem, placement)
        except InfeasibleError:
            return inner.place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)


def repeated_blocks(problem: Problem) -> NDArray[np.intp]:
    """Find the blocks of ops that a graph repeats, where each block reads outputs of the block before it.

    Blocks are consecutive in topological order. Corresponding ops of two blocks have the same kind and output shape (or the
    same compute times if kinds are unknown), the same bytes of weights, and the same devices that can run them. They read the
    same number of bytes from corresponding ops, or from the same op before all blocks. Parallel parts, such as the shards of
    one op, do not count as blocks: on one device they would wait for each other. If a graph can be cut into blocks in several
    ways, the way that leaves the fewest ops to place is chosen.

    Returns:
        ``intp[L, P]``, the ops of each of ``L`` blocks, with corresponding ops in a column; ``intp[0, 0]`` if there are no
        repeated blocks.
    """
    numeric = (problem.edges[:, 0] < problem.edges[:, 1]).all()  # the numeric order is topological, and keeps blocks together
    order = np.arange(len(problem)) if numeric else problem.order.astype(np.intp)
    position = np.argsort(order)
    by_head = np.argsort(position[problem.edges[:, 1]], kind="stable")
    tail, head = position[problem.edges[by_head]].T.reshape(2, -1)
    graph = _SortedGraph(_op_classes(problem)[order], tail, head, problem.edge_bytes[by_head])
    best, saved = (0, 0, 0), 0
    for period in range(1, len(order) // 2 + 1):
        first, count = graph.longest_run(period)
        if (count - 1) * period > saved:
            best, saved = (first, count, period), (count - 1) * period
    first, count, period = best
    return order[first : first + count * period].reshape(count, period)


def _op_classes(problem: Problem) -> NDArray[np.intp]:
    """Return the class of each op, ``intp[V]``; ops of a class are equal except for their edges."""
    numbers: dict[tuple[object, ...], int] = {}
    classes = np.empty(len(problem), np.intp)
    for v, (kind, shape) in enumerate(zip(problem.kinds, problem.output_shapes, strict=True)):
        costs = problem.feasible[v] if kind else problem.compute[v]
        key = (kind, shape, float(problem.param_bytes[v]), costs.tobytes())
        classes[v] = numbers.setdefault(key, len(numbers))
    return classes


@dataclass(frozen=True, eq=False)
class _SortedGraph:
    """A graph with its ops in topological order.

    Attributes:
        classes: ``intp[V]``, the class of each op, as :func:`_op_classes` returns it.
        tail: ``intp[E]``, producers; edges are in the order of their consumers.
        head: ``intp[E]``, consumers.
        size: ``float64[E]``, bytes.
    """

    classes: NDArray[np.intp]
    tail: NDArray[np.intp]
    head: NDArray[np.intp]
    size: NDArray[np.float64]

    def longest_run(self, period: int) -> tuple[int, int]:
        """Return the first op and the number of blocks of the longest run of equal blocks of ``period`` ops; 0, 0 if none."""
        count = len(self.classes)
        degree = np.bincount(self.head, minlength=count)
        first_edge = np.cumsum(degree) - degree
        same = np.zeros(count, bool)  # whether an op equals the op one period earlier
        same[period:] = (self.classes[period:] == self.classes[:-period]) & (degree[period:] == degree[:-period])
        edges = np.flatnonzero(same[self.head])
        counterpart = edges - first_edge[self.head[edges]] + first_edge[self.head[edges] - period]
        offset = self.tail[edges] - self.tail[counterpart]
        same[self.head[edges][(self.size[edges] != self.size[counterpart]) | ((offset != period) & (offset != 0))]] = False
        shared = np.full(count, -1)  # the last op that is read both by an op and by the op one period earlier
        np.maximum.at(shared, self.head[edges][offset == 0], self.tail[edges][offset == 0])
        best = (0, 0)
        ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
        for second, end in ends.reshape(-1, 2).tolist():
            first, blocks = second - period, 1 + (end - second) // period
            follows = (self.tail >= first) & (self.tail < second) & (self.head >= second) & (self.head < second + period)
            if 1 < blocks > best[1] and shared[second:end].max() < first and follows.any():
                best = (first, blocks)
        return best


def _fold(problem: Problem, blocks: NDArray[np.intp]) -> tuple[Problem, NDArray[np.intp]]:
    """Return a problem with one block in place of all, with their total costs, and each op's number in it, ``intp[V]``."""
    block = np.full(len(problem), -1)
    block[blocks] = np.arange(len(blocks))[:, None]
    representative = np.arange(len(problem))
    representative[blocks] = blocks[0]
    kept, folded_op = np.unique(representative, return_inverse=True)
    tails, heads = problem.edges.T
    # edges from a block to the next one are left out, since they would close a cycle
    used = np.flatnonzero((block[tails] < 0) | (block[heads] < 0) | (block[tails] == block[heads]))
    tensor = _tensor_numbers(problem)
    keys = np.stack([folded_op[tails[used]], tensor[used], folded_op[heads[used]]], axis=1)
    edges, folded_edge = np.unique(keys, axis=0, return_inverse=True)
    _, first_edge = np.unique(problem.edge_tensor, return_index=True)  # one edge of each tensor
    sizes = np.zeros((len(kept), int(tensor.max(initial=0)) + 1))
    np.add.at(sizes, (folded_op[tails[first_edge]], tensor[first_edge]), problem.edge_bytes[first_edge])
    cut = np.zeros((len(edges), problem.devices))
    np.add.at(cut, folded_edge.reshape(-1), problem.cut[used])
    compute, weights = np.zeros((len(kept), problem.devices)), np.zeros(len(kept))
    np.add.at(compute, folded_op, problem.compute)
    np.add.at(weights, folded_op, problem.param_bytes)
    small = Problem.from_arrays(
        compute,
        edges[:, [0, 2]],
        sizes[edges[:, 0], edges[:, 1]],
        problem.bandwidth,
        problem.latency,
        edge_tensor=edges[:, 0] * sizes.shape[1] + edges[:, 1],
        cut=cut,
        param_bytes=weights,
        memory=problem.memory,
        conflicts=problem.conflicts,
        host=problem.host,
        op_names=[problem.op_names[v] for v in kept],
        device_names=problem.device_names,
        kinds=[problem.kinds[v] for v in kept],
        output_shapes=[problem.output_shapes[v] for v in kept],
    )
    return small, folded_op


def _tensor_numbers(problem: Problem) -> NDArray[np.intp]:
    """Return the number of each edge's tensor among the tensors of its producer, ``intp[E]``."""
    numbers: dict[int, dict[int, int]] = {}
    found = np.empty(len(problem.edges), np.intp)
    for e, (tail, tensor) in enumerate(zip(problem.edges[:, 0].tolist(), problem.edge_tensor.tolist(), strict=True)):
        of_producer = numbers.setdefault(tail, {})
        found[e] = of_producer.setdefault(tensor, len(of_producer))
    return found
