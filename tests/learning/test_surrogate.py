"""What a surrogate of a machine knows after measurements, and which placements it has measured next."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.core.cluster import Cluster, Device, Link
from placeit.learning.choosing import Measurement, worth_measuring
from placeit.learning.surrogate_model import Surrogate, expected_gain, features, work_shares
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Segmenter
from placeit.simulator.objectives.latency import Latency
from tests.small_models import random_model

GROUPS = 12
NOISE = 0.01


def grouped(count: int = GROUPS) -> tuple[Segmenter, Costs]:
    """A model in groups, and costs on a device beside one that is three times as slow, with cuts that cost something."""
    grouping = coarsen(random_model(5, count).graph)
    groups, rng = len(grouping.groups), np.random.default_rng(2)
    core = 1e-3 * rng.uniform(1, 3, (groups, 1)) * [1.0, 3.0]
    names = ("fast", "slow")
    links = {pair: Link(1e12, 1e-6, "emulated") for pair in (names, names[::-1])}
    cluster = Cluster(tuple(Device(name, kind="null") for name in names), links)
    costs = Costs(core, 0.02 * core, np.full(2, 1e-5), cluster)
    return Segmenter(grouping, costs), costs


class Machine:
    """What placements truly take: other than simulated, since one device is faster at some groups, and cuts cost more."""

    def __init__(self, segmenter: Segmenter, costs: Costs, seed: int) -> None:
        rng = np.random.default_rng(seed)
        core = costs.core * np.exp(rng.normal(0, 0.5, costs.core.shape))
        self.segmenter, self.true = segmenter, Segmenter(segmenter.grouping, replace(costs, core=core, cut=4 * costs.cut))
        self.noise, self.tried = rng, list[Measurement]()

    def seconds(self, row: NDArray[np.int32]) -> float:
        return self.true.priced(self.segmenter.plan(row)).schedule.makespan

    def measure(self, row: NDArray[np.int32]) -> None:
        noisy = self.seconds(row) * float(np.exp(self.noise.normal(0, NOISE)))
        self.tried.append(Measurement(self.segmenter.plan(row), noisy))

    @property
    def best(self) -> float:
        """True seconds of what was measured to be the best."""
        return self.seconds(min(self.tried, key=lambda one: one.value).plan.group_devices)


def explored(machine: Machine, most: int) -> int:
    """Measure what is worth it, and return how many placements that were."""
    segmenter, problem = machine.segmenter, machine.segmenter.problem()
    for device in range(2):
        machine.measure(np.full(len(problem), device, np.int32))
    while len(machine.tried) < most:
        count = min(4, most - len(machine.tried))
        rows = worth_measuring(segmenter, problem, Latency(), machine.tried, count=count, seed=len(machine.tried))
        if not rows:
            break
        for row in rows:
            machine.measure(row)
    return len(machine.tried)


def test_a_factor_that_all_placements_share_is_learned_and_is_sure_near_what_was_measured() -> None:
    segmenter, _ = grouped()
    rows = np.random.default_rng(0).integers(2, size=(12, len(segmenter.graph))).astype(np.int32)
    about = np.stack([features(segmenter, segmenter.plan(row)) for row in rows])
    work = work_shares(segmenter, rows)
    surrogate = Surrogate.fit(about[:8], work[:8], np.full(8, 0.3))
    mean, deviation = surrogate.predict(about, work)
    np.testing.assert_allclose(mean, 0.3, atol=0.1)
    assert deviation[:8].max() < deviation[8:].min()
    more = surrogate.with_measurement(about[8], work[8], 0.3)
    assert more.predict(about[8:9], work[8:9])[1][0] < deviation[8]


def test_work_shares_add_up_and_placements_differ_by_the_work_that_is_elsewhere() -> None:
    segmenter, _ = grouped()
    fast, slow = (np.full(len(segmenter.graph), device, np.int32) for device in range(2))
    work = work_shares(segmenter, [fast, slow])
    np.testing.assert_allclose(work.sum(axis=1), 1.0)
    assert np.abs(work[0] - work[1]).sum() / 2 == pytest.approx(1.0)


def test_the_expected_gain_is_what_draws_gain_in_the_mean() -> None:
    mean, deviation, best = np.array([-1.0, 0.0, 2.0]), np.array([0.5, 1.0, 0.3]), 0.2
    drawn = np.random.default_rng(0).normal(mean, deviation, (200_000, 3))
    np.testing.assert_allclose(expected_gain(mean, deviation, best), np.maximum(best - drawn, 0).mean(axis=0), atol=5e-3)


def test_a_few_measurements_find_what_neither_simulation_nor_chance_does() -> None:
    over_simulated, over_chance = [], []
    for seed in range(4):
        segmenter, costs = grouped()
        machine, blind = Machine(segmenter, costs, seed), Machine(segmenter, costs, seed)
        assert explored(machine, 30) <= 30
        groups, rng = len(segmenter.graph), np.random.default_rng(seed)
        simulated = segmenter.search(np.zeros(groups, np.int32), segmenter.problem(), steps=600, seed=seed)
        for row in (simulated, *rng.integers(2, size=(28, groups)).astype(np.int32)):
            blind.measure(row)
        over_simulated.append(machine.best / blind.seconds(simulated))
        over_chance.append(machine.best / blind.best)
    assert np.log(over_simulated).mean() < np.log(0.95)
    assert np.log(over_chance).mean() < np.log(0.95)


def test_what_was_measured_is_not_chosen_again_and_choosing_ends() -> None:
    segmenter, costs = grouped(3)
    machine = Machine(segmenter, costs, 0)
    assert explored(machine, 100) <= 2 ** len(segmenter.graph)
    plans = [frozenset((one.device, one.groups) for one in tried.plan.programs) for tried in machine.tried]
    assert len(set(plans)) == len(plans)
    others = [segmenter.plan(np.array(row, np.int32)) for row in np.ndindex(*[2] * len(segmenter.graph))]
    assert worth_measuring(segmenter, segmenter.problem(), Latency(), machine.tried[:2], (), others, count=4, seed=0) == []


def test_what_was_proposed_is_looked_at_and_what_does_not_fit_is_not() -> None:
    segmenter, costs = grouped()
    limited = Segmenter(segmenter.grouping, costs.where(np.array([[True, False]] * len(segmenter.graph))))
    only = np.zeros(len(segmenter.graph), np.int32)
    tried = [Measurement(limited.plan(only), 1e-2)]
    assert worth_measuring(limited, limited.problem(), Latency(), tried, [only, 1 - only], count=4, seed=0) == []
