"""When to move: simulated nodes that come to stay, and nodes that come and go."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from placeit.planning.moving import Moves

LOOK = 1.0


def moves(up: float, down: float, total: float, *, saved: float, price: float) -> list[float]:
    """Return the moments of moves to a node that is there for ``up`` seconds, then away for ``down``, again and again."""
    rule, made, there = Moves(), list[float](), False
    for step in range(int(total / LOOK)):
        now = step * LOOK
        if now % (up + down) >= up:
            there = False  # what used it was placed anew
            rule.stay()
        elif not there and rule.due(now, saved, price):
            rule.moved(now)
            made.append(now)
            there = True
    return made


@pytest.mark.parametrize(("saved", "price"), [(0.5, 2.0), (0.1, 1.0), (0.9, 20.0)])
def test_a_node_that_stays_is_used_once_as_much_was_lost_without_it_as_the_move_takes(saved: float, price: float) -> None:
    (once,) = moves(math.inf, 0, 3600, saved=saved, price=price)
    assert price <= once * saved <= price + LOOK


@pytest.mark.parametrize("saved", [-1.0, 0.0, 0.04])
def test_a_node_that_saves_next_to_nothing_is_never_used(saved: float) -> None:
    assert moves(math.inf, 0, 3600, saved=saved, price=1.0) == []


def test_a_node_that_comes_and_goes_is_followed_ever_more_rarely() -> None:
    made = moves(20, 20, 3600, saved=0.5, price=2.0)  # it comes 90 times
    assert 1 <= len(made) <= 10
    assert made[0] < 20


def test_a_node_that_is_there_for_less_than_the_move_is_worth_is_never_used() -> None:
    assert moves(3, 10, 3600, saved=0.5, price=2.0) == []


def test_a_move_is_forgotten_in_time() -> None:
    rule = Moves()
    rule.moved(0.0)
    prices = []
    for now in (1.0, 3600.0):
        rule.due(now, 0.5, 2.0)
        waited = next(step for step in range(1, 100) if rule.due(now + step, 0.5, 2.0))
        prices.append(waited * 0.5)
        rule.stay()
    assert prices == [pytest.approx(4.0, abs=0.5), pytest.approx(2.0, abs=0.5)]


@given(
    up=st.floats(1, 500),
    down=st.floats(1, 500),
    saved=st.floats(0.05, 1),
    price=st.floats(1, 100),
)
def test_within_ten_minutes_there_are_no_more_moves_than_what_was_lost_pays_for(
    up: float, down: float, saved: float, price: float
) -> None:
    made = moves(up, down, 600, saved=saved, price=price)
    # prices have doubled each time, less what ten minutes forget of them
    assert price * (2 ** len(made) - 1) / 2 <= saved * (600 + LOOK * len(made))
