import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from placeit.core.errors import FileError, InfeasibleError, ProblemError
from placeit.core.problem import Problem

VERSION_1 = """{"format": "placeit-problem", "version": 1, "graph": "77d0", "ops": ["a", "b"], "devices": ["x", "y"],
"compute": [[1.0, null], [2.5, 3.0]], "edges": [[0, 1]], "edge_bytes": [4.0], "bandwidth": [[null, 1e9], [5e8, null]],
"latency": [[0.0, 0.25], [0.5, 0.0]], "edge_tensor": [0], "cut": [[0.125, 0.0]], "param_bytes": [0.0, 8.0],
"memory": [null, 64.0]}
"""
"""As it was written before there were kinds, output shapes and keys."""

ARRAYS = ("compute", "edges", "edge_bytes", "edge_tensor", "bandwidth", "latency", "cut", "param_bytes", "memory")

costs = st.floats(0, 1e12, allow_subnormal=True)
sizes = st.one_of(st.none(), st.lists(st.integers(0, 2**40), max_size=5))


@st.composite
def problems(draw):
    ops, devices = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    compute = draw(arrays(np.float64, (ops, devices), elements=st.one_of(costs, st.just(np.inf))))
    compute[:, 0] = np.where(np.isinf(compute).all(axis=1), 1.0, compute[:, 0])
    pairs = draw(st.lists(st.tuples(st.integers(0, ops - 1), st.integers(0, ops - 1)), max_size=8))
    edges = [(min(pair), max(pair)) for pair in pairs if pair[0] != pair[1]]
    moved = {u: draw(costs) for u, _ in edges}
    texts = st.one_of(st.none(), st.lists(st.sampled_from(["", "Convolution", "größer"]), min_size=ops, max_size=ops))
    return Problem.from_arrays(
        compute,
        np.array(edges, np.int32).reshape(-1, 2),
        [moved[u] for u, _ in edges],
        draw(arrays(np.float64, (devices, devices), elements=st.floats(1e-3, 1e12))),
        draw(arrays(np.float64, (devices, devices), elements=costs)),
        edge_tensor=draw(st.sampled_from([None, [10 * u for u, _ in edges]])),
        cut=draw(arrays(np.float64, (len(edges), devices), elements=costs)),
        param_bytes=draw(arrays(np.float64, ops, elements=costs)),
        memory=draw(arrays(np.float64, devices, elements=st.one_of(costs, st.just(np.inf)))),
        graph_hash=draw(st.sampled_from(["", "77d0"])),
        kinds=draw(texts),
        output_shapes=draw(st.one_of(st.none(), st.lists(sizes, min_size=ops, max_size=ops))),
    )


def small(**changes):
    arguments = {
        "compute": [[1.0, np.inf], [2.5, 3.0]],
        "edges": [(0, 1)],
        "edge_bytes": [4.0],
        "bandwidth": np.full((2, 2), 1e9),
        "latency": np.zeros((2, 2)),
    }
    return Problem.from_arrays(**{**arguments, **changes})


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("problems") / "problem.json"


@given(problem=problems())
def test_a_problem_is_read_as_it_was_written(problem, file):
    problem.to_json(file, sync=False)
    again = Problem.from_json(file)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(again, name), getattr(problem, name))
    for name in ("op_names", "device_names", "graph_hash", "kinds", "output_shapes", "key"):
        assert getattr(again, name) == getattr(problem, name)


def test_files_of_version_1_and_without_a_version_are_read(tmp_path):
    path = tmp_path / "old.json"
    for text in (VERSION_1, VERSION_1.replace('"version": 1, ', "")):
        path.write_text(text)
        found = Problem.from_json(path)
        assert (found.op_names, found.device_names, found.graph_hash) == (("a", "b"), ("x", "y"), "77d0")
        np.testing.assert_array_equal(found.compute, [[1.0, np.inf], [2.5, 3.0]])
        np.testing.assert_array_equal(found.latency, [[0.0, 0.25], [0.5, 0.0]])
        np.testing.assert_array_equal(found.memory, [np.inf, 64.0])
        assert (found.kinds, found.output_shapes) == (("", ""), (None, None))


def test_a_file_of_a_version_to_come_is_an_error_that_says_which_are_read(tmp_path):
    path = tmp_path / "new.json"
    path.write_text(VERSION_1.replace('"version": 1', '"version": 3'))
    with pytest.raises(FileError, match="has version 3; this placeit reads version 1 and 2 of placeit-problem"):
        Problem.from_json(path)


def test_a_file_says_which_version_it_has_and_carries_kinds_shapes_and_key(tmp_path):
    problem = small(kinds=("Convolution", "Result"), output_shapes=((1, 8, 4, 4), None))
    problem.to_json(tmp_path / "problem.json")
    data = json.loads((tmp_path / "problem.json").read_text())
    assert (data["version"], data["key"]) == (2, problem.key)
    assert (data["kinds"], data["output_shapes"]) == (["Convolution", "Result"], [[1, 8, 4, 4], None])


def test_conflicts_of_devices_are_carried_by_files_of_problems_that_have_some(tmp_path):
    problem = small(conflicts=[[False, True], [True, False]])
    problem.to_json(tmp_path / "problem.json")
    again = Problem.from_json(tmp_path / "problem.json")
    np.testing.assert_array_equal(again.conflicts, [[False, True], [True, False]])
    assert again.key == problem.key
    small().to_json(tmp_path / "problem.json")
    assert "conflicts" not in json.loads((tmp_path / "problem.json").read_text())
    assert not Problem.from_json(tmp_path / "problem.json").conflicts.any()


def test_costs_that_do_not_belong_to_the_key_of_their_file_are_an_error(tmp_path):
    path = tmp_path / "problem.json"
    small().to_json(path)
    data = json.loads(path.read_text())
    data["compute"][0][0] = 2.0
    path.write_text(json.dumps(data))
    with pytest.raises(ProblemError, match=r"its costs are not those that its key was made of .* delete its 'key'"):
        Problem.from_json(path)
    del data["key"]
    path.write_text(json.dumps(data))
    assert Problem.from_json(path).compute[0, 0] == 2.0


@pytest.mark.parametrize(
    "changes",
    [
        {"compute": [[1.0, np.inf], [2.5, np.nextafter(3.0, 4.0)]]},
        {"compute": [[1.0, 9.0], [2.5, 3.0]]},
        {"edges": np.zeros((0, 2), np.int32), "edge_bytes": []},
        {"edge_bytes": [5.0]},
        {"bandwidth": [[1, 1e9], [2e9, 1]]},
        {"latency": [[0, 0], [1e-6, 0]]},
        {"cut": [[1e-6, 0]]},
        {"param_bytes": [0, 1]},
        {"memory": [np.inf, 1e9]},
        {"conflicts": [[False, True], [True, False]]},
    ],
)
def test_whatever_decides_costs_changes_the_key(changes):
    assert small(**changes).key != small().key


def test_edges_in_another_order_and_tensors_that_are_not_shared_change_the_key():
    def fan(edges, tensors):
        two = {"edges": edges, "edge_bytes": [4.0, 4.0], "edge_tensor": tensors}
        return small(compute=[[1.0, 2.0]] * 3, **two)

    shared = fan([(0, 1), (0, 2)], [0, 0])
    assert shared.key == fan([(0, 1), (0, 2)], [7, 7]).key
    assert shared.key != fan([(0, 1), (0, 2)], [0, 1]).key
    assert fan([(0, 1), (0, 2)], [0, 1 << 32]).key == fan([(0, 1), (0, 2)], [0, 1]).key
    assert shared.key != fan([(0, 2), (0, 1)], [0, 0]).key


def test_what_ops_and_devices_are_called_and_which_zero_it_is_does_not_change_the_key():
    names = {"op_names": ["p", "q"], "device_names": ["x", "y"], "graph_hash": "77d0"}
    about = {"kinds": ["Relu", ""], "output_shapes": [(3,), None]}
    assert small(**names, **about, cut=[[-0.0, 0.0]]).key == small().key


def test_another_process_finds_the_same_key():
    code = (
        "import numpy as np\nfrom placeit.core.problem import Problem\n"
        "print(Problem.from_arrays([[1.0, np.inf], [2.5, 3.0]], [(0, 1)], [4.0], np.full((2, 2), 1e9), np.zeros((2, 2))).key)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == small().key == "c4687e9d90e91306260f3d8275e76eb9"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kinds": ["Relu"]}, "'kinds' has 1 entries where 2 are expected"),
        ({"kinds": ["Relu", 3]}, "The kind of op 'op1' is 3; a kind is a name"),
        ({"output_shapes": [None]}, "'output_shapes' has 1 entries where 2 are expected"),
        (
            {"output_shapes": [(1,), (2, -1)]},
            r"The output of op 'op1' has the shape \(2, -1\); a shape is a list of whole numbers",
        ),
        ({"output_shapes": [(1.5,), None]}, r"The output of op 'op0' has the shape \(1.5,\)"),
        ({"output_shapes": [(True,), None]}, r"The output of op 'op0' has the shape \(True,\)"),
        ({"output_shapes": ["ab", None]}, "The output of op 'op0' has the shape 'ab'"),
        ({"output_shapes": [3, None]}, "The output of op 'op0' has the shape 3"),
        ({"output_shapes": "ab"}, "'output_shapes' is not a list of shapes"),
        ({"compute": [[1.0, np.nan], [2.5, 3.0]]}, r"'compute' contains NaN at \(0, 1\)"),
        ({"edge_bytes": [-4.0]}, r"'edge_bytes' is negative at \(0,\): -4.0"),
        ({"param_bytes": [0.0, -1.0]}, "'param_bytes' is negative"),
        ({"compute": [[1.0, 1e200], [2.5, np.inf]]}, r"'compute' holds 1e\+200; finite numbers are at most 1e\+100"),
        ({"bandwidth": [[1.0, 1e-300], [1.0, 1.0]]}, "has bandwidth 1e-300; it must be positive"),
        ({"op_names": ["a"]}, "'op_names' has 1 entries where 2 are expected"),
        ({"op_names": ["a", "a"]}, "'op_names' contains a name twice"),
        ({"edges": [(0, 1)], "edge_tensor": [0.5]}, "expected integers"),
        ({"conflicts": [[False, True, False]] * 3}, r"'conflicts' has shape \(3, 3\) .* of shape \(2, 2\)"),
        ({"conflicts": [[0, 1], [1, 0]]}, "'conflicts' has .* type int64; expected true or false"),
        ({"conflicts": [[False, True], [True, True]]}, "'conflicts' says that dev1 conflicts with itself"),
        ({"conflicts": [[False, True], [False, False]]}, "'conflicts' says that dev0 conflicts with dev1, but not the other"),
        ({"edges": [(0, 2)]}, r"'edges' refers to ops 0\.\.2; the problem has ops 0\.\.1"),
    ],
)
def test_what_is_no_problem_is_an_error_that_says_what_is_wrong(changes, message):
    with pytest.raises(ProblemError, match=message):
        small(**changes)


def test_an_op_that_can_run_nowhere_is_an_error_that_names_it():
    with pytest.raises(InfeasibleError, match="Op 'op0' can run on none of the devices dev0, dev1"):
        small(compute=[[np.inf, np.inf], [1.0, 1.0]])


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("kinds", "Relu", "'kinds' is not a list of names"),
        ("kinds", ["Relu", None], "'kinds' is not a list of names"),
        ("kinds", ["Relu"], "'kinds' has 1 entries"),
        ("output_shapes", [[1, -2], None], "The output of op 'a' has the shape"),
        ("output_shapes", {"a": [1]}, "'output_shapes' is not a list of shapes"),
        ("key", ["77d0"], "its costs are not those that its key was made of"),
        ("colour", "red", "unknown key 'colour'; known keys: bandwidth, "),
    ],
)
def test_bad_fields_of_a_file_are_errors_that_name_the_file(field, value, message, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({**json.loads(VERSION_1), "version": 2, field: value}))
    with pytest.raises(ProblemError, match=rf"bad\.json: {message}"):
        Problem.from_json(Path(path))
