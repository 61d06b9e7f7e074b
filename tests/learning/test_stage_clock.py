"""Stages with a limit of time, whose costs take time and can be told when to end."""

import math

import numpy as np
import pytest

from placeit.core import clock
from placeit.learning.training.loop import train
from tests.learning.toy_agent import FEW, stage, toy


class Slow:
    """Costs that take a second for each placement, by a fake clock, and measure nothing after the deadline."""

    def __init__(self, monkeypatch, spare=0.0):
        self.now, self.end, self.spare, self.deadline, self.told = 0.0, math.inf, spare, math.nan, []
        monkeypatch.setattr(clock, "now", lambda: self.now)

    def __call__(self, instance):
        def cost(placements):
            self.told.append((self.now, self.deadline, len(placements)))
            known = []
            for _ in placements:
                if self.now >= self.end:
                    raise InterruptedError
                known.append(self.now < self.deadline)
                self.now += known[-1]
            return np.where(known, instance.cost(placements), np.nan)

        return cost


@pytest.mark.parametrize(("episodes", "spare"), [(1, 0.0), (16, 0.0), (100, 0.0), (16, 0.3)])
def test_a_stage_ends_in_time_and_leaves_some_for_its_last_evaluation(monkeypatch, episodes, spare):
    slow = Slow(monkeypatch, spare)
    result = train(toy(), [stage(10_000, episodes=episodes, cost=slow, seconds=100.0)], evaluate_on=FEW, seed=0)
    assert 90 <= slow.now / (1 - spare) <= 100
    assert result.history[-1].evaluation is not None
    assert result.stages[0].best <= result.stages[0].before
    assert (result.stages[0].dropped > 0) >= (episodes == 100)
    assert result.stopped is None


def test_evaluations_leave_time_to_learn_where_they_alone_would_take_all(monkeypatch):
    slow = Slow(monkeypatch)
    result = train(toy(), [stage(10_000, cost=slow, seconds=4.0)], evaluate_on=FEW, seed=0)
    assert slow.now == 4.0
    first, *_, last = result.history
    assert first.evaluation is None  # it was cut short
    assert last.evaluation is not None
    assert last.loss is not None


def test_the_second_stage_begins_its_own_time_and_one_without_a_limit_has_no_deadline(monkeypatch):
    slow = Slow(monkeypatch)
    stages = [stage(10_000, cost=slow, seconds=20.0), stage(10_000, cost=slow, seconds=30.0), stage(5, cost=slow)]
    train(toy(), stages, evaluate_on=FEW, seed=0)
    assert max(deadline for _, deadline, _ in slow.told if deadline < math.inf) == pytest.approx(50, abs=3)
    assert slow.told[-1][1] == math.inf


def test_the_last_evaluation_has_its_time_after_a_training_was_resumed(monkeypatch, tmp_path):
    slow, options = Slow(monkeypatch), {"evaluate_on": FEW, "seed": 0, "folder": tmp_path}
    stages = [stage(10_000, cost="slow", seconds=60.0, evaluate_every=10_000)]
    slow.end = 20.0
    with pytest.raises(InterruptedError):
        train(toy(), stages, costs={"slow": slow}, **options)
    slow.end = math.inf
    result = train(toy(), stages, costs={"slow": slow}, resume=True, **options)
    assert result.history[-1].evaluation is not None
    assert 54 <= slow.now <= 63  # what the interrupted update took does not count
