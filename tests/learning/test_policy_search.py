"""A policy that learns from measured runs within a search: what it measures, keeps and finds, and whether that paid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import FileError, UsageError
from placeit.devices.host import allowed_cores
from placeit.learning.checkpoint import read_checkpoint
from placeit.optimizer.options import Budget, Candidates
from placeit.optimizer.result import Optimized, Spent
from placeit.placers.registry import parse_placer
from placeit.profiler.cache import Cache
from tests.small_models import inception_like
from tests.steady import optimize


def found(cache: Cache, policy: str, **options: Any) -> Optimized:
    parse_placer(policy)  # importing PyTorch is not part of the budget
    cores = Address("CPU", (allowed_cores()[0],))
    links = {pair: Link(1e12, 1e-9, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    cluster = Cluster((Device("fast", address=cores), Device("slow", address=cores, slowdown=1.5)), links)
    return optimize(
        inception_like(), cluster, candidates=Candidates(placers=("heft", policy)), cache=cache, **{"budget": 12, **options}
    )


def row(found: Optimized, what: str) -> Spent:
    (one,) = [one for one in found.spending if one.what == what]
    return one


@pytest.fixture(autouse=True)
def calm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeit.optimizer.races.steady", lambda *_: True)  # whatever else the machine does


@pytest.mark.parametrize("agent", ["doppler", pytest.param("hsdag", marks=pytest.mark.nightly)])
def test_a_policy_learns_from_runs_and_its_placements_are_raced_and_checked(agent: str, cache: Cache) -> None:
    result = found(cache, f"policy:agent={agent}")
    own = [one for one in result.candidates if one.placer == f"policy {agent}"]
    curve = result.curves[f"policy {agent}"]
    assert curve
    assert min(curve) > 0
    assert all(one.measured is not None and one.output_error is not None for one in own)
    (race,) = [race for race in result.races if race.what == "racing what was learned"]
    assert race.rounds >= 8
    note = row(result, f"policy {agent}").note
    assert note is not None
    assert note.startswith(f"measured {len(curve)} placement")
    assert "learning paid: its best" in note or "learning did not pay: its best" in note
    assert result.unplanned == ()


def test_a_policy_is_kept_and_goes_on_learning_in_the_next_search(cache: Cache, tmp_path: Path) -> None:
    state, journal = tmp_path / "policy.safetensors", tmp_path / "search.jsonl"
    policy = f"policy:agent=doppler,state={state}"
    first = found(cache, policy, budget=Budget(12, journal))
    assert read_checkpoint(state).about["devices"] == ["fast", "slow"]
    again = found(cache, policy, budget=Budget(12, journal))
    assert not [one for one in again.candidates if one.name.endswith(", simulated")]  # it learned in simulation before
    assert all(one.curves["policy doppler"] for one in (first, again))


def test_ctrl_c_keeps_the_policy_and_what_was_measured(cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("placeit.learning.policy_search.train", interrupt)
    result = found(cache, f"policy:state={tmp_path / 'policy.safetensors'}")
    assert result.interrupted
    assert result.chosen.measured is not None
    assert read_checkpoint(tmp_path / "policy.safetensors").agent == "doppler"


def test_a_budget_too_small_to_learn_says_how_many_seconds_are_enough(cache: Cache) -> None:
    result = found(cache, "policy", budget=0.5)
    note = row(result, "policy doppler").note
    assert note is not None
    assert note.startswith("not asked: ")
    assert "a budget of about " in note or "too short to compare placements" in note
    assert "policy doppler" not in result.curves


@pytest.mark.parametrize(
    ("policy", "error", "says"),
    [
        ("policy:agent=doppler:weights=missing.safetensors", FileError, "missing.safetensors"),
        ("policy:agent=dopler", UsageError, "There is no agent 'dopler'"),
        ("policy:state=tests/small_models.py", FileError, "small_models.py"),
    ],
)
def test_a_policy_that_cannot_be_opened_is_refused_before_anything_is_measured(
    policy: str, error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        parse_placer(policy)
