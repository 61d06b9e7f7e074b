from dataclasses import replace

import numpy as np
import pytest

from placeit.core.problem import Problem
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import schedule
from placeit.simulator.slack import slack


def test_devices_that_conflict_keep_their_order() -> None:
    conflicts = np.array([[False, True, False], [True, False, False], [False, False, False]])
    compute = np.full((3, 3), np.inf)
    compute[[0, 1, 2], [0, 1, 2]] = 3.0, 2.0, 6.0
    problem = Problem.from_arrays(
        compute, np.empty((0, 2), int), [], np.full((3, 3), np.inf), np.zeros((3, 3)), conflicts=conflicts
    )
    simulated = schedule(problem, np.arange(3))
    assert (simulated.start.tolist(), simulated.makespan) == ([0.0, 3.0, 0.0], 6.0)
    assert slack(problem, simulated).tolist() == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("seed", range(5))
def test_an_op_may_be_late_by_its_slack_and_by_no_more(seed: int) -> None:
    rng = np.random.default_rng(seed)
    edges = np.array([(u, v) for v in range(1, 9) for u in range(v) if rng.random() < 0.3])
    compute = np.repeat(rng.integers(1, 6, 9)[:, None], 2, axis=1).astype(float)
    problem = Problem.from_arrays(compute, edges, np.ones(len(edges)), np.full((2, 2), np.inf), np.zeros((2, 2)))
    place = rng.integers(0, 2, 9)
    before = schedule(problem, place)
    kept = {"rules": Rules(queue="planned"), "priority": -before.start}
    spare = slack(problem, before)
    for v in range(9):
        longer = compute.copy()
        longer[v] += spare[v]
        assert schedule(replace(problem, compute=longer), place, **kept).makespan == before.makespan
        longer[v] += 1.0
        assert schedule(replace(problem, compute=longer), place, **kept).makespan == before.makespan + 1.0
