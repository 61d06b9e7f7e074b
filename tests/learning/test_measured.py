"""A session's model as a problem to learn from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.core.errors import UsageError
from placeit.devices.host import allowed_cores
from placeit.learning import measured
from placeit.learning.measured import MeasuredCosts, session_source
from placeit.optimizer.outcomes import MeasuredOutcome
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.cost_functions import TotalCost
from placeit.simulator.simulate import simulate
from placeit.simulator.throughput_bound import ThroughputCost
from placeit.testing.problems import random_problem
from tests.small_models import random_model


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    names = [f"CPU@{core}" for core in allowed_cores()[:2]]
    with Session(random_model(3, 6), names, cache=Cache(tmp_path_factory.mktemp("cache"))) as session:
        session.profile(budget_s=5.0)
        yield session


def test_the_groups_of_a_session_are_simulated_as_its_executors_run_them(session: Session) -> None:
    source = session_source(session)
    (instance,) = source.held_out
    assert source.draw(np.random.default_rng(0), 3, 0.0) == [instance] * 3
    assert len(instance.problem) == len(session.grouping.groups)
    placements = np.zeros((1, len(instance.problem)), np.int32)
    expected = simulate(instance.problem, placements)
    assert instance.cost(placements) == expected
    assert instance.unit == instance.problem.critical_path


@pytest.mark.parametrize("objective", ["throughput", "total-cost"])
def test_another_objective_can_be_learned(session: Session, objective: str) -> None:
    (instance,) = session_source(session, objective=objective).held_out
    placements = np.random.default_rng(0).integers(len(session.cluster), size=(4, len(instance.problem))).astype(np.int32)
    expected = {"throughput": ThroughputCost, "total-cost": TotalCost}[objective](instance.problem)
    np.testing.assert_array_equal(instance.cost(placements), expected(placements))
    assert instance.unit > 0


def test_a_training_that_resumes_has_the_problem_that_it_began_with(session: Session, tmp_path: Path) -> None:
    (instance,) = session_source(session).held_out
    instance.problem.to_json(tmp_path / "problem.json")
    kept = type(instance.problem).from_json(tmp_path / "problem.json")
    (again,) = session_source(session, kept).held_out
    assert again.problem is kept
    assert kept.key == instance.problem.key
    with pytest.raises(UsageError, match="The training to resume is of another model, other groups or other devices"):
        session_source(session, random_problem(3, 2))


def test_placements_are_measured_by_one_cost_function_that_is_made_when_it_is_needed(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[dict[str, Any]] = []

    class Measuring:
        def __init__(self, of: Session, objective: str, **options: Any) -> None:
            assert (of, objective) == (session, "latency")
            made.append(options)

        def outcomes(self, placements: NDArray[np.int32]) -> list[MeasuredOutcome]:
            return [
                MeasuredOutcome(placements[0], 1.5, "measured"),
                MeasuredOutcome(placements[1], np.inf, "infeasible"),
                MeasuredOutcome(placements[2], np.nan, "failed"),
            ]

    monkeypatch.setattr(measured, "MeasuredCost", Measuring)
    (instance,) = session_source(session).held_out
    factory = MeasuredCosts(session, journal=tmp_path / "runs.jsonl", seed=3)
    cost = factory(instance)
    assert made == []
    rows = np.arange(3, dtype=np.int32)[:, None].repeat(len(instance.problem), axis=1)
    costs = cost(rows)
    cost(rows)
    assert made == [{"journal": tmp_path / "runs.jsonl", "seed": 3, "progress": None}]
    assert [factory.sources[row.tobytes()] for row in rows] == ["measured", "infeasible", "failed"]
    assert costs.tolist() == pytest.approx([1.5, np.nan, np.nan], nan_ok=True)  # no room is no reason to end a training
