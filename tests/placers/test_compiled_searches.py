"""What the compiled placers answer to arguments that no caller in placeit gives."""

from __future__ import annotations

import numpy as np
import pytest

from placeit import _core
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled
from placeit.testing.problems import random_problem

OPS, DEVICES = 12, 3
PROBLEM = random_problem(OPS, DEVICES, seed=3, everywhere=1.0)
TABLES = compiled(PROBLEM)


def ranks(function, **changed):
    comm = np.zeros(len(PROBLEM.edges))
    arguments = {"compute": np.ones(OPS), "comm": comm, "rank": np.empty(OPS)}
    getattr(_core, function)(TABLES, **(arguments | changed))


def optimistic_costs(**changed):
    arguments = {"comm": np.zeros(len(PROBLEM.edges)), "cost": np.empty((OPS, DEVICES))}
    _core.optimistic_costs(TABLES, **(arguments | changed))


def ready_order(**changed):
    arguments = {"by_priority": np.arange(OPS, dtype=np.int32), "order": np.empty(OPS, np.int32)}
    _core.ready_order(TABLES, **(arguments | changed))


def insertion_schedule(**changed):
    arguments = {
        "order": PROBLEM.order,
        "compute": PROBLEM.compute,
        "onward": np.zeros((OPS, DEVICES)),
        "memory": PROBLEM.memory,
        "links": _core.LinkModel.channel,
        "place": np.empty(OPS, np.int32),
        "start": np.empty(OPS),
        "finish": np.empty(OPS),
    }
    return _core.insertion_schedule(TABLES, **(arguments | changed))


def earliest_start_placement(**changed):
    arguments = {"order": PROBLEM.order, "lots": np.zeros((OPS, DEVICES)), "place": np.empty(OPS, np.int32)}
    _core.earliest_start_placement(TABLES, **(arguments | changed))


def earliest_finish_devices(**changed):
    arguments = {"place": np.zeros(OPS, np.int32), "ops": np.arange(2), "devices": np.empty(2, np.int32)}
    _core.earliest_finish_devices(TABLES, **(arguments | changed))


def annealing(**changed):
    arguments = {"place": np.zeros(OPS, np.int32), "scale": 1.0, "seed": 0}
    return _core.Annealing(SimulatedCost(PROBLEM).model, **(arguments | changed))


def of(value, *shape, dtype=np.int32):
    return np.full(shape, value, dtype)


def read_only(array):
    array.flags.writeable = False
    return array


def test_arguments_as_callers_give_them_are_taken():
    for function in ("upward_ranks", "downward_ranks"):
        ranks(function)
    optimistic_costs()
    ready_order()
    assert insertion_schedule()
    earliest_start_placement()
    earliest_finish_devices()
    annealing().run(0, 5, 5)


BACKWARDS = np.ascontiguousarray(PROBLEM.order[::-1])


@pytest.mark.parametrize(
    ("call", "argument", "value"),
    [
        (ready_order, "by_priority", of(0, OPS)),
        (ready_order, "by_priority", of(-1, OPS)),
        (ready_order, "by_priority", of(OPS, OPS)),
        (ready_order, "by_priority", np.arange(OPS + 1, dtype=np.int32)),
        (ready_order, "by_priority", np.arange(OPS)),
        (ready_order, "by_priority", np.arange(2 * OPS, dtype=np.int32)[::2]),
        (ready_order, "by_priority", list(range(OPS))),
        (ready_order, "order", read_only(np.empty(OPS, np.int32))),
        (ready_order, "order", np.empty((OPS, 1), np.int32)),
        (optimistic_costs, "comm", np.zeros(len(PROBLEM.edges) + 1)),
        (optimistic_costs, "cost", np.empty((DEVICES, OPS))),
        (optimistic_costs, "cost", read_only(np.empty((OPS, DEVICES)))),
        (insertion_schedule, "order", BACKWARDS),
        (insertion_schedule, "order", of(0, OPS)),
        (insertion_schedule, "order", of(-(2**31), OPS)),
        (insertion_schedule, "order", of(2**31 - 1, OPS)),
        (insertion_schedule, "order", PROBLEM.order[:-1].copy()),
        (insertion_schedule, "compute", np.ones((OPS, DEVICES + 1))),
        (insertion_schedule, "compute", np.ones((OPS, DEVICES), np.float32)),
        (insertion_schedule, "compute", np.ones((DEVICES, OPS)).T),
        (insertion_schedule, "onward", np.zeros((OPS - 1, DEVICES))),
        (insertion_schedule, "memory", np.ones(DEVICES - 1)),
        (insertion_schedule, "place", np.empty(OPS, np.int64)),
        (insertion_schedule, "start", np.empty(OPS - 1)),
        (insertion_schedule, "finish", np.empty(0)),
        (earliest_start_placement, "order", BACKWARDS),
        (earliest_start_placement, "order", of(5, OPS)),
        (earliest_start_placement, "lots", np.zeros((OPS, DEVICES - 1))),
        (earliest_start_placement, "place", np.empty(OPS + 1, np.int32)),
        (earliest_finish_devices, "place", of(DEVICES, OPS)),
        (earliest_finish_devices, "place", of(-1, OPS)),
        (earliest_finish_devices, "place", of(0, OPS - 1)),
        (earliest_finish_devices, "ops", np.array([0, OPS])),
        (earliest_finish_devices, "ops", np.array([-1, 0])),
        (earliest_finish_devices, "ops", np.array([0.0, 1.0])),
        (earliest_finish_devices, "devices", np.empty(3, np.int32)),
        (annealing, "place", of(DEVICES, OPS)),
        (annealing, "place", of(-1, OPS)),
        (annealing, "place", of(0, OPS + 1)),
        (annealing, "place", of(0, OPS, dtype=np.int64)),
    ],
)
def test_what_is_wrong_is_an_error_that_names_the_argument(call, argument, value):
    with pytest.raises((TypeError, ValueError), match=f"'{argument}'"):
        call(**{argument: value})


@pytest.mark.parametrize("function", ["upward_ranks", "downward_ranks"])
@pytest.mark.parametrize("argument", ["compute", "comm", "rank"])
@pytest.mark.parametrize("value", [np.empty(OPS + 50), np.empty(OPS, np.float32), np.empty(0), np.empty((2, 2)), "text"])
def test_ranks_name_the_argument_that_is_wrong(function, argument, value):
    with pytest.raises((TypeError, ValueError), match=f"'{argument}'"):
        ranks(function, **{argument: value})


@pytest.mark.parametrize("steps", [(-1, 1, 5), (2, 1, 5), (0, 1, 0), (0, 6, 5)])
def test_annealing_takes_no_steps_out_of_order(steps):
    with pytest.raises(ValueError, match="'first', 'last' and 'steps'"):
        annealing().run(*steps)


def test_annealing_needs_an_op_to_move():
    problem = random_problem(4, 1)
    with pytest.raises(ValueError, match="only one device"):
        _core.Annealing(SimulatedCost(problem).model, np.zeros(4, np.int32), 1.0, 0)


def test_annealing_keeps_its_problem_alive():
    model = SimulatedCost(random_problem(6, 2, seed=1, everywhere=1.0)).model
    search = _core.Annealing(model, np.zeros(6, np.int32), 1.0, 7)
    del model
    search.run(0, 200, 200)
    best = np.empty(6, np.int32)
    search.best(best)
    assert set(best.tolist()) <= {0, 1}
    assert 0 < search.seconds < np.inf


def test_any_random_arguments_give_an_error_or_an_answer():
    rng = np.random.default_rng(0)
    calls = [ready_order, insertion_schedule, earliest_start_placement, earliest_finish_devices, annealing]
    names = {
        ready_order: ("by_priority", "order"),
        insertion_schedule: ("order", "compute", "onward", "memory", "place", "start", "finish"),
        earliest_start_placement: ("order", "lots", "place"),
        earliest_finish_devices: ("place", "ops", "devices"),
        annealing: ("place",),
    }
    kinds = (np.int32, np.int64, np.float64, np.float32, np.bool_)
    answered = 0
    for _ in range(2000):
        call = calls[rng.integers(len(calls))]
        shape = [(OPS,), (DEVICES,), (OPS, DEVICES), (2,), (0,), (OPS, 1, 1)][rng.integers(6)]
        array = rng.integers(-2, OPS + 2, shape).astype(kinds[rng.integers(len(kinds))])
        if rng.random() < 0.2:
            array = array[::-1]
        try:
            call(**{names[call][rng.integers(len(names[call]))]: array})
            answered += 1
        except (TypeError, ValueError):
            pass
    assert 0 < answered < 2000
