"""Servers are tuned to a limit on latency: which placement, requests in flight and batches serve most within it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import placeit
from placeit import tuning
from placeit.core import clock
from placeit.core.errors import ExecutionError, PlacementError, UsageError
from placeit.core.placement import Placement, Serving
from placeit.serving.batching import Batches
from placeit.serving.forecast import predicted_capacity
from placeit.serving.latency import LatencyLimit, OperatingPoint
from placeit.session import Session
from placeit.tuning import Configuration, Tuned, tune
from placeit.workbench.options import Inputs
from tests.serving.test_batching import CORE, OPEN, perceptron, rows


@pytest.fixture
def session(tmp_path: Path) -> Any:
    with Session(perceptron(tmp_path), [CORE], inputs=Inputs(shapes=OPEN), cache=None) as opened:
        yield opened


@pytest.fixture
def whole(session: Session) -> Placement:
    nothing = np.zeros(len(session.model.graph), np.int32)
    return Placement(session.model.graph.names, nothing, session.cluster.names, session.model.graph.hash, nothing)


def test_the_settings_of_the_best_configuration_are_those_that_a_server_has(
    session: Session, whole: Placement, tmp_path: Path
) -> None:
    found = tune(session, "p95=60s", placements={"whole": whole}, budget=0.5)
    assert found.chosen is found.configurations[0]
    assert found.turns >= 1
    rates = [0 if one.best is None else one.best.rate for one in found.configurations]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] > 0
    assert all(point.p50 <= point.p95 <= point.p99 for one in found.configurations for point in one.points)
    settings = {(one.placement.serving.in_flight, one.placement.serving.max_batch) for one in found.configurations}
    assert len(settings) == len(found.configurations)
    assert (1, 0) in settings
    found.chosen.placement.save(tmp_path / "tuned.json")
    tuned = Placement.load(tmp_path / "tuned.json")
    assert tuned.serving == found.chosen.placement.serving
    session.build(tuned, tmp_path / "tuned.placeit")
    with session.serve(tuned) as server, placeit.load(tmp_path / "tuned.placeit") as app, app.server() as other:
        for one in (server, other):
            assert one.executors[0].in_flight == tuned.serving.in_flight
            assert one.batches[0].most == tuned.serving.max_batch
            assert one.submit(rows(1)).result().keys() == {"y"}
    with session.serve(tuned, in_flight=2, max_batch=4) as server:
        assert (server.executors[0].in_flight, server.batches[0].most) == (2, 4)


def test_nothing_is_chosen_if_no_configuration_keeps_the_limit(session: Session, whole: Placement) -> None:
    found = tune(session, LatencyLimit(50, 1e-9), placements={"whole": whole}, budget=0.5)
    assert found.chosen is None
    assert "none keeps p50=1e-06ms at any rate that was tried" in found.reason
    assert found.to_dict()["chosen"] is None


def test_a_rate_is_measured_by_itself_and_the_least_latency_at_it_wins(session: Session, whole: Placement) -> None:
    found = tune(session, "p99=60s", rate=2000, placements={"whole": whole}, budget=0.5)
    at = [one.at(2000) for one in found.configurations]
    assert all(point is not None and point.kept for point in at)
    assert [point.p99 for point in at] == sorted(point.p99 for point in at)
    assert found.reason.startswith("of those that serve 2000 requests per second within p99=60000ms")


def test_ctrl_c_in_the_search_for_placements_ends_all(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    optimize = Session.optimize
    monkeypatch.setattr(Session, "optimize", lambda *args, **options: replace(optimize(*args, **options), interrupted=True))
    with pytest.raises(KeyboardInterrupt):
        tune(session, "p95=60s", budget=1)


def test_a_rate_at_which_few_requests_arrive_takes_no_longer(session: Session, whole: Placement) -> None:
    """Twenty requests would arrive in eight months."""
    found = tune(session, "p99=60s", rate=1e-6, placements={"whole": whole}, budget=0.5)
    at = [one.at(1e-6) for one in found.configurations]
    assert all(point is None or point.requests >= 6 for point in at)
    assert found.chosen is not None


def test_precisions_are_tried_beside_each_other_and_capacities_are_predicted(
    session: Session, whole: Placement, tmp_path: Path
) -> None:
    session.profile()
    found = tune(session, "p95=60s", placements={"whole": whole}, precisions=["bf16", "f32"], budget=0.5)
    by = {(one.of, one.placement.conditions.precision) for one in found.configurations}
    assert by == {("whole", "f32"), ("whole in bf16", "bf16")}
    able = [one for one in found.configurations if one.capacity]
    assert all(one.predicted > 0 for one in able)
    assert found.error == np.median([abs(one.predicted / one.capacity - 1) for one in able])
    batched = [one.predicted for one in able if one.placement.serving.max_batch]
    assert not batched or max(batched) > min(one.predicted for one in able)
    able[-1].placement.save(tmp_path / "tuned.json")
    assert Placement.load(tmp_path / "tuned.json").conditions.precision == able[-1].placement.conditions.precision


def test_predicted_capacities_are_bounded_by_what_the_host_does_for_each_request(session: Session, whole: Placement) -> None:
    session.profile()
    with session.serve(whole, in_flight=1) as server:
        timed = [Batches(seconds={1: 0.001, 16: 0.004})]
        assert predicted_capacity(server.executors, timed, 0) == pytest.approx(1000)
        assert predicted_capacity(server.executors, timed, 16, host=1e-6) == pytest.approx(4000)
        assert predicted_capacity(server.executors, timed, 16, host=1e-3) == 1000
    found = tune(session, "p95=60s", placements={"whole": whole}, budget=0.5).to_dict()["configurations"]
    assert all(0 < one["predicted_per_s"] <= 1 / one["host_s"] for one in found)
    assert len({one["host_s"] for one in found}) == len({one["max_batch"] > 0 for one in found})


def test_a_precision_in_which_outputs_are_wrong_is_not_served(
    session: Session, whole: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Session.run

    def wrong(self: Session, *args: Any, **options: Any) -> Any:
        found = run(self, *args, **options)
        return replace(found, failed="wrong outputs") if self.precision == "bf16" else found

    monkeypatch.setattr(Session, "run", wrong)
    found = tune(session, "p95=60s", placements={"whole": whole}, precisions=["bf16"], budget=0.5)
    assert [one.failed for one in found.configurations if one.of == "whole in bf16"] == ["wrong outputs"]
    assert found.chosen.of == "whole"


def test_placements_with_wrong_outputs_are_not_tuned(session: Session, whole: Placement, monkeypatch: Any) -> None:
    run = session.run
    monkeypatch.setattr(session, "run", lambda *args, **options: replace(run(*args, **options), failed="wrong outputs"))
    with pytest.raises(ExecutionError, match="whole: wrong outputs"):
        tune(session, "p95=1s", placements={"whole": whole})


def point(rate: float, seconds: float, *, kept: bool) -> OperatingPoint:
    return OperatingPoint(rate, seconds / 2, seconds, 2 * seconds, (0, seconds), 100, kept)


def test_the_rate_within_the_limit_is_below_the_first_that_misses_it(whole: Placement) -> None:
    points = (point(10, 0.01, kept=True), point(20, 0.03, kept=False), point(30, 0.02, kept=True))
    one = Configuration("a", "a", whole, 50, 40, (30, 50), points)
    assert one.best is points[0]
    assert one.at(20) is points[1]
    assert one.error == 0.25
    none = Tuned("m", LatencyLimit(95, 0.025), 20, (one,), 6, None, interrupted=False)
    assert none.reason == "none serves 20 requests per second within p95=25ms; a serves 10"


@pytest.mark.parametrize(
    ("limit", "options", "message"),
    [
        ("95=20ms", {}, "write a percentile"),
        ("p95", {}, "write a percentile"),
        ("p95=soon", {}, "soon"),
        ("p95=0s", {}, "positive, finite time"),
        ("p95=inf", {}, "positive, finite time"),
        ("p95=1s", {"rate": 0.0}, "rate"),
        ("p95=1s", {"budget": "never"}, "never"),
        ("p95=1s", {"budget": -1.0}, "must be positive"),
    ],
)
def test_what_cannot_be_tuned_to_is_an_error(session: Session, limit: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        tune(session, limit, **options)


@pytest.mark.parametrize("serving", [{"in_flight": 0}, {"in_flight": 1, "max_batch": -1}, {"max_batch": "2"}, 3])
def test_a_file_with_other_settings_is_no_placement(whole: Placement, tmp_path: Path, serving: Any) -> None:
    data = replace(whole, serving=Serving(3, 8)).to_dict()
    assert Placement.from_dict(data, "p.json").serving == Serving(3, 8)
    with pytest.raises(PlacementError, match=r"p.json: 'serving' has 'in_flight' and 'chunk', at least 1"):
        Placement.from_dict(data | {"serving": serving}, "p.json")


def test_turns_that_take_longer_than_planned_end_when_the_time_is_up(
    session: Session, whole: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def saturate(turns: object, trial: Any, seconds: float) -> bool:
        trial.capacities.append(1.0)
        return True

    def climb(turns: object, trial: Any, rates: object, seconds: float) -> bool:
        nonlocal now
        now += 100.0
        trial.served.setdefault(1.0, []).append((np.full(3, 1e-3), True))
        return True

    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(tuning._Turns, "_saturate", saturate)
    monkeypatch.setattr(tuning._Turns, "_climb", climb)
    found = tune(session, "p95=60s", placements={"whole": whole}, budget=3000)
    assert found.turns >= 6
    assert now <= 3000 + 100 * len(found.configurations)


def test_slow_requests_do_not_make_tuning_exceed_its_budget(
    session: Session, whole: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request takes 2 s, so that requests at the lowest rate take the time for which all rates were planned."""
    now, load = 0.0, tuning.offer

    def saturate(server: Any, inputs: Any, seconds: float) -> Any:
        nonlocal now
        now += 8.0
        return SimpleNamespace(error=None, load=SimpleNamespace(requests=4), seconds=8.0, interrupted=False)

    def offer(server: Any, inputs: Any, arrivals: Any) -> Any:
        nonlocal now
        now += 2.0 * len(arrivals)
        return load(server, inputs, np.zeros(1))

    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(tuning, "saturate", saturate)
    monkeypatch.setattr(tuning, "offer", offer)
    found = tune(session, "p95=60s", placements={"whole": whole}, budget=100)
    assert found.turns >= 1
    assert all(one.points for one in found.configurations)
    assert now <= 100 + 2 * 2.0 * len(found.configurations)


def test_profiles_in_other_precisions_are_part_of_the_budget(
    session: Session, whole: Placement, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[float] = []
    profile = Session.profile

    def shared(self: Session, *, budget_s: float = 30.0, **options: Any) -> Any:
        budgets.append(budget_s)
        return profile(self, budget_s=budget_s, **options)

    monkeypatch.setattr(Session, "profile", shared)
    tune(session, "p95=60s", placements={"whole": whole}, precisions=["bf16"], budget=0.5)
    assert len(budgets) == 1
    assert budgets[0] <= 0.5
