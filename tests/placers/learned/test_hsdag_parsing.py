"""Groups from scores of edges, against a definition that is written down as it is read, and slow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.placers.learned.agents.hsdag.parsing import Parsing, parse, pool, pooled_edges, spread
from placeit.testing.problems import random_problem

SEEDS = st.integers(0, 2**20)


def graph(seed: int, ops: int) -> tuple[np.ndarray, torch.Tensor]:
    edges = random_problem(ops, 2, seed, everywhere=1.0).edges
    generator = torch.Generator().manual_seed(seed)
    return edges, torch.nn.functional.logsigmoid(torch.randn(len(edges), generator=generator, dtype=torch.float64))


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
@settings(max_examples=60, deadline=None)
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
    assert parsing.log_probability.item() == 0.0


@given(SEEDS, st.integers(2, 12), st.data())
@settings(max_examples=60, deadline=None)
def test_the_number_of_groups_is_bounded(seed: int, ops: int, data: st.DataObject) -> None:
    edges, scores = graph(seed, ops)
    least = data.draw(st.integers(1, ops))
    most = data.draw(st.integers(least, ops))
    free, parsing = parse(scores, edges, ops), parse(scores, edges, ops, least=least, most=most)
    apart = len(slow_groups(edges, set(range(len(edges))), ops))  # what no edge joins
    assert parsing.count == max(apart, min(most, max(least, free.count)))
    # groups are unions of the free ones where there had to be fewer, and parts of them where there had to be more
    fine, coarse = (parsing, free) if parsing.count >= free.count else (free, parsing)
    assert all(len(set(coarse.group[fine.group == number].tolist())) == 1 for number in range(fine.count))
    assert [min(group) for group in groups_of(parsing)] == sorted(min(group) for group in groups_of(parsing))


def test_equal_scores_do_not_end_in_one_group_if_that_is_not_allowed() -> None:
    edges = np.array([(v, v + 1) for v in range(99)], np.int32)
    assert parse(torch.zeros(99), edges, 100).count == 1
    assert parse(torch.zeros(99), edges, 100, least=8).count == 8
    assert parse(torch.zeros(99), edges, 100, least=8, most=20).count == 8


@given(SEEDS, st.integers(2, 10))
@settings(max_examples=30, deadline=None)
def test_drawn_edges_have_the_probability_of_their_definition_and_are_scored_again_alike(seed: int, ops: int) -> None:
    edges, scores = graph(seed, ops)
    scores.requires_grad_()
    parsing = parse(scores, edges, ops, rng=np.random.default_rng(seed))
    expected = 0.0
    for v in range(ops):
        own = [e for e, pair in enumerate(edges.tolist()) if v in pair]
        if own:
            assert parsing.kept[v] in own
            share = scores.detach().exp()[own]
            expected += float(torch.log(share[own.index(int(parsing.kept[v]))] / share.sum()))
        else:
            assert parsing.kept[v] == -1
    assert parsing.log_probability.item() == pytest.approx(expected, abs=1e-9)
    again = parse(scores, edges, ops, kept=parsing.kept)
    assert again.group.tolist() == parsing.group.tolist()
    assert again.log_probability.item() == parsing.log_probability.item()
    if len(edges):
        torch.autograd.gradcheck(lambda s: parse(s, edges, ops, kept=parsing.kept).log_probability, (scores,))


def test_edges_are_drawn_in_proportion_to_their_scores() -> None:
    edges = np.array([(0, 1), (0, 2)], np.int32)
    scores = torch.log(torch.tensor([0.2, 0.6]))
    rng = np.random.default_rng(0)
    first = [parse(scores, edges, 3, rng=rng).kept[0] for _ in range(2000)]
    assert np.mean(first) == pytest.approx(0.75, abs=0.05)
    certain = parse(torch.tensor([-90.0, 0.0]), edges, 3, rng=rng)
    assert certain.kept[0] == 1


def test_pooling_sums_by_group_spreading_gives_it_back_and_gradients_flow() -> None:
    edges = np.array([(0, 1), (2, 3), (1, 2)], np.int32)
    parsing = parse(torch.tensor([0.0, 0.0, -5.0]), edges, 5)
    assert parsing.group.tolist() == [0, 0, 1, 1, 2]
    embeddings = torch.arange(10.0).reshape(5, 2).requires_grad_()
    pooled = pool(embeddings, parsing)
    assert pooled.tolist() == [[2, 4], [10, 12], [8, 9]]
    assert spread(pooled, parsing).tolist() == [[2, 4], [2, 4], [10, 12], [10, 12], [8, 9]]
    spread(pooled, parsing)[0].sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad[:, 0].tolist() == [1, 1, 0, 0, 0]
    assert pool(torch.ones(7, 5, 2), parsing).shape == (7, 3, 2)
    assert pooled_edges(edges, parsing).tolist() == [[0, 1]]


def test_edges_between_groups_keep_their_direction() -> None:
    edges = np.array([(0, 1), (0, 2), (1, 3), (2, 3), (1, 2)], np.int32)
    parsing = parse(torch.tensor([-9.0, -9.0, 0.0, -9.0, -9.0]), edges, 4, least=3)
    assert parsing.group.tolist() == [0, 1, 2, 1]
    assert pooled_edges(edges, parsing).tolist() == [[0, 1], [0, 2], [1, 2], [2, 1]]


def test_what_does_not_fit_together_is_refused() -> None:
    edges = np.array([(0, 1), (1, 2)], np.int32)
    scores = torch.zeros(2)
    for least, most in ((0, 3), (3, 2)):
        with pytest.raises(UsageError, match="is parsed into"):
            parse(scores, edges, 3, least=least, most=most)
    with pytest.raises(UsageError, match="the graph has 2 edges"):
        parse(torch.zeros(3), edges, 3)
    with pytest.raises(UsageError, match="not finite"):
        parse(torch.tensor([0.0, torch.nan]), edges, 3)
    for kept in ([1, 0, 1], [0, 0], [-1, 0, 1], [0, 0, 2]):
        with pytest.raises(UsageError, match="kept before"):
            parse(scores, edges, 3, kept=np.array(kept))
