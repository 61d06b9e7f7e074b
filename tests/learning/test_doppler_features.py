"""What DOPPLER's policies see, against definitions that are written down as they are read, and slow."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.errors import PlacementError
from placeit.core.problem import Problem
from placeit.learning.agents.doppler.features import (
    DEVICE_FEATURES,
    HOPS,
    NODE_FEATURES,
    EpisodeState,
    affinity,
    device_sums,
    path_sums,
    static_features,
)
from placeit.placers.list_scheduling import mean_comm, mean_compute, priority_order, upward_ranks
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import schedule
from placeit.testing.problems import random_problem

SEEDS = st.integers(0, 2**20)


def diamond() -> Problem:
    """An entry, two branches, an exit, on two equal devices that any transfer takes its bytes in seconds between."""
    edges = [(0, 1), (0, 2), (1, 3), (2, 3)]
    return Problem.from_arrays(
        np.repeat([[1.0], [2.0], [5.0], [1.0]], 2, axis=1), edges, [4.0, 2.0, 8.0, 1.0], np.ones((2, 2)), np.zeros((2, 2))
    )


def paths_of(problem: Problem, forward: bool) -> list[list[int]]:
    """The longest path from each op to an exit or an entry, by trying all of them."""
    seconds, comm = mean_compute(problem), mean_comm(problem)

    def longest(v: int) -> tuple[float, list[int]]:
        found = (seconds[v], [v])
        for e, (u, w) in enumerate(problem.edges.tolist()):
            if v == (u if forward else w):
                length, path = longest(w if forward else u)
                if length + comm[e] + seconds[v] > found[0] or len(found[1]) == 1:
                    found = (length + comm[e] + seconds[v], [v, *path])
        return found

    return [longest(v)[1] for v in range(len(problem))]


def test_static_features_of_a_diamond() -> None:
    features = static_features(diamond())
    assert len(NODE_FEATURES) == 5
    # of four pairs of devices two are different ones, so half of the bytes are moved in the mean
    assert features.edges.tolist() == [2, 1, 4, 0.5]
    assert features.nodes.tolist() == [
        [1, 0, 3, 10, 1],  # 1 + 2 + 2 + 4 + 1 along the left branch
        [2, 2, 4, 7, 5],
        [5, 1, 0.5, 6.5, 7],
        [1, 4.5, 0, 1, 10],
    ]
    assert features.to_exit.op.tolist() == [0, 1, 2, 3, 0, 1, 2, 0]
    assert features.to_exit.member.tolist() == [0, 1, 2, 3, 1, 3, 3, 3]
    assert sorted(zip(features.to_entry.op.tolist(), features.to_entry.member.tolist(), strict=True))[-3:] == [
        (3, 0),
        (3, 1),
        (3, 3),
    ]


@given(SEEDS, st.integers(1, 9))
@settings(max_examples=40)
def test_static_features_and_paths_are_those_of_their_definition(seed: int, ops: int) -> None:
    problem = random_problem(ops, 3, seed, everywhere=0.7)
    features = static_features(problem)
    seconds, comm = mean_compute(problem), mean_comm(problem)
    embeddings = torch.from_numpy(np.random.default_rng(seed).standard_normal((2, ops, 3)))
    for column, paths, forward in ((3, features.to_exit, True), (4, features.to_entry, False)):
        sums = path_sums(embeddings, paths)
        edge = {tuple(pair): comm[e] for e, pair in reversed(list(enumerate(problem.edges.tolist())))}
        for v, path in enumerate(paths_of(problem, forward)):
            steps = pairwise(path if forward else path[::-1])
            length = sum(seconds[u] for u in path) + sum(edge[pair] for pair in steps)
            assert features.nodes[v, column] == pytest.approx(length)
            torch.testing.assert_close(sums[:, v], embeddings[:, path].sum(dim=1))
    for v in range(ops):
        assert features.nodes[v, 0] == seconds[v]
        assert features.nodes[v, 1] == pytest.approx(comm[problem.edges[:, 1] == v].sum())
        assert features.nodes[v, 2] == pytest.approx(comm[problem.edges[:, 0] == v].sum())


def test_gradients_flow_through_sums_along_paths_and_over_devices() -> None:
    features = static_features(diamond())
    embeddings = torch.ones(4, 2, requires_grad=True)
    path_sums(embeddings, features.to_exit)[0].sum().backward()
    assert embeddings.grad is not None
    assert embeddings.grad[:, 0].tolist() == [1, 1, 0, 1]
    embeddings.grad = None
    placement = np.array([[0, 1, 1, -1], [-1, -1, -1, -1]], np.int32)
    sums = device_sums(embeddings, placement, 2)
    assert sums[:, :, 0].tolist() == [[1, 2], [0, 0]]
    sums[0, 1].sum().backward()
    assert embeddings.grad[:, 0].tolist() == [0, 1, 1, 0]
    assert device_sums(torch.ones(2, 4, 3), placement, 2).shape == (2, 2, 3)


def slow_features(problem: Problem, order: list[int], devices: dict[int, int], v: int) -> np.ndarray:
    """D.2 for one op after some ops have been placed in an order, computed from nothing."""
    start: dict[int, float] = {}
    finish: dict[int, float] = {}

    def earliest(w: int, d: int) -> float:
        before = [
            finish[u] for u in start if devices[u] == d and order.index(u) < (order.index(w) if w in order else len(order))
        ]
        arrivals = [
            finish[u] + problem.comm(e)[devices[u], d] for e, (u, head) in enumerate(problem.edges.tolist()) if head == w
        ]
        return max([0.0, *before, *arrivals])

    for w in order:
        start[w] = earliest(w, devices[w])
        finish[w] = start[w] + problem.compute[w, devices[w]]
    made = np.zeros((problem.devices, len(DEVICE_FEATURES)))
    for d in range(problem.devices):
        inputs = [u for u in {int(u) for u, head in problem.edges if head == v} if devices[u] == d]
        made[d] = [
            sum(problem.compute[u, d] for u in order if devices[u] == d),
            sum(problem.compute[u, d] for u in inputs),
            min((start[u] for u in inputs), default=0.0),
            max((finish[u] for u in inputs), default=0.0),
            earliest(v, d),
        ]
    return made


@given(SEEDS, st.integers(1, 9), st.integers(1, 3))
@settings(max_examples=40)
def test_device_features_are_those_of_their_definition_at_every_step_of_every_episode(
    seed: int, ops: int, episodes: int
) -> None:
    problem = random_problem(ops, 3, seed, everywhere=0.7)
    state, rng = EpisodeState(problem, episodes), np.random.default_rng(seed)
    orders: list[list[int]] = [[] for _ in range(episodes)]
    devices: list[dict[int, int]] = [{} for _ in range(episodes)]
    for _ in range(ops):
        for b in range(episodes):
            heads = [(int(u), int(w)) for u, w in problem.edges]
            ready = [w not in devices[b] and all(u in devices[b] for u, head in heads if head == w) for w in range(ops)]
            assert state.candidates[b].tolist() == ready
        chosen = [int(rng.choice(np.flatnonzero(row))) for row in state.candidates]
        features = state.features(chosen)
        for b, v in enumerate(chosen):
            np.testing.assert_allclose(features[b], slow_features(problem, orders[b], devices[b], v), rtol=1e-12)
        able = state.able(chosen)
        assert able.tolist() == problem.feasible[chosen].tolist()
        on = [int(rng.choice(np.flatnonzero(row))) for row in able]
        state.place(chosen, on)
        for b, (v, d) in enumerate(zip(chosen, on, strict=True)):
            orders[b].append(v)
            devices[b][v] = d
    assert not state.candidates.any()
    for b in range(episodes):
        assert state.placement[b].tolist() == [devices[b][v] for v in range(ops)]


def test_the_estimate_of_an_episode_in_order_of_priority_is_a_schedule_that_the_simulator_keeps_to() -> None:
    for seed in range(5):
        problem = random_problem(20, 3, seed, everywhere=1.0)
        state = EpisodeState(problem, 1)
        order = priority_order(problem, upward_ranks(problem))
        for v in order.tolist():
            state.place([v], [int(np.argmin(state.features([v])[0, :, 4]))])
        turn = np.empty(20)
        turn[order] = np.arange(20, 0, -1)
        kept = schedule(problem, state.placement[0], rules=Rules("contention-free", "planned"), priority=turn)
        np.testing.assert_allclose(kept.finish, state.finish[0], rtol=1e-12)


def test_a_device_waits_for_what_conflicts_with_it() -> None:
    like = diamond()
    arrays = (like.compute, like.edges, like.edge_bytes, like.bandwidth, like.latency)
    problem = Problem.from_arrays(*arrays, conflicts=[[False, True], [True, False]])
    state = EpisodeState(problem, 1)
    state.place([0], [0])
    state.place([2], [0])
    assert state.features([1])[0, :, 4].tolist() == [6, 6]  # rather than 1 + 4 on the other device
    assert state.features([1])[0, :, 0].tolist() == [6, 0]


@settings(max_examples=20)
@given(SEEDS, st.integers(2, 12))
def test_affinity_is_the_chance_of_walks_and_adds_up_over_the_ops_on_a_device(seed: int, ops: int) -> None:
    problem = random_problem(ops, 3, seed, everywhere=1.0)
    comm, chance = mean_comm(problem), np.zeros((ops, ops))
    for (u, v), seconds in zip(problem.edges.tolist(), comm.tolist(), strict=True):
        weight = seconds if comm.any() else 1.0
        chance[u, v] += weight
        chance[v, u] += weight
    total = chance.sum(axis=1, keepdims=True)
    chance = np.divide(chance, total, out=np.zeros_like(chance), where=total > 0)
    walks = np.stack([np.linalg.matrix_power(chance, hops) for hops in range(1, HOPS + 1)], axis=2)
    walks[walks < 1e-3] = 0.0
    walks[np.arange(ops), np.arange(ops)] = 0.0
    found, made = affinity(problem), np.zeros((ops, ops, HOPS))
    for u in range(ops):
        rows = slice(found.ptr[u], found.ptr[u + 1])
        made[found.op[rows], u] = found.share[rows]
    np.testing.assert_allclose(made, walks, atol=1e-6)
    state, rng = EpisodeState(problem, 2), np.random.default_rng(seed)
    for _ in range(ops // 2):
        chosen = [int(rng.choice(np.flatnonzero(row))) for row in state.candidates]
        state.place(chosen, rng.integers(3, size=2))
    for b in range(2):
        for d in range(3):
            np.testing.assert_allclose(state.near[b, d], walks[:, state.placement[b] == d].sum(axis=1), atol=1e-5)


def test_devices_without_room_for_the_weights_are_not_able() -> None:
    like = diamond()
    problem = Problem.from_arrays(
        like.compute, like.edges, like.edge_bytes, like.bandwidth, like.latency, param_bytes=[3, 2, 2, 1], memory=[4, 9]
    )
    state = EpisodeState(problem, 2)
    state.place([0, 0], [0, 1])
    assert state.able([1, 1]).tolist() == [[False, True], [True, True]]
    state.place([1, 1], [1, 0])
    assert state.used.tolist() == [[3, 2], [2, 3]]


def test_what_cannot_be_placed_is_refused_and_nothing_changes() -> None:
    compute = np.ones((2, 2))
    compute[1, 0] = np.inf
    problem = Problem.from_arrays(compute, [(0, 1)], [1.0], np.ones((2, 2)), np.zeros((2, 2)))
    state = EpisodeState(problem, 2)
    with pytest.raises(PlacementError, match="'op1' is no candidate of episode 1: it reads what is not placed yet"):
        state.place([0, 1], [0, 0])
    assert (state.placement == -1).all()
    state.place([0, 0], [0, 1])
    with pytest.raises(PlacementError, match="'op0' is no candidate of episode 0: it is placed already"):
        state.features([0, 1])
    with pytest.raises(PlacementError, match="'op1' cannot run on dev0"):
        state.place([1, 1], [1, 0])
    for wrong in ([1], [1, 2], [1, -1]):
        with pytest.raises(PlacementError, match="op number"):
            state.features(wrong)
    with pytest.raises(PlacementError, match="device number"):
        state.place([1, 1], [1, 2])
    assert state.placement.tolist() == [[0, -1], [1, -1]]
