"""The bound of throughput is the objective of the public inputs of pipelines, and searches there keep to what is known."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks._msr_inputs import least_load, most_loaded, msr_inputs
from benchmarks.pipelines import _THEIRS
from placeit.bench.msr import MsrInput
from placeit.placers.annealing import Annealing
from placeit.placers.dp import Dp, splits
from placeit.simulator.throughput_bound import ThroughputCost

INPUTS = {one.name: one for one in msr_inputs() if one.name in _THEIRS}


@pytest.fixture(params=sorted(_THEIRS))
def given(request: pytest.FixtureRequest) -> MsrInput:
    return INPUTS[request.param]


def test_every_split_and_any_placement_have_the_value_of_the_authors_evaluator(given: MsrInput) -> None:
    cost, rng = ThroughputCost(given.problem), np.random.default_rng(0)
    found = [*splits(given.problem, 0, 20, busiest=True), *splits(given.problem, 0, 5, busiest=False)]
    found.append(Annealing(evaluations=3000).place(given.problem, cost, seed=0, evaluations=None))
    found += list(rng.integers(0, given.problem.devices, (20, len(given.problem))).astype(np.int32))
    assert cost(np.stack(found)) == pytest.approx([most_loaded(given, place) for place in found])


def test_the_best_split_is_the_authors_optimum_and_annealing_is_never_behind_it(given: MsrInput) -> None:
    cost = ThroughputCost(given.problem)
    split = float(cost(Dp().place(given.problem, cost, seed=0, evaluations=None))[0])
    assert split == pytest.approx(_THEIRS[given.name], abs=6e-4)
    annealed = float(cost(Annealing(evaluations=20_000).place(given.problem, cost, seed=0, evaluations=None))[0])
    assert least_load(given) <= annealed <= split
