"""HSDAG's features, against definitions that are written down as they are read, and slow."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.placers.learned.agents.hsdag.features import (
    FeatureLayout,
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
@settings(max_examples=40, deadline=None)
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
    assert positions(problem, 0).shape == (3, 0)
    with pytest.raises(UsageError, match="even number of columns"):
        FeatureLayout.of([problem], encoding=3)


def test_columns_are_those_of_the_layout() -> None:
    problem = problem_of(
        [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3)],
        4,
        kinds=["Conv", "Relu", "Relu", "Add"],
        output_shapes=[(1, 8, 4, 4), (1, 8), None, ()],
    )
    layout = FeatureLayout.of([problem], encoding=2)
    assert (layout.kinds, layout.in_degrees, layout.out_degrees, layout.dimensions) == (
        ("Add", "Conv", "Relu"),
        (0, 1, 3),
        (0, 1, 3),
        4,
    )
    features = node_features(problem, layout)
    assert (features.shape, features.dtype) == ((4, layout.width), np.float32)
    columns = layout.columns
    assert features[:, columns["kind"]].tolist() == [[0, 1, 0], [0, 0, 1], [0, 0, 1], [1, 0, 0]]
    assert features[:, columns["in-degree"]].tolist() == [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]
    assert features[:, columns["out-degree"]].tolist() == [[0, 0, 1], [0, 1, 0], [0, 1, 0], [1, 0, 0]]
    shapes = np.expm1(features[:, columns["output shape"]])
    np.testing.assert_allclose(shapes, [[1, 8, 4, 4], [1, 8, 0, 0], [0] * 4, [0] * 4], rtol=1e-6)
    np.testing.assert_allclose(features[:, columns["fractal dimension"]][:, 0], fractal_dimensions(problem), rtol=1e-6)
    np.testing.assert_allclose(features[:, columns["position"]], positions(problem, 2), rtol=1e-6)


def test_a_layout_of_several_problems_fits_each_and_what_it_does_not_have_is_zero() -> None:
    one = problem_of([(0, 1)], 2, kinds=["a", "b"], output_shapes=[(2, 3), (4,)])
    other = problem_of([(0, 1), (0, 2)], 3, kinds=["a", "c", "a"], output_shapes=[(2, 3, 4), None, None])
    both = FeatureLayout.of([one, other])
    assert node_features(one, both).shape[1] == node_features(other, both).shape[1] == both.width
    foreign = node_features(other, FeatureLayout.of([one], encoding=0))
    assert foreign.shape == (3, 2 + 2 + 2 + 2 + 1)
    assert foreign[1, :2].tolist() == [0, 0]
    assert foreign[0, 6:8].tolist() == [0, 0]  # two consumers
    np.testing.assert_allclose(np.expm1(foreign[0, 2:4]), [2, 3], rtol=1e-6)


def test_problems_without_kinds_or_edges_have_features_too() -> None:
    problem = random_problem(1, 2)
    layout = FeatureLayout.of([problem])
    assert node_features(problem, layout).shape == (1, 1 + 0 + 1 + 1 + 1 + 16)
    assert np.isfinite(node_features(problem, FeatureLayout((), (), (), 0, 0))).all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "groups", "kinds", "width"), [("resnet50", 37, 3, 30), ("inception_v3", 66, 6, 37), ("bert_base", 90, 5, 35)]
)
def test_groups_of_real_models_have_so_many_features(loaded_model: Any, name: str, groups: int, kinds: int, width: int) -> None:
    graph = coarsen(loaded_model(name).graph).groups
    problem = problem_of(graph.edges.tolist(), len(graph), kinds=graph.kinds, output_shapes=graph.output_shapes)
    layout = FeatureLayout.of([problem])
    features = node_features(problem, layout)
    assert (len(layout.kinds), layout.dimensions, features.shape) == (kinds, 4, (groups, width))
    found = features[:, layout.columns["fractal dimension"]][:, 0]
    np.testing.assert_allclose(found, [slow_dimension(problem, v) for v in range(groups)], rtol=1e-5)
    assert 0.5 < found.min() < found.max() < 2.5
