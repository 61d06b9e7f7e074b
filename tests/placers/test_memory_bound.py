"""The lower bound knows memories that devices share, and stays below what any placement takes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.memory_reads import MemoryReads
from placeit.core.problem import Problem
from placeit.placers.bound import lower_bound
from placeit.simulator.simulate import simulate

GB = 1e9


def reading(compute: np.ndarray) -> Problem:
    """Ops without edges."""
    devices = compute.shape[1]
    instant, free = np.full((devices, devices), np.inf), np.zeros((devices, devices))
    return Problem.from_arrays(compute, np.zeros((0, 2), np.int32), np.zeros(0), instant, free)


def test_devices_that_share_a_memory_share_its_rate() -> None:
    weights = np.full(12, 1 * GB)
    problem = reading(np.full((12, 2), 0.1))  # each device alone reads 10 GB/s
    assert lower_bound(problem) == pytest.approx(0.6)
    shared = MemoryReads(weights, np.array([[True, True]]), np.array([15 * GB]))
    assert lower_bound(problem, shared) == pytest.approx(12 / 15, rel=0.01)


def test_weights_are_divided_best_between_memories() -> None:
    weights = np.full(30, 1 * GB)
    own = MemoryReads(weights, np.array([[True, True, False], [False, False, True]]), np.array([10 * GB, 20 * GB]))
    assert 0.95 <= lower_bound(reading(np.full((30, 3), 1e-3)), own) <= 1.0  # a third from one, two thirds from the other


def test_a_memory_that_keeps_up_with_its_devices_changes_nothing() -> None:
    problem = reading(np.full((12, 2), 0.1))
    fast = MemoryReads(np.full(12, 1 * GB), np.array([[True, True]]), np.array([100 * GB]))
    assert lower_bound(problem, fast) == lower_bound(problem)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 6), st.integers(1, 3))
def test_no_placement_beats_the_bound_where_memories_keep_devices_busy(seed: int, ops: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = [(u, v) for v in range(ops) for u in range(v) if rng.random() < 0.3]
    weights, rates = rng.uniform(0, 1, ops) * GB, rng.uniform(5, 20, devices) * GB
    compute = weights[:, None] / rates + rng.uniform(0, 0.02, (ops, devices)) * rng.integers(2)
    instant, free = np.full((devices, devices), np.inf), np.zeros((devices, devices))
    problem = Problem.from_arrays(compute, pairs, np.zeros(len(pairs)), instant, free)
    placements = np.array(list(itertools.product(range(devices), repeat=ops)))
    simulated = simulate(problem, placements)
    # each device has a separate memory: reading is part of the time of its ops
    apart = MemoryReads(weights, np.eye(devices, dtype=bool), rates)
    assert lower_bound(problem, apart) <= simulated.min() * (1 + 1e-9)
    # all share one memory, whose time counts like a device's
    total = float(rng.uniform(rates.max(), rates.sum()))
    together = MemoryReads(weights, np.ones((1, devices), bool), np.array([total]))
    optimum = np.maximum(simulated, weights.sum() / total).min()
    assert lower_bound(problem) <= lower_bound(problem, together) <= optimum * (1 + 1e-9)
