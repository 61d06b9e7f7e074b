from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import UsageError
from placeit.core.graph import topological_order
from placeit.learning.workloads.recurrent import (
    RecurrentCell,
    group_operators,
    random_recurrent_cell,
    recurrent_network,
    unrolled_graph,
)
from placeit.learning.workloads.task_graphs import TaskGraph

SMALL = RecurrentCell(inputs=(0, 0), activations=("tanh", "identity", "relu"))


def graph_of(compute, edges, sizes=None) -> TaskGraph:
    count = len(compute)
    return TaskGraph(
        np.array(compute, float),
        np.array(edges, np.int32).reshape(-1, 2),
        np.array(sizes if sizes is not None else [1.0] * len(edges)),
        np.zeros(count, np.int32),
        tuple("abcdefghij"[:count]),
    )


@given(st.integers(0, 2**32), st.integers(3, 14))
def test_a_cell_reads_earlier_nodes_and_has_loose_ends_to_average(seed, nodes):
    cell = random_recurrent_cell(np.random.default_rng(seed), nodes=nodes)
    assert len(cell.activations) == nodes == len(cell.inputs) + 1
    assert all(source < node for node, source in enumerate(cell.inputs, 1))
    assert len(cell.loose_ends) >= 2
    assert not set(cell.loose_ends) & set(cell.inputs)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.integers(20, 30), st.integers(80, 150))
def test_unrolled_graphs_have_200_to_300_operators_and_exactly_40_groups(seed, steps, batch):
    graph = unrolled_graph(random_recurrent_cell(np.random.default_rng(seed)), steps=steps, batch=batch)
    assert len(graph) == 10 * steps
    assert 200 <= len(graph) <= 300
    groups = group_operators(graph)
    assert len(groups) == 40
    assert topological_order(groups.edges, 40) is not None
    assert groups.compute.sum() == pytest.approx(graph.compute.sum())
    assert set(groups.names) <= set(graph.names)


def test_an_unrolled_graph_has_the_edges_costs_and_bytes_of_its_shapes():
    graph = unrolled_graph(SMALL, steps=2, batch=3, hidden=5)
    assert graph.names[:4] == ("step0/node0", "step0/node1", "step0/node2", "step0/average")
    step = [[0, 1], [0, 2], [1, 3], [2, 3]]
    assert graph.edges.tolist() == [*step, [3, 4], *[[u + 4, v + 4] for u, v in step]]
    # [3, 10] x two [10, 5] matrices and six element-wise operations; [3, 5] x two [5, 5], five and six; two loose ends
    costs = [2 * 2 * 3 * 10 * 5 + 6 * 15, 2 * 2 * 3 * 5 * 5 + 5 * 15, 2 * 2 * 3 * 5 * 5 + 6 * 15, 2 * 15]
    assert graph.compute.tolist() == costs * 2
    assert set(graph.edge_bytes) == {3 * 5 * 4}
    assert graph.kinds == ("tanh", "identity", "relu", "average") * 2
    assert graph.output_shapes == ((3, 5),) * 8


def test_a_group_has_the_kind_and_the_output_shape_of_its_most_expensive_operator():
    graph = graph_of([1, 3, 2, 9], [(0, 1), (1, 2), (2, 3)])
    graph = replace(graph, kinds=("w", "x", "y", "z"), output_shapes=((1,), (2,), (3,), (4,)))
    three, one = group_operators(graph, 3), group_operators(graph, 1)
    assert (three.names, three.kinds, three.output_shapes) == (("a", "b", "d"), ("w", "x", "z"), ((1,), (2,), (4,)))
    assert (one.names, one.kinds, one.output_shapes) == (("a",), ("z",), ((4,),))


def test_grouping_merges_the_cheapest_operator_with_one_predecessor_first():
    graph = graph_of([9, 5, 2, 1], [(0, 1), (0, 2), (1, 3), (2, 3)], [10.0, 20.0, 30.0, 40.0])
    groups = group_operators(graph, 3)  # d is cheaper than c and has two predecessors
    assert groups.names == ("a", "b", "d")
    assert groups.compute.tolist() == [11, 5, 1]
    assert groups.edges.tolist() == [[0, 1], [0, 2], [1, 2]]
    assert groups.edge_bytes.tolist() == [10, 40, 30]


def test_merged_operators_make_way_for_others_and_their_bytes_add_up():
    graph = graph_of([9, 5, 2, 1], [(0, 1), (0, 2), (1, 3), (2, 3)], [10.0, 20.0, 30.0, 40.0])
    groups = group_operators(graph, 2)
    assert groups.names == ("a", "d")
    assert groups.edge_bytes.tolist() == [70]
    assert group_operators(graph, 1).compute.tolist() == [17]


@settings(max_examples=40)
@given(st.integers(0, 2**32), st.integers(2, 10))
def test_grouping_follows_the_rule_step_by_step(seed, count):
    rng = np.random.default_rng(seed)
    edges = [
        (u, v) for v in range(1, count) for u in sorted(rng.choice(v, rng.integers(1, min(v, 3) + 1), replace=False).tolist())
    ]
    graph = graph_of(rng.permutation(count) + 1.0, edges, rng.integers(1, 50, len(edges)).astype(float))
    cost, links = dict(enumerate(graph.compute)), dict(zip(edges, graph.edge_bytes, strict=True))
    for size in range(count - 1, 0, -1):
        parents = {v: [u for u, w in links if w == v] for v in cost}
        child = min((v for v in cost if len(parents[v]) == 1), key=lambda v: (cost[v], v), default=None)
        assert child is not None  # there is one entry here, and what follows it alone comes first
        parent = parents[child][0]
        cost[parent] += cost.pop(child)
        for (u, w), carried in list(links.items()):
            if child in (u, w):
                del links[u, w]
            if u == child:
                links[parent, w] = links.get((parent, w), 0) + carried
        groups = group_operators(graph, size)
        assert groups.names == tuple(graph.names[v] for v in sorted(cost))
        assert groups.compute.tolist() == [cost[v] for v in sorted(cost)]
        number = {v: i for i, v in enumerate(sorted(cost))}
        expected = {(number[u], number[w]): carried for (u, w), carried in links.items()}
        assert dict(zip(map(tuple, groups.edges.tolist()), groups.edge_bytes.tolist(), strict=True)) == expected


def test_a_graph_that_is_small_enough_is_not_grouped():
    graph = unrolled_graph(SMALL, steps=2, batch=1, hidden=2)
    groups = group_operators(graph, 40)
    assert groups.names == graph.names
    assert np.array_equal(groups.edges, graph.edges)


def test_a_graph_without_operators_to_merge_is_refused():
    joined = graph_of([1, 1, 1], [(0, 2), (1, 2)])
    with pytest.raises(UsageError, match="into 3 groups but not into 2"):
        group_operators(joined, 2)
    mixed = replace(graph_of([1, 1], [(0, 1)]), requires=np.array([0, 1], np.int32))
    with pytest.raises(UsageError, match="with the same hardware"):
        group_operators(mixed, 1)
    with pytest.raises(UsageError, match="at least 1"):
        group_operators(joined, 0)


def test_sizes_that_make_no_cell_and_no_graph_are_refused():
    with pytest.raises(UsageError, match="of 2 nodes is a chain"):
        random_recurrent_cell(np.random.default_rng(0), nodes=2)
    with pytest.raises(UsageError, match="'steps' of an unrolled recurrent cell is 0"):
        unrolled_graph(SMALL, steps=0, batch=1)


def test_the_network_for_recurrent_graphs_has_eight_devices():
    assert len(recurrent_network(np.random.default_rng(0))) == 8
