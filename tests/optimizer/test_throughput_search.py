"""Searching for throughput: what is entered, what is chosen and why, and what the answer serves."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import placeit
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import NoRoomError, PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.optimizer.options import Budget, Candidates
from placeit.optimizer.result import Optimized
from placeit.planning.segments import Plan, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime.plan_executor import PlanExecutor
from placeit.session import Session
from placeit.simulator.simulate import simulate
from placeit.simulator.throughput_bound import ThroughputCost, bottleneck
from placeit.workbench import Workbench
from placeit.workbench.options import Constraints
from tests.small_models import inception_like
from tests.steady import STEADY


def described(*flops: float, memory: tuple[float, ...] = (), latency: float = 1e-9) -> Cluster:
    """Make devices of the given operations per second."""
    names = [f"d{i}" for i in range(len(flops))]
    links = {pair: Link(1e12, latency, "described") for pair in itertools.permutations(names, 2)}
    held = memory or (np.inf,) * len(flops)
    devices = (
        Device(name, kind="described", flops_per_s=speed, bytes_per_s=1e12, memory_bytes=bytes_)
        for name, speed, bytes_ in zip(names, flops, held, strict=True)
    )
    return Cluster(tuple(devices), links)


def found_on(cluster: Cluster, cache: Cache, **options: object) -> Optimized:
    return placeit.optimize(
        inception_like(),
        cluster,
        candidates=Candidates(placers=["heft"]),
        budget=5,
        objective="throughput",
        cache=cache,
        **options,
        policy=STEADY,
    )  # type: ignore[arg-type]


def alone(found: Optimized) -> dict[str, float]:
    """Simulated seconds per request of each device alone."""
    return {one.name: one.simulated_value or 0.0 for one in found.candidates if one.placer == "single"}


def test_on_equal_devices_each_serves_whole_requests(cache: Cache) -> None:
    found = found_on(described(1e9, 1e9, 1e9), cache, rate=2.0)
    assert [plan.placement.tolist() for plan in found.chosen.plans] == [[d] * len(found.chosen.plan.segments) for d in range(3)]
    assert "on equal devices that is hardly to be beaten" in found.reason
    assert found.placement.counts() == {f"d{d}": found.ops for d in range(3)}
    assert found.service is not None
    assert found.service.capacity == pytest.approx(3 / alone(found)["d0"])
    assert [one.name for one in found.service.bottlenecks] == ["d0", "d1", "d2"]
    assert (found.service.rate, found.service.relative, found.service.sustained) == (2.0, 1.0, True)


def test_what_unequal_devices_serve_adds_up(cache: Cache) -> None:
    found = found_on(described(3e9, 1e9), cache, rate=1e9)
    whole = alone(found)
    replicas = next(one for one in found.candidates if one.placer == "replicas")
    assert whole["d1"] > 2 * whole["d0"]
    assert replicas.simulated_value == pytest.approx(1 / (1 / whole["d0"] + 1 / whole["d1"]))
    assert replicas.name == "replicas on d0, d1"
    service = found.service
    assert service is not None
    assert service.sustained is False
    assert service.relative == pytest.approx(service.capacity / 1e9)
    assert service.capacity >= 0.99 / (replicas.simulated_value or 0.0)
    for load in service.load.values():  # all of 1,000 requests are there at once, and go one after the other
        assert load.achieved == pytest.approx(service.capacity, rel=0.05)
        assert load.p99 == pytest.approx(990 / service.capacity, rel=0.05)
        assert load.max_queued > 980


def test_a_device_that_cannot_hold_the_model_takes_a_part_of_it(cache: Cache) -> None:
    model = inception_like()
    with Session(model, described(1e9, 1e9), cache=cache, policy=STEADY) as session:
        weights = float(session.grouping.groups.param_bytes.sum())
    cluster = described(1e9, 1.5e9, memory=(np.inf, 0.7 * weights))
    found = found_on(cluster, cache, constraints=Constraints(max_groups=9))
    assert [one.name for one in found.candidates if one.placer == "single"] == ["d0"]
    assert not any(one.replicas for one in found.candidates)
    with Session(model, cluster, cache=cache, constraints=Constraints(max_groups=9), policy=STEADY) as session:
        session.profile()
        segmenter = Segmenter(session.grouping, session.costs, steady=True)
        problem = segmenter.problem()
        rows = np.array(list(itertools.product((0, 1), repeat=len(problem))), np.int32)
        fits = rows @ problem.param_bytes <= problem.memory[1]
        best = segmenter.seconds(rows[fits & problem.feasible[np.arange(len(problem)), rows].all(axis=1)]).min()
    assert found.chosen.simulated_value is not None
    assert best * (1 - 1e-9) <= found.chosen.simulated_value <= best * 1.05
    assert found.chosen.simulated_value < 0.8 * alone(found)["d0"]
    assert found.service is not None
    assert found.service.bottlenecks[0].seconds == pytest.approx(found.chosen.simulated_value, rel=0.05)


def test_where_nothing_serves_alone_groups_of_devices_are_replicas(cache: Cache) -> None:
    with Session(inception_like(), described(1e9, 1e9), cache=cache, policy=STEADY) as session:
        weights = float(session.grouping.groups.param_bytes.sum())
    found = found_on(described(1e9, 1e9, 1e9, memory=(np.inf, 0.8 * weights, 0.8 * weights)), cache)
    names = [one.name for one in found.candidates if one.placer == "replicas"]
    assert "replicas on d0, d1 with d2" in names
    split = next(one for one in found.candidates if one.name == "replicas on d0, d1 with d2")
    used = [sorted({segment.device for segment in plan.programs}) for plan in split.plans]
    assert used == [[0], [1, 2]]


def test_the_bound_is_what_many_requests_in_flight_take(cache: Cache) -> None:
    found = found_on(described(1e9, 1.3e9, 0.7e9), cache)
    for one in found.candidates:
        for plan in one.plans:
            bound = ThroughputCost(plan.problem)(plan.placement)[0]
            simulated = simulate(plan.problem, [plan.placement], requests=400, in_flight=16)[0] / 400
            assert bound * (1 - 1e-9) <= simulated <= 1.1 * bound
            assert bottleneck(plan.problem, plan.placement).seconds == bound


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"rate": 0.0}, "rate is 0 requests per second"),
        ({"rate": -1.0}, "must be positive"),
        ({"rate": float("nan")}, "must be positive"),
        ({"rate": 1.0, "objective": "total-cost"}, "which the objective 'total-cost' has no use for"),
        ({"rate": 1.0, "objective": "speed"}, "is not known; there are latency, throughput"),
    ],
)
def test_a_rate_that_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        placeit.optimize(inception_like(), described(1e9), **({"objective": "throughput"} | options), policy=STEADY)  # type: ignore[arg-type]


def slowed(cores: tuple[int, ...]) -> Cluster:
    """Make a cluster of the first core and the last one, which is slowed three times, with an emulated link."""
    links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    where = [Address("CPU", (core,)) for core in (cores[0], cores[-1])]
    return Cluster((Device("fast", address=where[0]), Device("slow", address=where[1], slowdown=3.0)), links)


@pytest.mark.parametrize("devices", ["cores", pytest.param("slowed", marks=pytest.mark.slow)])
@pytest.mark.two_cores
def test_real_devices_serve_requests_at_the_same_time(devices: str, cache: Cache, tmp_path: Path) -> None:
    cores = allowed_cores()[:2]
    cluster = slowed(cores) if devices == "slowed" else [f"CPU@{core}" for core in cores]
    model = inception_like()
    found = placeit.optimize(
        model,
        cluster,
        candidates=Candidates(placers=["heft"]),
        budget=3,
        objective="throughput",
        rate=50.0,
        cache=cache,
        policy=STEADY,
    )
    data = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    replicas = next(one for one in data["candidates"] if one["placer"] == "replicas")
    assert (replicas["replicas"], replicas["failed"]) == (2, None)
    assert replicas["measured_s"] == replicas["value_from_runs"]  # None if there was no time for it
    assert set(replicas["devices"].values()) == {found.ops}
    value = data["chosen"]["measured_s"] or data["chosen"]["simulated_s"]
    assert data["throughput"]["capacity"] == pytest.approx(1 / value)
    assert data["throughput"]["load"].keys() == {"constant", "poisson"}
    candidate = next(one for one in found.candidates if one.placer == "replicas")
    candidate.placement.save(tmp_path / "replicas.json")
    again = Placement.load(tmp_path / "replicas.json")
    with Session(model, found.cluster, cache=cache, policy=STEADY) as session:
        session.profile()
        compared = placeit.compare(session, {"mine": again}, objective="throughput", runs=6)
        rows = {row["name"]: row for row in compared.to_dict()["candidates"]}
        assert rows["mine"]["replicas"] == 2
        assert rows["mine"]["output_error"]["max_rel"] < 1e-4
        assert rows["mine"]["simulated_s"] >= 0  # on a busy machine, all the time may be the host's
        assert all(row["failed"] is None and row["measured_s"] > 0 for row in rows.values())
        first = placeit.compare(session, {"mine": again}, runs=6)
        assert {row["name"]: row["replicas"] for row in first.to_dict()["candidates"]}["mine"] == 1
        with pytest.raises(UsageError, match="not 'energy'"):
            placeit.compare(session, {}, objective="energy")
        with pytest.raises(PlacementError, match="mine: "):
            placeit.compare(session, {"mine": replace(again, replicas=(replace(again, graph_hash="other"),))})


def test_fewer_requests_are_in_flight_where_there_is_no_room_for_more(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    opened, asked = Workbench.executor, []

    def executor(self: Session, plan: Plan, *, in_flight: int = 1, alone: bool = False) -> PlanExecutor:
        asked.append(in_flight)
        if in_flight > 1:
            raise NoRoomError("There is room for one request.")
        return opened(self, plan, in_flight=in_flight, alone=alone)

    monkeypatch.setattr(Workbench, "executor", executor)
    cluster = slowed(allowed_cores()[:1])
    found = placeit.optimize(
        inception_like(),
        cluster,
        candidates=Candidates(placers=["heft"]),
        budget=2,
        objective="throughput",
        cache=cache,
        policy=STEADY,
    )
    assert set(asked) >= {1, 2}
    assert found.chosen.measured is not None
    assert all(one.failed is None for one in found.candidates)


def test_a_search_for_throughput_goes_on_from_its_own_journal_only(cache: Cache, tmp_path: Path) -> None:
    cluster, file = slowed(allowed_cores()[:1]), tmp_path / "search.jsonl"
    options = {"candidates": Candidates(placers=["heft"]), "budget": Budget(1, file), "cache": cache}
    placeit.optimize(inception_like(), cluster, objective="throughput", **options, policy=STEADY)
    again = placeit.optimize(inception_like(), cluster, objective="throughput", **options, policy=STEADY)
    assert all(one.failed is None for one in again.candidates)
    with pytest.raises(UsageError, match="its objective is 'throughput'"):
        placeit.optimize(inception_like(), cluster, **options, policy=STEADY)


def test_the_number_of_requests_in_flight_is_kept_to_and_the_latency_at_that_depth_is_told(cache: Cache) -> None:
    cluster = described(1e9, 1e9, 1e9)
    found = found_on(cluster, cache, in_flight=2)
    assert found.service is not None
    assert len(found.chosen.plans) <= found.service.in_flight <= 2  # three replicas would need three requests
    assert found.service.latency == pytest.approx(found.service.in_flight * found.chosen.simulated_value)
    assert found.objective.kept_as == "throughput, 2 in flight"
    with pytest.raises(UsageError, match="is of single requests: leave it out"):
        placeit.optimize(inception_like(), cluster, in_flight=2, cache=cache)
    with pytest.raises(UsageError, match="at least one request in flight"):
        placeit.optimize(inception_like(), cluster, objective="throughput", in_flight=0, cache=cache)


def test_of_plans_that_are_as_good_the_one_with_the_fewest_segments_is_chosen(cache: Cache) -> None:
    found = found_on(described(1e9, 1e9, memory=(2e5, 2e5)), cache, in_flight=4)
    least = min(one.simulated_value or np.inf for one in found.candidates)
    near = [one for one in found.candidates if (one.simulated_value or np.inf) <= least / 0.99]
    assert found.chosen.segments == min(one.segments for one in near)
