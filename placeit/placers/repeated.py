"""Repeated blocks: one block is placed, and the other blocks in the same way."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from placeit.core.errors import InfeasibleError, UsageError
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.feasibility import fits, repair

__all__ = ["Repeated", "repeated_blocks"]


@dataclass(frozen=True)
class Repeated:
    """Place one of a graph's repeated blocks, by another placer, and each of the others in the same way.

    DOPPLER (Yao et al. 2025), Appendix K: very large graphs are mostly blocks that follow each other, such as the layers of a
    transformer. A placement of one block is repeated, and valued by the time of the whole graph. The other placer sees a
    smaller problem, in which an op of the block stands for the corresponding ops of all blocks and costs as much as they do
    together (:func:`repeated_blocks`); ops outside of blocks are placed one by one. Its proposals are valued on the whole
    graph. If nothing is repeated, or no device has room for the weights of an op in all blocks, the other placer places the
    graph itself.
    """

    placer: str = option("annealing", "placer of the block and the rest, with its options, as in doppler:updates=9,samples=4")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement.

        Raises:
            UsageError: there is no such placer, or it is this one.
            InfeasibleError: the weights fit in no way that was found.
        """
        from placeit.placers.registry import parse_placer

        inner = parse_placer(self.placer)
        if isinstance(inner, Repeated):
            raise UsageError("'placer' of the placer 'repeated' is 'repeated' itself; name another one.")
        blocks = repeated_blocks(problem)
        if not len(blocks):
            return inner.place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)
        small, of = _folded(problem, blocks)

        def graph_cost(placements: NDArray[np.int32]) -> NDArray[np.float64]:
            return cost(np.ascontiguousarray(placements[:, of]))

        try:
            placement = inner.place(small, graph_cost, seed=seed, evaluations=evaluations, deadline=deadline)[of]
            # the small problem does not count copies of weights that several ops read
            return placement if fits(problem, placement) else repair(problem, placement)
        except InfeasibleError:
            return inner.place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)


def repeated_blocks(problem: Problem) -> NDArray[np.intp]:
    """Find a block of ops that a graph repeats, where each block reads outputs of the block before it.

    Blocks are consecutive in topological order. Corresponding ops of two blocks are of one kind and have outputs of one shape
    (or of one cost, where kinds are unknown), weights of one size, and the same devices that can run them. They read as many
    bytes from corresponding ops, or from the same op before all blocks. Parallel parts, such as the shards of one op, do not
    count as blocks: on one device they would wait for each other. If a graph can be cut into blocks in several ways, the
    way that leaves fewest ops to place is chosen.

    Returns:
        ``intp[L, P]``, the ops of each of ``L`` blocks, corresponding ones in one column; ``intp[0, 0]`` if nothing is
        repeated.
    """
    order = _in_order(problem)
    at = np.empty(len(order), np.intp)
    at[order] = np.arange(len(order))
    by_head = np.argsort(at[problem.edges[:, 1]], kind="stable")
    tail, head = at[problem.edges[by_head]].T.reshape(2, -1)
    graph = _Sorted(_alike(problem)[order], tail, head, problem.edge_bytes[by_head])
    best, saved = (0, 0, 0), 0
    for period in range(1, len(order) // 2 + 1):
        first, count = graph.longest(period)
        if (count - 1) * period > saved:
            best, saved = (first, count, period), (count - 1) * period
    first, count, period = best
    return order[first : first + count * period].reshape(count, period)


def _in_order(problem: Problem) -> NDArray[np.intp]:
    """Return the ops as numbered if that order is topological, so that blocks written one after the other stay together."""
    if (problem.edges[:, 0] < problem.edges[:, 1]).all():
        return np.arange(len(problem))
    return problem.order.astype(np.intp)


def _alike(problem: Problem) -> NDArray[np.intp]:
    """Return equal numbers for ops that are alike, apart from their edges, ``intp[V]``."""
    numbers: dict[tuple[object, ...], int] = {}
    found = np.empty(len(problem), np.intp)
    for v, (kind, shape) in enumerate(zip(problem.kinds, problem.output_shapes, strict=True)):
        costs = problem.feasible[v] if kind else problem.compute[v]
        key = (kind, shape, float(problem.param_bytes[v]), costs.tobytes())
        found[v] = numbers.setdefault(key, len(numbers))
    return found


@dataclass(frozen=True, eq=False)
class _Sorted:
    """A graph with its ops in topological order.

    Attributes:
        alike: ``intp[V]``, equal numbers for ops that are alike, apart from their edges.
        tail: ``intp[E]``, producers; edges are in the order of their consumers.
        head: ``intp[E]``, consumers.
        size: ``float64[E]``, bytes.
    """

    alike: NDArray[np.intp]
    tail: NDArray[np.intp]
    head: NDArray[np.intp]
    size: NDArray[np.float64]

    def longest(self, period: int) -> tuple[int, int]:
        """Return the start and the number of blocks of the longest row of equal blocks of ``period`` ops; 0, 0 without one."""
        count = len(self.alike)
        degree = np.bincount(self.head, minlength=count)
        begin = np.cumsum(degree) - degree
        same = np.zeros(count, bool)  # whether an op equals the op a period before
        same[period:] = (self.alike[period:] == self.alike[:-period]) & (degree[period:] == degree[:-period])
        edges = np.flatnonzero(same[self.head])
        like = edges - begin[self.head[edges]] + begin[self.head[edges] - period]
        moved = self.tail[edges] - self.tail[like]
        same[self.head[edges][(self.size[edges] != self.size[like]) | ((moved != period) & (moved != 0))]] = False
        shared = np.full(count, -1)  # the last op that both an op and the op a period before read
        np.maximum.at(shared, self.head[edges][moved == 0], self.tail[edges][moved == 0])
        best = (0, 0)
        ends = np.flatnonzero(np.diff(np.concatenate([[False], same, [False]])))
        for run, end in ends.reshape(-1, 2).tolist():
            first, blocks = run - period, 1 + (end - run) // period
            follows = (self.tail >= first) & (self.tail < run) & (self.head >= run) & (self.head < run + period)
            if 1 < blocks > best[1] and shared[run:end].max() < first and follows.any():
                best = (first, blocks)
        return best


def _folded(problem: Problem, blocks: NDArray[np.intp]) -> tuple[Problem, NDArray[np.intp]]:
    """Return the problem with one block, whose ops cost as much as all blocks', and each op's number in it, ``intp[V]``."""
    block = np.full(len(problem), -1)
    block[blocks] = np.arange(len(blocks))[:, None]
    stands = np.arange(len(problem))
    stands[blocks] = blocks[0]
    kept, of = np.unique(stands, return_inverse=True)
    tails, heads = problem.edges.T
    # edges from a block to the next one are left out, since they would close a cycle
    used = np.flatnonzero((block[tails] < 0) | (block[heads] < 0) | (block[tails] == block[heads]))
    tensor = _tensor_numbers(problem)
    keys = np.stack([of[tails[used]], tensor[used], of[heads[used]]], axis=1)
    edges, of_edge = np.unique(keys, axis=0, return_inverse=True)
    _, one_edge = np.unique(problem.edge_tensor, return_index=True)
    sizes = np.zeros((len(kept), int(tensor.max(initial=0)) + 1))
    np.add.at(sizes, (of[tails[one_edge]], tensor[one_edge]), problem.edge_bytes[one_edge])
    cut = np.zeros((len(edges), problem.devices))
    np.add.at(cut, of_edge.reshape(-1), problem.cut[used])
    compute, weights = np.zeros((len(kept), problem.devices)), np.zeros(len(kept))
    np.add.at(compute, of, problem.compute)
    np.add.at(weights, of, problem.param_bytes)
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
    return small, of


def _tensor_numbers(problem: Problem) -> NDArray[np.intp]:
    """Return for each edge which of its producer's tensors it carries, ``intp[E]``."""
    numbers: dict[int, dict[int, int]] = {}
    found = np.empty(len(problem.edges), np.intp)
    for e, (tail, tensor) in enumerate(zip(problem.edges[:, 0].tolist(), problem.edge_tensor.tolist(), strict=True)):
        own = numbers.setdefault(tail, {})
        found[e] = own.setdefault(tensor, len(own))
    return found
