"""Groups from scores of edges, against a definition that is written down as it is read, and slow."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.learning.agents.hsdag.parsing import Parsing, parse, pool, score_edges, spread
from placeit.testing.problems import random_problem

SEEDS = st.integers(0, 2**20)


def graph(seed: int, ops: int) -> tuple[np.ndarray, np.ndarray]:
    edges = random_problem(ops, 2, seed, everywhere=1.0).edges
    return edges, np.log(np.random.default_rng(seed).uniform(0.01, 0.99, len(edges)))


def slow_groups(edges: np.ndarray, kept: set[int], ops: int) -> list[set[int]]:
    groups = [{v} for v in range(ops)]
    for e in kept:
        u, v = edges[e].tolist()
        (one,), (two,) = ([group for group in groups if op in group] for op in (u, v))
        if one is not two:
            groups = [group for group in groups if group is not one and group is not two] + [one | two]
    return sorted(groups, key=min)


def groups_of(parsing: Parsing) -> list[set[int]]:
    return [set(np.flatnonzero(parsing.group == number).tolist()) for number in range(parsing.count)]


@given(SEEDS, st.integers(1, 12))
@settings(max_examples=60)
def test_without_bounds_groups_are_what_the_best_edge_of_each_op_holds_together(seed: int, ops: int) -> None:
    edges, scores = graph(seed, ops)
    parsing = parse(scores, edges, ops)
    kept = set()
    for v in range(ops):
        own = [e for e, pair in enumerate(edges.tolist()) if v in pair]
        best = max(own, key=lambda e: (float(scores[e]), -e), default=-1)
        assert parsing.kept[v] == best
        kept |= {best} - {-1}
    assert groups_of(parsing) == slow_groups(edges, kept, ops)


@given(SEEDS, st.integers(2, 12), st.data())
@settings(max_examples=60)
def test_the_number_of_groups_is_bounded(seed: int, ops: int, data: st.DataObject) -> None:
    edges, scores = graph(seed, ops)
    least = data.draw(st.integers(1, ops))
    most = data.draw(st.integers(least, ops))
    free, parsing = parse(scores, edges, ops), parse(scores, edges, ops, min_groups=least, max_groups=most)
    apart = len(slow_groups(edges, set(range(len(edges))), ops))  # what no edge joins
    assert parsing.count == max(apart, min(most, max(least, free.count)))
    # groups are unions of the free ones where there had to be fewer, and parts of them where there had to be more
    fine, coarse = (parsing, free) if parsing.count >= free.count else (free, parsing)
    assert all(len(set(coarse.group[fine.group == number].tolist())) == 1 for number in range(fine.count))
    assert [min(group) for group in groups_of(parsing)] == sorted(min(group) for group in groups_of(parsing))


def test_equal_scores_do_not_end_in_one_group_if_that_is_not_allowed() -> None:
    edges = np.array([(v, v + 1) for v in range(99)], np.int32)
    assert parse(np.zeros(99), edges, 100).count == 1
    assert parse(np.zeros(99), edges, 100, min_groups=8).count == 8
    assert parse(np.zeros(99), edges, 100, min_groups=8, max_groups=20).count == 8


@given(SEEDS, st.integers(2, 10))
@settings(max_examples=30)
def test_drawn_edges_are_scored_by_the_definition_of_their_probability(seed: int, ops: int) -> None:
    edges, scores = graph(seed, ops)
    kept = parse(scores, edges, ops, rng=np.random.default_rng(seed)).kept
    differentiable = torch.from_numpy(scores).requires_grad_()
    log, entropy = score_edges(differentiable, edges, kept)
    for v in range(ops):
        own = [e for e, pair in enumerate(edges.tolist()) if v in pair]
        share = np.exp(scores[own]) / np.exp(scores[own]).sum()
        assert kept[v] in (own or [-1])
        assert log[v].item() == pytest.approx(np.log(share[own.index(int(kept[v]))]) if own else 0.0, abs=1e-9)
        assert entropy[v].item() == pytest.approx(-(share * np.log(share)).sum(), abs=1e-9)
    if len(edges):
        torch.autograd.gradcheck(lambda s: score_edges(s, edges, kept), (differentiable,))


def test_probabilities_of_all_that_can_be_drawn_add_up_to_one() -> None:
    edges = np.array([(0, 1), (0, 2), (1, 3), (2, 3), (1, 2)], np.int32)
    scores = np.log([0.9, 0.1, 0.5, 0.3, 0.7])
    own = [[e for e, pair in enumerate(edges.tolist()) if v in pair] for v in range(5)]  # the last op has none
    ways = [np.array(kept) for kept in itertools.product(*(edges or [-1] for edges in own))]
    chances = [score_edges(torch.from_numpy(scores), edges, kept)[0].sum().exp().item() for kept in ways]
    assert len(ways) == 2 * 3 * 3 * 2
    assert sum(chances) == pytest.approx(1.0)
    rng, often = np.random.default_rng(0), dict.fromkeys((tuple(kept.tolist()) for kept in ways), 0)
    for _ in range(4000):
        often[tuple(parse(scores, edges, 5, rng=rng).kept.tolist())] += 1
    assert np.abs(np.array(list(often.values())) / 4000 - chances).max() < 0.02


def test_edges_are_drawn_in_proportion_to_their_scores() -> None:
    edges = np.array([(0, 1), (0, 2)], np.int32)
    scores = np.log([0.2, 0.6])
    rng = np.random.default_rng(0)
    first = [parse(scores, edges, 3, rng=rng).kept[0] for _ in range(2000)]
    assert np.mean(first) == pytest.approx(0.75, abs=0.05)
    certain = parse(np.array([-90.0, 0.0]), edges, 3, rng=rng)
    assert certain.kept[0] == 1


def test_pooling_sums_by_group_spreading_gives_it_back_and_gradients_flow() -> None:
    edges = np.array([(0, 1), (2, 3), (1, 2)], np.int32)
    parsing = parse(np.array([0.0, 0.0, -5.0]), edges, 5)
    assert parsing.group.tolist() == [0, 0, 1, 1, 2]
    embeddings = torch.arange(10.0).reshape(5, 2).requires_grad_()
    pooled = pool(embeddings, parsing.group, parsing.count)
    assert pooled.tolist() == [[2, 4], [10, 12], [8, 9]]
    given_back = spread(pooled, parsing.group)
    assert given_back.tolist() == [[2, 4], [2, 4], [10, 12], [10, 12], [8, 9]]
    given_back[0].sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad[:, 0].tolist() == [1, 1, 0, 0, 0]


def test_what_does_not_fit_together_is_refused() -> None:
    edges = np.array([(0, 1), (1, 2)], np.int32)
    for least, most in ((0, 3), (3, 2)):
        with pytest.raises(UsageError, match="is parsed into"):
            parse(np.zeros(2), edges, 3, min_groups=least, max_groups=most)
    with pytest.raises(UsageError, match="the graph has 2 edges"):
        parse(np.zeros(3), edges, 3)
    with pytest.raises(UsageError, match="not finite"):
        parse(np.array([0.0, np.nan]), edges, 3)
