from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from placeit.core.errors import PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.placers import place
from placeit.placers.heft import Heft
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost, simulate
from placeit.testing.problems import random_problem


@dataclass(frozen=True)
class Fixed:
    """Answers what it was told."""

    answer: tuple[int, ...]

    def place(self, problem, cost, *, seed, evaluations):
        return np.array(self.answer, np.int32)


def two_devices(bytes_on_the_edge):
    return Problem.from_arrays(
        [[1.0, 1.0], [1.0, 1.0], [3.0, 3.0]],
        [(0, 1)],
        [bytes_on_the_edge],
        np.ones((2, 2)),
        np.zeros((2, 2)),
        op_names=["a", "b", "c"],
        device_names=["near", "far"],
    )


def test_the_answer_is_a_placement_by_name():
    placement = place(two_devices(1.0), Fixed((0, 0, 1)))
    assert isinstance(placement, Placement)
    assert placement.as_dict() == {"a": "near", "b": "near", "c": "far"}


def test_an_answer_worse_than_a_single_device_is_replaced_by_it():
    assert place(two_devices(100.0), Fixed((0, 1, 0))).devices.tolist() == [0, 0, 0]


def test_an_answer_no_better_than_a_single_device_is_replaced_by_it():
    # 3 + 2 seconds on one device; here the transfer takes as long as the ops that it lets run at the same time
    assert place(two_devices(3.0), Fixed((1, 0, 1))).devices.tolist() == [0, 0, 0]


def test_answers_are_judged_by_the_rules_of_executors_unless_others_are_asked_for():
    # the second tensor waits for the first on a channel: 9 seconds on one device, 10 on both, and 8.5 without contention
    edges = [(0, v) for v in range(1, 5)]
    costs = [[1.0, 1.0]] + 4 * [[2.0, 2.0]]
    problem = Problem.from_arrays(costs, edges, [3.5] * 4, np.ones((2, 2)), np.zeros((2, 2)))
    split = Fixed((0, 1, 1, 0, 0))
    assert place(problem, split).devices.tolist() == [0] * 5
    assert place(problem, split, cost=SimulatedCost(problem, rules=GIPH_RULES)).devices.tolist() == [0, 1, 1, 0, 0]
    assert simulate(problem, [split.answer]).tolist() == [10.0]


def test_the_cost_function_decides_what_better_means():
    def fewest_on_near(placements):
        return (placements == 0).sum(axis=1).astype(float)

    assert place(two_devices(1.0), "heft", cost=fewest_on_near).devices.tolist() == [1, 1, 1]


def test_an_invalid_answer_of_a_placer_is_an_error():
    with pytest.raises(PlacementError, match=r"device numbers 0..1; got 0..7"):
        place(two_devices(1.0), Fixed((0, 0, 7)))


def test_a_budget_too_small_for_the_comparison_is_an_error():
    with pytest.raises(UsageError, match=r"2 evaluations are too few: .* 2 single devices takes 3"):
        place(two_devices(1.0), "heft", evaluations=2)


def test_a_graph_that_no_single_device_can_run_keeps_the_placers_answer():
    problem = random_problem(20, 3, everywhere=0.3)
    assert not problem.single_devices
    assert place(problem, "heft").devices.tolist() == Heft().plan(problem).placement.tolist()


def test_options_can_be_given_with_the_name():
    problem = random_problem(12, 3, everywhere=1.0)
    one = place(problem, "random:samples=1", seed=3).devices
    many = place(problem, "random:samples=300", seed=3).devices
    assert simulate(problem, many[None])[0] < simulate(problem, one[None])[0]


def test_another_seed_draws_other_placements():
    problem = random_problem(30, 3, everywhere=0.5)
    cost = SimulatedCost(problem)
    assert place(problem, "random", seed=1, cost=cost).devices.tolist() != place(problem, "random", seed=2).devices.tolist()
