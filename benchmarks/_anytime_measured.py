"""Runs of placers on real models and unequal cores, evaluated by measured runs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from benchmarks._anytime_journal import Answer, Journal, Key, Unit
from benchmarks._anytime_placers import in_full
from benchmarks._anytime_plan import answered, problems_at
from benchmarks._anytime_simulated import prepare
from placeit.backends.base import Model
from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.core.errors import PlaceitError
from placeit.learning.training.valuing import finite_or_nan
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.options import Candidates
from placeit.placers.registry import parse_placer
from placeit.profiler.cache import Cache
from placeit.session import Session, optimize

__all__ = ["CALIBRATED", "Measured", "Setting", "placed_values"]

CALIBRATED = "calibrated search"
"""``placeit optimize`` with its default options, which do not learn."""

_UNIT: Unit = "measured"
_RACE_ROUNDS = 15
_FIRST_SHARE = 0.7  # share of the first budget that a placer is expected to take in the mean


@dataclass(frozen=True, eq=False)
class Setting:
    """A model on unequal cores.

    Attributes:
        name: name of the model and the cores.
        load: returns the model.
        cluster: the cores.
    """

    name: str
    load: Callable[[], Model]
    cluster: Cluster


@dataclass(eq=False)
class Measured:
    """Asks placers, and ``placeit optimize``, for placements that are fast when they run.

    Attributes:
        journal: earlier answers; new ones are added.
        placers: the placers to ask, in addition to :data:`CALIBRATED`.
        seed: seed of each placer.
        cache: cache of costs, which are profiled once for each setting, before any placer is asked.
        commit: commit to store with the answers.
    """

    journal: Journal
    placers: Sequence[str]
    seed: int
    cache: Cache
    commit: str | None = None

    def budgets(self, budgets: Sequence[float], settings: Sequence[Setting], limit_s: float) -> dict[float, int]:
        """Ask for the smallest budget first, each in as many settings as there is time for; return the number of settings."""
        logging.getLogger("placeit.optimizer.measured_cost").setLevel(logging.ERROR)  # time limits are expected
        prepare(self.placers)
        end = clock.now() + limit_s
        tried: dict[float, int] = {}
        for i, budget in enumerate(budgets):
            costs = [self._expected(budgets[:i], later, settings) for later in budgets[i:]]
            tried[budget] = problems_at(end - clock.now(), costs, min([len(settings), *tried.values()]))
            _tell(f"{budget:g} s measured: {tried[budget]} settings, {tried[budget] * costs[0]:.0f} s expected at most")
            for setting in settings[: tried[budget]]:
                if clock.now() < end:
                    self._ask_all(setting, budgets[: i + 1], end)
        return tried

    def runs(self, setting: str, placer: str, budgets: Sequence[float]) -> dict[float, Answer]:
        """Return the available answers, by budget."""
        keys = {budget: self._key(setting, placer, budget) for budget in budgets}
        return {budget: self.journal[key] for budget, key in keys.items() if key in self.journal}

    def race(self, setting: Setting, budgets: Sequence[float]) -> None:
        """Race all answered placements once more, interleaved. Their earlier values do not count."""
        found = [self.runs(setting.name, placer, budgets) for placer in self.contenders]
        rows = sorted({answer.devices for runs in found for answer in runs.values() if answer.devices is not None})
        if not rows or all(self._race_key(setting.name, row) in self.journal for row in rows):
            return
        _tell(f"racing {len(rows)} placements of {setting.name}")
        with self._session(setting) as session:
            began = clock.now()
            cost = MeasuredCost(session, rounds=_RACE_ROUNDS, hopeless=None, seed=self.seed)
            values = cost(np.array(rows, np.int32))
            took = clock.now() - began
        for row, value in zip(rows, values.tolist(), strict=True):
            known, why = (value, None) if np.isfinite(value) else (None, "It could not be raced.")
            self.journal.add(self._race_key(setting.name, row), Answer(known, took, len(rows), why, commit=self.commit))

    def raced(self, setting: str, devices: tuple[int, ...]) -> float | None:
        """Return the time of a placement in the last race of its setting; None if it was not in that race."""
        answer = self.journal.get(self._race_key(setting, devices))
        return None if answer is None else answer.value

    @property
    def contenders(self) -> list[str]:
        """All placers that are asked."""
        return [CALIBRATED, *self.placers]

    def _key(self, setting: str, placer: str, budget: float) -> Key:
        full = placer if placer == CALIBRATED else in_full(placer)
        return Key(_UNIT, setting, full, budget, self.seed)

    def _race_key(self, setting: str, devices: tuple[int, ...]) -> Key:
        return Key("race", setting, "".join(map(str, devices)), _RACE_ROUNDS, self.seed)

    def _expected(self, before: Sequence[float], budget: float, settings: Sequence[Setting]) -> float:
        totals = []
        for setting in settings:
            runs = [self.runs(setting.name, placer, before) for placer in self.contenders]
            if before and all(runs):
                totals.append(budget * sum(budget not in answered(some, _UNIT, [*before, budget]) for some in runs))
        return max(1e-3, float(np.mean(totals))) if totals else budget * len(self.contenders) * _FIRST_SHARE

    def _session(self, setting: Setting) -> Session:
        session = Session(setting.load(), setting.cluster, cache=self.cache)
        try:
            session.profile()
        except BaseException:
            session.close()
            raise
        return session

    def _ask_all(self, setting: Setting, budgets: Sequence[float], end: float) -> None:
        budget, model = budgets[-1], None
        for placer in self.contenders:
            key = self._key(setting.name, placer, budget)
            if clock.now() + budget > end or budget in answered(self.runs(setting.name, placer, budgets), _UNIT, budgets):
                continue
            if model is None:
                _tell(f"profiling {setting.name}")
                self._session(setting).close()  # its time is not part of any budget
                model = setting.load()
            _tell(f"{setting.name}: {placer}, {budget:g} s")
            began = clock.now()
            try:
                answer = (self._optimized if placer == CALIBRATED else self._asked)(model, setting, key)
            except PlaceitError as error:
                answer = Answer(None, clock.now() - began, 0, str(error))
            self.journal.add(key, replace(answer, commit=self.commit))

    def _optimized(self, model: Model, setting: Setting, key: Key) -> Answer:
        began = clock.now()
        found = optimize(
            model, setting.cluster, budget=key.budget, seed=key.seed, candidates=Candidates(plain=False), cache=self.cache
        )
        took = clock.now() - began
        with Session(model, setting.cluster, cache=None) as session:
            devices = session.placing.groups_of(found.placement)
        measured = sum(one.measured is not None for one in found.candidates)
        value = found.chosen.measured.median if found.chosen.measured is not None else None
        return Answer(value, took, measured, None if value else "Nothing was measured.", devices=_row(devices))

    def _asked(self, model: Model, setting: Setting, key: Key) -> Answer:
        """Let a placer search with measured values. For placers that ask for no values, measure the answer."""
        began = clock.now()
        deadline = began + key.budget
        with Session(model, setting.cluster, cache=self.cache) as session:
            session.profile()  # from the cache
            cost, why = MeasuredCost(session, deadline=deadline, seed=key.seed), None
            try:
                placer, problem = parse_placer(key.placer), session.segmenter.problem()
                answer = placer.place(problem, finite_or_nan(cost), seed=key.seed, evaluations=None, deadline=deadline)
                cost(problem.check(answer)[None])
            except PlaceitError as error:
                why = str(error)
            best, measured = cost.incumbent, sum(one.source == "measured" for one in cost.tried)
        took = clock.now() - began
        if best is None:
            return Answer(None, took, measured, why or "Nothing was measured in time.")
        return Answer(best.value, took, measured, why, devices=_row(best.devices))


def placed_values(
    measured: Measured, settings: Sequence[str], placers: Sequence[str], budgets: Sequence[float]
) -> Mapping[str, Mapping[float, Mapping[str, float | None]]]:
    """Return the raced values by placer, budget and setting, for all answers that count; None if no answer came in time."""
    found: dict[str, dict[float, dict[str, float | None]]] = {}
    for placer in placers:
        for setting in settings:
            for budget, answer in answered(measured.runs(setting, placer, budgets), _UNIT, budgets).items():
                row = None if answer is None or answer.devices is None else measured.raced(setting, answer.devices)
                found.setdefault(placer, {}).setdefault(budget, {})[setting] = row
    return found


def _row(devices: NDArray[np.int32]) -> tuple[int, ...]:
    return tuple(devices.tolist())


def _tell(text: str) -> None:
    print(f"  {text}", file=sys.stderr, flush=True)
