"""The front of latency and energy: no placement dominates it, and its ends are as good as the answers by one objective."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from placeit import Candidates, Placement, Session
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link, Power
from placeit.core.errors import UsageError
from placeit.core.problem import Problem
from placeit.devices.host import allowed_cores
from placeit.optimizer.front import explore, non_dominated, spread
from placeit.optimizer.result import Optimized
from placeit.placers.feasibility import fits, random_placements
from placeit.profiler.cache import Cache
from placeit.simulator.cost_functions import EnergyCost
from placeit.simulator.objectives.energy import Energy
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem
from placeit.workbench.options import Constraints
from tests.small_models import inception_like
from tests.steady import optimize

ASKED = Candidates(("heft", "annealing:evaluations=500"), pareto=True)


def described(count: int = 2) -> Cluster:
    """The faster a device is, the more it takes; links are quick."""
    names = [f"d{i}" for i in range(count)]
    links = {(a, b): Link(1e11, 1e-7, "described") for a in names for b in names if a != b}
    devices = (
        Device(name, kind="described", flops_per_s=1e9 * 2**i, bytes_per_s=1e12, power=Power(0.0, 3.0**i))
        for i, name in enumerate(names)
    )
    return Cluster(tuple(devices), links)


def values_of(problem: Problem) -> tuple[Problem, EnergyCost]:
    return problem, EnergyCost(problem, 4.0 ** np.arange(problem.devices), 0.1)


def both(problem: Problem, rows: NDArray[np.int32]) -> NDArray[np.float64]:
    return np.stack([SimulatedCost(problem)(rows), values_of(problem)[1](rows)], axis=1)


def dominated(values: NDArray[np.float64], by: NDArray[np.float64]) -> NDArray[np.bool_]:
    no_worse = (by[None] <= values[:, None]).all(axis=2)
    better = (by[None] < values[:, None]).any(axis=2)
    result: NDArray[np.bool_] = (no_worse & better).any(axis=1)
    return result


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=40))
def test_a_front_has_each_point_that_no_other_one_dominates(points: list[tuple[int, int]]) -> None:
    values = np.array(points, float)
    kept = values[non_dominated(values)]
    assert not dominated(kept, values).any()
    assert {tuple(one) for one in kept} == {tuple(one) for one in values[~dominated(values, values)]}
    assert (np.diff(kept[:, 0]) > 0).all()
    assert (np.diff(kept[:, 1]) < 0).all()


@given(st.integers(1, 12), st.integers(1, 9))
def test_few_points_are_chosen_so_that_the_ends_are_among_them(count: int, most: int) -> None:
    values = np.stack([np.arange(count) ** 2.0, -np.arange(count)], axis=1)
    chosen = spread(values, most)
    assert len(set(chosen.tolist())) == len(chosen) == min(count, most)
    assert set(chosen[:2].tolist()) == {0, count - 1} if most > 1 else {0}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("evaluations", [2000, 700])
def test_the_front_of_a_small_problem_is_that_of_all_its_placements(seed: int, evaluations: int) -> None:
    problem = random_problem(10, 2, seed)
    every = [np.array(row, np.int32) for row in itertools.product(range(2), repeat=10)]
    able = np.stack([row for row in every if fits(problem, row)])
    values = both(problem, able)
    start = able[:1]
    rows, found = explore(problem, lambda some: both(problem, some), start, seed=0, evaluations=evaluations, deadline=None)
    assert (found == both(problem, rows)).all()
    assert not dominated(found, values).any()
    whole = values[non_dominated(values)]
    assert (found.min(axis=0) == whole.min(axis=0)).all()
    if evaluations >= len(every):
        assert (found == whole).all()


def test_random_placements_dominate_no_point_of_a_larger_front() -> None:
    problem, asked = random_problem(40, 4, 5), [0]

    def counted(rows: NDArray[np.int32]) -> NDArray[np.float64]:
        asked[0] += len(rows)
        return both(problem, rows)

    start = random_placements(problem, 1, np.random.default_rng(0))
    rows, found = explore(problem, counted, start, seed=0, evaluations=4000, deadline=None)
    assert 4000 <= asked[0] <= 4100
    random = random_placements(problem, asked[0], np.random.default_rng(1))
    assert not dominated(found, both(problem, random)).any()
    assert len(rows) > 5


def found_for(cluster: Cluster, cache: Cache, objective: str = "latency", **constraints: object) -> Optimized:
    limits = Constraints(max_groups=7, **constraints)  # type: ignore[arg-type]
    return optimize(inception_like(), cluster, candidates=ASKED, budget=3, objective=objective, constraints=limits, cache=cache)


def test_no_placement_of_a_model_dominates_a_point_and_the_ends_are_the_best_by_either_objective(cache: Cache) -> None:
    cluster = described(3)
    found = found_for(cluster, cache)
    assert found.pareto is not None
    front = np.array([(one.latency_s, one.energy_j) for one in found.pareto])
    with Session(inception_like(), cluster, constraints=Constraints(max_groups=7), cache=cache) as session:
        session.profile(budget_s=3)
        groups = len(session.grouping.groups)
        rows = np.array(list(itertools.product(range(3), repeat=groups)), np.int32)
        seconds, busy = session.segmenter.work(rows)
        joules = Energy.of_cluster(cluster).of_work(seconds, busy)
    every = np.stack([seconds, joules], axis=1)
    assert not dominated(front * (1 - 1e-12), every).any()
    np.testing.assert_allclose(front.min(axis=0), every.min(axis=0))
    assert len(front) > 2
    for objective, column in (("latency", 0), ("energy", 1)):
        answer = found_for(cluster, cache, objective).chosen
        assert front[:, column].min() <= answer.simulated_value * (1 + 1e-12)  # type: ignore[operator]
    assert {one.latency_from for one in found.pareto} == {one.energy_from for one in found.pareto} == {"simulated"}


def test_points_that_were_raced_are_measured_and_each_is_a_placement_that_runs(cache: Cache, tmp_path: Path) -> None:
    core = (allowed_cores()[0],)
    links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    fast = Device("fast", address=Address("CPU", core), power=Power(0.0, 1000.0))
    slow = Device("slow", address=Address("CPU", core), slowdown=3.0, power=Power(0.0, 1.0))
    model, cluster = inception_like(), Cluster((fast, slow), links)
    found = optimize(model, cluster, candidates=replace(ASKED, placers=("heft",)), budget=20, cache=cache)
    assert found.chosen.name == "fast"
    assert found.pareto
    values = [(one.latency_s, one.energy_j) for one in found.pareto]
    assert values == sorted(values)
    assert [energy for _, energy in values] == sorted((energy for _, energy in values), reverse=True)
    assert {(one.latency_from, one.energy_from) for one in found.pareto} <= {
        ("measured", "modelled"),
        ("simulated", "simulated"),
    }
    ends = [found.pareto[0], found.pareto[-1]]
    assert all(one.latency_from == "measured" for one in ends)
    assert ends[0].latency_s < ends[1].latency_s
    assert str(found.energy).startswith("modelled; no meter for ")
    ends[1].save(tmp_path / "frugal.json")
    placement = Placement.load(tmp_path / "frugal.json")
    assert placement.as_dict() == ends[1].placement.as_dict()
    with Session(model, cluster, cache=cache) as session:
        assert session.run(placement, runs=2).output_error.max_rel < 1e-3


def test_an_interrupt_leaves_the_front_of_what_the_search_knows(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placeit.optimizer.pareto.explore", interrupt)
    found = found_for(described(2), cache)
    assert found.interrupted
    assert found.pareto
    known = {one.name: one for one in found.candidates}
    for point in found.pareto:
        assert point.latency_s == known[point.candidate.name].simulated_s
        plan = point.candidate.plan
        assert point.energy_j == pytest.approx(Energy.of_cluster(found.cluster).of_plan(plan))


@pytest.mark.parametrize(
    ("cluster", "objective", "says"),
    [
        (described(), "throughput", "which the objective 'throughput' does not measure: choose another objective"),
        ("CPU", "latency", "needs the power of every device, and the power of CPU is not known: give 'busy_power' and"),
    ],
)
def test_a_front_that_cannot_be_is_refused_before_any_work(cluster: Cluster | str, objective: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        optimize("there is no such model.onnx", cluster, objective=objective, candidates=ASKED)
