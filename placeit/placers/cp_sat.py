"""Optimal planned schedules and optimal throughput by constraint programming with OR-tools."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.conflicts import cliques
from placeit.core.extras import need
from placeit.core.problem import CostFunction, Problem
from placeit.placers.annealing import Annealing
from placeit.placers.base import option
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import ListSchedule, list_schedule, pinned
from placeit.simulator.throughput_bound import ThroughputCost

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel, CpSolver

__all__ = ["CpSat"]

_TICKS = 1_000_000  # value of the baseline placement in ticks, the solver's integer unit of time


@dataclass(frozen=True)
class CpSat:
    """Optimal placement and order in HEFT's model, where links have no contention, by constraint programming.

    Other placers leave the order of ops to the queues of the executor. This placer chooses it, so its plan should run in
    planned order (the queue ``planned``).

    With a bound of the throughput as the cost function, it minimises the seconds of the busiest device or link, as the integer
    program of Tarnawski et al. (NeurIPS 2020) does. It starts from annealing's placement, and stages need not be contiguous.

    It is meant for up to about a hundred ops, since each edge needs a constraint per pair of devices. Needs
    ``pip install 'placeit[exact]'``.
    """

    effort: float = option(1.0, "limit of the solver's work, in its deterministic unit of a few seconds", least=0, most=10**6)

    def __post_init__(self) -> None:
        need("The placer 'cp-sat'", "exact", "ortools")

    def place(
        self, problem: Problem, cost: CostFunction, *, seed: int, evaluations: int | None, deadline: float | None = None
    ) -> NDArray[np.int32]:
        """Return the placement of :meth:`plan`, or of :meth:`balanced` if the cost function is a bound of the throughput.

        Raises:
            InfeasibleError: no feasible placement is found.
        """
        if isinstance(cost, ThroughputCost):
            return self.balanced(problem, seed=seed, evaluations=evaluations, deadline=deadline)[0]
        return self.plan(problem, seed=seed, deadline=deadline)[0].placement

    def balanced(
        self, problem: Problem, *, seed: int = 0, evaluations: int | None = None, deadline: float | None = None
    ) -> tuple[NDArray[np.int32], float]:
        """Return a placement that minimises the seconds of the busiest device or link, and a lower bound of these seconds.

        The placement is never worse than annealing's with ``evaluations``. The solver rounds down to millionths of annealing's
        seconds, so a placement that is proven optimal may be above the bound by one millionth per op and transfer.

        Raises:
            InfeasibleError: no feasible placement is found.
        """
        from ortools.sat.python import cp_model

        cost = ThroughputCost(problem)
        baseline = Annealing().place(problem, cost, seed=seed, evaluations=evaluations, deadline=deadline)
        seconds = float(cost(baseline)[0])
        if seconds <= 0:
            return baseline, 0.0
        model = cp_model.CpModel()
        on = _add_placement(model, problem, baseline)
        _add_balance(model, problem, on, seconds)
        solver, solved = self._solve(model, seed, deadline)
        found = _placement(solver, on) if solved else baseline
        return (found if cost(found)[0] < seconds else baseline), max(0.0, solver.best_objective_bound) * seconds / _TICKS

    def plan(self, problem: Problem, *, seed: int = 0, deadline: float | None = None) -> tuple[ListSchedule, float]:
        """Return the best plan found, never worse than HEFT's, and a lower bound of all makespans, in seconds.

        The solver rounds down to millionths of HEFT's makespan, so a plan that is proven optimal may be above the bound by one
        millionth per op and transfer on its critical path.

        Raises:
            InfeasibleError: no feasible placement is found.
        """
        from ortools.sat.python import cp_model

        baseline = Heft().plan(problem)
        if baseline.makespan <= 0:
            return baseline, 0.0
        model = cp_model.CpModel()
        on = _add_placement(model, problem, baseline.placement)
        start = _add_schedule(model, problem, on, baseline)
        solver, solved = self._solve(model, seed, deadline)
        bound = max(0.0, solver.best_objective_bound) * baseline.makespan / _TICKS
        if not solved:
            return baseline, bound
        placement = _placement(solver, on)
        order = np.lexsort((np.argsort(problem.order), np.array([solver.value(s) for s in start]))).astype(np.int32)
        plan = list_schedule(problem, order, pinned(problem, placement))  # the solver's order, in exact times
        return (plan if plan.makespan < baseline.makespan else baseline), bound

    def _solve(self, model: CpModel, seed: int, deadline: float | None) -> tuple[CpSolver, bool]:
        """Run the solver, and return it and whether it found a placement."""
        from ortools.sat.python import cp_model

        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1  # with several workers the answer would depend on which of them ends first
        solver.parameters.random_seed = seed % 2**31
        solver.parameters.max_deterministic_time = self.effort
        solver.parameters.catch_sigint_signal = False  # the solver would take Ctrl-C for a time limit
        if deadline is not None:
            solver.parameters.max_time_in_seconds = max(0.0, deadline - clock.now())
        return solver, solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)


def _ticks(baseline: float, seconds: float) -> int:
    """Convert seconds to ticks, of which there are ``_TICKS`` in ``baseline`` seconds."""
    return int(seconds * (_TICKS / baseline))


def _placement(solver: CpSolver, on: list[dict[int, Any]]) -> NDArray[np.int32]:
    return np.array([next(d for d, chosen in row.items() if solver.value(chosen)) for row in on], np.int32)


def _add_placement(model: CpModel, problem: Problem, baseline: NDArray[np.int32]) -> list[dict[int, Any]]:
    """Add memory limits and a variable for each op on each device that can run it; return the variables by op and device."""
    on: list[dict[int, Any]] = []
    for v, name in enumerate(problem.op_names):
        row = {d: model.new_bool_var(f"{name} on {d}") for d in np.flatnonzero(problem.feasible[v]).tolist()}
        model.add_exactly_one(row.values())
        for d, chosen in row.items():
            model.add_hint(chosen, int(baseline[v]) == d)
        on.append(row)
    for d in np.flatnonzero(np.isfinite(problem.memory)).tolist():
        used = sum(int(np.ceil(problem.param_bytes[v])) * row[d] for v, row in enumerate(on) if d in row)
        for nbytes, ops in problem.shared:  # ``used`` counts the weight on the first reader's device; others need a copy
            copy = model.new_bool_var("")
            for v in ops[1:]:
                model.add(on[v].get(d, 0) <= copy + on[ops[0]].get(d, 0))
            used += int(np.ceil(nbytes)) * copy
        model.add(used <= int(problem.memory[d]))
    return on


def _add_balance(model: CpModel, problem: Problem, on: list[dict[int, Any]], baseline: float) -> None:
    """Minimise the ticks of the busiest device, set of conflicting devices, or link."""
    ticks = functools.partial(_ticks, baseline)
    busiest = model.new_int_var(0, _TICKS, "busiest")
    model.minimize(busiest)
    devices = range(problem.devices)
    busy: list[Any] = [sum(ticks(problem.compute[v, d]) * row[d] for v, row in enumerate(on) if d in row) for d in devices]
    links: dict[tuple[int, int], Any] = {}
    for tensor in range(int(problem.edge_tensor.max(initial=-1)) + 1):
        edges = np.flatnonzero(problem.edge_tensor == tensor)
        cut, first = problem.cut[edges[0]], on[problem.edges[edges[0], 0]]
        moved = problem.latency + problem.edge_bytes[edges[0]] / problem.bandwidth
        for d in devices:
            enters, leaves = model.new_bool_var(""), model.new_bool_var("")
            for v in problem.edges[edges, 1].tolist():
                model.add(enters >= on[v].get(d, 0) - first.get(d, 0))
                model.add(leaves >= first.get(d, 0) - on[v].get(d, 0))
            busy[d] += ticks(cut[d]) * (enters + leaves)
            for source in first:
                if source != d and (delay := ticks(moved[source, d])) > 0:
                    crosses = model.new_bool_var("")
                    model.add(crosses >= first[source] + enters - 1)
                    links[source, d] = links.get((source, d), 0) + delay * crosses
    for clique in cliques(problem.conflicts):
        model.add(sum(busy[d] for d in np.flatnonzero(clique).tolist()) <= busiest)
    for seconds in links.values():
        model.add(seconds <= busiest)


def _add_schedule(model: CpModel, problem: Problem, on: list[dict[int, Any]], baseline: ListSchedule) -> list[Any]:
    """Minimise the makespan; return the variables of the ops' start times."""
    ticks = functools.partial(_ticks, baseline.makespan)
    start, end = [], []
    busy: list[list[Any]] = [[] for _ in range(problem.devices)]
    span = model.new_int_var(0, _TICKS, "makespan")
    model.minimize(span)
    for v, (name, row) in enumerate(zip(problem.op_names, on, strict=True)):
        begin = model.new_int_var(0, _TICKS, f"start of {name}")
        model.add_hint(begin, ticks(baseline.start[v]))
        for d, chosen in row.items():
            size = ticks(problem.compute[v, d])
            busy[d].append(model.new_optional_fixed_size_interval_var(begin, size, chosen, f"{name} on {d}"))
        start.append(begin)
        end.append(begin + sum(ticks(problem.compute[v, d]) * chosen for d, chosen in row.items()))
        model.add(span >= end[v])
    for clique in cliques(problem.conflicts):
        model.add_no_overlap([interval for d in np.flatnonzero(clique).tolist() for interval in busy[d]])
    for e, (u, v) in enumerate(problem.edges.tolist()):
        comm = problem.comm(e)
        model.add(start[v] >= end[u])
        for a, sends in on[u].items():
            for b, receives in on[v].items():
                if a != b and (delay := ticks(comm[a, b])) > 0:
                    model.add(start[v] >= end[u] + delay).only_enforce_if(sends, receives)
    return start
