"""Learning from runs within a search: what becomes of what was found, when it is not worth it, when it ends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import inception_like

from placeit.core import clock
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.learning import after_search, measured
from placeit.learning.after_search import LEARNING
from placeit.learning.measured import learn_measured
from placeit.learning.training.sources import simulated
from placeit.optimizer.measured_cost import MeasuredCost, MeasuredOutcome
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized, Spent
from placeit.profiler.cache import Cache
from placeit.session import optimize
from placeit.simulator.simulate import simulate
from placeit.testing.problems import random_problem

PLACERS = ("heft", LEARNING)


def cluster() -> Cluster:
    cores = Address("CPU", (allowed_cores()[0],))
    links = {pair: Link(1e12, 1e-9, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    return Cluster((Device("fast", address=cores), Device("slow", address=cores, slowdown=1.5)), links)


def row(found: Optimized) -> Spent:
    (one,) = [one for one in found.spending if one.what == LEARNING]
    return one


@pytest.fixture
def worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(after_search, "_FEWEST", 1)
    # whatever else the machine does
    monkeypatch.setattr("placeit.optimizer.races.steady", lambda *_: True)
    monkeypatch.setattr(after_search, "MeasuredCost", functools.partial(MeasuredCost, hopeless=None))


@pytest.mark.usefixtures("worth_it")
def test_the_best_that_was_met_while_learning_is_a_candidate(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[NDArray[np.int32]] = []

    def learn(cost: MeasuredCost, instance: Any, starts: NDArray[np.int32], **_: Any) -> None:
        cost(starts)
        met.extend(np.random.default_rng(0).integers(2, size=(3, len(instance.problem)), dtype=np.int32))
        cost(np.stack(met))

    monkeypatch.setattr(after_search, "learn_measured", learn)
    found = optimize(inception_like(), cluster(), candidates=Candidates(placers=PLACERS), budget=60, cache=cache)
    learned = [candidate for candidate in found.candidates if candidate.placer == LEARNING]
    assert learned, row(found)
    assert all(candidate.groups.tolist() in [one.tolist() for one in met] for candidate in learned)
    assert all((candidate.measured is None) == (candidate.not_run is not None) for candidate in learned)
    one = row(found)
    assert one.proposed == len(learned)
    assert one.measured_value is not None
    assert one.note is not None
    assert one.note.startswith(f"measured {len(found.curves[LEARNING])} placement")
    assert min(found.curves[LEARNING]) > 0
    assert found.chosen.final or found.chosen.placer == "single"


@pytest.mark.usefixtures("worth_it")
def test_ctrl_c_while_learning_leaves_what_was_decided_before(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(after_search, "learn_measured", interrupt)
    found = optimize(inception_like(), cluster(), candidates=Candidates(placers=PLACERS), budget=60, cache=cache)
    assert found.interrupted
    assert "the deciding race" in found.reason or "no split placement" in found.reason or "the best split" in found.reason
    assert found.chosen.measured is not None
    assert found.speedup is not None
    assert found.chosen in found.candidates


@pytest.mark.usefixtures("worth_it")
def test_learning_that_fails_is_told_and_changes_nothing(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no gradient")

    monkeypatch.setattr(after_search, "learn_measured", fail)
    found = optimize(inception_like(), cluster(), candidates=Candidates(placers=PLACERS), budget=60, cache=cache)
    assert [(one.name, one.failed) for one in found.unplanned] == [(LEARNING, "ValueError: no gradient.")]
    assert found.chosen in found.candidates
    assert not found.interrupted


class Measuring:
    """Values placements as runs would, by a simulation that never fails, and remembers them."""

    def __init__(self, problem: Any) -> None:
        self.problem = problem
        self.known: dict[bytes, MeasuredOutcome] = {}

    def __call__(self, placements: NDArray[np.int32]) -> NDArray[np.float64]:
        values = simulate(self.problem, placements)
        for placement, value in zip(placements, values.tolist(), strict=True):
            self.known.setdefault(placement.tobytes(), MeasuredOutcome(placement, value, "measured"))
        return values

    @property
    def tried(self) -> list[MeasuredOutcome]:
        return list(self.known.values())

    @property
    def incumbent(self) -> MeasuredOutcome:
        return min(self.tried, key=lambda one: one.value)


def test_learning_ends_when_it_finds_nothing_new(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_IMITATION", 3)
    monkeypatch.setattr(measured, "_SIMULATION", 3)
    instance = simulated(random_problem(4, 2, seed=1))
    cost: Any = Measuring(instance.problem)
    starts = np.zeros((1, 4), np.int32)
    learn_measured(cost, instance, starts, deadline=clock.now() + 3600)
    assert starts[0].tobytes() in cost.known
    assert 1 < len(cost.known) <= 2**4


def test_learning_measures_nothing_after_its_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "_IMITATION", 1)
    monkeypatch.setattr(measured, "_SIMULATION", 1)
    instance = simulated(random_problem(4, 2, seed=1))
    cost: Any = Measuring(instance.problem)
    learn_measured(cost, instance, np.zeros((1, 4), np.int32), deadline=clock.now())
    assert len(cost.known) == 1  # what it is compared with


@pytest.mark.slow
@pytest.mark.usefixtures("worth_it")
def test_policies_learn_from_the_runs_of_a_real_model(cache: Cache) -> None:
    found = optimize(inception_like(), cluster(), candidates=Candidates(placers=PLACERS), budget=40, cache=cache)
    one = row(found)
    assert one.note is not None
    assert one.note.startswith("measured ")
    assert one.measured_value is not None
    assert sum(part.seconds for part in found.spending) == pytest.approx(found.spent_s)
