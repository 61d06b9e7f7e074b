"""Segmenters: what merging may do, that all ways of valuing a placement agree, and the search among plans."""

from __future__ import annotations

import signal
from types import FrameType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.conflicts import beside, shares_beside
from placeit.core.errors import PlacementError
from placeit.core.graph import OpGraph
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from tests.alarms import alarm


def random_segmenter(
    seed: int, ops: int, devices: int, *, ties: bool, everywhere: float = 1.0, shared: bool = False
) -> Segmenter:
    """A random graph at random costs.

    Args:
        seed: of all that is drawn.
        ops: how many.
        devices: how many.
        ties: costs of few different values, zero among them.
        everywhere: probability that an op can run on a device.
        shared: devices are sets of three cores, which may overlap.
    """
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
    sets = [tuple(np.flatnonzero(rng.random(3) < 0.5).tolist()) or (0,) for _ in names] if shared else []
    where = [Address("CPU", cores) for cores in sets] or [None] * devices
    cluster = Cluster(
        tuple(Device(name, "described", at, memory_bytes=float(2 * ops)) for name, at in zip(names, where, strict=True)), links
    )
    load, read = draw(ops, devices) * rng.integers(2), draw(devices) * rng.integers(2) / 8
    host = draw(devices + 1) * rng.integers(2)
    return Segmenter(grouping, Costs(core, cut, draw(devices), cluster, load, read, host=host))


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
    shared=st.booleans(),
)


@settings(max_examples=300)
@given(cases, st.integers(0, 10**6))
def test_every_way_of_valuing_a_placement_agrees(segmenter: Segmenter, seed: int) -> None:
    placement = feasible_placement(segmenter, seed)
    plan = segmenter.plan(placement)
    assert segmenter.seconds(placement)[0] == plan.schedule.makespan
    assert segmenter.priced(plan).segments == plan.segments
    assert segmenter.priced(plan).schedule.makespan == plan.schedule.makespan
    device, start, finish = plan.placement, plan.schedule.start, plan.schedule.finish
    for s, o in np.argwhere(segmenter.costs.conflicts[np.ix_(device, device)]):
        assert finish[s] <= start[o] or finish[o] <= start[s]


@settings(max_examples=150)
@given(cases, st.integers(0, 10**6))
def test_merging_never_makes_a_plan_longer(segmenter: Segmenter, seed: int) -> None:
    placement = feasible_placement(segmenter, seed)
    merged, alone = segmenter.plan(placement), segmenter.plan(placement, merge=False)
    assert len(alone.segments) == len(placement) >= len(merged.segments)
    assert merged.schedule.makespan <= alone.schedule.makespan * (1 + 1e-6)


@settings(max_examples=50)
@given(cases)
def test_a_placement_on_one_device_is_one_segment_that_takes_the_sum_of_its_parts(segmenter: Segmenter) -> None:
    for d in np.flatnonzero(np.isfinite(segmenter.costs.core).all(axis=0)).tolist():
        plan = segmenter.plan(np.full(len(segmenter.graph), d))
        (segment,) = plan.segments
        assert segment.groups == tuple(range(len(segmenter.graph)))
        expected = 0.0 if segment.passthrough else segmenter.costs.dispatch[d] + segmenter.costs.core[:, d].sum()
        assert plan.schedule.makespan == pytest.approx(expected + segmenter.costs.host[d])


def two_chains(load: list[list[float]], read: list[float]) -> Segmenter:
    """Two chains of two ops each that nothing connects; the second op of each reads 100 bytes from the first."""
    graph = OpGraph(
        names=("a0", "b0", "a1", "b1"),
        kinds=("Relu",) * 4,
        flops=np.zeros(4),
        param_bytes=np.zeros(4),
        tensor_op=np.arange(4, dtype=np.int32),
        tensor_port=np.zeros(4, np.int32),
        tensor_bytes=np.full(4, 100.0),
        tensor_shapes=((25,),) * 4,
        tensor_dtypes=("float32",) * 4,
        edges=np.array([[0, 2], [1, 3]], np.int32),
        edge_tensor=np.array([0, 1], np.int32),
    ).verify()
    links = {pair: Link(np.inf, 0.0, "described") for pair in (("x", "y"), ("y", "x"))}
    cluster = Cluster((Device("x", kind="described"), Device("y", kind="described")), links)
    core = np.array([[2.0, 2.0], [4.0, 4.0], [3.0, 3.0], [1.0, 1.0]])
    zero = np.zeros((4, 2))
    return Segmenter(Grouping.singletons(graph), Costs(core, zero, np.zeros(2), cluster, np.array(load), np.array(read)))


def seconds_by_op(segmenter: Segmenter, placement: list[int]) -> list[float]:
    plan, seconds = segmenter.plan(placement, merge=False), np.zeros(4)
    for s, segment in enumerate(plan.segments):
        seconds[list(segment.groups)] = plan.problem.compute[s, segment.device]
    return seconds.tolist()


def test_ops_take_their_load_for_the_share_of_their_time_in_which_another_device_works() -> None:
    segmenter = two_chains([[0.5, 9], [9, 0.8], [0.6, 9], [9, 0.7]], [0.0, 0.0])
    # x runs a0, a1 from 0 to 5, y runs b0, b1 from 0 to 5: all of the time
    assert seconds_by_op(segmenter, [0, 1, 0, 1]) == pytest.approx([2.5, 4.8, 3.6, 1.7])
    # x runs a0 and a1 (0 to 5), then b1 (5 to 6), y runs b0 from 0 to 4: of a1, from 2 to 5, two thirds
    assert seconds_by_op(segmenter, [0, 1, 0, 0]) == pytest.approx([2.5, 4.8, 3 + 0.6 * 2 / 3, 1.0])
    # on one device nothing works beside it
    assert seconds_by_op(segmenter, [0, 0, 0, 0]) == pytest.approx([2.0, 4.0, 3.0, 1.0])


def test_what_works_beside_an_op_counts_by_the_cores_that_it_takes() -> None:
    core_sets = [(0,), (1,), (2,), (1, 2)]
    cluster = Cluster(tuple(Device(f"d{d}", "described", Address("CPU", cores)) for d, cores in enumerate(core_sets)))
    share = shares_beside(cluster.conflicts())
    assert share.tolist() == [[0, 0.5, 0.5, 1], [0.5, 0, 0.5, 0], [0.5, 0.5, 0, 0], [1, 0, 0, 0]]
    assert [beside(cluster.conflicts(), d) for d in range(4)] == [(1, 2), (0, 2), (0, 1), (0,)]


def test_what_another_device_wrote_costs_its_reader_by_the_byte() -> None:
    segmenter = two_chains([[0.0, 0.0]] * 4, [0.01, 0.02])
    assert seconds_by_op(segmenter, [0, 0, 1, 0]) == pytest.approx([2.0, 4.0, 3.0 + 100 * 0.02, 1.0])
    assert seconds_by_op(segmenter, [1, 0, 0, 0]) == pytest.approx([2.0, 4.0, 3.0 + 100 * 0.01, 1.0])
    assert seconds_by_op(segmenter, [1, 0, 1, 0]) == pytest.approx([2.0, 4.0, 3.0, 1.0])


@settings(max_examples=30)
@given(cases, st.integers(0, 10**6))
def test_a_search_is_never_worse_than_its_start_and_the_same_for_the_same_seed(segmenter: Segmenter, seed: int) -> None:
    problem = segmenter.problem()
    start = feasible_placement(segmenter, seed)
    found = segmenter.search(start, problem, steps=60, seed=seed)
    assert segmenter.seconds(found)[0] <= segmenter.seconds(start)[0]
    assert problem.check(found).tolist() == segmenter.search(start, problem, steps=60, seed=seed).tolist()


@pytest.mark.parametrize("numbers", [[1] * 5, [0, 0, 0, 0, -1], [0] * 4, [0] * 5])
def test_numbers_of_segments_that_do_not_fit_are_an_error(numbers: list[int]) -> None:
    segmenter = random_segmenter(0, 5, 2, ties=False)
    with pytest.raises(PlacementError, match="a number for each op, from 0 on, and the ops of a segment are on one device"):
        segmenter.merged(numbers, [0, 0, 0, 0, 1])


def test_a_search_improves_a_random_placement() -> None:
    segmenter = random_segmenter(3, 20, 2, ties=False)
    start = feasible_placement(segmenter, 0)
    found = segmenter.search(start, segmenter.problem(), steps=400, seed=0)
    assert segmenter.seconds(found)[0] < 0.8 * segmenter.seconds(start)[0]


class Interrupted(BaseException):
    """No Exception, as KeyboardInterrupt, which would end the whole run of tests if it came outside of the test."""


@pytest.mark.timeout(280, method="thread")  # the other method is the timer that is used here
@pytest.mark.parametrize("searching", [True, False], ids=["search", "merge"])
def test_an_interrupt_during_a_kernel_reaches_who_called(searching: bool) -> None:
    """Not another error in its place, and no crash."""
    segmenter = random_segmenter(3, 20 if searching else 400, 2, ties=False)
    start, problem = feasible_placement(segmenter, 0), segmenter.problem()

    def call(steps: int) -> object:
        return segmenter.search(start, problem, steps=steps, seed=0) if searching else segmenter.seconds(start)

    def forever() -> None:
        while True:
            call(20_000)

    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    with alarm(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        with pytest.raises(Interrupted):
            forever()


def test_rows_of_placements_are_valued_one_by_one() -> None:
    segmenter = random_segmenter(1, 15, 3, ties=False)
    rows = np.random.default_rng(0).integers(3, size=(5, 15))
    assert segmenter.seconds(rows).tolist() == [segmenter.seconds(row)[0] for row in rows]
    assert segmenter.seconds(rows).tolist() == [segmenter.plan(row).schedule.makespan for row in rows]


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
    assert np.isfinite(segmenter.seconds(rows)).tolist() == [False, False, True]
    with pytest.raises(PlacementError, match=r"device numbers 0\.\.1"):
        segmenter.seconds([[0, 0, 0, 0, 0, 7]])


def test_the_problem_over_groups_says_what_they_compute_and_what_the_largest_tensor_is_that_leaves_them() -> None:
    names = ("x", "convolution", "activation", "left", "right", "y")
    graph = OpGraph(
        names=names,
        kinds=("Parameter", "Convolution", "Relu", "MatMul", "Add", "Result"),
        flops=np.array([0.0, 90.0, 4.0, 7.0, 1.0, 0.0]),
        param_bytes=np.zeros(6),
        tensor_op=np.array([0, 1, 2, 2, 3, 4], np.int32),
        tensor_port=np.array([0, 0, 0, 1, 0, 0], np.int32),
        tensor_bytes=np.array([16.0, 99.0, 4.0, 8.0, 8.0, 8.0]),
        tensor_shapes=((4,), (99,), (1, 1), (1, 2), (2, 1), (2,)),
        tensor_dtypes=("float32",) * 6,
        edges=np.array([(0, 1), (1, 2), (2, 3), (2, 4), (3, 4), (4, 5)], np.int32),
        edge_tensor=np.array([0, 1, 2, 3, 4, 5], np.int32),
    ).verify()
    cluster = Cluster((Device("a", "described"),))
    for owner, kinds, shapes in (
        (range(6), graph.kinds, ((4,), (99,), (1, 2), (2, 1), (2,), None)),
        ((0, 1, 1, 3, 3, 3), ("Parameter", "Convolution", "MatMul"), ((4,), (1, 2), None)),
    ):
        grouping = Grouping.of(graph, list(owner))
        problem = Segmenter(grouping, Costs.zero(len(grouping.groups), cluster)).problem()
        assert (problem.kinds, problem.output_shapes) == (kinds, shapes)
