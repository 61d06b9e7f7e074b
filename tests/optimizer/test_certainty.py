"""A search ends early where a lower bound says that no split can be faster than the whole CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from placeit.backends.base import Model
from placeit.backends.torch.model import load
from placeit.core import clock
from placeit.core.cluster import Cluster
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.measuring.statistics import summed_up
from placeit.optimizer import preparing
from placeit.optimizer.candidate_state import Ran
from placeit.optimizer.certainty import MARGIN, excluded
from placeit.optimizer.ledger import Ledger
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.placers.bound import lower_bound
from placeit.placers.heft import Heft
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.session import Session, optimize
from placeit.simulator.objectives.registry import get_objective
from tests.broken_executors import taking
from tests.small_models import inception_like

CORES = allowed_cores()[:2]
PAIR = [f"CPU@{core}" for core in CORES]
PLAIN = next((device.name for device in plain_devices(discover(PAIR))), "CPU")
pytestmark = pytest.mark.two_cores
WHOLE_S = 0.02  # of the model on one core


def costs_of(grouping: Any, cluster: Cluster) -> Costs:
    free = Costs.zero(len(grouping.groups), cluster)
    return replace(free, core=np.full_like(free.core, WHOLE_S / len(grouping.groups)))


def bound_s(cache: Cache, model: Model | None = None) -> float:
    with Session(model or inception_like(), PAIR, cache=cache) as session:
        return lower_bound(Segmenter(session.grouping, costs_of(session.grouping, session.cluster)).problem())


@pytest.fixture
def searched(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Optimized, list[str]]]:
    """Search where the whole CPU takes some seconds, until a placer is asked; return what was found, and who was asked."""

    def search(plain_s: float, start: Any = None, model: Model | None = None, **options: Any) -> tuple[Optimized, list[str]]:
        asked: list[str] = []
        place = Heft.place

        def watched(self: Heft, problem: Any, *args: Any, **given: Any) -> Any:
            if len(problem) == 2:  # to see whether it lacks anything
                return place(self, problem, *args, **given)
            asked.append("heft")
            raise KeyboardInterrupt

        def profile(_: Any, grouping: Any, cluster: Cluster, *__: Any, certain: Any = None, **___: Any) -> Costs:
            costs = costs_of(grouping, cluster)
            if certain is not None:
                certain(costs.core)
            return costs

        monkeypatch.setattr(Heft, "place", watched)
        monkeypatch.setattr("placeit.profiler.costs.profile", profile)
        taking(monkeypatch, lambda session, _: plain_s if session.cluster.names == (PLAIN,) else WHOLE_S)
        candidates = Candidates("heft", start)
        return optimize(model or inception_like(), PAIR, candidates=candidates, budget=120, cache=cache, **options), asked

    return search


def test_where_every_split_takes_longer_than_the_whole_cpu_none_is_looked_for(
    searched: Callable[..., tuple[Optimized, list[str]]], cache: Cache
) -> None:
    found, asked = searched(0.8 * bound_s(cache))
    assert found.chosen.name == PLAIN
    assert found.reason.startswith("no split placement can be faster: each takes at least ")
    assert "budget" not in found.reason
    assert (asked, [one.name for one in found.candidates if one.placer != "single"]) == ([], [])
    assert [one.what for one in found.races] == ["measuring 1 placement"]
    assert [one.not_run for one in found.candidates if one.name in PAIR] == ["by the lower bound, it cannot be faster"] * 2
    assert [one.note for one in found.spending if one.placer] == ["not asked: no split can be faster"]
    assert found.chosen.output_error is not None


def test_a_start_is_measured_all_the_same(searched: Callable[..., tuple[Optimized, list[str]]], cache: Cache) -> None:
    with Session(inception_like(), PAIR, cache=cache) as session:
        start = session.placement(np.arange(len(session.grouping.groups)) % 2)
    found, asked = searched(0.8 * bound_s(cache), start=start)
    (mine,) = (one for one in found.candidates if one.placer == "start")
    assert asked == []
    assert mine.measured is not None
    assert found.chosen.name == PLAIN


@pytest.mark.parametrize("options", [{}, {"objective": "throughput"}, {"objective": "total-cost"}])
def test_where_a_split_may_be_faster_placers_are_asked(
    options: dict[str, str], searched: Callable[..., tuple[Optimized, list[str]]], cache: Cache
) -> None:
    factor = 1.0 - MARGIN / 2 if not options else 0.5  # within the margin; other objectives are not bounded by makespans
    _, asked = searched(factor * bound_s(cache), **options)
    assert asked


@pytest.mark.parametrize("compiler", [True, False])
def test_eager_costs_exclude_no_split_whose_segments_may_be_compiled(
    compiler: bool, searched: Callable[..., tuple[Optimized, list[str]]], cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placeit.runtime.kinds.inductor._lacks_compiler", lambda: True)
    if not compiler:
        monkeypatch.setattr("placeit.optimizer.whole_models.compiled_twins", lambda _: [])
    monkeypatch.setattr("placeit.optimizer.search.enter_compiled", lambda *_: None)  # which takes many seconds
    model = load(nn.Sequential(*(nn.Linear(64, 64) for _ in range(6))), (torch.randn(2, 64),))
    found, asked = searched(0.8 * bound_s(cache, model), model=model)
    assert asked == (["heft"] if compiler else [])
    assert ("no split placement can be faster" in found.reason) != compiler


def test_the_margin_is_kept_on_the_side_of_the_splits(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    bound = bound_s(cache)
    with Session(inception_like(), PAIR, cache=cache) as session:
        core = costs_of(session.grouping, session.cluster).core
        for share, expected in ((1.0 - 1.1 * MARGIN, PLAIN), (1.0 - 0.9 * MARGIN, None)):
            taking(monkeypatch, lambda session, _, share=share: share * bound if session.cluster.names == (PLAIN,) else WHOLE_S)
            found = excluded(session, core, 1e6)
            assert (None if found is None else found.name) == expected


def bound_if_devices_take(share: float, plain_s: float, cache: Cache, monkeypatch: pytest.MonkeyPatch) -> float | None:
    """The bound, if one is certain, where the whole model takes a share of what its groups take in sum."""
    with Session(inception_like(), PAIR, cache=cache) as session:
        core = costs_of(session.grouping, session.cluster).core
        taking(monkeypatch, lambda session, _: plain_s if session.cluster.names == (PLAIN,) else share * WHOLE_S)
        found = excluded(session, core, 1e6)
        return None if found is None else found.bound_s


def test_nothing_is_certain_where_groups_take_more_in_sum_than_the_whole_model(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = bound_s(cache)
    assert bound_if_devices_take(1.0, 0.5 * bound, cache, monkeypatch) == pytest.approx((1.0 - MARGIN) * bound)
    assert bound_if_devices_take(1.0 - 1.1 * MARGIN, 0.5 * bound, cache, monkeypatch) is None
    assert bound_if_devices_take(0.5, 0.01 * bound, cache, monkeypatch) is None, "however fast the whole CPU is"
    assert bound_if_devices_take(3.0, 0.5 * bound, cache, monkeypatch) == pytest.approx((1.0 - MARGIN) * bound)


def test_the_error_of_the_bound_is_taken_off_before_it_decides_and_is_told(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    share = 1.0 - MARGIN / 2
    expected = share * (1.0 - MARGIN) * bound_s(cache)
    assert bound_if_devices_take(share, 0.9 * expected, cache, monkeypatch) == pytest.approx(expected)
    assert bound_if_devices_take(share, 1.02 * expected, cache, monkeypatch) is None


def test_the_bound_that_is_printed_is_less_its_error_as_far_as_that_was_measured(cache: Cache) -> None:
    with Session(inception_like(), PAIR, cache=cache) as session:
        session.take(costs_of(session.grouping, session.cluster))

        def printed(**measured: float) -> float:
            search = Search(RunOptions(session, get_objective("latency", session.cluster)))
            search.singles(plain=False)
            search.begin_with({"split": np.arange(len(session.grouping.groups), dtype=np.int32) % 2})
            for name, seconds in measured.items():
                measured = summed_up(name, [seconds], [0])
                search.set_state(name, Ran(measured, measured), "measured")
            return search.bound_s

        bound, (first, second) = printed(), PAIR
        assert printed(**{first: WHOLE_S, second: 2 * WHOLE_S}) == pytest.approx(bound)
        assert printed(**{first: 0.8 * WHOLE_S, second: 0.8 * WHOLE_S}) == pytest.approx(0.8 * bound)
        assert bound > printed(**{first: 0.8 * WHOLE_S}) > 0.8 * bound
        assert printed(split=0.1 * bound) == pytest.approx(0.1 * bound)


@pytest.mark.parametrize(("budget", "bounded"), [(100.0, True), (1.0, False)])
def test_where_the_time_is_too_short_to_compare_placements_no_bound_is_measured(
    monkeypatch: pytest.MonkeyPatch, budget: float, bounded: bool
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(preparing, "_may_stop", lambda state: True)
    monkeypatch.setattr(preparing, "_is_certain", lambda state, core: asked.append("the bound"))
    costs = SimpleNamespace(core=np.full((4, 2), 0.5), profiled=SimpleNamespace(cached=True))  # 2 s on each device
    state: Any = SimpleNamespace(
        session=SimpleNamespace(costs=costs),
        goal=SimpleNamespace(objective=SimpleNamespace(steady=True)),
        ledger=Ledger(),
        deadline=clock.now() + budget,
    )
    preparing.Bound().run(state)
    assert asked == ["the bound"] * bounded
