"""HSDAG's features, against definitions that are written down as they are read, and slow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.problem import Problem
from placeit.learning.agents.hsdag.features import (
    COLUMNS,
    KINDS,
    WIDTH,
    degrees,
    fractal_dimensions,
    node_features,
    positions,
)
from placeit.planning.coarsen import coarsen
from placeit.testing.problems import random_problem


def problem_of(edges: list[tuple[int, int]], ops: int, **more: object) -> Problem:
    return Problem.from_arrays(np.ones((ops, 2)), edges, np.ones(len(edges)), np.ones((2, 2)), np.zeros((2, 2)), **more)  # type: ignore[arg-type]


def slow_dimension(problem: Problem, v: int) -> float:
    """Eq. 4, with distances by widening circles."""
    around: list[set[int]] = [set() for _ in range(len(problem))]
    for u, w in problem.edges.tolist():
        around[u].add(w)
        around[w].add(u)
    reached, counts = {v}, []
    while True:
        wider = reached.union(*(around[u] for u in reached))
        if wider == reached:
            break
        reached = wider
        counts.append(len(reached) - 1)
    if len(counts) < 2:
        return 0.0
    slope, _ = np.polyfit(np.log(np.arange(1, len(counts) + 1)), np.log(counts), 1)
    return float(slope)


def test_the_fractal_dimension_of_a_chain_is_near_one_and_of_a_star_zero_at_its_centre() -> None:
    chain = fractal_dimensions(problem_of([(v, v + 1) for v in range(40)], 41))
    assert chain[0] == pytest.approx(1.0)
    star = fractal_dimensions(problem_of([(0, v) for v in range(1, 6)], 6))
    assert star[0] == 0.0  # all others are at one distance
    assert star[1] == pytest.approx(math.log(5) / math.log(2))


@given(st.integers(0, 2**20), st.integers(1, 14))
@settings(max_examples=40)
def test_fractal_dimensions_and_degrees_are_those_of_their_definition(seed: int, ops: int) -> None:
    problem = random_problem(ops, 2, seed, everywhere=1.0)
    found, (incoming, outgoing) = fractal_dimensions(problem), degrees(problem)
    for v in range(ops):
        assert found[v] == pytest.approx(slow_dimension(problem, v), abs=1e-9)
        assert incoming[v] == len({int(u) for u, w in problem.edges if w == v})
        assert outgoing[v] == len({int(w) for u, w in problem.edges if u == v})


def test_positions_are_sines_and_cosines_of_the_place_in_topological_order() -> None:
    problem = problem_of([(2, 1), (1, 0)], 3)
    found = positions(problem, 4)
    for v, place in ((2, 1), (1, 2), (0, 3)):
        expected = [math.sin(place), math.cos(place), math.sin(place / 100), math.cos(place / 100)]
        assert found[v].tolist() == pytest.approx(expected)


def small() -> Problem:
    """Ops that differ in everything: an op that feeds ten others, two of which feed the last."""
    edges = [(0, v) for v in range(1, 11)] + [(1, 11), (2, 11), (1, 2)]
    kinds = ["Convolution", "Relu", "MatMul", "mine", "", *["Relu"] * 6, "Add"]
    shapes = [(1, 8, 4, 4), (1, 8), (3,), None, (), *[(2,)] * 6, (1, 2, 3, 4, 5, 6, 7, 8)]
    return problem_of(edges, 12, kinds=kinds, output_shapes=shapes)


def test_every_feature_has_columns_of_its_own_in_the_order_of_the_paper() -> None:
    names = ["kind", "output shape", "in-degree", "out-degree", "fractal dimension", "position"]
    assert list(COLUMNS) == names
    assert [COLUMNS[name].start for name in names] == [0, *(COLUMNS[name].stop for name in names[:-1])]
    assert COLUMNS["position"].stop == WIDTH == node_features(small()).shape[1]


def test_features_are_those_of_the_ops_one_by_one() -> None:
    problem = small()
    features = node_features(problem)
    assert features.dtype == np.float32
    kinds = features[:, COLUMNS["kind"]]
    assert kinds.sum(axis=1).tolist() == [1, 1, 1, 1, 0, *[1] * 7]
    for v, kind in ((0, "Convolution"), (1, "Relu"), (2, "MatMul"), (11, "Add")):
        assert kinds[v, KINDS.index(kind)] == 1
    shapes = np.expm1(features[:, COLUMNS["output shape"]])
    expected = [[1, 8, 4, 4, 0, 0], [1, 8, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0], [0] * 6, [0] * 6, *[[2, 0, 0, 0, 0, 0]] * 6]
    np.testing.assert_allclose(shapes, [*expected, [1, 2, 3, 4, 5, 6]], rtol=1e-6)
    ones = features[:, COLUMNS["in-degree"]], features[:, COLUMNS["out-degree"]]
    assert all((one.sum(axis=1) == 1).all() for one in ones)
    assert ones[0].argmax(axis=1).tolist() == [0, 1, 2, *[1] * 8, 2]
    assert ones[1].argmax(axis=1).tolist() == [8, 2, 1, *[0] * 9]  # ten are eight or more
    found = features[:, COLUMNS["fractal dimension"]][:, 0]
    np.testing.assert_allclose(found, [slow_dimension(problem, v) for v in range(12)], rtol=1e-5)
    np.testing.assert_allclose(features[:, COLUMNS["position"]], positions(problem, 16), rtol=1e-5, atol=1e-6)


def test_a_kind_that_is_not_in_the_vocabulary_has_a_column_by_its_name() -> None:
    problem = problem_of([(0, 1), (1, 2)], 3, kinds=["mine", "aten.relu", "mine"])
    kinds = node_features(problem)[:, COLUMNS["kind"]]
    where = kinds.argmax(axis=1)
    assert kinds.sum(axis=1).tolist() == [1, 1, 1]
    assert (where >= len(KINDS)).all()
    assert where[0] == where[2] != where[1]


@pytest.mark.parametrize("name", list(COLUMNS))
def test_what_is_left_out_is_zero_and_nothing_else_changes(name: str) -> None:
    whole, less = node_features(small()), node_features(small(), [name])
    assert whole[:, COLUMNS[name]].any()
    assert not less[:, COLUMNS[name]].any()
    others = np.ones(WIDTH, bool)
    others[COLUMNS[name]] = False
    assert np.array_equal(whole[:, others], less[:, others])


def test_problems_without_kinds_or_edges_have_features_too() -> None:
    features = node_features(random_problem(1, 2))
    assert features.shape == (1, WIDTH)
    assert np.isfinite(features).all()
    assert not features[:, : COLUMNS["output shape"].stop].any()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "inception_v3", "bert_base"])
def test_groups_of_real_models_have_kinds_of_the_vocabulary_and_fractal_dimensions(loaded_model: Any, name: str) -> None:
    graph = coarsen(loaded_model(name).graph).groups
    problem = problem_of(graph.edges.tolist(), len(graph), kinds=graph.kinds, output_shapes=graph.output_shapes)
    assert set(graph.kinds) <= set(KINDS)
    found = node_features(problem)[:, COLUMNS["fractal dimension"]][:, 0]
    np.testing.assert_allclose(found, [slow_dimension(problem, v) for v in range(len(graph))], rtol=1e-5)
    assert 0.5 < found.min() < found.max() < 2.5
