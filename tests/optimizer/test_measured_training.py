"""Training on measured costs: devices during a training, placements that are not worth a run, and the resulting placement."""

from __future__ import annotations

import dataclasses
import logging
import math

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.learning.agent import ProblemInstance
from placeit.learning.measured import MeasuredCosts, session_source
from placeit.learning.registry import make_agent
from placeit.learning.training.loop import Stage, TrainingResult, train
from placeit.optimizer.optimize import decide
from placeit.session import Session
from tests.known_devices import truth
from tests.optimizer.test_measured_cost import placements, session, true_seconds  # noqa: F401 (a fixture)


def learn(session: Session, costs: MeasuredCosts, updates: int = 3, **options: object) -> TrainingResult:  # noqa: F811
    source = session_source(session)
    stage = Stage(source.draw, updates, problems=2, cost="measured", **options)  # type: ignore[arg-type]
    agent = make_agent("doppler", seed=0, width=8, neighbourhood=0.0)  # which would go back to what has been measured
    return train(agent, [stage], evaluate_on=source.held_out, seed=0, costs={"measured": costs})


def problem_of(session: Session) -> ProblemInstance:  # noqa: F811
    return session_source(session).held_out[0]


def change(**facts: object) -> None:
    truth[0] = dataclasses.replace(truth[0], **facts)  # type: ignore[arg-type]


def test_a_device_that_fails_for_a_while_drops_samples_and_training_goes_on(
    session: Session,  # noqa: F811
    caplog: pytest.LogCaptureFixture,
) -> None:
    costs = MeasuredCosts(session)
    begin = truth[0].now
    learn(session, MeasuredCosts(session), updates=1)
    each = truth[0].now - begin
    first = truth[0].now + 1.5 * each
    change(broken=lambda _, device, now: device == 1 and first < now < first + each)
    result = learn(session, costs, updates=12)
    assert result.stopped is None
    assert result.stages[0].dropped > 0
    assert any(record.dropped == 0 for record in result.history[-3:])  # once it is back
    assert {"measured"} < set(costs.sources.values()) <= {"measured", "failed", "dropped"}
    assert any("failed on d1" in record.getMessage() for record in caplog.records)


def test_a_device_that_dies_ends_training_with_the_best_so_far(session: Session, caplog: pytest.LogCaptureFixture) -> None:  # noqa: F811
    costs = MeasuredCosts(session)
    assert learn(session, costs).stopped is None
    change(broken=lambda _, device, __: device == 1)
    result = learn(session, costs, updates=100)
    assert "nothing could be measured by the cost 'measured'" in str(result.stopped)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert 1 <= len(warnings) == len(set(warnings))  # each reason once
    ran = [one for one in costs.measured.tried if one.source == "measured"]
    found = decide(session, {f"found {number}": one.devices for number, one in enumerate(ran[:3])})
    assert found.chosen.name == "d0"
    assert found.chosen is found.best_single


def test_a_device_that_becomes_slow_drops_what_ran_then_and_training_goes_on(session: Session) -> None:  # noqa: F811
    begin = truth[0].now
    learn(session, MeasuredCosts(session), updates=1)
    later = truth[0].now + 1.5 * (truth[0].now - begin)
    change(speed=lambda device, now: 3.0 if device == 1 and now > later else 1.0)
    costs = MeasuredCosts(session)
    result = learn(session, costs, updates=4)
    assert result.stopped is None
    assert {"measured", "dropped"} >= set(costs.sources.values()) >= {"measured"}
    assert result.history[-1].dropped == 0


def test_what_is_expected_to_be_hopeless_is_not_run_and_learned_from_as_expected(session: Session) -> None:  # noqa: F811
    session._costs = dataclasses.replace(session.costs, core=session.costs.core * [1, 1000, 1])
    costs, fast = MeasuredCosts(session), np.zeros((1, len(session.grouping.groups)), np.int32)
    (least,) = costs(problem_of(session))(fast)
    ran = truth[0].now
    slow, slower = costs(problem_of(session))(np.vstack([np.where(np.arange(fast.size) < 5, 1, fast), fast + 1]))
    assert truth[0].now == ran
    assert 5 * least < slow < slower < math.inf  # which of them is worse can be learned
    assert sorted(costs.sources.values()) == ["estimated", "estimated", "measured"]


def test_nothing_is_measured_after_the_deadline_that_training_sets(session: Session) -> None:  # noqa: F811
    costs, instance, rows = MeasuredCosts(session), problem_of(session), placements(session, 4)
    assert np.isfinite(costs(instance)(rows[:2])).all()
    costs.deadline = 0.0
    assert np.isnan(costs(instance)(rows)).tolist() == [False, False, True, True]
    assert list(costs.sources.values()) == ["measured", "measured", "dropped", "dropped"]


def split(session: Session, better: bool) -> NDArray[np.int32]:  # noqa: F811
    """A placement on two devices that is the best of many, or the worst."""
    rows = placements(session, 300)
    true = [true_seconds(session, row) for row in rows]
    return rows[int(np.argmin(true) if better else np.argmax(true))]


def test_what_was_measured_in_training_is_not_measured_again_before_the_decision(session: Session) -> None:  # noqa: F811
    costs, rows = MeasuredCosts(session), placements(session, 3)
    costs(problem_of(session))(np.vstack([rows, np.zeros_like(rows[:1]), np.ones_like(rows[:1])]))
    found = decide(session, {f"found {number}": row for number, row in enumerate(rows)}, cost=costs.measured)
    assert [race.what for race in found.races] == ["measuring the finalists", "deciding between the finalists"]
    assert all(one.measured is not None for one in found.candidates)


@pytest.mark.parametrize("better", [True, False])
def test_the_answer_is_the_best_placement_and_never_slower_than_the_best_device(session: Session, better: bool) -> None:  # noqa: F811
    if better:  # devices are good at different ops, so that a split is worth its cuts
        core = {op: (1e-3, 9e-3, 9e-3) if v % 8 < 4 else (9e-3, 1e-3, 9e-3) for v, op in enumerate(truth[0].core)}
        change(core=core, cut=dict.fromkeys(core, (0.0, 0.0, 0.0)))
    given = split(session, better)
    found = decide(session, {"found": given, "other": split(session, False)}, budget=60)
    assert found.best_single is not None
    single = min(true_seconds(session, np.full_like(given, d)) for d in range(2))
    assert (true_seconds(session, given) < single) == better
    assert found.chosen.name == ("found" if better else found.best_single.name)
    assert true_seconds(session, found.best_single.groups) == single
    if better:
        assert found.speedup is not None
        assert 1 < found.speedup.ci_low <= found.speedup.ratio <= found.speedup.ci_high
        assert found.placement.device_names == session.cluster.names
