"""Optimal planned schedules by constraint programming, with OR-tools."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.conflicts import cliques
from placeit.core.extras import need
from placeit.core.problem import CostFunction, Problem
from placeit.placers.base import option
from placeit.placers.heft import Heft
from placeit.placers.list_scheduling import ListSchedule, list_schedule, pinned

if TYPE_CHECKING:
    from ortools.sat.python.cp_model import CpModel

__all__ = ["CpSat"]

_TICKS = 1_000_000  # HEFT's makespan in ticks, the solver's integer unit of time


@dataclass(frozen=True)
class CpSat:
    """Optimal placement and order in HEFT's model, where links have no contention, by constraint programming.

    Other placers leave the order of ops to the queues of the executor. This one chooses it, so its plan should run in planned
    order (the queue ``planned``). It is for up to about a hundred ops: each edge needs a constraint per pair of devices. Needs
    ``pip install 'placeit[exact]'``.
    """

    effort: float = option(1.0, "limit of the solver's work, in its deterministic unit of a few seconds", least=0, most=10**6)

    def __post_init__(self) -> None:
        need("The placer 'cp-sat'", "exact", "ortools")

    def place(
        self,
        problem: Problem,
        cost: CostFunction,  # noqa: ARG002
        *,
        seed: int,
        evaluations: int | None,  # noqa: ARG002
        deadline: float | None = None,
    ) -> NDArray[np.int32]:
        """Return the placement of :meth:`plan`; the cost function is not used.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        return self.plan(problem, seed=seed, deadline=deadline)[0].placement

    def plan(self, problem: Problem, *, seed: int = 0, deadline: float | None = None) -> tuple[ListSchedule, float]:
        """Return the best plan found, never worse than HEFT's, and a lower bound of all makespans, in seconds.

        The solver counts in millionths of HEFT's makespan and rounds down, so a plan that is proven optimal may lie above
        the bound by as many of these as there are ops and transfers on its critical path.

        Raises:
            InfeasibleError: the weights fit in no way that was found.
        """
        from ortools.sat.python import cp_model

        known = Heft().plan(problem)
        if known.makespan <= 0:
            return known, 0.0
        model = cp_model.CpModel()
        on, start = _model(model, problem, known)
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1  # with several workers the answer would depend on which of them ends first
        solver.parameters.random_seed = seed % 2**31
        solver.parameters.max_deterministic_time = self.effort
        solver.parameters.catch_sigint_signal = False  # the solver would take Ctrl-C for a time limit
        if deadline is not None:
            solver.parameters.max_time_in_seconds = max(0.0, deadline - clock.now())
        found = solver.solve(model) in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        bound = max(0.0, solver.best_objective_bound) * known.makespan / _TICKS
        if not found:
            return known, bound
        placement = np.array([next(d for d, chosen in row.items() if solver.value(chosen)) for row in on], np.int32)
        turn = np.empty(len(problem), np.int64)
        turn[problem.order] = np.arange(len(problem))
        order = np.lexsort((turn, np.array([solver.value(s) for s in start]))).astype(np.int32)
        plan = list_schedule(problem, order, pinned(problem, placement))  # the solver's order, in exact times
        return (plan if plan.makespan < known.makespan else known), bound


def _model(model: CpModel, problem: Problem, known: ListSchedule) -> tuple[list[dict[int, Any]], list[Any]]:
    """Add variables and constraints to the model; return the ops' variables: on each possible device or not, and start."""

    def ticks(seconds: float) -> int:
        return int(seconds * (_TICKS / known.makespan))

    on: list[dict[int, Any]] = []
    start, end = [], []
    busy: list[list[Any]] = [[] for _ in range(problem.devices)]
    span = model.new_int_var(0, _TICKS, "makespan")
    model.minimize(span)
    for v, name in enumerate(problem.op_names):
        row = {d: model.new_bool_var(f"{name} on {d}") for d in np.flatnonzero(problem.feasible[v]).tolist()}
        model.add_exactly_one(row.values())
        begin = model.new_int_var(0, _TICKS, f"start of {name}")
        model.add_hint(begin, ticks(known.start[v]))
        for d, chosen in row.items():
            size = ticks(problem.compute[v, d])
            busy[d].append(model.new_optional_fixed_size_interval_var(begin, size, chosen, f"{name} on {d}"))
            model.add_hint(chosen, int(known.placement[v]) == d)
        on.append(row)
        start.append(begin)
        end.append(begin + sum(ticks(problem.compute[v, d]) * chosen for d, chosen in row.items()))
        model.add(span >= end[v])
    for together in cliques(problem.conflicts):
        model.add_no_overlap([interval for d in np.flatnonzero(together).tolist() for interval in busy[d]])
    for e, (u, v) in enumerate(problem.edges.tolist()):
        comm = problem.comm(e)
        model.add(start[v] >= end[u])
        for a, sends in on[u].items():
            for b, receives in on[v].items():
                if a != b and (delay := ticks(comm[a, b])) > 0:
                    model.add(start[v] >= end[u] + delay).only_enforce_if(sends, receives)
    for d in np.flatnonzero(np.isfinite(problem.memory)).tolist():
        used = sum(int(np.ceil(problem.param_bytes[v])) * row[d] for v, row in enumerate(on) if d in row)
        for nbytes, ops in problem.shared:  # a device of other readers than the first, which counts the weight, has a copy
            copy = model.new_bool_var("")
            for v in ops[1:]:
                model.add(on[v].get(d, 0) <= copy + on[ops[0]].get(d, 0))
            used += int(np.ceil(nbytes)) * copy
        model.add(used <= int(problem.memory[d]))
    return on, start
