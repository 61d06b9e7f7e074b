"""Searches in an open session, and the groups of their options."""

from dataclasses import FrozenInstanceError

import pytest

import placeit
from placeit import Budget, Candidates, Constraints, Inputs, Session
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.errors import UsageError
from placeit.profiler.cache import Cache
from tests.small_models import inception_like
from tests.steady import STEADY

CORE = f"CPU@{allowed_cores()[0]}"
LINKS = {pair: Link(1e9, 1e-5, "described") for pair in (("a", "b"), ("b", "a"))}
FIGURES = {"kind": "described", "flops_per_s": 1e9, "bytes_per_s": 1e9}
DESCRIBED = Cluster((Device("a", **FIGURES), Device("b", **FIGURES)), LINKS)  # type: ignore[arg-type]


def test_an_open_session_finds_what_a_search_that_opens_its_own_does(cache: Cache) -> None:
    asked = {"objective": "total-cost", "candidates": Candidates("heft"), "budget": Budget(3), "seed": 2}
    alone = placeit.optimize(inception_like(), DESCRIBED, cache=cache, **asked, policy=STEADY)  # type: ignore[arg-type]
    with Session(inception_like(), DESCRIBED, cache=cache, policy=STEADY) as session:
        found = session.optimize(**asked)  # type: ignore[arg-type]
    assert found.objective.name == "total-cost"
    assert found.asked_s == 3
    assert found.placement.as_dict() == alone.placement.as_dict()
    assert [one.name for one in found.candidates] == [one.name for one in alone.candidates]


def test_a_session_runs_the_answer_and_can_be_searched_again(cache: Cache) -> None:
    with Session(inception_like(), CORE, cache=cache, policy=STEADY) as session:
        found = session.optimize(budget=2, candidates=Candidates("heft"))
        compiled = {kind: one.compiled for kind, one in found.compiling.items()}
        assert session.run(found.placement, runs=2).failed is None
        again = session.optimize(budget=2, candidates=Candidates("heft", start=found.placement))
        assert {kind: one.compiled for kind, one in found.compiling.items()} == compiled  # which later searches leave as it is
        assert sum(one.compiled for one in again.compiling.values()) == 0  # all of it was there
        assert session.run(again.placement, runs=2).failed is None


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"objective": "speed"}, "objective 'speed' is not known"),
        ({"objective": "energy"}, "needs the power of every device"),
        ({"budget": 0}, "budget is 0 seconds; it must be positive"),
        ({"candidates": Candidates("hefty")}, "'hefty'"),
        ({"seed": -1}, "must not be negative"),
        ({"rate": 3.0, "objective": "total-cost"}, "which the objective 'total-cost' has no use for"),
    ],
)
def test_an_open_session_refuses_what_makes_no_sense_before_it_measures(options: dict[str, object], says: str) -> None:
    with Session(inception_like(), DESCRIBED, cache=None, policy=STEADY) as session:
        with pytest.raises(UsageError, match=says):
            session.optimize(**options)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match=r"profile\(\)"):
            session.costs  # noqa: B018


@pytest.mark.parametrize("seconds", [0, -1.0, float("nan"), float("inf")])
def test_a_budget_is_positive_and_finite(seconds: float) -> None:
    with pytest.raises(UsageError, match="must be positive and finite"):
        Budget(seconds)


@pytest.mark.parametrize("tolerance", [-0.1, float("nan")])
def test_a_tolerance_is_not_negative(tolerance: float) -> None:
    with pytest.raises(UsageError, match="tolerance"):
        Constraints(tolerance=tolerance)


@pytest.mark.parametrize(
    ("group", "name"), [(Budget(), "seconds"), (Candidates(), "placers"), (Constraints(), "pins"), (Inputs(), "batch")]
)
def test_groups_of_options_have_defaults_and_do_not_change(group: object, name: str) -> None:
    with pytest.raises(FrozenInstanceError):
        setattr(group, name, 1)


def test_inputs_are_arrays_or_say_more_than_that(cache: Cache) -> None:
    arrays = inception_like().random_inputs(seed=5)
    for inputs in (arrays, Inputs(arrays)):
        with Session(inception_like(), CORE, cache=cache, inputs=inputs, policy=STEADY) as session:
            assert {
                name: (value == arrays[name]).all() for name, value in session.model.sample_inputs().items()
            } == dict.fromkeys(arrays, True)
