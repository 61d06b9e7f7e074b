"""Graph parsing: groups of ops from scores of edges (HSDAG, section 2.4, after the graph parsing network on which it builds).

Every op keeps one of its in- or out-edges: the one with the highest score, or one that is drawn. Ops that are connected by kept
edges form a group (Eq. 9 and 10). Scores belong to directed edges.

Differs from the public code: parsing is done once. The public code repeats it until nothing changes, which results in a single
group if the graph is connected. Also, the number of groups has a lower and an upper bound.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from placeit import _core
from placeit.core.errors import UsageError

__all__ = ["Parsing", "edge_ends", "parse", "pool", "score_edges", "spread"]


@dataclass(frozen=True, eq=False)
class Parsing:
    """A partition of the ops of a graph.

    Attributes:
        group: ``int64[V]``, the group of each op; groups are numbered in the order of their first ops.
        count: number of groups.
        kept: ``int64[V]``, the edge that each op keeps; -1 for an op without edges.
    """

    group: NDArray[np.int64]
    count: int
    kept: NDArray[np.int64]


def parse(
    log_scores: NDArray[np.floating],
    edges: NDArray[np.integer],
    ops: int,
    *,
    min_groups: int = 1,
    max_groups: int | None = None,
    rng: np.random.Generator | None = None,
) -> Parsing:
    """Group the ops of a graph by scores of its edges.

    Kept edges join groups in descending order of score, as long as more than ``min_groups`` are left. If more than
    ``max_groups`` are left after that, the other edges join groups, in descending order of score. Groups that no edge joins
    stay separate, even if there are too many. Edges with equal scores are used in their order.

    Args:
        log_scores: ``[E]``, logarithms of the scores of Eq. 7.
        edges: ``int[E, 2]``, producer and consumer.
        ops: number of ops, ``V``.
        min_groups: minimum number of groups.
        max_groups: maximum number of groups; None for no limit.
        rng: random generator that draws the edge that each op keeps, in proportion to scores (Eq. 8); None for the edge with
            the highest score.

    Raises:
        UsageError: the bounds are not in order, or there is not one finite score for each edge.
    """
    max_groups = ops if max_groups is None else max_groups
    if not 1 <= min_groups <= max_groups:
        raise UsageError(
            f"A graph is parsed into {min_groups} to {max_groups} groups; the minimum must be at least 1, and not more than "
            "the maximum."
        )
    if log_scores.shape != (len(edges),):
        raise UsageError(f"Scores have shape {log_scores.shape}; the graph has {len(edges)} edges.")
    if not np.isfinite(log_scores).all():
        raise UsageError("The logarithm of an edge's score is not finite.")
    ends, numbers = edge_ends(edges)
    scores = log_scores.astype(np.float64)
    values = scores[numbers] if rng is None else scores[numbers] + rng.gumbel(size=len(numbers))
    kept = np.full(ops, -1, np.int64)
    by_value = np.lexsort((-numbers, values))  # the last write wins: the highest value, the first in a tie
    kept[ends[by_value]] = numbers[by_value]
    by_score = np.lexsort((np.arange(len(edges)), -scores))
    is_kept = np.zeros(len(edges), bool)
    is_kept[kept[kept >= 0]] = True
    first = by_score[is_kept[by_score]]
    order = np.concatenate([first, by_score[~is_kept[by_score]]])
    group = np.empty(ops, np.int64)
    count = _core.join_groups(edges[order].astype(np.int64).reshape(-1, 2), len(first), min_groups, max_groups, group)
    return Parsing(group, count, kept)


def edge_ends(edges: NDArray[np.integer]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the op and the edge number of each edge end, of all producers and then of all consumers: ``int64[2 E]`` twice."""
    ends = np.concatenate([edges[:, 0], edges[:, 1]]).astype(np.int64)
    return ends, np.tile(np.arange(len(edges)), 2)


def score_edges(log_scores: Tensor, edges: NDArray[np.integer], kept: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Score draws of edges, with gradients.

    Args:
        log_scores: ``[E]``, logarithms of scores.
        edges: ``int[E, 2]``, producer and consumer.
        kept: ``int64[V]``, the edge that each op drew, one of the op's edges; -1 for an op without edges.

    Returns:
        The log-probability of each op's draw, and the entropy of its distribution (nats), ``[V]`` each; zero for an op without
        edges.
    """
    ops, numbers = map(torch.from_numpy, edge_ends(edges))
    values = log_scores[numbers]
    maximum = torch.full((len(kept),), -torch.inf, dtype=values.dtype)
    maximum = maximum.scatter_reduce(0, ops, values.detach(), "amax")[ops]
    sums = values.new_zeros(len(kept)).index_add(0, ops, torch.exp(values - maximum))[ops]
    log = values - maximum - torch.log(sums)
    entropy = values.new_zeros(len(kept)).index_add(0, ops, -torch.exp(log) * log)
    # the log-probability of edge e is log[e] if its producer draws it, and log[E + e] if its consumer does
    drawing = np.flatnonzero(kept >= 0)
    index = kept[drawing] + np.where(edges[kept[drawing], 0] == drawing, 0, len(edges))
    drawn = values.new_zeros(len(kept)).index_copy(0, torch.from_numpy(drawing), log[torch.from_numpy(index)])
    return drawn, entropy


def pool(embeddings: Tensor, group: NDArray[np.int64], count: int) -> Tensor:
    """Return the sum of the embeddings of each group's ops: ``[V, F]`` to ``[count, F]``; gradients flow."""
    return embeddings.new_zeros(count, embeddings.shape[-1]).index_add(0, torch.from_numpy(group), embeddings)


def spread(pooled: Tensor, group: NDArray[np.int64]) -> Tensor:
    """Return the value of each op's group: ``[count, F]`` to ``[V, F]``."""
    return pooled[torch.from_numpy(group)]
