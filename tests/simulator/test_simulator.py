import json
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import strategies as st

from placeit.core.errors import PlacementError, ProblemError, UsageError
from placeit.core.problem import Problem
from placeit.simulator.scheduler import GIPH_RULES, Rules, b_level
from placeit.simulator.simulate import SimulatedCost, schedule, simulate
from tests.simulator import slow_simulator as slow
from tests.simulator.slow_simulator import holds_for

LINKS = ("contention-free", "channel")
QUEUES = ("fifo", "priority", "planned")

seeds = st.integers(0, 2**32 - 1)
links_ = st.sampled_from(LINKS)
queues = st.sampled_from(QUEUES)


def chain(ops, devices=2, **costs):
    edges = np.stack([np.arange(ops - 1), np.arange(1, ops)], axis=1)
    values = {"compute": np.ones((ops, devices)), "edge_bytes": np.ones(ops - 1), "bandwidth": np.ones((devices, devices))}
    values |= {"latency": np.zeros((devices, devices))} | costs
    return Problem.from_arrays(edges=edges, **values)


def fork(consumers, devices=2, **costs):
    """One producer, many consumers."""
    edges = [(0, v) for v in range(1, consumers + 1)]
    values = {"edge_bytes": np.ones(consumers), "bandwidth": np.ones((devices, devices))}
    values |= {"compute": np.ones((consumers + 1, devices)), "latency": np.zeros((devices, devices))} | costs
    return Problem.from_arrays(edges=edges, **values)


def some_placement(problem, seed):
    return np.random.default_rng([seed, 1]).integers(0, problem.devices, len(problem))


@holds_for(
    seed=seeds,
    ops=st.integers(1, 14),
    devices=st.integers(1, 4),
    cut=st.booleans(),
    links=links_,
    queue=queues,
    conflicts=st.booleans(),
    max_examples=200,
)
def test_a_schedule_is_that_of_a_slow_and_simple_simulator(seed, ops, devices, cut, links, queue, conflicts):
    problem = slow.random_problem(seed, ops, devices, cut=cut, conflicts=conflicts)
    place = some_placement(problem, seed)
    trace = slow.run(problem, place, links, queue)
    ours = schedule(problem, place, rules=Rules(links, queue))
    assert ours.start.tolist() == [trace.start[v] for v in range(ops)]
    assert ours.finish.tolist() == [trace.finish[v] for v in range(ops)]
    assert ours.makespan == max(trace.finish.values()) == simulate(problem, place, rules=Rules(links, queue))[0]
    moved = ours.transfers
    keys = list(zip(moved.tensor.tolist(), moved.dst.tolist(), strict=True))
    assert dict(zip(keys, moved.start.tolist(), strict=True)) == trace.sent
    assert dict(zip(keys, moved.finish.tolist(), strict=True)) == trace.arrived
    assert ours.peak_memory.tolist() == slow.peak_memory(problem, place, trace)


@holds_for(
    seed=seeds, ops=st.integers(1, 12), links=links_, queue=st.sampled_from(["priority", "planned"]), conflicts=st.booleans()
)
def test_given_priorities_order_queues_as_in_the_slow_simulator(seed, ops, links, queue, conflicts):
    problem = slow.random_problem(seed, ops, 3, conflicts=conflicts)
    place, priority = some_placement(problem, seed), np.random.default_rng([seed, 2]).integers(0, 4, ops)
    trace = slow.run(problem, place, links, queue, priority)
    if trace is None:
        with pytest.raises(ProblemError, match="waits for itself"):
            schedule(problem, place, rules=Rules(links, queue), priority=priority)
        with pytest.raises(ProblemError, match="waits for itself"):
            simulate(problem, place, rules=Rules(links, queue), priority=priority)
    else:
        ours = schedule(problem, place, rules=Rules(links, queue), priority=priority)
        assert ours.start.tolist() == [trace.start[v] for v in range(ops)]
        assert ours.makespan == simulate(problem, place, rules=Rules(links, queue), priority=priority)[0]


@holds_for(seed=seeds, ops=st.integers(1, 12), cut=st.booleans(), links=links_, queue=st.sampled_from(["priority", "planned"]))
def test_the_default_priority_is_the_b_level_under_the_placement(seed, ops, cut, links, queue):
    problem = slow.random_problem(seed, ops, 3, cut=cut)
    place = some_placement(problem, seed)
    level = b_level(problem, place)
    assert level.tolist() == slow.ranks(problem, place)
    named = schedule(problem, place, rules=Rules(links, queue), priority=level)
    assert schedule(problem, place, rules=Rules(links, queue)).start.tolist() == named.start.tolist()


def test_all_published_schedules_of_giph_are_reproduced():
    if "PLACEIT_DATA" not in os.environ:
        pytest.skip("PLACEIT_DATA, the folder with giph_dev.json, is not set")
    simulations = 0
    for case in json.loads((Path(os.environ["PLACEIT_DATA"]) / "giph_dev.json").read_text()):
        compute = np.outer(case["compute"], case["inv_speed"])
        for v, feasible in enumerate(case["feasible"]):
            compute[v, np.setdiff1d(np.arange(compute.shape[1]), feasible)] = np.inf
        bandwidth = [[np.inf if b is None else b for b in row] for row in case["bandwidth"]]
        edges = np.array(case["edges"])
        problem = Problem.from_arrays(compute, edges[:, :2].astype(int), edges[:, 2], bandwidth, case["delay"])
        for known in (*case["placements"], case["heft"]):
            ours = schedule(problem, known["assignment"], rules=GIPH_RULES)
            assert ours.makespan == pytest.approx(known["makespan"], abs=1e-9, rel=0)
            assert ours.start == pytest.approx(known["start"], abs=1e-9, rel=0)
            assert ours.finish == pytest.approx(known["finish"], abs=1e-9, rel=0)
            simulations += 1
    assert simulations == 120


@holds_for(seed=seeds, batch=st.integers(1, 9), links=links_, queue=queues, noise=st.sampled_from([0.0, 0.3]))
def test_a_batch_is_what_one_by_one_gives_on_any_number_of_threads(seed, batch, links, queue, noise):
    problem = slow.random_problem(seed, 9, 3)
    placements = np.random.default_rng(seed).integers(0, 3, (batch, 9))
    options = {"rules": Rules(links, queue), "noise": noise, "seed": seed, "memory": bool(seed % 2)}
    together = simulate(problem, placements, **options)
    assert together.shape == (batch,)
    assert together.tolist() == simulate(problem, placements, threads=3, **options).tolist()
    assert together.tolist() == simulate(problem, placements, threads=None, **options).tolist()
    assert together[0] == simulate(problem, placements[0], **options)[0]
    if not noise:
        assert together.tolist() == [simulate(problem, placement, **options)[0] for placement in placements]


@holds_for(seed=seeds, ops=st.integers(1, 12), links=links_, queue=queues)
def test_no_schedule_beats_the_critical_path_or_the_work_shared_by_all_devices(seed, ops, links, queue):
    problem = slow.random_problem(seed, ops, 3)
    makespan = simulate(problem, some_placement(problem, seed), rules=Rules(links, queue))[0]
    fastest = problem.compute.min(axis=1)
    path = np.zeros(ops)
    for v in problem.order:
        before = problem.edges[problem.edges[:, 1] == v, 0]
        path[v] = fastest[v] + (path[before].max() if len(before) else 0)
    assert makespan >= path.max()
    assert makespan >= fastest.sum() / problem.devices


@holds_for(seed=seeds, links=links_, queue=queues)
def test_one_device_computes_everything_without_a_pause(seed, links, queue):
    problem = slow.random_problem(seed, 10, 2, cut=True)
    ours = schedule(problem, np.ones(10, int), rules=Rules(links, queue))
    assert ours.makespan == problem.compute[:, 1].sum() == ours.busy[1]
    assert len(ours.transfers) == 0
    if ours.makespan:
        assert ours.utilization.tolist() == [0, 1]


@holds_for(seed=seeds, links=links_, queue=queues)
def test_costs_twice_as_large_take_twice_as_long(seed, links, queue):
    problem = slow.random_problem(seed, 12, 3, cut=True)
    double = Problem.from_arrays(
        problem.compute * 2,
        problem.edges,
        problem.edge_bytes,
        problem.bandwidth / 2,
        problem.latency * 2,
        edge_tensor=problem.edge_tensor,
        cut=problem.cut * 2,
    )
    placements = np.random.default_rng(seed).integers(0, 3, (5, 12))
    once, twice = (simulate(p, placements, rules=Rules(links, queue)) for p in (problem, double))
    assert twice.tolist() == (2 * once).tolist()


@holds_for(seed=seeds, links=links_, queue=queues)
def test_nothing_to_move_and_links_without_limit_are_the_same(seed, links, queue):
    problem = slow.random_problem(seed, 12, 3)
    shared = {"latency": problem.latency, "edge_tensor": problem.edge_tensor}
    nothing = Problem.from_arrays(problem.compute, problem.edges, np.zeros(len(problem.edges)), problem.bandwidth, **shared)
    unlimited = Problem.from_arrays(problem.compute, problem.edges, problem.edge_bytes, np.full((3, 3), np.inf), **shared)
    placements = np.random.default_rng(seed).integers(0, 3, (5, 12))
    assert (
        simulate(nothing, placements, rules=Rules(links, queue)).tolist()
        == simulate(unlimited, placements, rules=Rules(links, queue)).tolist()
    )


def test_a_tensor_goes_to_a_device_once_however_many_ops_read_it_there():
    place = [0, 1, 1, 1]
    apart, shared = fork(3), fork(3, edge_tensor=[0, 0, 0])
    assert len(schedule(apart, place, rules=Rules(queue="fifo")).transfers) == 3
    assert simulate(apart, place, rules=Rules(queue="fifo"))[0] == 1 + 3 + 1
    moved = schedule(shared, place, rules=Rules(queue="fifo")).transfers
    assert (moved.tensor.tolist(), moved.src.tolist(), moved.dst.tolist()) == ([0], [0], [1])
    assert simulate(shared, place, rules=Rules(queue="fifo"))[0] == 1 + 1 + 3


def test_cutting_costs_are_paid_once_per_tensor_by_its_producer_and_by_each_reader():
    cut = np.array([[0.25, 1.0]] * 3)
    shared = fork(3, edge_tensor=[0, 0, 0], cut=cut, edge_bytes=np.zeros(3))
    assert schedule(shared, [0, 1, 1, 0]).busy.tolist() == [1 + 0.25 + 1, 2 * (1 + 1.0)]
    assert schedule(shared, [0, 0, 0, 0]).busy.tolist() == [4, 0]


def test_transfers_share_a_link_without_contention_and_queue_on_a_channel():
    problem = fork(4, bandwidth=np.full((2, 2), 0.5))
    place = [0, 1, 1, 1, 1]
    free, channel = (schedule(problem, place, rules=Rules(links, "fifo")).transfers for links in LINKS)
    assert free.start.tolist() == [1, 1, 1, 1]
    assert channel.start.tolist() == [1, 3, 5, 7]


def test_a_channel_moves_what_the_most_urgent_op_waits_for():
    problem = fork(3, edge_tensor=[0, 1, 2])
    urgent = schedule(problem, [0, 1, 1, 1], priority=[9, 0, 1, 2])
    assert urgent.transfers.tensor.tolist() == [2, 1, 0]
    assert schedule(problem, [0, 1, 1, 1], rules=Rules(queue="fifo")).transfers.tensor.tolist() == [0, 1, 2]


def test_a_planned_device_waits_where_a_priority_queue_goes_on():
    # op 2 needs the transfer of op 0; op 1 is ready at once but planned after it
    problem = Problem.from_arrays(np.ones((3, 2)), [(0, 2)], [1.0], np.ones((2, 2)), np.zeros((2, 2)))
    place, priority = [0, 1, 1], [3, 1, 2]
    assert schedule(problem, place, rules=Rules("contention-free", "priority"), priority=priority).start.tolist() == [0, 0, 2]
    assert schedule(problem, place, rules=Rules("contention-free", "planned"), priority=priority).start.tolist() == [0, 3, 2]


def test_priorities_may_differ_for_each_placement_of_a_batch():
    problem = Problem.from_arrays([[1, 1], [2, 2], [9, 5]], [(0, 2)], [0.0], np.ones((2, 2)), np.zeros((2, 2)))
    place = np.array([[0, 0, 1], [0, 0, 1]])
    costs = simulate(problem, place, rules=Rules("contention-free", "priority"), priority=[[1, 0, 0], [0, 1, 0]])
    assert costs.tolist() == [6, 8]
    with pytest.raises(ProblemError, match="2 rows for 1 placements"):
        simulate(problem, place[0], rules=Rules("contention-free", "priority"), priority=[[1, 0, 0], [0, 1, 0]])
    with pytest.raises(ProblemError, match="2 rows for one placement"):
        schedule(problem, place[0], rules=Rules("contention-free", "priority"), priority=[[1, 0, 0], [0, 1, 0]])


def test_memory_holds_weights_and_the_tensors_still_needed():
    problem = chain(3, edge_bytes=[10, 20], param_bytes=[1, 2, 4], memory=[33, 24])
    assert schedule(problem, [0, 0, 0]).peak_memory.tolist() == [7 + 10 + 20, 0]
    # op 0 holds 10 until it has arrived; op 1 makes 20 out of it, which leave while nothing else is there
    assert schedule(problem, [0, 1, 0]).peak_memory.tolist() == [5 + 20, 2 + 10 + 20]
    placements = [[0, 0, 0], [0, 0, 1], [0, 1, 1]]
    assert simulate(problem, placements).tolist() == [3, 3 + 20, 3 + 10]
    assert simulate(problem, placements, memory=True).tolist() == [np.inf, 3 + 20, np.inf]
    with pytest.raises(PlacementError, match="dev1 has 24 B of memory; this placement keeps 36 B"):
        schedule(problem, [0, 1, 1], memory=True)


def test_an_infeasible_placement_costs_infinity_and_has_no_schedule():
    problem = chain(2, compute=[[1, np.inf], [1, 1]], param_bytes=[4, 4], memory=[10, 3])
    assert simulate(problem, [[0, 0], [1, 0], [0, 1]]).tolist() == [2, np.inf, np.inf]
    with pytest.raises(PlacementError, match="'op0' cannot run on dev1: place it on dev0"):
        schedule(problem, [1, 0])
    with pytest.raises(PlacementError, match="dev1 has 3 B of memory; the ops placed there need 4 B"):
        schedule(problem, [0, 1])


@holds_for(seed=seeds, noise=st.floats(0, 0.99), links=links_)
def test_noise_stays_within_its_bounds(seed, noise, links):
    problem = slow.random_problem(seed, 8, 2, cut=True)
    place = some_placement(problem, seed)
    ours = schedule(problem, place, rules=Rules(links, "fifo"), noise=noise, seed=seed)
    seconds, moves = slow.durations(problem, place.tolist())
    moved = ours.transfers
    exact = [moves[key] for key in zip(moved.tensor.tolist(), moved.dst.tolist(), strict=True)]
    for taken, plain in ((ours.finish - ours.start, np.array(seconds)), (moved.finish - moved.start, np.array(exact))):
        assert np.all(taken >= plain * (1 - noise) - 1e-9)
        assert np.all(taken <= plain * (1 + noise) + 1e-9)


def test_noise_depends_on_the_seed_and_the_number_in_the_batch_only():
    problem = chain(5)
    rng = np.random.default_rng(0)
    placements = rng.integers(0, 2, (6, 5))
    costs = simulate(problem, placements, noise=0.5, seed=7)
    assert costs.tolist() == simulate(problem, placements, noise=0.5, seed=7, threads=2).tolist()
    changed = placements.copy()
    changed[:3] ^= 1
    assert costs[3:].tolist() == simulate(problem, changed, noise=0.5, seed=7)[3:].tolist()
    assert not np.any(costs == simulate(problem, placements, noise=0.5, seed=8))
    assert schedule(problem, placements[0], noise=0.5, seed=7).makespan == costs[0]
    assert costs.tolist() == simulate(problem, placements, noise=0.5, seed=7 + 2**64).tolist()


def test_noise_is_uniform_and_independent_of_one_duration_to_the_next():
    problem = Problem.from_arrays(np.ones((1, 1)), [], [], [[1.0]], [[0.0]])
    single = simulate(problem, np.zeros((20_000, 1), int), noise=0.6)
    assert np.mean(single) == pytest.approx(1, abs=0.01)
    assert np.histogram(single, 6, (0.4, 1.6))[0] / 20_000 == pytest.approx(np.full(6, 1 / 6), abs=0.01)
    pair = chain(2, devices=1)
    both = simulate(pair, np.zeros((20_000, 2), int), noise=0.6)
    assert np.var(both) == pytest.approx(2 * np.var(single), rel=0.05)


def test_small_and_large_shapes():
    one = Problem.from_arrays([[3.0]], [], [], [[1.0]], [[0.0]])
    assert simulate(one, [[0]]).tolist() == [3]
    assert simulate(one, np.zeros((0, 1), int)).tolist() == []
    assert simulate(one, np.zeros((0, 1), int), threads=4).tolist() == []
    assert schedule(one, [0]).utilization.tolist() == [1]
    free = Problem.from_arrays([[0.0]], [], [], [[1.0]], [[0.0]])
    assert schedule(free, [0]).utilization.tolist() == [0]
    long = chain(2000)
    for links in LINKS:
        for queue in QUEUES:
            assert simulate(long, np.zeros(2000, int), rules=Rules(links, queue))[0] == 2000
            assert simulate(long, np.arange(2000) % 2, rules=Rules(links, queue))[0] == 2000 + 1999
    wide = fork(2000, edge_tensor=np.zeros(2000, int))
    place = np.arange(2001) % 2
    for links in LINKS:
        for queue in QUEUES:
            assert simulate(wide, place, rules=Rules(links, queue))[0] == 1 + 1 + 1000


def test_placements_may_come_in_any_integer_array():
    problem = chain(3)
    place = np.array([[0, 1, 0], [1, 1, 0]])
    expected = simulate(problem, place).tolist()
    frozen = place.astype(np.int32)
    frozen.flags.writeable = False
    assert simulate(problem, frozen).tolist() == expected
    assert simulate(problem, np.asfortranarray(place.astype(np.uint8))).tolist() == expected
    assert simulate(problem, place[:, ::-1][:, ::-1].astype(np.int32)).tolist() == expected
    assert simulate(problem, place.tolist()).tolist() == expected


def test_a_cost_function_checks_its_options_once_and_then_values_placements():
    cost = SimulatedCost(chain(3))
    assert cost(np.array([[0, 0, 0], [0, 1, 0]], np.int32)).tolist() == [3, 5]
    assert cost([0, 0, 0]).tolist() == [3]
    assert SimulatedCost(chain(3))([[0, 0, 0]]).tolist() == [3]


def test_rules_that_there_are_not_are_named():
    with pytest.raises(UsageError, match="'links' is 'fast'; it must be one of contention-free, channel"):
        Rules(links="fast")
    with pytest.raises(UsageError, match="'queue' is 'lifo'; it must be one of fifo, priority, planned"):
        Rules(queue="lifo")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"noise": 1.0}, "'noise' is 1.0"),
        ({"noise": float("nan")}, "'noise' is nan"),
        ({"threads": 0}, "'threads' is 0"),
        ({"rules": GIPH_RULES, "priority": [1, 2, 3]}, "no meaning with the queue 'fifo'"),
    ],
)
def test_options_out_of_range_are_named(options, message):
    with pytest.raises(UsageError, match=message):
        simulate(chain(3), [0, 0, 0], **options)


@pytest.mark.parametrize("priority", [[1.0, 2.0], [[[1.0, 2.0, 3.0]]], np.zeros((0, 3)), [1.0, np.nan, 2.0]])
def test_malformed_priorities_are_refused(priority):
    with pytest.raises(ProblemError, match="'priority'"):
        simulate(chain(3), [0, 0, 0], rules=Rules("contention-free", "priority"), priority=priority)


@pytest.mark.parametrize(
    ("placements", "message"),
    [
        ([[0, 0]], r"3 device numbers; got shape \(1, 2\), int64"),
        ([[0.0, 0.0, 0.0]], "float64"),
        (0, r"got shape \(1, 1\)"),
        ([[0, 0, 0], [0, 2, 0]], r"device numbers 0..1; got 0..2"),
        ([[0, 0, -1]], r"device numbers 0..1; got -1..0"),
    ],
)
def test_malformed_placements_are_refused(placements, message):
    for threads in (1, 2):
        with pytest.raises(PlacementError, match=message):
            simulate(chain(3), placements, threads=threads)
