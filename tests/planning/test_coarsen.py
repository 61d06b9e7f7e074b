import functools
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.core.errors import GraphError, UsageError
from placeit.core.graph import OpGraph
from placeit.planning import coarsen as module
from placeit.planning.coarsen import coarsen
from tests.planning.slow_merging import Merger as SlowMerger


def graph_of(edges, flops):
    """A graph of ops in topological order, each of which makes one tensor; the later the op, the larger."""
    ops = len(flops)
    names = tuple(f"op{v}" for v in range(ops))
    return OpGraph(
        names=names,
        kinds=tuple(f"Kind{v % 3}" for v in range(ops)),
        flops=np.array(flops, np.float64),
        param_bytes=np.arange(ops, dtype=np.float64),
        tensor_op=np.arange(ops, dtype=np.int32),
        tensor_port=np.zeros(ops, np.int32),
        tensor_bytes=np.arange(1, ops + 1, dtype=np.float64),
        tensor_shapes=tuple((v,) for v in range(ops)),
        tensor_dtypes=("float32",) * ops,
        edges=np.array(edges, np.int32).reshape(-1, 2),
        edge_tensor=np.array([u for u, _ in edges], np.int32),
    ).verify()


@st.composite
def graphs(draw, most=24):
    ops = draw(st.integers(1, most))
    pairs = [(u, v) for v in range(ops) for u in range(v)]
    edges = sorted(draw(st.sets(st.sampled_from(pairs), max_size=2 * ops))) if pairs else []
    return graph_of(edges, draw(st.lists(st.integers(0, 100), min_size=ops, max_size=ops)))


def check(grouping):
    """A grouping covers the graph, has no cycle, and adds up."""
    graph, groups, of = grouping.graph, grouping.groups.verify(), grouping.group_of
    assert of.shape == (len(graph),)
    assert sorted(set(of.tolist())) == list(range(len(groups)))
    for u, v in graph.edges:
        assert of[u] <= of[v]
    assert groups.flops.sum() == pytest.approx(graph.flops.sum())
    assert groups.param_bytes.sum() == pytest.approx(graph.param_bytes.sum())
    crossing = {(int(graph.edge_tensor[e]), int(of[v])) for e, (u, v) in enumerate(graph.edges) if of[u] != of[v]}
    assert len(groups.edges) == len(crossing)
    assert sum(groups.tensor_bytes) == sum(graph.tensor_bytes[t] for t in {t for t, _ in crossing})
    for g in range(len(groups)):
        members = grouping.members(g)
        assert groups.names[g] == members[0]
        assert groups.kinds[g] in {graph.kinds[graph.index[name]] for name in members}
    return groups


@given(graphs())
def test_co_location_is_a_partition_without_cycles_and_joins_all_it_may(graph):
    groups = check(coarsen(graph))
    children = {g: set() for g in range(len(groups))}
    parents = {g: set() for g in range(len(groups))}
    for u, v in groups.edges.tolist():
        children[u].add(v)
        parents[v].add(u)
    for u, below in children.items():
        assert not (len(below) == 1 and len(parents[next(iter(below))]) == 1), f"group {u} and its only child belong together"


@given(graphs())
def test_co_location_joins_only_what_the_rule_allows(graph):
    of = coarsen(graph).group_of
    distinct = set(map(tuple, graph.edges.tolist()))
    degree_out = {u: sum(1 for a, _ in distinct if a == u) for u in range(len(graph))}
    degree_in = {v: sum(1 for _, b in distinct if b == v) for v in range(len(graph))}
    joined = {(u, v) for u, v in distinct if of[u] == of[v]}
    assert all(degree_out[u] == 1 and degree_in[v] == 1 for u, v in joined)
    assert len(joined) == len(graph) - len(set(of.tolist())), "a group is a chain"


@given(graphs(), st.integers(1, 30))
def test_the_bound_on_groups_is_kept_and_no_cycle_is_closed(graph, bound):
    grouping = coarsen(graph, max_groups=bound)
    check(grouping)
    assert len(grouping.groups) <= bound
    assert len(grouping.groups) == min(bound, len(coarsen(graph).groups))


@given(graphs(), st.data())
def test_ops_to_keep_together_share_a_group(graph, data):
    names = st.lists(st.sampled_from(graph.names), max_size=4)
    together = data.draw(st.lists(names, max_size=3))
    grouping = coarsen(graph, keep_together=together)
    check(grouping)
    for members in together:
        assert len({int(grouping.group_of[graph.index[name]]) for name in members}) <= 1


@given(graphs())
def test_grouping_twice_changes_nothing(graph):
    once = coarsen(graph).groups
    twice = coarsen(once)
    assert twice.group_of.tolist() == list(range(len(once)))
    assert twice.groups.hash == once.hash


def test_a_chain_becomes_one_group_named_after_its_first_op():
    grouping = coarsen(graph_of([(0, 1), (1, 2), (2, 3)], [1, 5, 2, 0]))
    assert grouping.groups.names == ("op0",)
    assert grouping.groups.kinds == ("Kind1",), "the kind of the op with most work"
    assert grouping.members(0) == ("op0", "op1", "op2", "op3")


def test_branches_stay_apart():
    grouping = coarsen(graph_of([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 1, 1, 1]))
    assert len(grouping.groups) == 4


def test_two_tensors_between_two_ops_are_one_child():
    graph = graph_of([(0, 1)], [1, 1])
    double = OpGraph(
        **{
            **vars(graph),
            "tensor_op": np.array([0, 0, 1], np.int32),
            "tensor_port": np.array([0, 1, 0], np.int32),
            "tensor_bytes": np.ones(3),
            "tensor_shapes": ((1,),) * 3,
            "tensor_dtypes": ("float32",) * 3,
            "edges": np.array([(0, 1), (0, 1)], np.int32),
            "edge_tensor": np.array([0, 1], np.int32),
        }
    ).verify()
    assert len(coarsen(double).groups) == 1


def test_the_lightest_pair_is_merged_first_and_the_heavier_edge_breaks_ties():
    # 0 -> 1 -> 3 and 0 -> 2 -> 3: tensors of later ops are larger
    diamond = graph_of([(0, 1), (0, 2), (1, 3), (2, 3)], [1, 1, 1, 50])
    of = coarsen(diamond, max_groups=3).group_of
    assert of[0] in (of[1], of[2])
    assert of[3] not in of[:3]
    fork = graph_of([(0, 2), (1, 2), (2, 3), (2, 4)], [1, 1, 1, 9, 9])
    of = coarsen(fork, max_groups=4).group_of
    assert of[1] == of[2], "op1's tensor is larger than op0's"


def test_what_lies_between_ops_that_stay_together_joins_them():
    graph = graph_of([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (3, 5)], [1] * 6)
    grouping = coarsen(graph, keep_together=[["op0", "op3"]])
    assert grouping.members(0) == ("op0", "op1", "op2", "op3")


def test_a_graph_in_pieces_can_still_be_bounded():
    grouping = coarsen(graph_of([(0, 1), (2, 3)], [1, 1, 1, 1]), max_groups=1)
    assert len(grouping.groups) == 1


def test_a_large_graph_is_bounded_without_closing_a_cycle():
    rng = np.random.default_rng(0)
    ops = 3000
    edges = sorted({(int(u), v) for v in range(1, ops) for u in rng.integers(max(0, v - 40), v, 2)})
    grouping = coarsen(graph_of(edges, rng.integers(1, 1000, ops).tolist()), max_groups=64)
    check(grouping)
    assert len(grouping.groups) == 64


def test_nonsense_is_refused():
    graph = graph_of([(0, 1)], [1, 1])
    with pytest.raises(UsageError, match="at least 1; got 0"):
        coarsen(graph, max_groups=0)
    with pytest.raises(GraphError, match="'stranger' is to be kept together"):
        coarsen(graph, keep_together=[["op0", "stranger"]])


def as_defined(graph, **options):
    """Coarsen by an algorithm that looks at every group at every merge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "Merger", SlowMerger)
        return coarsen(graph, **options)


def same(fast, slow):
    return fast.group_of.tolist() == slow.group_of.tolist() and fast.groups.hash == slow.groups.hash


@given(graphs(most=40), st.integers(1, 30), st.booleans(), st.sampled_from([None, 1 / 16, 1 / 3]))
def test_pairs_are_merged_in_the_order_that_the_definition_says(graph, bound, co_locate, largest):
    options = {"max_groups": bound, "co_locate": co_locate, "largest": largest}
    assert same(coarsen(graph, **options), as_defined(graph, **options))


@given(graphs(), st.data())
def test_what_stays_together_is_all_that_the_definition_says(graph, data):
    together = data.draw(st.lists(st.lists(st.sampled_from(graph.names), max_size=4), max_size=3))
    options = {"keep_together": together, "co_locate": data.draw(st.booleans())}
    assert same(coarsen(graph, **options), as_defined(graph, **options))


def drawn(rng, ops, fan_in, reach, max_work):
    """A random graph: each op reads from some of the ``reach`` ops before it."""
    edges = {(int(u), v) for v in range(1, ops) for u in rng.integers(max(0, v - reach), v, rng.integers(0, fan_in + 1))}
    return graph_of(sorted(edges), rng.integers(0, max_work + 1, ops).tolist())


@pytest.mark.parametrize("max_work", [0, 3, 10**6])
def test_larger_random_graphs_come_out_as_the_definition_says(max_work):
    rng = np.random.default_rng(max_work)
    for _ in range(12):
        ops = int(rng.integers(60, 240))
        graph = drawn(rng, ops, int(rng.integers(1, 5)), int(rng.choice([3, 20, ops])), max_work)
        for options in ({"max_groups": int(rng.integers(1, 40))}, {"max_groups": 1, "co_locate": False}):
            assert same(coarsen(graph, **options), as_defined(graph, **options))


def chain(ops):
    return [(v, v + 1) for v in range(ops - 1)]


def wide(ops):
    return [edge for v in range(1, ops - 1) for edge in ((0, v), (v, ops - 1))]


def fan(ops):
    return [(0, v) for v in range(1, ops)]


def diamonds(ops):
    return [edge for v in range(0, ops - 3, 3) for edge in ((v, v + 1), (v, v + 2), (v + 1, v + 3), (v + 2, v + 3))]


def skips(ops):
    """A chain in which every op is read again further down, as in a residual network."""
    return sorted({*chain(ops), *((v, v + 7) for v in range(0, ops - 7, 3))})


def branches(ops):
    """Long chains side by side, between a first and a last op."""
    rows = np.array_split(np.arange(1, ops - 1), 16)
    return sorted({(u, v) for row in rows for u, v in zip([0, *row.tolist()], [*row.tolist(), ops - 1], strict=True)})


def grid(ops):
    side = int(ops**0.5)
    return [
        edge
        for v in range(side * side)
        for edge in ((v, v + 1), (v, v + side))
        if (edge[1] == v + side or edge[1] % side) and edge[1] < side * side
    ]


def near(ops):
    rng = np.random.default_rng(0)
    return sorted({(int(u), v) for v in range(1, ops) for u in rng.integers(max(0, v - 40), v, 2)})


def far(ops):
    rng = np.random.default_rng(0)
    return sorted({(int(u), v) for v in range(1, ops) for u in rng.integers(0, v, 2)})


SHAPES = [chain, wide, fan, diamonds, skips, branches, grid, near, far]


def worked(edges, ops, work):
    flops = {"none": np.zeros(ops), "equal": np.ones(ops), "drawn": np.random.default_rng(1).integers(1, 1000, ops)}[work]
    return graph_of(edges, flops.tolist())


def lines(function):
    """Run a function and count the lines of placeit that it executes."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if "placeit" not in frame.f_code.co_filename:
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("work", ["drawn", *(pytest.param(work, marks=pytest.mark.slow) for work in ("none", "equal"))])
@pytest.mark.parametrize("shape", SHAPES)
def test_four_times_the_ops_are_not_much_more_than_four_times_the_steps(shape, work):
    few, many = (lines(functools.partial(coarsen, worked(shape(ops), ops, work), max_groups=16)) for ops in (400, 1600))
    assert many < 6.5 * few


@pytest.mark.slow
@pytest.mark.parametrize("ops", [20_000, pytest.param(100_000, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("shape", [shape for shape in SHAPES if shape is not far])  # that one takes minutes
def test_many_ops_are_grouped(shape, ops):
    grouping = coarsen(worked(shape(ops), ops, "drawn"), max_groups=96)
    assert 0 < len(grouping.groups) <= 96
    assert np.bincount(grouping.group_of, minlength=len(grouping.groups)).min() > 0
    grouping.groups.verify()
