"""OpenVINO's throughput mode is a candidate for throughput: it races first, can be chosen, stored, run, and given back."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placeit
from placeit.core.cluster import Cluster
from placeit.core.errors import UsageError
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.names import parse_device
from placeit.devices.plain import in_throughput_mode
from placeit.measuring.statistics import FEWEST
from placeit.optimizer import proposing
from placeit.optimizer.candidates import known_value
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.profiler.cache import Cache
from placeit.runtime.devices.base import ServesSlots
from placeit.runtime.executor import Executor
from placeit.runtime.kinds import throughput
from placeit.session import Session
from placeit.simulator.objectives.throughput import Throughput
from placeit.workbench.options import Constraints, Traffic
from tests.small_models import inception_like
from tests.steady import STEADY

PAIR = [f"CPU@{core}" for core in allowed_cores()[:2]]
BUDGET_S = 120.0  # far more than the search takes
pytestmark = pytest.mark.two_cores


def search(cache: Cache, *, start: Path | None = None, pins: Any = (), memory: Any = (), **options: Any) -> Optimized:
    return placeit.optimize(
        inception_like(),
        PAIR,
        candidates=Candidates("heft", start),
        constraints=Constraints(dict(pins), dict(memory), max_groups=2),
        cache=cache,
        **({"budget": BUDGET_S, "objective": "throughput"} | options),
        policy=STEADY,
    )


def mode_of(found: Optimized) -> Any:
    return next(one for one in found.candidates if one.placer == "throughput mode")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the throughput mode run, and say that it took hardly any time."""
    times = Executor.times

    def quick(self: Executor, count: int, **options: Any) -> float:
        if not any(isinstance(self.pool.devices[d], ServesSlots) for d in {s.device for s in self.plan.segments}):
            return times(self, count, **options)
        times(self, 1, **options)
        return count * 1e-9

    monkeypatch.setattr(Executor, "times", quick)
    monkeypatch.setattr("placeit.optimizer.deciding.decision_rounds", lambda single, split: 6)


@pytest.mark.usefixtures("fast")
def test_where_it_serves_most_it_is_chosen_stored_run_and_given_back(cache: Cache, tmp_path: Path) -> None:
    found = search(cache)
    device = in_throughput_mode(discover(PAIR))
    assert device is not None
    assert found.chosen is mode_of(found)
    assert found.placement.counts() == {device.name: found.ops}
    assert [one.row.name for one in found.references] == ["BATCH:CPU(8)"]
    found.save(tmp_path / "mode.json")
    stored = Placement.load(tmp_path / "mode.json")
    for devices in ([device.name], PAIR):
        with Session(inception_like(), devices, cache=cache, policy=STEADY) as session:
            report = session.run(stored, traffic=Traffic(requests=8))
            assert report.output_error.max_rel < 1e-4
            assert report.in_flight > 1
            assert set(report.served.busy) == {device.name}
    again = search(cache, start=tmp_path / "mode.json")
    assert mode_of(again).given


def test_requests_in_flight_are_at_work_at_the_same_time(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    met: list[threading.Barrier] = []

    def waiting(request: Any) -> None:
        met[0].wait(60.0)  # for all that are in flight
        run(request)

    run = throughput._run
    monkeypatch.setattr(throughput, "_run", waiting)
    device = in_throughput_mode(discover(PAIR))
    assert device is not None
    with Session(inception_like(), Cluster((device,)), cache=cache, policy=STEADY) as session:
        graph = inception_like().graph
        nothing = np.zeros(len(graph), np.int32)
        plan = session.plan_of(Placement(graph.names, nothing, (device.name,), graph.hash, nothing))
        with session.executor(plan, in_flight=session.best_in_flight(plan, 1)) as executor:
            assert executor.in_flight > 1
            met.append(threading.Barrier(executor.in_flight))
            executor.times(3 * executor.in_flight)
            assert {span.request for span in executor.spans()} == set(range(executor.in_flight))


def test_what_serves_whole_requests_races_before_placers_are_asked(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    raced: list[set[str]] = []
    ask_all = proposing.ask_all

    def watched(search: Search, *args: Any, **options: Any) -> None:
        raced.append({search.known[name].placer for race in search.races for name in race.measured})
        ask_all(search, *args, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(proposing, "ask_all", watched)
    found = search(cache)
    assert raced == [{"single", "replicas", "throughput mode"}]
    assert mode_of(found).output_error.max_rel < 1e-4


def test_time_for_the_decision_is_kept_back(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    with Session(inception_like(), PAIR, cache=cache, policy=STEADY) as session:
        session.profile()
        begun = Search(RunOptions(session, Throughput()))
        begun.singles()
        begun.begin_with({"mine": np.arange(len(session.grouping.groups), dtype=np.int32) % 2})  # known by simulation alone
        single = min((one for one in begun.standing if one.placer == "single"), key=known_value)
        full, least = (begun.race_s([begun.known["mine"], single], rounds) for rounds in (12, FEWEST))

        def kept(left: float) -> float:
            monkeypatch.setattr(begun, "left", lambda: left)
            return begun.left() - begun.spare()

        assert kept(9 * full) == pytest.approx(full)  # twelve rounds, with warm-up and checks
        assert kept(1.5 * full) == pytest.approx(0.75 * full)  # half of it may be used
        assert kept(1.05 * least) == pytest.approx(least)  # fewer than six rounds decide nothing
        assert kept(0.95 * least) == 0


@pytest.mark.parametrize("why", ["pins", "memory", "latency"])
def test_it_is_no_candidate(why: str, cache: Cache) -> None:
    options: dict[str, Any] = {
        "pins": {"pins": {inception_like().graph.names[3]: PAIR[0]}},
        "memory": {"memory": {PAIR[0]: 0.9 * float(inception_like().graph.param_bytes.sum())}},
        "latency": {"objective": "latency"},
    }[why]
    found = search(cache, budget=0.5, **options)
    assert not any(one.placer == "throughput mode" for one in found.candidates)


@pytest.mark.parametrize("name", ["throughput:GPU.0", "throughput:cuda:0"])
def test_it_is_a_mode_of_the_cpu_only(name: str) -> None:
    with pytest.raises(UsageError, match="throughput mode is known of the CPU only"):
        parse_device(name)
