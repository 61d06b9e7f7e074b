"""What compiled functions do with arguments that they cannot take: an error that names the argument, never a crash."""

import re

import numpy as np
import pytest

from placeit import _core
from placeit.core.problem import Problem
from placeit.simulator.simulate import SimulatedCost
from placeit.simulator.tables import compiled

OPS, DEVICES, EDGES = 3, 2, 2


def arrays(**changed):
    return {
        "compute": np.ones((OPS, DEVICES)),
        "edges": np.array([[0, 1], [1, 2]], np.int32),
        "edge_bytes": np.ones(EDGES),
        "edge_tensor": np.arange(EDGES, dtype=np.int32),
        "latency": np.zeros((DEVICES, DEVICES)),
        "bandwidth": np.ones((DEVICES, DEVICES)),
        "cut": np.zeros((EDGES, DEVICES)),
        "param_bytes": np.zeros(OPS),
        "memory": np.ones(DEVICES),
        "conflicts": np.zeros((DEVICES, DEVICES), bool),
        "cliques": np.zeros((0, DEVICES), bool),
        "host": np.zeros(DEVICES + 1),
        "order": np.arange(OPS, dtype=np.int32),
        "tied": np.array([[0.0, 1.0, 0.0], [0.0, 1.0, 2.0]]),
    } | changed


@pytest.mark.parametrize("name", list(arrays()))
@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda array: array.tolist(), TypeError),
        (lambda array: array.astype(np.float32 if array.dtype == np.float64 else np.int64), TypeError),
        (lambda array: array.astype(array.dtype.newbyteorder()) if array.itemsize > 1 else array.astype(np.int8), TypeError),
        (lambda array: array[None], ValueError),
        (lambda array: np.repeat(array, 2, axis=-1)[..., ::2], ValueError),
        (lambda array: np.concatenate([array] * 2, axis=-1), ValueError),
    ],
    ids=["no array", "another type", "another byte order", "another dimension", "a stride", "another shape"],
)
def test_a_malformed_array_is_refused_by_its_name(name, spoil, error):
    good = arrays(conflicts=np.ones((DEVICES, DEVICES), bool), cliques=np.ones((1, DEVICES), bool))
    spoiled = spoil(good[name])
    # with more devices, the first array that does not know them is the wrong one
    wrong = "latency" if np.shape(spoiled) == (OPS, 2 * DEVICES) else name
    with pytest.raises(error, match=f"'{wrong}'"):
        _core.Tables(**good | {name: spoiled})


def test_tables_keep_the_array_that_they_view():
    compute = memoryview(bytearray(np.ones((OPS, DEVICES)).tobytes())).cast("B").cast("d", (OPS, DEVICES))
    tables = _core.Tables(**arrays(compute=compute))
    with pytest.raises(BufferError):
        compute.release()
    del tables
    compute.release()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"edges": np.array([[0, 1], [1, 3]], np.int32)}, "'edges' holds an op that does not exist"),
        ({"edges": np.array([[0, 1], [-1, 2]], np.int32)}, "'edges' holds an op that does not exist"),
        ({"edges": np.array([[0, 1], [1, 0]], np.int32)}, "'order' is not a topological order"),
        ({"order": np.array([0, 1, 1], np.int32)}, "'order' does not hold every op once"),
        ({"order": np.array([0, 1, 3], np.int32)}, "'order' does not hold every op once"),
        ({"tied": np.array([[0.0, 1.0, 3.0]])}, "'tied' is 3; it must be from 0 to 2"),
        ({"edge_tensor": np.array([0, 2], np.int32)}, "'edge_tensor' holds a number"),
        ({"edge_tensor": np.array([0, -1], np.int32)}, "'edge_tensor' holds a number"),
        ({"edge_tensor": np.array([0, 0], np.int32)}, "'edge_tensor' has one number for tensors of several ops"),
    ],
)
def test_numbers_that_lead_out_of_the_arrays_are_refused(changed, message):
    with pytest.raises((ValueError, IndexError), match=message):
        _core.Tables(**arrays(**changed))


@pytest.mark.parametrize("name", [name for name, array in arrays().items() if array.dtype == np.float64])
@pytest.mark.parametrize("value", [np.nan, -1.0, -np.inf, 1e200, np.inf, 0.0])
def test_costs_that_are_no_amounts_are_refused_by_their_name(name, value):
    spoiled = arrays()[name]
    spoiled.flat[-1] = value
    infinite, positive = name in {"compute", "bandwidth", "memory"}, name == "bandwidth"
    if (value == np.inf and infinite) or (value == 0.0 and not positive):
        assert _core.Tables(**arrays(**{name: spoiled})).ops == OPS
    else:
        with pytest.raises(ValueError, match=re.escape(f"'{name}' holds {value:g}; it must be from ")):
            _core.Tables(**arrays(**{name: spoiled}))


def call(**changed):
    given = {
        "tables": _core.Tables(**arrays()),
        "placements": np.zeros((4, OPS), np.int32),
        "priority": np.zeros((0, OPS)),
        "options": _core.Options(_core.LinkModel.channel, _core.Discipline.priority),
        "seed": 0,
        "arrivals": np.zeros(1),
        "slots": 1,
        "threads": 1,
        "seconds": np.zeros(4),
    }
    _core.makespans(**given | changed)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"placements": np.zeros((4, OPS), np.int64)}, TypeError, "'placements'"),
        ({"placements": np.zeros((4, OPS + 1), np.int32)}, ValueError, "'placements'"),
        ({"placements": np.full((4, OPS), DEVICES, np.int32)}, IndexError, "'placements' holds device 2 in row 0"),
        ({"placements": np.full((4, OPS), -1, np.int32)}, IndexError, "'placements' holds device -1 in row 0"),
        ({"priority": np.zeros((3, OPS))}, ValueError, "'priority'"),
        ({"seconds": np.zeros(3)}, ValueError, "'seconds' has 3 values"),
        ({"seconds": np.broadcast_to(np.zeros(4), 4)}, ValueError, "'seconds' is read-only"),
        ({"arrivals": np.zeros(0)}, ValueError, "'arrivals'"),
        ({"arrivals": np.array([1.0, 0.5])}, ValueError, "'arrivals'"),
        ({"arrivals": np.array([np.nan])}, ValueError, "'arrivals'"),
        ({"arrivals": np.array([np.inf])}, ValueError, "'arrivals'"),
        ({"priority": np.array([[1.0, np.nan, 2.0]])}, ValueError, "'priority' holds NaN"),
        ({"slots": 0}, ValueError, "'slots'"),
        ({"slots": 2**31 - 1}, ValueError, "'slots'"),
        ({"threads": 0}, ValueError, "'threads'"),
        ({"tables": None}, TypeError, "incompatible"),
    ],
)
def test_what_cannot_be_simulated_is_refused(changed, error, message):
    call()
    with pytest.raises(error, match=message):
        call(**changed)


def test_a_problem_whose_arrays_are_in_column_order_costs_the_same():
    compute, edges = np.asfortranarray([[1.0, 2.0], [3.0, 4.0]]), [(0, 1)]
    problem = Problem.from_arrays(compute, edges, [1.0], np.ones((2, 2)), np.zeros((2, 2)))
    assert SimulatedCost(problem)([[0, 1], [1, 1]]).tolist() == [6.0, 6.0]


def test_what_a_cost_model_refers_to_stays():
    problem = Problem.from_arrays(np.ones((2, 2)), [(0, 1)], [1.0], np.ones((2, 2)), np.zeros((2, 2)))
    model = SimulatedCost(problem).model
    tables = compiled(problem)
    assert (tables.ops, tables.devices, tables.edges) == (2, 2, 1)
    del problem, tables
    assert model is not None
