"""Quality on the 20 problems of the GiPH generator, as mean schedule length ratio (SLR)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from placeit.bench import read_problems
from placeit.placers.annealing import Annealing
from placeit.placers.heft import Heft
from placeit.simulator.scheduler import GIPH_RULES
from placeit.simulator.simulate import SimulatedCost, simulate


@pytest.fixture(scope="module")
def instances():
    """Problems and the denominators of their SLR."""
    folder = os.environ.get("PLACEIT_DATA")
    if not folder:
        pytest.skip("PLACEIT_DATA does not name the folder that holds giph_dev.json")
    path = Path(folder) / "giph_dev.json"
    bounds = [case["cp_min_lower_bound"] for case in json.loads(path.read_text(encoding="utf-8"))]
    return [(one.problem, bound) for one, bound in zip(read_problems(path).values(), bounds, strict=True)]


def mean_slr(instances, seconds):
    return np.mean([seconds(problem) / bound for problem, bound in instances])


def test_the_critical_path_is_the_known_denominator(instances):
    for problem, bound in instances:
        assert problem.critical_path == pytest.approx(bound, rel=1e-12)


def test_heft_reaches_the_known_ratios_in_planned_order_and_first_in_first_out(instances):
    heft = Heft()
    assert round(mean_slr(instances, lambda problem: heft.plan(problem).makespan), 3) == 1.670
    fifo = mean_slr(instances, lambda problem: simulate(problem, heft.plan(problem).placement, rules=GIPH_RULES)[0])
    assert round(fifo, 3) == 1.710


def test_annealing_is_clearly_better_than_heft(instances):
    def seconds(problem):
        cost = SimulatedCost(problem, rules=GIPH_RULES)
        return cost(Annealing().place(problem, cost, seed=0, evaluations=None))[0]

    assert mean_slr(instances, seconds) <= 1.57
