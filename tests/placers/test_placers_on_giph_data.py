"""Quality on the 20 problems of the GiPH generator, as mean schedule length ratio (SLR)."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from placeit.core.problem import Problem
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
    loaded = []
    for case in json.loads((Path(folder) / "giph_dev.json").read_text(encoding="utf-8")):
        work, inverse_speed = np.array(case["compute"]), np.array(case["inv_speed"])
        able = np.zeros((len(work), len(inverse_speed)), bool)
        for op, devices in enumerate(case["feasible"]):
            able[op, devices] = True
        src, dst, size = zip(*case["edges"], strict=True)
        problem = Problem.from_arrays(
            np.where(able, work[:, None] * inverse_speed, np.inf),
            np.stack([src, dst], axis=1),
            size,
            [[np.inf if rate is None else rate for rate in row] for row in case["bandwidth"]],
            case["delay"],
        )
        loaded.append((problem, case["cp_min_lower_bound"]))
    return loaded


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
