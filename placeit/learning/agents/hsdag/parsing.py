"""Graph parsing: groups of ops from scores of edges (HSDAG, section 2.4, after the graph parsing network on which it builds).

Every op keeps one of its edges, of either direction: the best one, or one that is drawn. Ops that are connected by kept edges
form a group (Eq. 9 and 10). Scores belong to directed edges.

Differs from the public code: this is done once, and not repeated until nothing changes, which in a connected graph ends in a
single group; and the number of groups is bounded from both sides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit import _core
from placeit.core.errors import UsageError

__all__ = ["Parsing", "pair_up", "parse", "pool", "score_edges", "spread"]


@dataclass(frozen=True, eq=False)
class Parsing:
    """A partition of the ops of a graph.

    Attributes:
        group: ``int64[V]``, the group of each op; groups are numbered by their first op.
        count: how many groups there are.
        kept: ``int64[V]``, the edge that each op has kept; -1 for an op without edges.
    """

    group: NDArray[np.int64]
    count: int
    kept: NDArray[np.int64]


def parse(
    log_scores: NDArray[np.floating],
    edges: NDArray[np.integer],
    ops: int,
    *,
    least: int = 1,
    most: int | None = None,
    rng: np.random.Generator | None = None,
) -> Parsing:
    """Group the ops of a graph by scores of its edges.

    Kept edges join groups in descending order of score, down to the fewest groups that are allowed. If too many groups are
    left, the other edges join groups in the same order; groups that no edge joins stay apart, even if they are too many. Of
    edges with equal scores, the first one goes first.

    Args:
        log_scores: ``[E]``, logarithms of the scores of Eq. 7.
        edges: ``int[E, 2]``, producer and consumer.
        ops: how many there are, ``V``.
        least: fewest groups.
        most: most groups; None for any number.
        rng: draws which edge each op keeps, in proportion to its edges' scores (Eq. 8); None for the best.

    Raises:
        UsageError: the bounds are not in order; there are scores of other edges, or some that are not finite.
    """
    most = ops if most is None else most
    if not 1 <= least <= most:
        raise UsageError(f"A graph is parsed into {least} to {most} groups; it must be at least one, and no fewer than that.")
    if log_scores.shape != (len(edges),):
        raise UsageError(f"Scores have shape {log_scores.shape}; the graph has {len(edges)} edges.")
    if not np.isfinite(log_scores).all():
        raise UsageError("The logarithm of an edge's score is not finite.")
    ends, own = pair_up(edges)
    scores = log_scores.astype(np.float64)
    values = scores[own] if rng is None else scores[own] + rng.gumbel(size=len(own))
    kept = np.full(ops, -1, np.int64)
    by_value = np.lexsort((-own, values))  # the last write stays: the greatest value, of ties the first
    kept[ends[by_value]] = own[by_value]
    by_score = np.lexsort((np.arange(len(edges)), -scores))
    of_some = np.zeros(len(edges), bool)
    of_some[kept[kept >= 0]] = True
    first = by_score[of_some[by_score]]
    order = np.concatenate([first, by_score[~of_some[by_score]]])
    group = np.empty(ops, np.int64)
    count = _core.join_groups(edges[order].astype(np.int64).reshape(-1, 2), len(first), least, most, group)
    return Parsing(group, count, kept)


def pair_up(edges: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the op and the number of every end of an edge: producers first, then consumers, ``int64[2 E]`` each."""
    ends = np.concatenate([edges[:, 0], edges[:, 1]]).astype(np.int64)
    return ends, np.tile(np.arange(len(edges)), 2)


def score_edges(log_scores: Tensor, edges: NDArray[np.integer], kept: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Score the drawing of edges, with gradients.

    Args:
        log_scores: ``[E]``, logarithms of scores.
        edges: ``int[E, 2]``, producer and consumer.
        kept: ``int64[V]``, the edge that each op drew, one of the op's edges; -1 for an op without edges.

    Returns:
        The log-probability of each op's draw, and the entropy of what it was drawn from (nats), ``[V]`` each; zero for an op
        without edges.
    """
    of_op, own = map(torch.from_numpy, pair_up(edges))
    values = log_scores[own]
    top = torch.full((len(kept),), -torch.inf, dtype=values.dtype)
    top = top.scatter_reduce(0, of_op, values.detach(), "amax")[of_op]
    sums = values.new_zeros(len(kept)).index_add(0, of_op, torch.exp(values - top))[of_op]
    log = values - top - torch.log(sums)
    entropy = values.new_zeros(len(kept)).index_add(0, of_op, -torch.exp(log) * log)
    # an edge's log-probability is at its number if its producer draws it, and ``E`` further on if its consumer does
    has = np.flatnonzero(kept >= 0)
    at = kept[has] + np.where(edges[kept[has], 0] == has, 0, len(edges))
    drawn = values.new_zeros(len(kept)).index_copy(0, torch.from_numpy(has), log[torch.from_numpy(at)])
    return drawn, entropy


def pool(embeddings: Tensor, group: NDArray[np.int64], count: int) -> Tensor:
    """Sum the embeddings of the ops of each group: ``[count, F]`` of ``[V, F]``; gradients flow."""
    return embeddings.new_zeros(count, embeddings.shape[-1]).index_add(0, torch.from_numpy(group), embeddings)


def spread(pooled: Tensor, group: NDArray[np.int64]) -> Tensor:
    """Return each op's value from its group: ``[V, F]`` of ``[count, F]``."""
    return pooled[torch.from_numpy(group)]
