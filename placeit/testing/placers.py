"""Conformance tests for placers, as a test class to inherit.

Use it like this::

    from placeit.testing.placers import PlacerConformance

    class TestMine(PlacerConformance):
        placer = "mine:option=3"

The placer is named as on the command line, so that this and other processes find it through its entry point.
Importing this module needs pytest; no other module of placeit does.
"""

# ruff: noqa: S101 (tests use assertions)
from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import InfeasibleError, UsageError
from placeit.core.problem import Problem
from placeit.placers import CostFunction, Measured, RefiningPlacer, get_placer, parse_placer, place, placer_options
from placeit.placers.asking import ask
from placeit.placers.feasibility import random_placements
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem

__all__ = ["PlacerConformance"]


class PlacerConformance:
    """Tests for all placers. Set :attr:`placer`, and the other attributes only if the placer is limited by design.

    Attributes:
        placer: the placer, as on the command line.
        sizes: (ops, devices) of the problems that it places.
        splits: whether it can use several devices at once.
    """

    placer: str
    sizes: tuple[tuple[int, int], ...] = ((8, 2), (30, 3), (60, 7))
    splits: bool = True

    def answer(self, problem: Problem, cost: CostFunction | None = None, evaluations: int | None = None) -> NDArray[np.int32]:
        """Return the placement of the placer itself, checked, without a comparison with single devices."""
        cost = SimulatedCost(problem) if cost is None else cost
        return problem.check(parse_placer(self.placer).place(problem, cost, seed=0, evaluations=evaluations))

    def test_it_is_a_frozen_dataclass_with_plain_options_that_explain_themselves(self) -> None:
        """Fields become command-line options, so each has a type that can be parsed from text, a default and a help text."""
        name = self.placer.partition(":")[0]
        assert type(get_placer(name)).__dataclass_params__.frozen  # type: ignore[attr-defined]
        for field in placer_options(name):
            assert field.type in (bool, int, float, str)
            assert field.help
            assert isinstance(field.default, field.type)

    def test_it_places_problems_of_all_sizes(self) -> None:
        """The answer covers the problem and is valid."""
        for ops, devices in self.sizes:
            self.answer(random_problem(ops, devices, everywhere=1.0))

    def test_it_puts_ops_only_where_they_can_run(self) -> None:
        """Infinite compute means that an op cannot run there."""
        for ops, devices in self.sizes:
            self._answer_or_refuse(random_problem(ops, devices, everywhere=0.4))

    def test_it_keeps_within_the_memory_of_the_devices(self) -> None:
        """The weights of a device's ops must fit its memory."""
        for ops, devices in self.sizes:
            self._answer_or_refuse(random_problem(ops, devices, everywhere=0.8, tight=True))

    def test_it_counts_a_weight_that_ops_of_two_devices_read_on_both(self) -> None:
        """Devices have room for their ops, if only one device has the ops that read the large weight."""
        ops, devices = self.sizes[-1]
        like = random_problem(ops, devices, everywhere=1.0)
        small = np.full(ops, 8.0)
        tied = np.append(1000.0 + small[0], small[1:])
        arrays = (like.compute, like.edges, like.edge_bytes, like.bandwidth, like.latency)
        room = np.full(devices, 8.0 * ops)
        room[-1] += 1000.0
        self._answer_or_refuse(Problem.from_arrays(*arrays, param_bytes=tied, memory=room, shared=((1000.0, (0, ops - 1)),)))

    def test_it_places_the_smallest_problems(self) -> None:
        """One device; one op; no edges; all costs are zero."""
        ops, devices = self.sizes[0]
        assert not self.answer(random_problem(ops, 1)).any()
        self.answer(random_problem(1, devices, everywhere=1.0))
        no_edges = Problem.from_arrays(
            np.ones((ops, devices)), [], [], np.ones((devices, devices)), np.zeros((devices, devices))
        )
        self.answer(no_edges)
        problem = random_problem(ops, devices, everywhere=1.0)
        free = (np.zeros((ops, devices)), problem.edges, np.zeros(len(problem.edges)))
        self.answer(Problem.from_arrays(*free, np.ones((devices, devices)), np.zeros((devices, devices))))

    def test_it_says_that_a_problem_is_infeasible(self) -> None:
        """If the weights do not fit, an InfeasibleError is raised, not another error, and no placement is returned."""
        problem = random_problem(*self.sizes[0], everywhere=1.0, tight=True)
        arrays = (problem.compute, problem.edges, problem.edge_bytes, problem.bandwidth, problem.latency)
        small = Problem.from_arrays(*arrays, param_bytes=problem.param_bytes, memory=problem.memory / 4)
        with pytest.raises(InfeasibleError):
            self.answer(small)

    def test_it_is_never_worse_than_the_best_single_device_in_simulation(self) -> None:
        """This is a property of ``placeit.place``, with fast and with slow links."""
        for ops, devices in self.sizes:
            for slower in (1.0, 1e3):
                like = random_problem(ops, devices, everywhere=1.0)
                links = (like.edge_bytes * slower, like.bandwidth, like.latency * slower)
                problem = Problem.from_arrays(like.compute, like.edges, *links)
                cost = SimulatedCost(problem)
                answer = place(problem, self.placer).devices
                singles = np.repeat(np.arange(devices, dtype=np.int32)[:, None], ops, axis=1)
                assert cost(answer[None])[0] <= cost(singles).min()

    def test_it_keeps_within_its_budget_of_evaluations(self) -> None:
        """A placer may reject a budget with a UsageError, but must not exceed it; 0 is a valid budget."""
        problem = random_problem(*self.sizes[0], everywhere=1.0)
        for budget in (0, 1, 7, 40):
            cost = _Counting(SimulatedCost(problem))
            with contextlib.suppress(UsageError):
                self.answer(problem, cost, budget)
            assert cost.asked <= budget
        cost = _Counting(SimulatedCost(problem))
        with contextlib.suppress(UsageError):
            place(problem, self.placer, evaluations=40, cost=cost)
        assert cost.asked <= 40

    def test_it_answers_when_its_deadline_has_passed(self) -> None:
        """A placer returns its first placement, or raises UsageError if it needs more time."""
        for ops, devices in self.sizes:
            problem = random_problem(ops, devices, everywhere=1.0)
            with contextlib.suppress(UsageError):
                made = parse_placer(self.placer)
                problem.check(made.place(problem, SimulatedCost(problem), seed=0, evaluations=None, deadline=clock.now()))

    def test_it_goes_on_from_what_was_measured(self) -> None:
        """With measurements, the answer is valid and deterministic; with ``refine``, it is no worse than the best of them."""
        made, problem = parse_placer(self.placer), random_problem(*self.sizes[0], everywhere=1.0)
        cost, placements = SimulatedCost(problem), random_placements(problem, 3, np.random.default_rng(1))
        values = cost(placements)
        order = np.argsort(values)
        measured = Measured(placements[order], 1.5 * values[order])
        first, second = (ask(made, problem, cost, seed=3, measured=measured) for _ in range(2))
        assert first.tolist() == second.tolist()
        assert measured.placements.tolist() == placements[order].tolist()
        if isinstance(made, RefiningPlacer):
            assert cost(first[None])[0] <= values.min()
            late = made.refine(problem, cost, measured, seed=3, deadline=clock.now())
            assert problem.check(late).shape == (len(problem),)

    def test_the_same_seed_gives_the_same_placement_in_another_process(self, tmp_path: Path) -> None:
        """The answer depends on the problem, the options and the seed only."""
        problem = random_problem(*self.sizes[-1], everywhere=1.0)
        problem.to_json(tmp_path / "problem.json")
        code = (
            "import sys; from placeit.placers import place; from placeit.core.problem import Problem; "
            "print(place(Problem.from_json(sys.argv[1]), sys.argv[2], seed=5).devices.tolist())"
        )
        command = [sys.executable, "-c", code, str(tmp_path / "problem.json"), self.placer]
        other = subprocess.run(command, check=True, capture_output=True, encoding="utf-8")
        assert json.loads(other.stdout) == place(problem, self.placer, seed=5).devices.tolist()

    def _answer_or_refuse(self, problem: Problem) -> None:
        if self.splits or problem.single_devices:
            self.answer(problem)
        else:
            with pytest.raises(InfeasibleError):
                self.answer(problem)


class _Counting:
    """A cost function that counts evaluations, and hides its problem from placers."""

    def __init__(self, cost: CostFunction) -> None:
        self._cost = cost
        self.asked = 0

    def __call__(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        self.asked += len(placements)
        return self._cost(placements)
