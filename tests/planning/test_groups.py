"""Groups in the compiled core: what bad arrays get, and that a search keeps what it works on."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from placeit import _core

GROUPS, DEVICES = 3, 2


def arrays(**changed: Any) -> dict[str, Any]:
    """Three groups in a row on two devices."""
    plain = {
        "edges": np.array([[0, 1, 0], [1, 2, 1]], np.int32),
        "tensor_bytes": np.array([8.0, 8.0]),
        "core": np.ones((GROUPS, DEVICES)),
        "cut_per_byte": np.zeros((GROUPS, DEVICES)),
        "dispatch": np.full(DEVICES, 0.1),
        "load": np.zeros((GROUPS, DEVICES)),
        "beside": np.zeros((DEVICES, DEVICES)),
        "conflicts": np.zeros((DEVICES, DEVICES), bool),
        "read": np.zeros(DEVICES),
        "latency": np.zeros((DEVICES, DEVICES)),
        "bandwidth": np.ones((DEVICES, DEVICES)),
        "passthrough": np.zeros(GROUPS, bool),
        "cliques": np.zeros((0, DEVICES), bool),
        "host": np.zeros(DEVICES + 1),
        "in_flight": 0.0,
        "outside": np.zeros(DEVICES),
    }
    assert changed.keys() <= plain.keys()
    return plain | changed


def search(groups: Any, **changed: Any) -> Any:
    plain = {
        "placement": np.zeros(GROUPS, np.int32),
        "feasible": np.ones((GROUPS, DEVICES), bool),
        "param_bytes": np.zeros(GROUPS),
        "memory": np.ones(DEVICES),
        "steps": 100,
        "heat": 0.01,
        "bit_generator": np.random.default_rng(0).bit_generator,
    }
    return _core.SegmentSearch(groups, **(plain | changed))


@pytest.mark.parametrize("name", [name for name in arrays() if name not in ("in_flight", "edges", "tensor_bytes")])
@pytest.mark.parametrize("fault", ["type", "shape", "stride", "dimensions", "none"])
def test_an_array_that_is_not_as_it_must_be_is_named(name: str, fault: str) -> None:
    good = arrays()[name]
    bad = {
        "type": good.astype(np.float32),
        "shape": np.zeros([n + 1 for n in good.shape], good.dtype),
        "stride": np.zeros([2 * n + 2 for n in good.shape], good.dtype)[tuple(slice(0, 2 * max(n, 1), 2) for n in good.shape)],
        "dimensions": good[None],
        "none": None,
    }[fault]
    if name == "core" and fault == "shape":
        bad = np.zeros((0, DEVICES))  # of any other shape, it is the rest that does not fit
    with pytest.raises((TypeError, ValueError), match=name):
        _core.Groups(**arrays(**{name: bad}))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([[0, 3, 0]], "'edges' holds a group that does not exist"),
        ([[-1, 1, 0]], "'edges' holds a group that does not exist"),
        ([[0, 1, 2]], "'edges' holds a tensor that does not exist"),
        ([[0, 1, -1]], "'edges' holds a tensor that does not exist"),
        ([[1, 2, 0], [0, 1, 1]], "'edges' is not sorted by producer"),
        ([[0, 1, 0], [1, 0, 1]], "in a circle"),
        ([[1, 1, 0]], "in a circle"),
        ([[0, 1]], "'edges' has shape"),
    ],
)
def test_edges_that_lead_nowhere_are_an_error(edges: list[list[int]], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        _core.Groups(**arrays(edges=np.array(edges, np.int32)))


@pytest.mark.parametrize(
    ("devices", "segment_of", "message"),
    [
        (np.array([0, 1, 2], np.int32), np.zeros(3, np.int32), "'devices' holds 2"),
        (np.array([0, -1, 0], np.int32), np.zeros(3, np.int32), "'devices' holds -1"),
        (np.zeros(2, np.int32), np.zeros(3, np.int32), "'devices' has 2 values; expected 3"),
        (np.zeros(3), np.zeros(3, np.int32), "'devices' must be an array of int32"),
        (np.zeros(3, np.int32), np.zeros(4, np.int32), "'segment_of' has 4 values; expected 3"),
        (np.zeros(3, np.int32), np.zeros(6, np.int32)[::2], "'segment_of' must be contiguous"),
    ],
)
def test_devices_and_segments_are_checked(devices: np.ndarray, segment_of: np.ndarray, message: str) -> None:
    groups = _core.Groups(**arrays())
    with pytest.raises((TypeError, ValueError), match=message):
        groups.merge(devices, segment_of)


def test_segments_that_wait_for_each_other_cannot_be_divided() -> None:
    groups, devices = _core.Groups(**arrays()), np.zeros(GROUPS, np.int32)
    moves, seconds = np.empty((2, 3), np.int32), np.empty(2)
    with pytest.raises(ValueError, match="'segment_of' has segments that wait for each other"):
        groups.divide(np.array([0, 1, 0], np.int32), devices, moves, seconds)
    with pytest.raises(ValueError, match="'segment_of' holds 2"):
        groups.divide(np.array([0, 1, 2], np.int32), devices, moves, seconds)
    with pytest.raises(ValueError, match="'moves' has shape"):
        groups.divide(np.array([0, 0, 1], np.int32), devices, moves[:1], seconds)
    assert groups.divide(np.array([1, 1, 0], np.int32), devices, moves, seconds) == 1
    assert moves[0].tolist() == [0, 1, 1]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"placement": np.array([0, 0, 2], np.int32)}, "'placement' holds 2"),
        ({"placement": np.zeros(4, np.int32)}, "'placement' has 4 values"),
        ({"feasible": np.ones((DEVICES, GROUPS), bool)}, "'feasible' has shape"),
        ({"param_bytes": np.zeros(GROUPS, np.int64)}, "'param_bytes' must be an array of float64"),
        ({"memory": np.zeros(GROUPS)}, "'memory' has 3 values"),
        ({"bit_generator": np.random.default_rng(0)}, "'bit_generator' must be a numpy.random.BitGenerator"),
        ({"bit_generator": None}, "'bit_generator' must be a numpy.random.BitGenerator"),
    ],
)
def test_a_search_of_bad_arrays_is_an_error(changed: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        search(_core.Groups(**arrays()), **changed)


def test_a_search_keeps_its_groups_and_its_generator() -> None:
    running = search(_core.Groups(**arrays()), bit_generator=np.random.PCG64(1))
    gc.collect()
    while not running.over:
        running.advance(7)
    running.advance(1_000_000)
    best = np.full(GROUPS, -1, np.int32)
    running.write_best(best)
    assert best.tolist() == [0, 0, 0]
    with pytest.raises(ValueError, match="'placement' has 2 values"):
        running.write_best(best[:2])
