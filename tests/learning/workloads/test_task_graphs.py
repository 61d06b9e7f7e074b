import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.core.graph import topological_order
from placeit.learning.workloads.parameters import draw_parameters
from placeit.learning.workloads.task_graphs import TaskGraph, TaskGraphParameters, random_task_graph

PARAMETERS = st.builds(
    TaskGraphParameters,
    tasks=st.integers(1, 40),
    alpha=st.floats(0.1, 3.0),
    connection=st.floats(0, 1),
    mean_compute=st.floats(0.1, 1e6),
    mean_bytes=st.floats(0, 1e6),
    compute_heterogeneity=st.floats(0, 1),
    bytes_heterogeneity=st.floats(0, 1),
    hardware_types=st.integers(1, 6),
    level_spread=st.floats(0, 1),
)
SEEDS = st.integers(0, 2**32)


def draw(seed: int = 0, max_tasks: int | None = None, **values: float) -> TaskGraph:
    return random_task_graph(TaskGraphParameters(**values), np.random.default_rng(seed), max_tasks=max_tasks)


def levels(graph: TaskGraph) -> np.ndarray:
    level = np.zeros(len(graph), int)
    for u, v in graph.edges:  # sorted by producer, and tasks are numbered level by level
        level[v] = max(level[v], level[u] + 1)
    return level


@given(PARAMETERS, SEEDS)
def test_a_task_graph_has_one_entry_and_one_exit_and_no_cycle(parameters, seed):
    graph = random_task_graph(parameters, np.random.default_rng(seed))
    assert topological_order(graph.edges, len(graph)) is not None
    assert np.flatnonzero(np.bincount(graph.edges[:, 1], minlength=len(graph)) == 0).tolist() == [0]
    assert np.flatnonzero(np.bincount(graph.edges[:, 0], minlength=len(graph)) == 0).tolist() == [len(graph) - 1]
    assert len({tuple(edge) for edge in graph.edges.tolist()}) == len(graph.edges) == len(graph.edge_bytes)


@given(PARAMETERS, SEEDS)
def test_costs_and_requirements_stay_within_their_bounds(parameters, seed):
    graph = random_task_graph(parameters, np.random.default_rng(seed))
    for values, mean, share in (
        (graph.compute, parameters.mean_compute, parameters.compute_heterogeneity),
        (graph.edge_bytes, parameters.mean_bytes, parameters.bytes_heterogeneity),
    ):
        slack = 1e-9 * mean
        assert values.min() >= mean * (1 - share) - slack
        assert values.max() <= mean * (1 + share) + slack
    assert set(graph.requires.tolist()) <= set(range(parameters.hardware_types))


@given(PARAMETERS, SEEDS, st.integers(3, 60))
def test_a_task_graph_is_no_larger_than_allowed_and_keeps_its_shape(parameters, seed, most):
    graph = random_task_graph(parameters, np.random.default_rng(seed), max_tasks=most)
    assert 3 <= len(graph) <= most
    assert np.bincount(levels(graph))[[0, -1]].tolist() == [1, 1]


def test_a_graph_that_is_small_enough_is_not_changed_by_a_limit():
    free, limited = draw(3), draw(3, max_tasks=200)
    assert np.array_equal(free.edges, limited.edges)
    assert np.array_equal(free.compute, limited.compute)


@pytest.mark.parametrize(("tasks", "alpha"), [(40, 0.5), (40, 1.0), (30, 2.0), (20, 0.3)])
def test_depth_and_widths_have_the_means_of_the_paper(tasks, alpha):
    rng = np.random.default_rng(0)
    parameters = TaskGraphParameters(tasks=tasks, alpha=alpha, connection=0.1)
    sizes = [np.bincount(levels(random_task_graph(parameters, rng)))[1:-1] for _ in range(400)]
    depth, width = math.sqrt(tasks) / alpha, alpha * math.sqrt(tasks)
    assert np.mean([len(size) for size in sizes]) == pytest.approx(depth, rel=0.06)
    assert np.mean(np.concatenate(sizes)) == pytest.approx(width, rel=0.06)
    assert np.mean([size.sum() for size in sizes]) == pytest.approx(tasks, rel=0.08)


def test_depth_and_widths_are_spread_as_far_as_told():
    rng = np.random.default_rng(0)
    sizes = [
        np.bincount(levels(random_task_graph(TaskGraphParameters(tasks=100, level_spread=0.4), rng)))[1:-1] for _ in range(200)
    ]
    depths = [len(size) for size in sizes]
    assert (min(depths), max(depths)) == (6, 14)
    assert (np.concatenate(sizes).min(), np.concatenate(sizes).max()) == (6, 14)


def test_without_spread_depth_and_width_are_exact():
    sizes = np.bincount(levels(draw(tasks=36, alpha=1.5, level_spread=0.0)))
    assert sizes.tolist() == [1, 9, 9, 9, 9, 1]


def test_two_tasks_of_different_levels_are_linked_with_the_probability_asked_for():
    graph = draw(tasks=400, connection=0.3, level_spread=0.0)
    level = levels(graph)
    pairs = int((level[:, None] < level[None, :]).sum())
    assert len(graph.edges) / pairs == pytest.approx(0.3, abs=0.01)


@pytest.mark.parametrize("connection", [0.0, 1.0])
def test_the_extreme_probabilities_give_a_bare_and_a_full_graph(connection):
    graph = draw(tasks=25, connection=connection)
    level = levels(graph)
    pairs = int((level[:, None] < level[None, :]).sum())
    # a bare graph has a parent for each task, and an edge to the exit for each task without a child
    childless = np.setdiff1d(np.arange(len(graph) - 1), graph.edges[graph.edges[:, 1] < len(graph) - 1, 0])
    assert len(graph.edges) == (pairs if connection else len(graph) - 2 + len(childless))


def test_every_type_of_hardware_is_required_about_as_often():
    counts = np.bincount(draw(tasks=2000, alpha=20.0, connection=0.0, hardware_types=4).requires, minlength=4)
    assert counts.min() / counts.sum() > 0.2


def test_the_same_seed_gives_the_same_graph_and_another_seed_another():
    first, again, other = draw(5), draw(5), draw(6)
    for field in dataclasses.fields(TaskGraph):
        assert np.array_equal(getattr(first, field.name), getattr(again, field.name))
    assert len(first) != len(other) or not np.array_equal(first.compute, other.compute)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tasks", 0, "a whole number of at least 1"),
        ("tasks", 2.5, "a whole number of at least 1"),
        ("tasks", True, "a whole number"),
        ("alpha", 0.0, "of at least 0.001 and at most 1000"),
        ("alpha", 1e-300, "of at least 0.001"),
        ("connection", 1.1, "at most 1"),
        ("mean_compute", math.nan, "above 0"),
        ("mean_bytes", -1.0, "of at least 0"),
        ("compute_heterogeneity", 1.5, "at most 1"),
        ("level_spread", "wide", "a number"),
        ("hardware_types", 0, "a whole number of at least 1"),
    ],
)
def test_a_parameter_out_of_range_is_refused(name, value, said):
    with pytest.raises(UsageError, match=f"'{name}' of TaskGraphParameters must be .*{said}"):
        TaskGraphParameters(**{name: value})


def test_room_for_fewer_than_three_tasks_is_refused():
    with pytest.raises(UsageError, match="3 at least"):
        draw(max_tasks=2)


def test_a_combination_of_values_is_drawn_each_as_often_as_the_others():
    rng = np.random.default_rng(0)
    choices = {"alpha": (0.5, 1.0), "tasks": (10, 20, 30)}
    drawn = [draw_parameters(TaskGraphParameters, choices, rng) for _ in range(600)]
    counts = {pair: sum((p.tasks, p.alpha) == pair for p in drawn) for pair in {(p.tasks, p.alpha) for p in drawn}}
    assert len(counts) == 6
    assert min(counts.values()) > 70
    assert {p.connection for p in drawn} == {TaskGraphParameters().connection}


def test_the_order_in_which_choices_are_written_does_not_matter():
    choices = {"alpha": (0.5, 1.0, 2.0), "tasks": (10, 20, 30)}
    turned = dict(reversed(choices.items()))
    draws = [draw_parameters(TaskGraphParameters, c, np.random.default_rng(4)) for c in (choices, turned)]
    assert draws[0] == draws[1]


def test_choices_of_no_parameter_or_of_no_value_are_refused():
    rng = np.random.default_rng(0)
    with pytest.raises(UsageError, match="has no parameter 'depth'; its parameters are tasks, alpha"):
        draw_parameters(TaskGraphParameters, {"depth": (3,)}, rng)
    with pytest.raises(UsageError, match="'alpha' of TaskGraphParameters has an empty list"):
        draw_parameters(TaskGraphParameters, {"alpha": ()}, rng)
