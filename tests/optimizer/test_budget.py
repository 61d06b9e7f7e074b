"""What a budget buys: runs are counted, and never more of them than it pays for."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest

from placeit.core import clock
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link, Power
from placeit.devices.host import allowed_cores
from placeit.measuring.budget import min_budget_s
from placeit.measuring.incumbent import why_hopeless
from placeit.optimizer import reporting
from placeit.optimizer.deployed import Deployed
from placeit.optimizer.options import Candidates
from placeit.profiler.cache import Cache
from placeit.workbench.options import Constraints
from tests.small_models import inception_like
from tests.steady import optimize

CORE = allowed_cores()[0]


def slowed(*slowdowns: float, bandwidth: float = 1e9) -> Cluster:
    devices = tuple(Device(f"d{i}", address=Address("CPU", (CORE,)), slowdown=by) for i, by in enumerate(slowdowns))
    names = [device.name for device in devices]
    return Cluster(devices, {(a, b): Link(bandwidth, 1e-5, "emulated") for a in names for b in names if a != b})


@pytest.fixture
def real_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let time pass as it does, where a busy machine only makes a budget that is too short shorter still."""
    monkeypatch.setattr(clock, "now", time.perf_counter)


@pytest.mark.usefixtures("real_time")
def test_a_model_too_slow_for_its_budget_is_run_once_on_each_device(
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = slowed(300.0, 330.0)
    found = optimize(inception_like(), cluster, candidates=Candidates(placers=("heft",)), budget=0.6, cache=None)
    assert max(len(candidate.measured.samples) for candidate in found.candidates if candidate.measured is not None) == 1
    assert found.chosen.placer == "single"
    assert all(candidate.measured is not None for candidate in found.candidates)
    assert found.least_s is not None
    assert found.least_s > 0.6
    assert "too short to compare placements" in found.reason
    assert any("s, but of the budget of 0.6 s only " in record.getMessage() for record in caplog.records)
    assert found.to_dict()["budget"]["least_s"] == found.least_s
    assert found.compiling_s > 0
    assert found.simulator_error is None
    assert found.to_dict()["bound_s"] is None  # nothing is known of parts of the model


def test_a_split_that_is_simulated_hopelessly_slower_is_not_run(cache: Cache) -> None:
    cluster = slowed(1.0, 1.0, bandwidth=1e4)  # a tensor takes seconds
    found = optimize(inception_like(), cluster, candidates=Candidates(placers=("random:samples=1",)), budget=2, cache=cache)
    splits = [candidate for candidate in found.candidates if len(set(candidate.plan.placement.tolist())) > 1]
    slow = [candidate for candidate in splits if candidate.not_run is not None]
    assert slow
    for candidate in slow:
        assert candidate.measured is None
        assert candidate.not_run is not None
        assert candidate.not_run.startswith("simulated ")
        assert candidate.not_run.endswith(" times slower")
    rows = {row["name"]: row["not_run"] for row in found.to_dict()["candidates"]}
    assert all(rows[candidate.name] == candidate.not_run for candidate in slow)
    assert found.chosen.placer == "single"


def test_enough_time_says_nothing_and_profiles(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    # in an empty cache: costs of other tests may not hold any more, which would be logged
    found = optimize(
        inception_like(), slowed(1.0, 1.5), candidates=Candidates(placers=("heft",)), budget=20, cache=Cache(tmp_path)
    )
    assert not [record for record in caplog.records if record.levelname == "WARNING"]
    assert found.least_s is not None
    assert found.least_s < 20


@pytest.mark.usefixtures("real_time")
def test_where_pins_rule_out_every_single_device_a_short_budget_still_finds_a_placement() -> None:
    model = inception_like()
    first, last = model.graph.names[0], model.graph.names[-1]
    pins = {first: "d0", last: "d1"}
    found = optimize(
        model,
        slowed(300.0, 330.0),
        candidates=Candidates(placers=("heft",)),
        budget=0.6,
        cache=None,
        constraints=Constraints(pins=pins),
    )
    assert found.placement.as_dict()[first] == "d0"
    assert found.placement.as_dict()[last] == "d1"
    assert found.best_single is None
    assert found.reason


@pytest.mark.usefixtures("real_time")
def test_what_was_profiled_in_a_hurry_is_not_kept(tmp_path: Any) -> None:
    kept = Cache(tmp_path)
    optimize(inception_like(), slowed(300.0, 330.0), candidates=Candidates(placers=("heft",)), budget=0.6, cache=kept)
    names = [path.read_text() for path in tmp_path.rglob("*.json")]
    assert not any('"core"' in text for text in names)


def test_the_least_time_grows_with_a_run() -> None:
    assert min_budget_s([]) == 0
    assert min_budget_s([1.0]) > 20
    assert min_budget_s([2.0, 2.0]) == pytest.approx(2 * min_budget_s([1.0, 1.0]))


def test_hopeless_is_more_than_five_times_as_slow() -> None:
    assert why_hopeless(4.9, 1.0, "slower") is None
    assert why_hopeless(67.0, 1.0, "slower") == "simulated 67 times slower"
    assert why_hopeless(5.5, 1.0, "worse") == "simulated 5.5 times worse"
    assert why_hopeless(1.0, 0.0, "slower") is None


@pytest.mark.parametrize("budget", [12, 16, 24])
def test_runs_that_take_longer_than_expected_do_not_make_a_search_exceed_its_budget(
    budget: int, monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    now, run = 0.0, Deployed.time

    def look() -> float:
        nonlocal now
        now += 1e-3
        return now

    def slow(deployed: Deployed) -> float:
        nonlocal now
        now += 1.0
        return run(deployed)

    monkeypatch.setattr(clock, "now", look)
    monkeypatch.setattr(Deployed, "time", slow)
    candidates = Candidates(placers=("heft",))
    found = optimize(inception_like(), slowed(1.0, 1.2, 1.5), candidates=candidates, budget=budget, cache=cache)
    assert found.spent_s < 1.2 * budget + 0.5


def test_a_front_is_measured_within_the_budget_though_runs_take_longer_than_expected(
    monkeypatch: pytest.MonkeyPatch, cache: Cache
) -> None:
    now, seconds, run, find = 0.0, 0.0, Deployed.time, reporting.find_front

    def slow(deployed: Deployed) -> float:
        nonlocal now
        now += seconds
        return run(deployed)

    def front(*args: Any, **options: Any) -> Any:
        nonlocal now, seconds
        now, seconds = 9.0, 0.5
        return find(*args, **options)

    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(Deployed, "time", slow)
    monkeypatch.setattr(reporting, "find_front", front)
    power = Power(1.0, 10.0)
    cluster = slowed(1.0, 1.2, 1.5)
    cluster = Cluster(tuple(replace(device, power=power) for device in cluster.devices), cluster.links)
    found = optimize(inception_like(), cluster, candidates=Candidates(("heft",), pareto=True), budget=15, cache=cache)
    assert found.pareto
    assert now <= 15.5
