"""Exploring within a search: what is chosen is measured in a few runs, told, and decided about like everything else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.learning import exploring
from placeit.learning.exploring import EXPLORING
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized, Spent
from placeit.profiler.cache import Cache
from tests.small_models import inception_like
from tests.steady import optimize

ROWS = 6


def found(cache: Cache, **options: Any) -> Optimized:
    cores = Address("CPU", (allowed_cores()[0],))
    links = {pair: Link(1e12, 1e-9, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    cluster = Cluster((Device("fast", address=cores), Device("slow", address=cores, slowdown=1.5)), links)
    return optimize(
        inception_like(), cluster, candidates=Candidates(placers=("heft", EXPLORING)), cache=cache, **{"budget": 60, **options}
    )


def row(found: Optimized) -> Spent:
    (one,) = [one for one in found.spending if one.what == EXPLORING]
    return one


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[NDArray[np.int32]]:
    """Have random placements chosen, a few at a time; what was chosen so far."""
    chosen: list[NDArray[np.int32]] = []

    def choose(segmenter: Any, problem: Any, *_: Any, count: int, seed: int) -> list[NDArray[np.int32]]:
        rng, rows = np.random.default_rng(seed), []
        while len(rows) < min(count, ROWS - len(chosen)):
            rows.append(rng.integers(2, size=len(problem)).astype(np.int32))
        chosen.extend(rows)
        return rows

    monkeypatch.setattr("placeit.optimizer.races.steady", lambda *_: True)  # whatever else the machine does
    monkeypatch.setattr(exploring, "worth_measuring", choose)
    return chosen


def test_what_is_chosen_is_measured_in_a_few_runs_and_told(cache: Cache, chosen: list[NDArray[np.int32]]) -> None:
    result = found(cache)
    explored = [one for one in result.candidates if one.placer == EXPLORING]
    assert len(chosen) == ROWS
    assert {one.groups.tobytes() for one in explored} <= {one.tobytes() for one in chosen}
    measured = [one for one in explored if one.measured is not None]
    assert measured
    races = [race for race in result.races if race.what.startswith("exploring")]
    assert len(races) == 2
    assert all(race.rounds == 3 for race in races)
    assert all(any(name in ("fast", "slow") for name in race.measured) for race in races)  # beside something of known cost
    note = row(result).note
    assert note is not None
    assert note.startswith(f"measured {len(result.curves[EXPLORING])} placement")
    assert min(result.curves[EXPLORING]) > 0
    assert result.chosen.final or result.chosen.placer == "single"


def test_choosing_that_fails_is_told_and_the_search_is_decided(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise ValueError("no likelihood")

    monkeypatch.setattr("placeit.optimizer.races.steady", lambda *_: True)
    monkeypatch.setattr(exploring, "worth_measuring", fail)
    result = found(cache)
    assert [(one.name, one.failed) for one in result.unplanned] == [(EXPLORING, "ValueError: no likelihood.")]
    assert result.chosen.measured is not None
    assert not result.interrupted


def test_ctrl_c_while_exploring_keeps_what_was_measured(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placeit.optimizer.races.steady", lambda *_: True)
    monkeypatch.setattr(exploring, "worth_measuring", interrupt)
    result = found(cache)
    assert result.interrupted
    assert result.chosen.measured is not None


def test_nothing_is_explored_where_there_is_no_time_to_compare(cache: Cache, chosen: list[NDArray[np.int32]]) -> None:
    result = found(cache, budget=1e-3)
    assert chosen == []
    note = row(result).note
    assert note is None or note.startswith(("not asked", "measured 0"))


def test_a_real_search_explores_by_itself(cache: Cache) -> None:
    result = found(cache)
    assert row(result).note is not None
    assert result.unplanned == ()
    assert result.chosen.measured is not None
