"""gpNet against its definition (GiPH, Algorithm gpNet and Appendix B.7), written down again as plainly as possible."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.problem import Problem
from placeit.learning.agents.giph.features import criticality, features
from placeit.learning.agents.giph.gpnet import EDGE_FEATURES, NODE_FEATURES, GpNets
from placeit.placers.feasibility import random_placements
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import schedule
from placeit.testing.problems import random_problem

problems = st.builds(random_problem, st.integers(1, 12), st.integers(1, 5), st.integers(0, 10**6))


def placed(problem: Problem, seed: int = 0) -> np.ndarray:
    return random_placements(problem, 1, np.random.default_rng(seed))[0]


def net_of(problem: Problem, placement: np.ndarray, **options: bool) -> GpNets:
    nets = GpNets([problem], **options)
    nets.set(0, placement)
    return nets


def edges_by_definition(problem: Problem, placement: np.ndarray) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    found = set()
    for i, j in problem.edges.tolist():
        for k in np.flatnonzero(problem.feasible[i]).tolist():
            for m in np.flatnonzero(problem.feasible[j]).tolist():
                if placement[i] == k or placement[j] == m:
                    found.add(((i, k), (j, m)))
    return found


@given(problems, st.integers(0, 99))
@settings(max_examples=40)
def test_nodes_and_edges_are_those_of_the_algorithm(problem: Problem, seed: int) -> None:
    placement = placed(problem, seed)
    nets = net_of(problem, placement)
    labels = list(zip(nets.op.tolist(), nets.device.tolist(), strict=True))
    assert sorted(labels) == [tuple(label) for label in np.argwhere(problem.feasible).tolist()]
    edges = [(labels[u], labels[v]) for u, v in zip(nets.src.tolist(), nets.dst.tolist(), strict=True)]
    assert len(edges) == len(set(edges))
    assert set(edges) == edges_by_definition(problem, placement)
    choices, degree = problem.feasible.sum(axis=1), np.bincount(problem.edges.reshape(-1), minlength=len(problem))
    assert len(edges) == (choices * degree).sum() - len(problem.edges)  # section 4.2.1


@given(problems, st.integers(0, 99), st.booleans())
@settings(max_examples=40)
def test_moving_ops_one_by_one_gives_what_building_anew_gives(problem: Problem, seed: int, pivots: bool) -> None:
    rng = np.random.default_rng(seed)
    nets = net_of(problem, placed(problem, seed), pivots=pivots)
    for _ in range(5):
        op = int(rng.integers(len(problem)))
        nets.move(0, op, int(rng.choice(np.flatnonzero(problem.feasible[op]))))
    anew = net_of(problem, nets.placements[0], pivots=pivots)
    for name in ("src", "dst", "edges", "nodes", "device", "makespans"):
        np.testing.assert_array_equal(getattr(nets, name), getattr(anew, name), err_msg=name)


def test_several_problems_are_one_disjoint_graph() -> None:
    some = [random_problem(ops, devices, seed=ops) for ops, devices in ((7, 3), (1, 2), (12, 4), (5, 1))]
    placements = [placed(problem) for problem in some]
    nets = GpNets(some)
    for b, placement in enumerate(placements):
        nets.set(b, placement)
    assert np.array_equal(nets.graph[nets.src], nets.graph[nets.dst])
    for b, (problem, placement) in enumerate(zip(some, placements, strict=True)):
        alone = net_of(problem, placement)
        rows = nets.rows[b]
        np.testing.assert_array_equal(nets.nodes[rows], alone.nodes[alone.rows[0]])
        number = np.full(len(nets.op), -1)
        number[rows] = np.arange(len(rows))
        of_alone = np.empty(len(rows), int)
        of_alone[alone.rows[0]] = np.arange(len(rows))
        mine = nets.graph[nets.src] == b
        here = {
            (int(number[u]), int(number[v]), tuple(x))
            for u, v, x in zip(nets.src[mine], nets.dst[mine], nets.edges[mine], strict=True)
        }
        there = {
            (int(of_alone[u]), int(of_alone[v]), tuple(x)) for u, v, x in zip(alone.src, alone.dst, alone.edges, strict=True)
        }
        assert here == there


@given(problems, st.booleans())
@settings(max_examples=30)
def test_each_direction_visits_every_edge_once_after_what_it_needs(problem: Problem, pivots: bool) -> None:
    nets = net_of(problem, placed(problem), pivots=pivots)
    levels = len(nets.node_bounds) - 1
    level = np.repeat(np.arange(levels), np.diff(nets.node_bounds))
    assert (level[nets.src] < level[nets.dst]).all()
    for order, bounds, ends, at in (
        (nets.forward, nets.forward_bounds, nets.dst, lambda i: i),
        (nets.backward, nets.backward_bounds, nets.src, lambda i: levels - 1 - i),
    ):
        assert sorted(order.tolist()) == list(range(len(nets.src)))
        for i in range(levels):
            assert (level[ends[order[bounds[i] : bounds[i + 1]]]] == at(i)).all()


def squashed(x: float) -> float:
    return float(np.sign(x) * np.log1p(abs(x)))


@given(problems, st.integers(0, 99))
@settings(max_examples=30)
def test_the_start_time_potential_is_the_earliest_start_less_the_actual_one(problem: Problem, seed: int) -> None:
    placement = placed(problem, seed)
    nets, plan = net_of(problem, placement), schedule(problem, placement, rules=GIPH_RULES)
    column = NODE_FEATURES.index("start-time potential")
    known = {}
    for row in range(len(nets.op)):
        v, d = int(nets.op[row]), int(nets.device[row])
        arrivals = [0.0]
        for e in np.flatnonzero(problem.edges[:, 1] == v):
            u = problem.edges[e, 0]
            arrivals.append(plan.finish[u] + problem.comm(e)[placement[u], d])
        known[row] = max(arrivals) - plan.start[v]
    unit = unit_of(problem)
    np.testing.assert_allclose(nets.nodes[list(known), column], [squashed(x / unit) for x in known.values()], atol=1e-5)


def unit_of(problem: Problem) -> float:
    """Seconds of an average op, from the edge feature of a transfer's delay or the node feature of its seconds."""
    nets = net_of(problem, placed(problem))
    row = int(np.argmax(nets.nodes[:, NODE_FEATURES.index("seconds")]))
    seconds = problem.compute[nets.op[row], nets.device[row]]
    return float(seconds / np.expm1(np.float64(nets.nodes[row, NODE_FEATURES.index("seconds")])))


@given(problems, st.integers(0, 99))
@settings(max_examples=30)
def test_slack_load_and_pivots_are_those_of_the_schedule(problem: Problem, seed: int) -> None:
    placement = placed(problem, seed)
    nets, plan = net_of(problem, placement), schedule(problem, placement, rules=GIPH_RULES)
    slack, load, pivot = (nets.nodes[:, NODE_FEATURES.index(name)] for name in ("slack", "load", "pivot"))
    assert slack.min() == pytest.approx(0.0, abs=1e-4)  # some op decides the makespan, and none has less than no time
    assert np.array_equal(pivot == 1, placement[nets.op] == nets.device)
    for row in range(len(nets.op)):
        others = [v for v in np.flatnonzero(placement == nets.device[row]) if v != nets.op[row]]
        busy = sum(problem.compute[v, placement[v]] for v in others) / plan.makespan
        assert load[row] == pytest.approx(busy, abs=1e-5)


def test_compute_requirement_and_speed_are_recovered_where_times_are_their_quotient() -> None:
    rng = np.random.default_rng(1)
    work, speed = rng.uniform(50, 150, 9), rng.uniform(2, 8, 4)
    compute = work[:, None] / speed
    compute[0, 1] = compute[3, 2] = np.inf
    problem = Problem.from_arrays(compute, [[0, 1]], [1.0], np.full((4, 4), 10.0), np.zeros((4, 4)))
    nets = net_of(problem, placed(problem))
    logs = np.log(speed) - np.log(speed).mean()
    np.testing.assert_allclose(nets.nodes[:, 1], logs[nets.device], atol=1e-4)
    requirement = np.expm1(nets.nodes[:, 0])
    np.testing.assert_allclose(requirement / requirement[0], work[nets.op] / work[nets.op[0]], rtol=1e-3)


def test_features_do_not_depend_on_the_unit_of_time() -> None:
    problem = random_problem(10, 3, seed=4)
    slower = Problem.from_arrays(
        problem.compute * 1e6, problem.edges, problem.edge_bytes, problem.bandwidth / 1e6, problem.latency * 1e6
    )
    one, other = (net_of(p, placed(problem)) for p in (problem, slower))
    np.testing.assert_allclose(one.nodes, other.nodes, atol=1e-5)
    np.testing.assert_allclose(one.edges, other.edges, atol=1e-5)


def test_ops_that_take_no_time_and_edges_that_carry_nothing_give_finite_features() -> None:
    problem = Problem.from_arrays(np.zeros((3, 2)), [[0, 1], [1, 2]], [0.0, 0.0], np.ones((2, 2)), np.zeros((2, 2)))
    nets = net_of(problem, np.array([0, 1, 0], np.int32))
    assert np.isfinite(nets.nodes).all()
    assert np.isfinite(nets.edges).all()
    assert nets.edges.shape[1] == len(EDGE_FEATURES)


def test_an_op_passes_its_criticality_on_by_the_bytes_of_its_tensors() -> None:
    problem = Problem.from_arrays(
        np.ones((4, 2)), [[0, 1], [0, 2], [1, 3], [2, 3]], [9.0, 9.0, 4.0, 0.0], np.ones((2, 2)), np.zeros((2, 2))
    )
    of_op, of_edge = criticality(problem)
    assert of_op.tolist() == [1.0, 0.5, 0.5, 1.0]
    assert of_edge.tolist() == [0.5, 0.5, 1.0, 1.0]  # an op with one tensor passes on all
    more = Problem.from_arrays(np.ones((3, 2)), [[0, 1], [0, 2]], [10.0, 9.0], np.ones((2, 2)), np.zeros((2, 2)))
    assert criticality(more)[0][1] == pytest.approx(np.e / (np.e + 1))


@given(problems, st.integers(0, 99), st.booleans())
@settings(max_examples=30)
def test_public_features_are_the_plain_ones_between_the_least_and_the_most(problem: Problem, seed: int, pivots: bool) -> None:
    placement = placed(problem, seed)
    nets = net_of(problem, placement, pivots=pivots)
    nodes, edges = features(nets, "public")
    of_op, of_edge = criticality(problem)
    tensors = [
        of_edge[np.all(problem.edges == ends, axis=1)] for ends in zip(nets.op[nets.src], nets.op[nets.dst], strict=True)
    ]
    plain = [(nodes, 2, problem.compute[nets.op, nets.device]), (nodes, 4, of_op[nets.op])]
    if len(edges):
        plain += [
            (edges, 2, problem.latency[nets.device[nets.src], nets.device[nets.dst]]),
            (edges, 4, np.concatenate(tensors)),
        ]
    for found, column, values in plain:
        width = np.ptp(values)
        wanted = 2 * (values - values.min()) / width - 1 if width > 1e-6 * values.max() else np.zeros(len(values))
        np.testing.assert_allclose(found[:, column], wanted, atol=1e-3)
