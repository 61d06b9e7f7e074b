"""Graph parsing: groups of ops from scores of edges (HSDAG, section 2.4, after the graph parsing network that it uses).

Every op keeps the best of the edges that it has, whichever way they go; what hangs together by kept edges is a group (Eq. 9 and
10). Scores belong to edges as they are directed, and the graph of groups keeps directions (Eq. 11).

Differs from the public code: this is done once, and not repeated until nothing changes, which in a connected graph ends in a
single group; and the number of groups is bounded from both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit.core.errors import UsageError
from placeit.core.graph import unique_rows
from placeit.core.kernels import jit

__all__ = ["Parsing", "parse", "pool", "pooled_edges", "spread"]


@dataclass(frozen=True, eq=False)
class Parsing:
    """A partition of the ops of a graph.

    Attributes:
        group: ``int64[V]``, the group of each op; groups are numbered by their first op.
        count: how many groups there are.
        kept: ``int64[V]``, the edge that each op has kept; -1 for an op without edges.
        log_probability: a number, with gradients: of drawing these edges; zero if they were not drawn.
    """

    group: NDArray[np.int64]
    count: int
    kept: NDArray[np.int64]
    log_probability: Tensor


def parse(
    log_scores: Tensor,
    edges: NDArray[np.int32],
    ops: int,
    *,
    least: int = 1,
    most: int | None = None,
    rng: np.random.Generator | None = None,
    kept: NDArray[np.int64] | None = None,
) -> Parsing:
    """Group the ops of a graph by scores of its edges.

    Kept edges join groups from the highest score on, until there are as few groups as allowed. If there are too many in the
    end, the other edges join groups in the same way; groups that no edge joins stay apart, even if they are too many. Of equal
    scores the first edge goes first.

    Args:
        log_scores: ``[E]``, logarithms of the scores of Eq. 7.
        edges: ``int32[E, 2]``, producer and consumer.
        ops: how many there are, ``V``.
        least: fewest groups.
        most: most groups; None for any number.
        rng: draws which edge each op keeps, in proportion to its edges' scores (Eq. 8); None for the best.
        kept: edges that were drawn before, to be scored again, instead.

    Raises:
        UsageError: the bounds are not in order; there are scores of other edges, or some that are not finite; an edge was kept
            that is not an op's own.
    """
    most = ops if most is None else most
    if not 1 <= least <= most:
        raise UsageError(f"A graph is parsed into {least} to {most} groups; it must be at least one, and no fewer than that.")
    if log_scores.shape != (len(edges),):
        raise UsageError(f"Scores have shape {tuple(log_scores.shape)}; the graph has {len(edges)} edges.")
    scores = log_scores.detach().numpy(force=True).astype(np.float64)
    if not np.isfinite(scores).all():
        raise UsageError("The logarithm of an edge's score is not finite.")
    ends = np.concatenate([edges[:, 0], edges[:, 1]]).astype(np.int64)
    own = np.tile(np.arange(len(edges)), 2)
    drawn = rng is not None or kept is not None
    if kept is None:
        values = scores[own] if rng is None else scores[own] + rng.gumbel(size=len(own))
        kept = _best(ends, own, values, ops)
    elif kept.shape != (ops,) or not _belong(kept, edges, ops):
        raise UsageError("Edges that were kept before are one for each op, of its own, and -1 for an op without any.")
    has = np.flatnonzero(kept >= 0)
    log_probability = log_scores.new_zeros(())
    if drawn and len(has):
        total = _log_sums(log_scores[own], torch.from_numpy(ends).to(log_scores.device), ops)
        log_probability = (log_scores[kept[has]] - total[has]).sum()
    by_score = np.lexsort((np.arange(len(edges)), -scores))
    of_some = np.zeros(len(edges), bool)
    of_some[kept[has]] = True
    first = by_score[of_some[by_score]]
    order = np.concatenate([first, by_score[~of_some[by_score]]])
    group = np.arange(ops)
    count = _join(group, edges[order].astype(np.int64).reshape(-1, 2), len(first), least, most)
    return Parsing(group, int(count), kept, log_probability)


def _best(ends: NDArray[np.int64], own: NDArray[np.int64], values: NDArray[np.float64], ops: int) -> NDArray[np.int64]:
    """For each op its edge of the greatest value, the first of equal ones; -1 if it has none."""
    kept = np.full(ops, -1, np.int64)
    order = np.lexsort((-own, values))  # what is written last stays
    kept[ends[order]] = own[order]
    return kept


def _belong(kept: NDArray[np.int64], edges: NDArray[np.int32], ops: int) -> bool:
    isolated = np.bincount(edges.reshape(-1), minlength=ops) == 0
    has = np.flatnonzero(kept >= 0)
    if kept.max(initial=-1) >= len(edges) or not np.array_equal(kept < 0, isolated):
        return False
    return bool((edges[kept[has]] == has[:, None]).any(axis=1).all())


def _log_sums(values: Tensor, index: Tensor, count: int) -> Tensor:
    """Logarithms of the sums of exponentials of the values of each index; gradients flow."""
    top = torch.full((count,), -torch.inf, dtype=values.dtype, device=values.device)
    top = top.scatter_reduce(0, index, values.detach(), "amax")
    top = torch.where(torch.isfinite(top), top, torch.zeros_like(top))
    sums = torch.zeros_like(top).index_add(0, index, torch.exp(values - top[index]))
    return torch.log(sums) + top


@jit
def _join(group: NDArray[np.int64], edges: NDArray[np.int64], kept: int, least: int, most: int) -> int:
    """Join the ends of edges, the first ``kept`` down to ``least`` groups, the others down to ``most``; number the groups."""
    ops = len(group)
    left = ops
    for i in range(len(edges)):
        if left <= (least if i < kept else most):
            continue
        u, v = edges[i]
        while group[u] != u:
            group[u] = group[group[u]]
            u = group[u]
        while group[v] != v:
            group[v] = group[group[v]]
            v = group[v]
        if u != v:
            group[max(u, v)] = min(u, v)
            left -= 1
    count = 0
    for v in range(ops):  # the root of a group is its first op
        if group[v] == v:
            group[v] = count
            count += 1
        else:
            group[v] = group[group[v]]
    return count


def pool(embeddings: Tensor, parsing: Parsing) -> Tensor:
    """Sum the embeddings of the ops of each group; gradients flow.

    Args:
        embeddings: ``[..., V, F]``.
        parsing: of the graph.

    Returns:
        ``[..., count, F]``.
    """
    shape = (*embeddings.shape[:-2], parsing.count, embeddings.shape[-1])
    index = torch.from_numpy(parsing.group).to(embeddings.device)
    return embeddings.new_zeros(shape).index_add(-2, index, embeddings)


def spread(pooled: Tensor, parsing: Parsing) -> Tensor:
    """Give each op what its group has: ``[..., V, F]`` of ``[..., count, F]``. Added to Z, it is the update of section 2.5."""
    return pooled.index_select(-2, torch.from_numpy(parsing.group).to(pooled.device))


def pooled_edges(edges: NDArray[np.int32], parsing: Parsing) -> NDArray[np.int64]:
    """Edges between different groups, each once, as they are directed (Eq. 11): ``int64[E', 2]``; they may form cycles."""
    between = parsing.group[edges].reshape(-1, 2)
    return unique_rows(between[between[:, 0] != between[:, 1]])[0]
