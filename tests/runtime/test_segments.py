"""Segmenters: what merging may do, that all ways of valuing a placement agree, and the search among plans."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.backends.coarsen import Grouping
from placeit.cluster import Cluster, Device, Link
from placeit.errors import PlacementError
from placeit.graph import OpGraph
from placeit.runtime.segments import Costs, Segmenter


def random_segmenter(seed: int, ops: int, devices: int, *, ties: bool, everywhere: float = 1.0) -> Segmenter:
    """A random graph at random costs; with ``ties``, of few different values, zero among them."""
    rng = np.random.default_rng(seed)

    def draw(*shape: int) -> np.ndarray:
        return rng.integers(0, 4, shape) * 0.25 if ties else rng.uniform(0.1, 1.0, shape)

    tensor_op = np.repeat(np.arange(ops), rng.integers(1, 3, ops)).astype(np.int32)
    edges: set[tuple[int, int, int]] = set()
    for v in range(1, ops):
        for tensor in rng.integers(np.searchsorted(tensor_op, v), size=rng.integers(0, 4)):
            edges.add((int(tensor_op[tensor]), v, int(tensor)))
    table = np.array(sorted(edges), np.int32).reshape(-1, 3)
    reads, read = np.isin(np.arange(ops), table[:, 1]), np.isin(np.arange(ops), table[:, 0])
    kinds = ["Add" if reads[v] and read[v] else rng.choice(["Add", "Result" if reads[v] else "Parameter"]) for v in range(ops)]
    graph = OpGraph(
        names=tuple(f"op{v}" for v in range(ops)),
        kinds=tuple(kinds),
        flops=np.zeros(ops),
        param_bytes=rng.integers(0, 3, ops).astype(np.float64),
        tensor_op=tensor_op,
        tensor_port=np.concatenate([np.arange(n) for n in np.bincount(tensor_op, minlength=ops)]).astype(np.int32),
        tensor_bytes=rng.integers(0, 3, len(tensor_op)) * 8.0,
        tensor_shapes=((2,),) * len(tensor_op),
        tensor_dtypes=("float32",) * len(tensor_op),
        edges=table[:, :2],
        edge_tensor=table[:, 2],
    ).verify()
    names = tuple(f"d{d}" for d in range(devices))
    links = {(a, b): Link(rng.choice([16.0, 64.0]), float(draw(1)[0]), "described") for a in names for b in names if a != b}
    core = draw(ops, devices)
    core[rng.random((ops, devices)) > everywhere] = np.inf
    core[np.arange(ops), rng.integers(devices, size=ops)] = 0.5
    cut = draw(ops, devices)
    core[np.isin(kinds, ["Parameter", "Result"])] = cut[np.isin(kinds, ["Parameter", "Result"])] = 0.0
    grouping = Grouping.singletons(graph)
    assert grouping.groups.names == graph.names
    cluster = Cluster(tuple(Device(name, kind="described", memory_bytes=float(2 * ops)) for name in names), links)
    return Segmenter(grouping, Costs(core, cut, draw(devices), cluster))


def feasible_placement(segmenter: Segmenter, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    feasible = np.isfinite(segmenter.costs.core)
    return np.array([rng.choice(np.flatnonzero(row)) for row in feasible], np.int32)


cases = st.builds(
    random_segmenter,
    seed=st.integers(0, 10**6),
    ops=st.integers(1, 24),
    devices=st.integers(1, 3),
    ties=st.booleans(),
    everywhere=st.sampled_from([0.6, 1.0]),
)


@settings(max_examples=300, deadline=None)
@given(cases, st.integers(0, 10**6))
def test_every_way_of_valuing_a_placement_agrees(segmenter: Segmenter, seed: int) -> None:
    placement = feasible_placement(segmenter, seed)
    plan = segmenter.plan(placement)
    assert segmenter.makespan(placement)[0] == plan.schedule.makespan
    assert segmenter.priced(plan).segments == plan.segments
    assert segmenter.priced(plan).schedule.makespan == plan.schedule.makespan


@settings(max_examples=150, deadline=None)
@given(cases, st.integers(0, 10**6))
def test_merging_never_makes_a_plan_longer(segmenter: Segmenter, seed: int) -> None:
    placement = feasible_placement(segmenter, seed)
    merged, alone = segmenter.plan(placement), segmenter.plan(placement, merge=False)
    assert len(alone.segments) == len(placement) >= len(merged.segments)
    assert merged.schedule.makespan <= alone.schedule.makespan * (1 + 1e-6)


@settings(max_examples=50, deadline=None)
@given(cases)
def test_a_placement_on_one_device_is_one_segment_that_takes_the_sum_of_its_parts(segmenter: Segmenter) -> None:
    for d in np.flatnonzero(np.isfinite(segmenter.costs.core).all(axis=0)).tolist():
        plan = segmenter.plan(np.full(len(segmenter.graph), d))
        (segment,) = plan.segments
        assert segment.groups == tuple(range(len(segmenter.graph)))
        expected = 0.0 if segment.free else segmenter.costs.dispatch[d] + segmenter.costs.core[:, d].sum()
        assert plan.schedule.makespan == pytest.approx(expected)


@settings(max_examples=30, deadline=None)
@given(cases, st.integers(0, 10**6))
def test_a_search_is_never_worse_than_its_start_and_the_same_for_the_same_seed(segmenter: Segmenter, seed: int) -> None:
    problem = segmenter.problem()
    start = feasible_placement(segmenter, seed)
    found = segmenter.search(start, problem, steps=60, seed=seed)
    assert segmenter.makespan(found)[0] <= segmenter.makespan(start)[0]
    assert problem.check(found).tolist() == segmenter.search(start, problem, steps=60, seed=seed).tolist()


def test_a_search_improves_a_random_placement() -> None:
    segmenter = random_segmenter(3, 20, 2, ties=False)
    start = feasible_placement(segmenter, 0)
    found = segmenter.search(start, segmenter.problem(), steps=400, seed=0)
    assert segmenter.makespan(found)[0] < 0.8 * segmenter.makespan(start)[0]


def test_rows_of_placements_are_valued_one_by_one() -> None:
    segmenter = random_segmenter(1, 15, 3, ties=False)
    rows = np.random.default_rng(0).integers(3, size=(5, 15))
    assert segmenter.makespan(rows).tolist() == [segmenter.makespan(row)[0] for row in rows]
    assert segmenter.makespan(rows).tolist() == [segmenter.plan(row).schedule.makespan for row in rows]


def _nowhere_near() -> Segmenter:
    segmenter = random_segmenter(2, 6, 2, ties=False)
    segmenter.costs.core[4, 1] = np.inf
    return Segmenter(segmenter.grouping, segmenter.costs)


@pytest.mark.parametrize(
    ("placement", "says"),
    [
        ([0, 0, 0, 0, 1, 0], "'op4' cannot run on d1"),
        ([1, 1, 1, 1, 1, 1], "'op4' cannot run on d1"),
        ([0, 0, 0, 0, 2, 0], r"device numbers 0\.\.1"),
        ([0, 0, 0, 0, -1, 0], r"device numbers 0\.\.1"),
        ([0, 0, 0, 0, 0], "6 device numbers"),
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.0], "6 device numbers"),
    ],
)
def test_a_placement_that_cannot_be_is_refused(placement: list[int], says: str) -> None:
    segmenter = _nowhere_near()
    with pytest.raises(PlacementError, match=says):
        segmenter.plan(placement)
    with pytest.raises(PlacementError, match=says):
        segmenter.plan(placement, merge=False)
    with pytest.raises(PlacementError, match=says):
        segmenter.search(placement, segmenter.problem(), steps=3, seed=0)


def test_where_a_group_cannot_run_a_placement_costs_infinitely_much() -> None:
    segmenter = _nowhere_near()
    rows = [[0, 0, 0, 0, 1, 0], [1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0]]
    assert np.isfinite(segmenter.makespan(rows)).tolist() == [False, False, True]
    with pytest.raises(PlacementError, match=r"device numbers 0\.\.1"):
        segmenter.makespan([[0, 0, 0, 0, 0, 7]])
