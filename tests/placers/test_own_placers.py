"""Placers that no package names: objects, and classes of a module."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import placeit
from placeit.core.errors import UsageError
from placeit.placers import get_placer, parse_placer
from placeit.placers.annealing import Annealing
from placeit.placers.registry import placers_by_name
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.scheduler import Rules
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem
from tests.optimizer.test_throughput_search import described
from tests.small_models import inception_like
from tests.steady import STEADY

LAST = """
from dataclasses import dataclass
import numpy as np
from placeit.placers.base import option

@dataclass(frozen=True)
class Last:
    device: int = option(1, "the device")

    def place(self, problem, cost, *, seed, evaluations, deadline=None):
        return np.full(len(problem), self.device, np.int32)
"""


@pytest.fixture
def last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "my_last_placer.py").write_text(LAST)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_last_placer", raising=False)
    return "my_last_placer:Last"


def test_a_class_of_a_module_is_a_placer_with_options(last: str) -> None:
    problem = random_problem(5, 3, everywhere=1.0)
    for text, device in ((last, 1), (f"{last}:device=2", 2)):
        found = parse_placer(text).place(problem, SimulatedCost(problem), seed=0, evaluations=None)
        assert found.tolist() == [device] * 5
    with pytest.raises(UsageError, match="no option 'devise'"):
        parse_placer(f"{last}:devise=2")
    with pytest.raises(UsageError, match="cannot be loaded"):
        parse_placer("my_last_placer:First")
    with pytest.raises(UsageError, match="There is no placer 'hefft'"):
        parse_placer("hefft")


def test_a_search_asks_objects_beside_names(last: str, cache: Cache) -> None:
    own = parse_placer(last)
    found = placeit.optimize(
        inception_like(), described(1e9, 3e9), candidates=[own, "heft"], budget=5, cache=cache, policy=STEADY
    )
    assert [one.name for one in found.candidates if one.placer == "single"] == ["d1", "d0"]
    assert any(event.reason == "by Last" for event in found.story)


def test_objects_are_named_by_their_class_and_the_options_that_are_set() -> None:
    one = get_placer("annealing", evaluations=5)
    found = placers_by_name(["heft", "heft", Annealing(), one, get_placer("annealing", evaluations=5)])
    assert list(found) == ["heft", "Annealing", "Annealing:evaluations=5"]

    class Annealing2(Annealing): ...

    Annealing2.__name__ = "Annealing"
    with pytest.raises(UsageError, match="Two different placers have the name 'Annealing': name their classes differently"):
        placers_by_name([Annealing(), Annealing2()])


def test_place_values_by_the_given_rules() -> None:
    problem = random_problem(12, 3, everywhere=1.0)
    rules = Rules(queue="fifo")
    fair = placeit.place(problem, "annealing:evaluations=2000", rules=rules)
    same = placeit.place(problem, "annealing:evaluations=2000", cost=SimulatedCost(problem, rules=rules))
    assert fair.as_dict() == same.as_dict()
    with pytest.raises(UsageError, match="give one of them"):
        placeit.place(problem, rules=rules, cost=SimulatedCost(problem))


def test_a_profiled_model_is_a_problem_in_one_call_and_its_placement_leads_back(cache: Cache) -> None:
    with Session(inception_like(), described(1e9, 2e9), cache=cache, policy=STEADY) as session:
        session.profile()
        problem = session.problem()
        placement = session.placement(np.full(len(problem), 1, np.int32))
        assert placement.counts() == {"d0": 0, "d1": len(session.grouping.graph)}
        whole = session.placement(placeit.place(problem, "single"))
        assert max(whole.counts().values()) == len(session.grouping.graph)
        assert session.problem(steady=True).compute == pytest.approx(problem.compute)
