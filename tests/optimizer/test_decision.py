"""The decision between one device and several, where the truth is known: how often it is wrong, and what it claims."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from benchmarks.decision import FASTER, NOT_FASTER, Case, Machine, search_of, summary
from placeit.core import clock
from placeit.optimizer.deciding import confirm, decided, selected
from placeit.optimizer.decision import Decision
from placeit.optimizer.measuring import measure
from placeit.optimizer.reasons import chosen_of


def name_of(case: Case) -> str:
    return f"{len(case.splits)} at {case.splits[0]:g} against {len(case.singles)}, noise {case.noise:g}"


def room(share: float, trials: int) -> float:
    """How far beyond a share one does not get in 1,000 such simulations."""
    return 3.1 * math.sqrt(share * (1 - share) / trials)


@pytest.mark.parametrize("case", [case for case in NOT_FASTER if len(case.splits) == 3][::3], ids=name_of)
def test_what_is_not_faster_is_chosen_as_rarely_as_is_said(case: Case) -> None:
    found = summary(case, trials := 100, 1)
    assert found.false <= 0.0175 + room(0.0175, trials)
    assert found.covered >= 0.965 - room(0.965, trials)


@pytest.mark.parametrize("correlated", [False, True])
def test_short_runs_that_are_slow_after_another_placement_are_decided_about_as_rarely_wrongly(correlated: bool) -> None:
    found = summary(Case((1.0,) * 3, 0.1, (1.0,) * 2, correlated=correlated, short=True), trials := 60, 1)
    assert found.false <= 0.0175 + room(0.0175, trials)
    assert found.covered >= 0.965 - room(0.965, trials)


@pytest.mark.nightly
@pytest.mark.parametrize("case", NOT_FASTER, ids=name_of)
def test_in_thousands_of_searches_what_is_not_faster_is_chosen_in_2_5_percent_at_most(case: Case) -> None:
    found = summary(case, 4000, 2)
    assert found.false <= 0.025
    assert found.covered >= 0.94


def test_what_an_opening_changes_is_not_taken_for_a_gain() -> None:
    found = summary(Case((1.0,) * 3, 0.01, (1.0,) * 3, opening=0.005), trials := 100, 1)
    assert found.false <= 0.025 + room(0.025, trials)  # 20 % by the rounds of a race alone
    assert found.covered >= 0.95 - room(0.95, trials)


def test_a_gain_of_5_percent_is_found_in_most_searches() -> None:
    found = summary(FASTER[-1], 80, 1)
    assert found.in_time >= 0.8 - room(0.8, 80)
    assert found.covered >= 0.965 - room(0.965, 80)


@pytest.mark.nightly
@pytest.mark.parametrize("case", FASTER, ids=name_of)
def test_in_thousands_of_searches_a_gain_of_5_percent_is_found_in_40_rounds_of_four_in_five(case: Case) -> None:
    found = summary(case, 4000, 2)
    assert found.in_time >= 0.8
    assert found.covered >= 0.94
    assert found.claimed == pytest.approx(1, abs=0.01)


def machine(noise: float = 0.01) -> Machine:
    return Machine(noise, correlated=False, random=np.random.default_rng(0))


def test_what_was_measured_before_the_decision_does_not_enter_it() -> None:
    search = search_of(Case((0.5, 0.5), 0.01, (1.0, 1.0)), machine(), seed=0)
    measure(search)
    single, split = selected(search)
    assert single is not None
    assert split is not None
    assert single.value is not None
    assert split.value is not None
    assert split.value.median < 0.6
    decision = decided(search, single, search.update_facts(split.name, plan=1.0))
    assert decision is not None
    assert decision.winner is decision.single
    assert decision.ratio is not None
    assert 0.98 < decision.ratio.ratio < 1.02
    for name in (single.name, split.name):
        value = search.known[name].value
        assert value is not None
        assert min(value.samples) > 0.9
        assert len(value.samples) == 26


@pytest.mark.parametrize(("left_s", "rounds"), [(1e9, 26), (28.4, 12), (19.4, 6)])
def test_the_decision_keeps_to_the_time_that_is_left(left_s: float, rounds: int) -> None:
    search = search_of(Case((0.5,), 0.01, (1.0,)), machine(), seed=0)
    measure(search)
    search.deadline = clock.now() + left_s
    winner = confirm(search).winner
    assert winner is not None
    assert winner.placer == "drawn"
    assert winner.measured is not None
    assert len(winner.measured.samples) == rounds


@pytest.mark.parametrize("left_s", [11.0, 0.0, -5.0])
def test_without_time_for_a_decision_the_single_device_stays(left_s: float) -> None:
    search = search_of(Case((0.5, 0.6), 0.01, (1.0, 1.1)), machine(), seed=0)
    measure(search)
    search.deadline = clock.now() + left_s
    decision = confirm(search)
    assert decision.winner is not None
    assert decision.winner.name == "single 0"
    assert decision.hurried
    assert decision.ratio is None


def test_runs_that_vary_much_get_more_rounds_if_a_gain_is_likely() -> None:
    rounds = []
    for noise, time_of_split in ((0.01, 0.8), (0.25, 0.8), (0.25, 1.5)):
        search = search_of(Case((time_of_split,), noise, (1.0,)), machine(noise), seed=0)
        measure(search)
        single = confirm(search).single
        assert single is not None
        assert single.measured is not None
        rounds.append(len(single.measured.samples))
    assert rounds[0] == rounds[2] == 26
    assert rounds[1] > 40


def test_a_split_is_the_answer_where_no_single_device_was_measured() -> None:
    split, single = (
        SimpleNamespace(name=name, placer=placer, failed=None, measured=measured, replicas=())
        for name, placer, measured in (("heft", "heft", 1.0), ("inductor:CPU", "single", None))
    )
    search: Any = SimpleNamespace(
        objective=SimpleNamespace(best="the fastest"),
        session=SimpleNamespace(model=SimpleNamespace(path="m"), cluster=SimpleNamespace(executable=True), pins={}),
        problem=SimpleNamespace(device_names=("a", "b"), feasible=np.ones((1, 2), bool)),
        unplanned={},
    )
    order: Any = [split, single]
    chosen, why = chosen_of(search, Decision(order[0]), order, order[1])
    assert chosen is split
    assert why == "it was measured to be the fastest; no single device was measured"
