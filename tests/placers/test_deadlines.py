"""Placers end when their time is over, and those that do not are ended."""

from __future__ import annotations

import math
import signal
import threading
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.core import clock
from placeit.core.errors import InfeasibleError, PlacementError, UsageError
from placeit.placers import Measured, parse_placer, place
from placeit.placers.asking import ask
from placeit.placers.base import Incumbent
from placeit.simulator.simulate import SimulatedCost
from placeit.testing.problems import random_problem
from tests.alarms import alarm

ENDLESS = (
    "annealing:evaluations=1000000000000",
    "annealing:evaluations=1000000000000,restarts=3",
    "local-search:evaluations=1000000000000",
    "random-task-eft:episodes=1000000",
    "critical-path:runs=100000",
    "best-list:plans=1000000",
    "guided:evaluations=1000000000",
    "giph:episodes=1000000",
    "placeto:updates=1000000000",
    "hdp:patience=1000000000,updates=1000000000",
)
PROBLEM = random_problem(25, 3, everywhere=1.0)


@pytest.mark.parametrize("name", ENDLESS)
def test_a_placer_that_would_go_on_for_years_answers_by_its_deadline(name: str) -> None:
    deadline = clock.now() + 0.01  # ten looks
    found = parse_placer(name).place(PROBLEM, SimulatedCost(PROBLEM), seed=0, evaluations=None, deadline=deadline)
    PROBLEM.check(found)


@pytest.mark.parametrize("bounded", [True, False])
def test_exact_search_says_that_it_had_no_time_to_prove_anything(bounded: bool) -> None:
    problem = random_problem(60, 4, everywhere=1.0)
    simulated = SimulatedCost(problem)
    cost = simulated if bounded else partial(simulated)  # of which no placer can read the problem
    with pytest.raises(UsageError, match="within the time that it has"):
        parse_placer("exact:nodes=1000000000000").place(problem, cost, seed=0, evaluations=None, deadline=clock.now() + 0.3)


def test_the_solver_of_cp_sat_keeps_to_the_deadline() -> None:
    pytest.importorskip("ortools")
    problem = random_problem(40, 4, everywhere=1.0)
    deadline = clock.now() + 0.5
    made = parse_placer("cp-sat:effort=1e6").place(problem, SimulatedCost(problem), seed=0, evaluations=None, deadline=deadline)
    problem.check(made)


@dataclass(frozen=True)
class Deaf:
    """A placer that was written before there were deadlines."""

    forgiving: bool = False

    def place(self, problem: Any, cost: Any, *, seed: int, evaluations: int | None) -> NDArray[np.int32]:
        while True:
            try:
                cost(np.zeros((1, len(problem)), np.int32))
            except Exception:
                if not self.forgiving:
                    raise


@pytest.mark.parametrize("forgiving", [True, False])
def test_a_placer_that_ignores_its_deadline_is_ended(forgiving: bool) -> None:
    with pytest.raises(PlacementError, match=r"gave no answer by its deadline. It was ended"):
        ask(Deaf(forgiving), PROBLEM, SimulatedCost(PROBLEM), seed=0, deadline=clock.now() + 0.1)


@dataclass(frozen=True)
class Goes:
    """A placer that can go on from what was measured."""

    deaf: bool = False

    def place(self, problem: Any, cost: Any, *, seed: int, evaluations: int | None) -> NDArray[np.int32]:
        return np.zeros(len(problem), np.int32)

    def refine(
        self, problem: Any, cost: Any, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> NDArray[np.int32]:
        while self.deaf:
            cost(measured.placements)
        assert deadline is None or deadline > 0
        return measured.placements[0]


def test_who_can_go_on_from_what_was_measured_is_asked_to_and_the_others_place_again() -> None:
    cost, rows = SimulatedCost(PROBLEM), np.ones((1, len(PROBLEM)), np.int32)
    measured = Measured(rows, np.ones(1))
    deadline = clock.now() + 60
    for end in (math.inf, deadline):
        assert ask(Goes(), PROBLEM, cost, seed=0, deadline=end).tolist() == [0] * len(PROBLEM)
        assert ask(Goes(), PROBLEM, cost, seed=0, deadline=end, measured=measured).tolist() == rows[0].tolist()
    heft = parse_placer("heft")
    assert ask(heft, PROBLEM, cost, seed=0, measured=measured).tolist() == ask(heft, PROBLEM, cost, seed=0).tolist()


def test_who_goes_on_for_too_long_is_ended() -> None:
    measured = Measured(np.zeros((1, len(PROBLEM)), np.int32), np.ones(1))
    with pytest.raises(PlacementError, match=r"gave no answer by its deadline. It was ended"):
        ask(Goes(deaf=True), PROBLEM, SimulatedCost(PROBLEM), seed=0, deadline=clock.now() + 0.1, measured=measured)


def test_a_placement_that_could_not_be_measured_is_never_the_best() -> None:
    cost, rows = SimulatedCost(PROBLEM), np.eye(3, len(PROBLEM), dtype=np.int32)
    true = cost(rows)

    def failing(placements: NDArray[np.int32]) -> NDArray[np.float64]:
        values = cost(placements)
        values[(placements == rows[1]).all(axis=1)] = np.nan
        return values

    found = Incumbent(failing, None)
    assert found.offer(rows).tolist() == [true[0], np.inf, true[2]]
    assert found.cost == min(true[0], true[2])
    for name in ("annealing:evaluations=300", "local-search:evaluations=300", "random:samples=30"):
        answer = parse_placer(name).place(PROBLEM, failing, seed=0, evaluations=None)
        assert np.isfinite(failing(answer[None])[0])
        assert np.isfinite(failing(place(PROBLEM, name, cost=failing).devices[None])[0])


def test_a_placer_in_code_that_cannot_be_ended_is_left_behind() -> None:
    leave = threading.Event()

    class Asleep(Deaf):
        def place(self, *_: Any, **__: Any) -> NDArray[np.int32]:
            leave.wait()
            return np.zeros(len(PROBLEM), np.int32)

    with pytest.raises(PlacementError, match="It still runs, and slows down what is measured"):
        ask(Asleep(), PROBLEM, SimulatedCost(PROBLEM), seed=0, deadline=clock.now() + 0.1)
    leave.set()


def test_an_interrupt_reaches_who_asked_and_ends_the_placer() -> None:
    class Interrupted(BaseException):
        pass

    def handler(number: int, frame: FrameType | None) -> None:
        raise Interrupted

    with alarm(handler):
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        with pytest.raises(Interrupted):
            ask(Deaf(), PROBLEM, SimulatedCost(PROBLEM), seed=0)


@pytest.mark.parametrize("error", [KeyError("op"), TypeError("no number"), InfeasibleError("No room."), SystemExit(3)])
def test_what_a_placer_raises_is_an_error_of_placeit(error: BaseException) -> None:
    class Failing(Deaf):
        def place(self, *_: Any, **__: Any) -> NDArray[np.int32]:
            raise error

    known = isinstance(error, InfeasibleError)
    with pytest.raises(InfeasibleError if known else PlacementError, match="No room" if known else type(error).__name__):
        ask(Failing(), PROBLEM, SimulatedCost(PROBLEM), seed=0)


def test_an_answer_that_is_no_placement_is_refused() -> None:
    class Wrong(Deaf):
        def place(self, *_: Any, **__: Any) -> NDArray[np.int32]:
            return np.full(len(PROBLEM), 99, np.int32)

    with pytest.raises(PlacementError, match="99"):
        ask(Wrong(), PROBLEM, SimulatedCost(PROBLEM), seed=0)


def test_an_incumbent_is_over_after_its_evaluations_or_its_deadline() -> None:
    cost, row = SimulatedCost(PROBLEM), np.zeros((1, len(PROBLEM)), np.int32)
    for incumbent in (Incumbent(cost, 1), Incumbent(cost, None, clock.now() + 1e-9)):
        incumbent.offer(row)
        assert incumbent.over
    assert not Incumbent(cost, None, clock.now() + 1e9).over
    assert not Incumbent(cost, 1).over
