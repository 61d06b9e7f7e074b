"""Runs of placers on simulated problems, each with a budget that it is told, in separate processes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from benchmarks._anytime_journal import Answer, Journal, Key, Unit
from benchmarks._anytime_placers import in_full, needs_time
from benchmarks._anytime_plan import answered, problems_at
from benchmarks._anytime_problems import Case
from placeit.core import clock
from placeit.core.errors import PlaceitError
from placeit.placers.annealing import Annealing
from placeit.placers.bound import lower_bound
from placeit.placers.cp_sat import CpSat
from placeit.placers.registry import parse_placer
from placeit.simulator.scheduler import EXECUTED_RULES, GIPH_RULES
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem

__all__ = ["REFERENCE", "Simulated", "prepare"]

REFERENCE = "reference"
_REFERENCE_SEED = 1000
_CONSTRAINTS = 20_000  # edges times pairs of devices, beyond which building the model of cp-sat takes longer than that
_WARM_S = 0.5
# seconds that all placers together are expected to take for one problem at first, and for each evaluation at least
_FIRST_S, _EVALUATION_S = 0.5, 0.01


@dataclass(eq=False)
class Simulated:
    """Asks placers about problems in worker processes, and keeps their answers. Use it as a context manager.

    Attributes:
        journal: earlier answers; new ones are added.
        placers: the placers to ask.
        seed: seed of each placer.
        workers: number of processes; 0 to work in this one.
        commit: commit to store with the answers.
        asked: number of answers that this process asked for.
    """

    journal: Journal
    placers: Sequence[str]
    seed: int
    workers: int
    commit: str | None = None
    asked: int = field(default=0, init=False)

    def __enter__(self) -> Self:
        options: dict[str, Any] = {"initializer": prepare, "initargs": (self.placers,)}
        self._pool: Executor = (
            ProcessPoolExecutor(self.workers, mp_context=get_context("spawn"), **options)
            if self.workers
            else ThreadPoolExecutor(1, **options)
        )
        _tell("starting")
        wait([self._pool.submit(time.sleep, 0.1) for _ in range(max(1, self.workers))])
        return self

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def reference(self, cases: Sequence[Case], seconds: float, limit_s: float) -> None:
        """Anneal every problem for some seconds with another seed, and have cp-sat bound it from below for half as long."""
        keys = [(Key("reference", case.name, REFERENCE, seconds, self.seed), case) for case in cases]
        self._run(keys, clock.now() + limit_s)

    def budgets(self, unit: Unit, budgets: Sequence[float], cases: Sequence[Case], limit_s: float) -> dict[float, int]:
        """Ask for the smallest budget first, each on as many problems as there is time for; return the numbers of problems.

        Args:
            unit: ``seconds`` or ``evaluations``.
            budgets: ascending.
            cases: in the order in which they are used.
            limit_s: seconds for all of it; runs that have begun are completed.
        """
        end = clock.now() + limit_s
        placers = self.asked_about(unit)
        tried: dict[float, int] = {}
        for i, budget in enumerate(budgets):
            costs = [self._expected(unit, budgets[:i], later, cases) / max(1, self.workers) for later in budgets[i:]]
            now = clock.now()
            tried[budget] = problems_at(end - now, costs, min([len(cases), *tried.values()]))
            expected = tried[budget] * costs[0]
            _tell(f"{budget:g} {unit}: {tried[budget]} problems, {expected:.0f} s expected at most")
            todo = [(self._key(unit, case, placer, budget), case) for case in cases[: tried[budget]] for placer in placers]
            todo = [(key, case) for key, case in todo if not self._decided(key, budgets[: i + 1])]
            self._run(todo, min(end, now + max(2 * expected, (end - now) / len(costs))))  # a wrong guess leaves time for others
        return tried

    def asked_about(self, unit: Unit) -> list[str]:
        """Return the placers that are asked with budgets of a unit."""
        return [placer for placer in self.placers if unit == "seconds" or not needs_time(placer)]

    def runs(self, unit: Unit, case: str, placer: str, budgets: Sequence[float]) -> dict[float, Answer]:
        """Return the available answers, by budget."""
        keys = {budget: self._key(unit, case, placer, budget) for budget in budgets}
        return {budget: self.journal[key] for budget, key in keys.items() if key in self.journal}

    def _key(self, unit: Unit, case: Case | str, placer: str, budget: float) -> Key:
        name = case if isinstance(case, str) else case.name
        return Key(unit, name, in_full(placer), budget, self.seed)

    def _decided(self, key: Key, budgets: Sequence[float]) -> bool:
        keys = {budget: replace(key, budget=budget) for budget in budgets}
        runs = {budget: self.journal[one] for budget, one in keys.items() if one in self.journal}
        return budgets[-1] in answered(runs, key.unit, budgets)

    def _expected(self, unit: Unit, before: Sequence[float], budget: float, cases: Sequence[Case]) -> float:
        """Return the seconds of all placers for one problem, with the full budget if they did not end by themselves.

        The seconds for a number of evaluations are extrapolated from the seconds for the smallest budget.
        """
        totals, placers = [], self.asked_about(unit)
        for case in cases:
            runs = [self.runs(unit, case.name, placer, before) for placer in placers]
            if not before or not all(runs):
                continue
            on = [some for some in runs if budget not in answered(some, unit, [*before, budget])]
            if unit == "seconds":
                totals.append(budget * len(on))
            else:
                least = _EVALUATION_S * budget / len(placers)
                totals.append(sum(_grown({b: answer.took_s for b, answer in some.items()}, budget, least) for some in on))
        if totals:
            return max(1e-3, float(np.mean(totals)))
        return budget * len(placers) if unit == "seconds" else _FIRST_S + _EVALUATION_S * budget

    def _run(self, todo: Iterable[tuple[Key, Case]], end: float) -> None:
        """Have the questions without an answer in the journal answered, as long as there is time to begin."""
        waiting = [(key, case) for key, case in todo if key not in self.journal]
        if not waiting:
            return
        running: dict[Future[Answer], Key] = {}
        count, began = len(waiting), clock.now()
        while waiting or running:
            while waiting and len(running) < max(1, self.workers):
                key, case = waiting[0]
                if clock.now() + (key.budget if key.unit == "seconds" else 0.0) > end:
                    break
                del waiting[0]
                running[self._pool.submit(_answer, key, case)] = key
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                key, error = running.pop(future), future.exception()
                if isinstance(error, BrokenExecutor):  # a process was killed, which is not the fault of the next placer
                    raise error
                answer = future.result() if error is None else Answer(None, 0.0, 0, f"{type(error).__name__}: {error}")
                self.journal.add(key, replace(answer, commit=self.commit))
                self.asked += 1
                done = count - len(waiting) - len(running)
                _progress(f"[{clock.now() - began:6.1f} s] {done}/{count} {key.problem}: {key.placer}", done == count)
        if waiting:
            _tell(f"There was no time left for {len(waiting)} of {count} runs; the same command goes on with them.")


def _grown(took_s: Mapping[float, float], budget: float, least: float) -> float:
    """Extrapolate the seconds for a number of evaluations from smaller numbers: the smallest run's, plus at least ``least``."""
    first, last = min(took_s), max(took_s)
    return took_s[first] + max(least, (took_s[last] - took_s[first]) * budget / last)


class _Counted(SimulatedCost):
    """A simulator that counts the placements that it is asked about."""

    asked = 0

    def __call__(self, placements: ArrayLike) -> NDArray[np.float64]:
        costs = super().__call__(placements)
        self.asked += len(costs)
        return costs


def prepare(placers: Sequence[str]) -> None:
    """Import and compile everything that placers need, so that it does not count as their time."""
    import torch

    from placeit.core.memory import keep_freed_memory

    torch.set_num_threads(1)
    keep_freed_memory()
    problem = random_problem(6, 2)
    for placer in placers:
        for rules in (GIPH_RULES, EXECUTED_RULES):
            with contextlib.suppress(Exception):  # it is asked again later, and its error is reported then
                deadline = clock.now() + _WARM_S
                cost = SimulatedCost(problem, rules=rules)
                parse_placer(placer).place(problem, cost, seed=0, evaluations=40, deadline=deadline)


def _answer(key: Key, case: Case) -> Answer:
    """Ask a placer about a problem."""
    if key.unit == "reference":
        return _searched_long(key, case)
    placer, cost = parse_placer(key.placer), _Counted(case.problem, rules=case.rules)
    timed = key.unit == "seconds"
    began = clock.now()
    value, why = None, None
    try:
        placement = placer.place(
            case.problem,
            cost,
            seed=key.seed,
            evaluations=None if timed else int(key.budget),
            deadline=began + key.budget if timed else None,
        )
        took = clock.now() - began
        value = float(case.cost()(case.problem.check(placement)[None])[0])
    except PlaceitError as error:
        took, why = clock.now() - began, str(error)
    return Answer(value, took, cost.asked, why)


def _searched_long(key: Key, case: Case) -> Answer:
    problem, cost, began = case.problem, case.cost(), clock.now()
    long = Annealing(evaluations=10**12)
    found = [long.place(problem, cost, seed=key.seed + _REFERENCE_SEED, evaluations=None, deadline=began + key.budget)]
    bound = lower_bound(problem)
    if len(problem.edges) * problem.devices**2 <= _CONSTRAINTS:
        plan, proven = CpSat(effort=1e6).plan(problem, seed=key.seed, deadline=clock.now() + key.budget / 2)
        found.append(plan.placement)
        bound = max(bound, proven)
    return Answer(float(cost(np.stack(found)).min()), clock.now() - began, 0, bound=bound)


def _tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)


_said = [0.0]


def _progress(text: str, last: bool) -> None:
    """Print the progress, twice a second at most."""
    if last or clock.now() - _said[0] > 0.5:
        _said[0] = clock.now()
        _tell(text)
