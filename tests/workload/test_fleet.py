"""A fleet: its sites form a tree, assignments keep to memory, links and limits, and a day is simulated within its bound."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks._fleet_baselines import WAYS, Way
from benchmarks._fleet_baselines import planner as planner_of
from benchmarks._fleet_day import least_late, simulate_day
from placeit.core.errors import WorkloadError
from placeit.core.problem import Problem
from placeit.serving.latency import LatencyLimit
from placeit.simulator.arrivals import SimulatedReplica, Stream, serve_streams
from placeit.simulator.load import poisson_arrivals
from placeit.workload.assigning import Planner
from placeit.workload.entries import Entry, Workload
from placeit.workload.fleet import Demand, Fleet, Sites
from placeit.workload.fleet_bound import capacity

GIGABIT = 1e9 / 8


def sites(*parent: int) -> Sites:
    count = len(parent)
    return Sites([f"s{i}" for i in range(count)], np.array(parent, np.int32), np.full(count, 0.005), np.full(count, GIGABIT))


def fleet(where: Sites, *nodes: tuple[int, int], memory: float = 1e9, classes: int = 2) -> Fleet:
    """Nodes of a site and a class each."""
    site, of = np.array(nodes, np.int32).reshape(-1, 2).T
    names = [f"n{i}" for i in range(len(site))]
    return Fleet(where, names, site, [f"c{i}" for i in range(classes)], of, np.full(len(site), memory))


def demand(
    seconds: list[list[float]],
    sources: list[tuple[int, int]],
    *,
    limit: float | None = 0.1,
    weights: float = 1e8,
    sent: float = 1e4,
) -> Demand:
    """Models with the seconds of a request on each class, and sources of a model and a site each."""
    limited = None if limit is None else LatencyLimit(95, limit)
    entries = tuple(Entry(f"m{i}", Path("m"), rate=1.0, limit=limited) for i in range(len(seconds)))
    model, site = np.array(sources, np.int32).reshape(-1, 2).T
    each = np.ones(len(seconds))
    return Demand(Workload(entries), np.array(seconds), weights * each, sent * each, 1e4 * each, model, site, (1e-4, GIGABIT))


STAR = (-1, 0, 0)
EVERY = np.ones(3, bool)


@pytest.mark.parametrize(
    ("parent", "names", "message"),
    [
        ((1, 2, 0), "abc", "circle .a, b, c.: let one of them have no parent"),
        ((-1, 2, 1), "abc", "circle .b, c."),
        ((-1, -1), "ab", "No link joins the sites 'a' and 'b'"),
        ((-1, 0), "aa", "The site 'a' appears twice"),
    ],
)
def test_sites_that_form_no_tree_are_named(parent: tuple[int, ...], names: str, message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        Sites(list(names), np.array(parent, np.int32), np.zeros(len(parent)), np.ones(len(parent)))


def test_a_node_that_appears_twice_and_a_model_without_a_rate_are_named() -> None:
    with pytest.raises(WorkloadError, match="node 'n' appears twice"):
        Fleet(sites(-1), ["n", "n"], np.zeros(2, np.int32), ["c"], np.zeros(2, np.int32), np.ones(2))
    made = demand([[0.01]], [(0, 0)])
    with pytest.raises(WorkloadError, match="'m' of a fleet needs a 'rate'"):
        Demand(Workload((Entry("m", Path("m"), in_flight=1),)), *list(vars(made).values())[1:])


def test_the_links_between_sites_are_those_of_the_tree() -> None:
    tree = sites(-1, 0, 0, 1, 1)
    found = tree.links(np.array([3, 3, 3, 0], np.int32), np.array([4, 2, 3, 4], np.int32))
    assert [sorted(row[row >= 0].tolist()) for row in found] == [[3, 4], [1, 2, 3], [], [1, 4]]
    assert tree.inner().tolist() == [0, 1]


def test_one_model_on_one_node_is_placed_there_until_its_limit_would_be_broken() -> None:
    one, needs = fleet(sites(-1), (0, 0)), demand([[0.01, 0.01]], [(0, 0)])
    alive, rates = np.ones(1, bool), np.array([50.0])
    planner = Planner(one, needs, rates)
    now = planner.plan(rates, alive)
    assert now.nodes.tolist() == [[0, -1, -1, -1]]
    assert now.rate.tolist() == [50.0]
    assert now.moves == 1
    assert planner.in_time(now, now.rate).sum() > 0.95 * 50.0
    again = planner.plan(rates * 10, alive)
    assert again.moves == 0
    assert 60.0 < again.rate.sum() < 100.0
    assert again.unplaced.sum() == pytest.approx(500.0 - again.rate.sum())


def test_a_model_that_no_node_can_hold_is_split_over_nodes_of_one_site() -> None:
    where = fleet(sites(*STAR), (1, 0), (2, 0), (2, 0), (2, 1), memory=1e9)
    rates = np.array([5.0])
    now = Planner(where, demand([[0.02, np.inf]], [(0, 1)], weights=1.5e9), rates).plan(rates, np.ones(4, bool))
    assert now.unplaced.sum() == 5.0  # the only pair is at a site that sites below do not send to
    now = Planner(where, demand([[0.02, np.inf]], [(0, 2)], weights=1.5e9), rates).plan(rates, np.ones(4, bool))
    assert now.nodes.tolist() == [[1, 2, -1, -1]]
    assert now.part.tolist() == [0.01]
    assert now.unplaced.sum() == 0


def test_models_with_short_limits_are_kept_apart_from_models_with_long_requests() -> None:
    entries = [Entry("short", Path("m"), rate=1.0, limit=LatencyLimit(95, 0.02)), Entry("long", Path("m"), rate=1.0)]
    made = demand([[0.005, 0.005], [0.5, 0.5]], [(0, 0), (1, 0)])
    needs = Demand(Workload(tuple(entries)), *list(vars(made).values())[1:])
    rates = np.array([60.0, 1.0])
    now = Planner(fleet(sites(-1), (0, 0), (0, 0)), needs, rates).plan(rates, np.ones(2, bool))
    assert sorted(now.nodes[:, 0].tolist()) == [0, 1]
    assert now.unplaced.sum() == 0


def test_requests_of_a_lost_node_go_to_others_and_what_still_serves_stays() -> None:
    needs = demand([[0.01, 0.01]] * 2, [(0, 0), (1, 0)])
    planner = Planner(fleet(sites(-1), (0, 0), (0, 0), (0, 0)), needs, rates := np.array([70.0, 70.0]))
    before = planner.plan(rates, EVERY)
    lost = int(before.nodes[0, 0])
    after = planner.plan(rates, np.arange(3) != lost)
    kept = {(m, n) for m, n in zip(before.model, before.nodes[:, 0], strict=True) if n != lost}
    now = set(zip(after.model, after.nodes[:, 0], strict=True))
    assert lost not in after.nodes
    assert kept <= now
    assert after.moves == len(now - kept)
    assert after.unplaced.sum() == 0


def test_requests_that_save_little_stay_at_their_site_if_the_link_is_short() -> None:
    where = fleet(sites(*STAR), (0, 0), (0, 0), (1, 1), (1, 1))
    needs = demand([[0.002, 0.004], [0.002, 0.060]], [(0, 1), (1, 1)], sent=1e6)
    rates = np.array([60.0, 60.0])
    now = Planner(where, needs, rates).plan(rates, np.ones(4, bool))
    away = now.nodes[now.instance, 0] < 2
    assert now.unplaced.sum() == 0
    assert now.rate[away & (now.source == 1)].sum() == pytest.approx(60.0)


@st.composite
def problems(draw: st.DrawFn) -> tuple[Fleet, Demand, np.ndarray]:
    seed = draw(st.integers(0, 1 << 20))
    rng = np.random.default_rng(seed)
    count, models, classes = (draw(st.integers(1, most)) for most in (12, 6, 3))
    parent = [-1, *(int(rng.integers(0, at)) for at in range(1, draw(st.integers(1, 6))))]
    where = sites(*parent)
    nodes = [(int(rng.integers(len(parent))), int(rng.integers(classes))) for _ in range(count)]
    made = fleet(where, *nodes, memory=draw(st.sampled_from([1.5e8, 3e8, 1e9])), classes=classes)
    seconds = rng.choice([0.001, 0.01, 0.05, np.inf], (models, classes)).tolist()
    sources = [(m, s) for m in range(models) for s in range(len(parent)) if rng.random() < 0.5]
    limit = draw(st.sampled_from([None, 0.02, 0.1, 1.0]))
    needs = demand(
        seconds, sources, limit=limit, weights=draw(st.sampled_from([1e8, 4e8])), sent=draw(st.sampled_from([1e3, 1e6]))
    )
    return made, needs, rng.lognormal(1.0, 2.0, (3, len(sources)))


@settings(max_examples=40, deadline=None)
@given(problems(), st.sampled_from(WAYS), st.integers(0, 1 << 20))
def test_every_assignment_keeps_to_memory_links_and_nodes_and_accounts_for_every_request(
    case: tuple[Fleet, Demand, np.ndarray], way: Way, seed: int
) -> None:
    made, needs, rates = case
    planner, before = planner_of(made, needs, rates[0], way), set[tuple[int, ...]]()
    alive = np.random.default_rng(seed).random((len(rates), len(made.names))) < 0.9
    for now_rates, up in zip(rates, alive, strict=True):
        now = planner.plan(now_rates, up)
        placed = np.bincount(now.source, now.rate, len(now_rates))
        assert placed + now.unplaced == pytest.approx(now_rates, rel=1e-5)
        assert (now.weight_bytes(needs, len(made.names)) <= made.memory * (1 + 1e-9)).all()
        assert (planner.traffic(now, now.rate) <= 0.7001 * made.sites.bandwidth).all()
        used = now.nodes[now.instance]
        assert up[used[used >= 0]].all()
        assert (now.wait > 0).all()
        every = {(int(model), *place) for model, place in zip(now.model, now.nodes.tolist(), strict=True)}
        assert now.moves == len(every - before)
        assert len(every) == len(now.model)
        assert set(now.instance.tolist()) == set(range(len(now.model)))
        before = every
        late = now_rates.sum() - planner.in_time(now, now.rate).sum()
        assert least_late(made, needs, now_rates, planner.price, up) <= late + 1e-6 * now_rates.sum()
        if way == "joint":
            assert (planner.in_time(now, now.rate) >= 0.95 * now.rate * (1 - 1e-9)).all()


def test_the_capacity_is_that_of_the_best_division_of_work() -> None:
    made = fleet(sites(-1), (0, 0), (0, 1))
    factor, price = capacity(made, demand([[0.01, 0.02], [0.02, 0.01]], [(0, 0), (1, 0)]), np.array([50.0, 50.0]))
    assert factor == pytest.approx(2.0)
    assert price == pytest.approx([1.0, 1.0], rel=0.1)


def test_the_simulated_share_in_time_is_that_of_simulated_requests() -> None:
    where = fleet(sites(-1), (0, 0), (0, 0), (0, 1))
    seconds = [[0.004, 0.008], [0.010, 0.020], [0.002, 0.004], [0.015, 0.030]]
    needs = demand(seconds, [(model, 0) for model in range(4)], limit=0.06)
    rates = np.array([80.0, 40.0, 150.0, 20.0])
    planner = Planner(where, needs, rates)
    now = planner.plan(rates, EVERY)
    assert now.unplaced.sum() == 0
    streams = []
    for flow, (instance, rate) in enumerate(zip(now.instance, now.rate, strict=True)):
        name = where.names[now.nodes[instance, 0]]
        whole = Problem.from_arrays([[now.part[instance]]], np.empty((0, 2), int), [], [[1.0]], [[0.0]], device_names=[name])
        arrivals = poisson_arrivals(rate, int(60 * rate), seed=flow)
        streams.append(Stream([SimulatedReplica(whole, np.zeros(1, np.int32), 1000)], arrivals))
    late = [
        float(((ended - arrived) > now.wait[flow] + now.part[now.instance[flow]]).mean())
        for flow, (arrived, _, ended) in enumerate(serve_streams(streams))
    ]
    predicted = 1 - planner.in_time(now, now.rate) / now.rate
    assert predicted == pytest.approx(late, abs=0.03)


def test_a_day_counts_what_a_failure_costs_until_the_next_assignment() -> None:
    where, needs = fleet(sites(-1), (0, 0), (0, 0)), demand([[0.01, 0.01]], [(0, 0)])
    rates, alive = np.full((8, 1), 10.0), np.ones((8, 2), bool)
    first = int(Planner(where, needs, rates[0]).plan(rates[0], alive[0]).nodes[0, 0])
    alive[3:, first] = False
    day = simulate_day(Planner(where, needs, rates[0]), rates, rates, alive, step_s=60.0, every=100)
    assert day.arrived.tolist() == [8 * 600.0]
    assert day.moves == 1
    assert day.moved_bytes == 1e8
    assert day.plans == 2
    assert day.served.sum() == pytest.approx(7 * 600.0, rel=1e-3)
    assert day.least_late == 0.0
