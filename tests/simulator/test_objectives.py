"""Objectives: what placements cost in seconds of work, in joules, and with moving ops counted in."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Power
from placeit.core.errors import PlacementError, UsageError
from placeit.core.problem import Problem
from placeit.placers.annealing import Annealing
from placeit.placers.api import place
from placeit.placers.feasibility import fits
from placeit.placers.local_search import LocalSearch
from placeit.simulator.cost_functions import AmortisedCost, EnergyCost, RelocationCost, TotalCost
from placeit.simulator.objectives.latency import Latency
from placeit.simulator.objectives.registry import get_objective, objective_names
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import Schedule, SimulatedCost, schedule
from placeit.testing.problems import random_problem

seeds = st.integers(0, 2**20)
holds = settings(max_examples=60)  # the first example may have to compile the simulator


def problem_of_everything(seed: int, ops: int, devices: int) -> Problem:
    """Shared tensors, parallel edges, costs of cutting, ops that cannot run everywhere, memory that is short."""
    rng = np.random.default_rng(seed)
    edges = [(int(u), v) for v in range(1, ops) for u in rng.integers(0, v, rng.integers(0, 4))]
    tensor_of: dict[tuple[int, int], int] = {}
    tensors = np.array([tensor_of.setdefault((u, int(rng.integers(2))), len(tensor_of)) for u, _ in edges], int)
    sizes, cuts = rng.uniform(0, 10, len(edges) + 1), rng.uniform(0, 1, (len(edges) + 1, devices))
    compute = rng.uniform(1, 3, (ops, devices))
    compute[(rng.random((ops, devices)) < 0.2) & (np.arange(devices) > 0)] = np.inf
    return Problem.from_arrays(
        compute,
        np.array(edges, int).reshape(-1, 2),
        sizes[tensors],
        rng.choice([0.5, 2.0, np.inf], (devices, devices)),
        rng.uniform(0, 1, (devices, devices)),
        edge_tensor=tensors,
        cut=cuts[tensors],
        param_bytes=rng.integers(0, 4, ops),
        memory=np.append(np.inf, rng.integers(1, 2 * ops + 2, devices - 1)),
    )


def some_placements(problem: Problem, seed: int, count: int = 12) -> np.ndarray:
    return np.random.default_rng(seed).integers(problem.devices, size=(count, len(problem))).astype(np.int32)


def by_hand(problem: Problem, place: np.ndarray) -> tuple[np.ndarray, float, np.ndarray]:
    """Busy seconds of each device, seconds of all transfers, and bytes between each pair of devices, one edge at a time."""
    busy, moving, moved = np.zeros(problem.devices), 0.0, np.zeros((problem.devices, problem.devices))
    for v, d in enumerate(place):
        busy[d] += problem.compute[v, d]
    left, entered, sent = set(), set(), set()
    for e, (u, v) in enumerate(problem.edges.tolist()):
        src, dst, t = place[u], place[v], problem.edge_tensor[e]
        if src == dst:
            continue
        if t not in left:
            left.add(t)
            busy[src] += problem.cut[e, src]
        if (t, v) not in entered:
            entered.add((t, v))
            busy[dst] += problem.cut[e, dst]
        if (t, dst) not in sent:
            sent.add((t, dst))
            moving += problem.latency[src, dst] + problem.edge_bytes[e] / problem.bandwidth[src, dst]
            moved[src, dst] += problem.edge_bytes[e]
    return busy, moving, moved


@holds
@given(seed=seeds, ops=st.integers(1, 12), devices=st.integers(1, 4))
def test_costs_are_those_of_counting_by_hand(seed: int, ops: int, devices: int) -> None:
    problem = problem_of_everything(seed, ops, devices)
    placements = some_placements(problem, seed)
    rng = np.random.default_rng(seed)
    idle, joules_per_byte = rng.uniform(0, 2, devices), rng.uniform(0, 1, (devices, devices))
    power = idle + rng.uniform(0, 5, devices)
    makespan = SimulatedCost(problem)
    total = TotalCost(problem)(placements)
    energy = EnergyCost(problem, power, idle, joules_per_byte=joules_per_byte, makespan=makespan)(placements)
    for b, row in enumerate(placements):
        if not fits(problem, row):
            assert total[b] == energy[b] == np.inf
            continue
        busy, moving, moved = by_hand(problem, row)
        assert total[b] == pytest.approx(busy.sum() + moving)
        seconds = makespan(row)[0]
        joules = (busy * power + (seconds - busy) * idle).sum() + (moved * joules_per_byte).sum()
        assert energy[b] == pytest.approx(joules)


@holds
@given(seed=seeds, ops=st.integers(1, 12), queue=st.sampled_from(["fifo", "priority"]))
def test_the_total_cost_is_the_time_that_a_simulated_schedule_keeps_devices_and_links_busy(
    seed: int, ops: int, queue: str
) -> None:
    problem = problem_of_everything(seed, ops, 3)
    for row in some_placements(problem, seed):
        if fits(problem, row):
            done = schedule(problem, row, rules=Rules(queue=queue))  # type: ignore[arg-type]
            busy = done.busy.sum() + (done.transfers.finish - done.transfers.start).sum()
            assert TotalCost(problem)(row)[0] == pytest.approx(busy)


@holds
@given(seed=seeds)
def test_with_a_tensor_for_each_edge_the_total_cost_is_that_of_the_paper(seed: int) -> None:
    problem = random_problem(15, 4, seed)
    for row in some_placements(problem, seed):
        if fits(problem, row):
            of_edges = sum(problem.comm(e)[row[u], row[v]] for e, (u, v) in enumerate(problem.edges.tolist()))
            expected = problem.compute[np.arange(15), row].sum() + of_edges
            assert TotalCost(problem)(row)[0] == pytest.approx(expected)


@holds
@given(seed=seeds)
def test_what_the_simulator_calls_infeasible_every_objective_does(seed: int) -> None:
    problem = problem_of_everything(seed, 8, 3)
    placements = some_placements(problem, seed, 40)
    infeasible = np.isinf(SimulatedCost(problem)(placements))
    moving = RelocationCost(problem, np.zeros(8, int), 1.0)
    costs = (
        TotalCost(problem),
        EnergyCost(problem, 3.0, 0.0),
        moving,
        AmortisedCost(TotalCost(problem), moving, frequency_hz=1),
    )
    for cost in costs:
        np.testing.assert_array_equal(np.isinf(cost(placements)), infeasible)


def test_a_batch_is_what_one_by_one_gives_however_large_it_is() -> None:
    problem = problem_of_everything(5, 12, 4)
    placements = some_placements(problem, 5, 9000)
    cost = TotalCost(problem)
    together = cost(placements)
    for b in (0, 4095, 8999):
        assert together[b] == pytest.approx(cost(placements[b])[0])
    assert cost(placements[:0]).shape == (0,)


def test_the_energy_of_one_device_is_its_busy_power_and_the_idle_power_of_the_others() -> None:
    problem = Problem.from_arrays(
        compute=[[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]],
        edges=[[0, 1], [1, 2]],
        edge_bytes=[8.0, 8.0],
        bandwidth=np.ones((2, 2)),
        latency=np.zeros((2, 2)),
    )
    # 6 s busy at 50 W, while the other idles at 4 W
    energy = EnergyCost(problem, [50.0, 20.0], [10.0, 4.0], joules_per_byte=1.0)
    assert energy([0, 0, 0])[0] == pytest.approx(6 * 50 + 6 * 4)
    # op 2 on the other device: 3 s busy, an 8 s transfer of 8 J, 5 s busy; 16 s in all
    assert energy([0, 0, 1])[0] == pytest.approx(3 * 50 + 13 * 10 + 5 * 20 + 11 * 4 + 8)


def test_energy_takes_any_makespan_that_is_given() -> None:
    problem = random_problem(5, 2, 0, everywhere=1.0)
    energy = EnergyCost(problem, 0.0, 0.0, makespan=lambda placements: np.full(len(placements), 7.0))
    assert (energy(some_placements(problem, 0)) == 0).all()
    idle = EnergyCost(problem, 2.0, 2.0, makespan=lambda placements: np.full(len(placements), 7.0))
    assert idle(some_placements(problem, 0)) == pytest.approx(np.full(12, 7.0 * 2 * 2))


@holds
@given(seed=seeds)
def test_relocating_costs_startup_and_migration_of_what_moves(seed: int) -> None:
    problem = random_problem(10, 4, seed, everywhere=1.0)
    rng = np.random.default_rng(seed)
    current = rng.integers(-1, 4, 10)  # -1: its device is gone
    startup, size = rng.uniform(0, 5, (10, 4)), rng.uniform(0, 1e8, 10)
    moving = RelocationCost(problem, current, startup, size)
    for row in some_placements(problem, seed):
        expected = 0.0
        for v, (old, new) in enumerate(zip(current.tolist(), row.tolist(), strict=True)):
            if old != new:
                expected += startup[v, new]
            if old not in (new, -1):
                expected += problem.latency[old, new] + size[v] / problem.bandwidth[old, new]
        assert moving(row)[0] == pytest.approx(expected)


@holds
@given(seed=seeds)
def test_relocating_nothing_costs_nothing_and_often_run_pipelines_hardly_notice(seed: int) -> None:
    problem = random_problem(10, 3, seed, everywhere=1.0)
    placements = some_placements(problem, seed)
    base, moving = SimulatedCost(problem), RelocationCost(problem, placements[0], 2.0, 1e6)
    assert moving(placements[0])[0] == 0
    at = [AmortisedCost(base, moving, frequency_hz=hz, interval_s=60.0)(placements) for hz in (0.1, 10.0, 1e12)]
    assert (at[0] >= at[1]).all()
    assert (at[1] >= at[2]).all()
    np.testing.assert_allclose(at[0], base(placements) + moving(placements) / 6)
    np.testing.assert_allclose(at[2], base(placements), rtol=1e-9)
    assert at[0][0] == base(placements)[0]


@pytest.mark.parametrize("placer", [LocalSearch(evaluations=3000), Annealing(evaluations=3000)])
def test_the_more_often_a_pipeline_runs_the_more_relocation_is_worth_it(placer: LocalSearch | Annealing) -> None:
    problem = random_problem(8, 3, 3, everywhere=1.0)
    current = np.full(8, problem.compute.sum(axis=0).argmax(), np.int32)  # everything on the slowest device
    moving = RelocationCost(problem, current, 0.05, 1e5)
    spent = []
    for frequency in (1e-3, 1.0, 10.0, 100.0, 1e6):
        cost = AmortisedCost(SimulatedCost(problem), moving, frequency_hz=frequency)
        answer = place(problem, placer, cost=cost).devices
        assert cost(answer)[0] <= cost(current)[0]
        spent.append(moving(answer)[0])
    assert spent[0] == 0
    assert spent == sorted(spent)
    assert spent[-1] > spent[1]


def test_search_finds_less_energy_than_the_placement_of_least_latency_takes() -> None:
    problem = random_problem(8, 3, 1, everywhere=1.0)
    energy = EnergyCost(problem, [100.0, 5.0, 20.0], [10.0, 1.0, 2.0])
    fast, frugal = (place(problem, "annealing:evaluations=2000", cost=cost).devices for cost in (None, energy))
    assert energy(frugal)[0] < energy(fast)[0]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda p: EnergyCost(p, [1.0, 2.0]), r"'power_w' has shape \(2,\)"),
        (lambda p: EnergyCost(p, "much"), "'power_w' has shape"),
        (lambda p: EnergyCost(p, np.nan), "'power_w' holds"),
        (lambda p: EnergyCost(p, 1.0, -1.0), "'idle_w' holds"),
        (lambda p: EnergyCost(p, [5.0, 1.0, 5.0], 2.0), "dev1 would draw 2 W when idle"),
        (lambda p: EnergyCost(p, 1.0, joules_per_byte=np.inf), "'joules_per_byte' holds"),
        (lambda p: RelocationCost(p, [0] * 5, np.ones((5, 2))), r"'startup_s' has shape \(5, 2\)"),
        (lambda p: RelocationCost(p, [0] * 5, 1.0, -1.0), "'migration_bytes' holds"),
        (lambda p: AmortisedCost(TotalCost(p), TotalCost(p), frequency_hz=0), "'frequency_hz' is 0"),
        (lambda p: AmortisedCost(TotalCost(p), TotalCost(p), frequency_hz=1, interval_s=np.nan), "'interval_s' is nan"),
    ],
)
def test_figures_that_make_no_sense_are_refused(make, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        make(random_problem(5, 3, 0))


@pytest.mark.parametrize("bad", [[0] * 4, [0, 0, 0, 0, 3], [0.0] * 5, [-2, 0, 0, 0, 0]])
def test_placements_of_another_problem_are_refused(bad: list[float]) -> None:
    problem = random_problem(5, 3, 0)
    for use in (TotalCost(problem), EnergyCost(problem, 1.0), lambda row: RelocationCost(problem, row, 1.0)):
        with pytest.raises(PlacementError, match="device numbers"):
            use(bad)


POWERED = Cluster((Device("a", power=Power(2.0, 30.0)), Device("b", power=Power(0.0, 5.0))))


class Whole(NamedTuple):
    """A plan whose segments are the ops."""

    problem: Problem
    placement: np.ndarray
    schedule: Schedule


@pytest.mark.parametrize("name", objective_names())
@settings(max_examples=20)
@given(seed=seeds)
def test_an_objective_values_placements_as_it_values_their_simulated_runs(name: str, seed: int) -> None:
    problem = problem_of_everything(seed, 8, 2)
    objective = get_objective(name, POWERED)
    cost = objective.cost(problem, SimulatedCost(problem))
    for row in some_placements(problem, seed):
        if fits(problem, row):
            plan = Whole(problem, row, schedule(problem, row))
            if objective.steady:  # placers minimise a bound of it
                assert cost(row[None])[0] <= objective.of_plan(plan)
            else:
                assert cost(row[None])[0] == pytest.approx(objective.of_plan(plan))


def test_objectives_are_values_and_only_latency_is_the_makespan() -> None:
    assert [get_objective(name, POWERED) for name in objective_names()] == [
        get_objective(n, POWERED) for n in objective_names()
    ]
    assert get_objective("latency", POWERED) == Latency()
    assert [name for name in objective_names() if get_objective(name, POWERED).is_makespan] == ["latency"]
    assert [name for name in objective_names() if get_objective(name, POWERED).is_measured] == ["latency", "throughput"]
    assert [name for name in objective_names() if get_objective(name, POWERED).steady] == ["throughput"]
    assert get_objective("energy", POWERED).of_run(2.0, lambda: (np.array([1.0, 0.5]), 0.1)) == 30 + 2 + 2.5


def test_an_unknown_objective_and_unknown_power_are_errors_that_say_what_is_missing() -> None:
    with pytest.raises(UsageError, match="'speed' is not known; there are latency, throughput, total-cost, energy"):
        get_objective("speed", POWERED)
    with pytest.raises(UsageError, match="the power of b, c is not known: give 'busy_power'"):
        get_objective("energy", Cluster((POWERED.devices[0], Device("b"), Device("c"))))


def test_importing_objectives_imports_nothing_that_takes_long() -> None:
    code = "import sys, placeit.simulator.objectives; sys.exit(bool({'openvino', 'torch', 'rich'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_core_is_idle_twice_where_devices_share_cores() -> None:
    def device(*cores: int, idle: float, busy: float) -> Device:
        return Device(f"{cores}", address=Address("CPU", cores), power=Power(idle, busy))

    energy = get_objective("energy", Cluster((device(0, idle=3, busy=20), device(0, 1, idle=5, busy=30))))
    assert energy.of_run(10.0, lambda: (np.array([0.0, 0.0]), 0.0)) == 50
    assert energy.of_run(10.0, lambda: (np.array([0.0, 10.0]), 0.0)) == 300
    assert energy.of_run(10.0, lambda: (np.array([10.0, 0.0]), 0.0)) == 50 + 170
