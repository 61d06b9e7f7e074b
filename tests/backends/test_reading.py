"""Models are read as OpenVINO's own tools read them, and their task graph is a view of what was read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import openvino
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_dynamic, quantize_static

from placeit import Placement, Session
from placeit.backends import load
from placeit.backends.base import Model
from placeit.backends.openvino import reader
from placeit.backends.openvino.graph import nodes_of
from placeit.core.errors import ModelError, UsageError
from placeit.devices.openvino import openvino_core
from placeit.planning.coarsen import coarsen

F, I64 = TensorProto.FLOAT, TensorProto.INT64
WIDTH, STEPS = 96, 8


def weight(*shape: int, seed: int = 0) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)


def write(path: Path, nodes: list[onnx.NodeProto], arrays: dict[str, NDArray[np.generic]], opset: int = 13) -> Path:
    """Write a model from x, float32[1, STEPS, WIDTH], to y."""
    ends = [helper.make_tensor_value_info(name, F, shape) for name, shape in (("x", [1, STEPS, WIDTH]), ("y", None))]
    initializers = [numpy_helper.from_array(array, name) for name, array in arrays.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], initializers)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8), path)
    return path


def transformer(path: Path, layers: int = 4) -> Path:
    """Layers that share all weights, with attention, GELU and normalization written in ops of ONNX, as exporters do."""
    nodes: list[onnx.NodeProto] = []
    arrays: dict[str, NDArray[np.generic]] = {
        **{name: weight(WIDTH, WIDTH, seed=i) for i, name in enumerate("qkvo")},
        "up": weight(WIDTH, 4 * WIDTH),
        "down": weight(4 * WIDTH, WIDTH),
        "bias": weight(4 * WIDTH),
        "one": np.float32(1),
        "half": np.float32(0.5),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "root2": np.float32(2**0.5),
        "root": np.float32((WIDTH // 4) ** 0.5),
        "heads": np.array([1, STEPS, 4, WIDTH // 4]),
        "flat": np.array([1, STEPS, WIDTH]),
    }

    def add(kind: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(kind, inputs, [f"{kind} {len(nodes)}"], **attributes))
        return f"{kind} {len(nodes) - 1}"

    def heads(value: str, name: str, order: list[int]) -> str:
        return add("Transpose", add("Reshape", add("MatMul", value, name), "heads"), perm=order)

    value = "x"
    for _ in range(layers):
        off = add("Sub", value, add("ReduceMean", value, axes=[-1]))
        variance = add("ReduceMean", add("Pow", off, "two"), axes=[-1])
        normal = add("Div", off, add("Sqrt", add("Add", variance, "eps")))
        query, key, held = (heads(normal, n, o) for n, o in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])))
        scores = add("Softmax", add("Div", add("MatMul", query, key), "root"), axis=-1)
        seen = add("Reshape", add("Transpose", add("MatMul", scores, held), perm=[0, 2, 1, 3]), "flat")
        value = add("Add", value, add("MatMul", seen, "o"))
        wide = add("Add", add("MatMul", value, "up"), "bias")
        bent = add("Mul", add("Mul", wide, add("Add", add("Erf", add("Div", wide, "root2")), "one")), "half")
        value = add("Add", value, add("MatMul", bent, "down"))
    nodes[-1].output[0] = "y"
    return write(path, nodes, arrays)


def recurrent(path: Path, kind: str) -> Path:
    gates, units = {"LSTM": 4, "GRU": 3}[kind], 32
    nodes = [
        helper.make_node("Transpose", ["x"], ["steps"], perm=[1, 0, 2]),
        helper.make_node(kind, ["steps", "w", "r", "b"], ["made", "last"], hidden_size=units, direction="bidirectional"),
        helper.make_node("Relu", ["made"], ["y"]),
    ]
    arrays = {"w": weight(2, gates * units, WIDTH), "r": weight(2, gates * units, units), "b": weight(2, 2 * gates * units)}
    return write(path, nodes, arrays)


class OneSample(CalibrationDataReader):
    def __init__(self) -> None:
        self._rest = [{"x": weight(1, STEPS, WIDTH)}]

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        return self._rest.pop() if self._rest else None


def quantised(path: Path, how: str) -> Path:
    source = transformer(path.with_suffix(".f32.onnx"), 1)
    if how == "dynamic":
        quantize_dynamic(source, path)
    else:
        quantize_static(source, path, OneSample(), quant_format=QuantFormat.QDQ, per_channel=True)
    return path


MODELS = {
    "shared": transformer,
    "LSTM": lambda path: recurrent(path, "LSTM"),
    "GRU": lambda path: recurrent(path, "GRU"),
    "QDQ": lambda path: quantised(path, "QDQ"),
    "dynamic": lambda path: quantised(path, "dynamic"),
}


def constant_bytes(*models: openvino.Model) -> int:
    """Bytes of all constants, those that lie in the same memory once."""
    found = {node.data.ctypes.data: node.get_byte_size() for model in models for node in nodes_of(model, "Constant")}
    return sum(found.values())


def kinds(model: openvino.Model) -> list[str]:
    """Kinds of all ops but constants, and sizes of tensors, which are constants once the inputs have theirs."""
    return sorted(kind for node in model.get_ops() if (kind := node.get_type_name()) not in ("Constant", "ShapeOf"))


def groups_of(model: Model) -> list[openvino.Model]:
    """Every group of a model cut out."""
    grouping, graph = coarsen(model.graph, keep_together=model.together), model.graph
    segments = []
    for group in range(len(grouping.groups)):
        ends = grouping.group_of[graph.edges] == group
        enter = np.unique(graph.edge_tensor[ends[:, 1] & ~ends[:, 0]]).tolist()
        leave = np.unique(graph.edge_tensor[ends[:, 0] & ~ends[:, 1]]).tolist()
        segments.append(model.segment("openvino", np.flatnonzero(grouping.group_of == group).tolist(), enter, leave))
    return segments


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_ops_are_those_that_openvino_reads_by_itself(name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / "model.onnx")
    model, plain = load(path), openvino_core().read_model(path)
    assert kinds(model.ov_model) == kinds(plain)
    assert constant_bytes(model.ov_model) <= 1.01 * constant_bytes(plain)
    assert model.statistics()["parameter_bytes"] == pytest.approx(path.stat().st_size, rel=0.2)


@pytest.mark.parametrize("name", MODELS)
def test_segments_lie_in_the_memory_of_the_whole_models_weights(name: str, tmp_path: Path) -> None:
    model = load(MODELS[name](tmp_path / "model.onnx"))
    assert constant_bytes(model.ov_model, *groups_of(model)) <= 1.05 * constant_bytes(model.ov_model)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.two_cores
def test_groups_on_alternating_devices_give_what_onnx_runtime_gives(name: str, tmp_path: Path) -> None:
    path = MODELS[name](tmp_path / "model.onnx")
    inputs = {"x": weight(1, STEPS, WIDTH, seed=5)}
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], inputs)[0]
    with Session(path, "CPU@0,CPU@1", cache=None) as session:
        graph, group = session.model.graph, session.grouping.group_of
        placement = Placement(graph.names, (group % 2).astype(np.int32), ("CPU@0", "CPU@1"), graph.hash, group)
        with session.executor(session.plan_of(placement)) as executor:
            made = executor.run(inputs)["y"]
    tolerance = 0.05 if name in ("QDQ", "dynamic") else 1e-4  # the runtimes round differently
    assert np.abs(made - expected).max() <= tolerance * np.abs(expected).max()


def test_a_task_graph_has_one_op_for_what_openvino_fuses(tmp_path: Path) -> None:
    model = load(transformer(tmp_path / "model.onnx"))
    found = model.graph.kinds
    assert (found.count("Gelu"), found.count("MVN"), found.count("ScaledDotProductAttention")) == (4, 4, 4)
    assert not {"Erf", "Softmax", "Divide", "Power", "ReduceMean"} & set(found)
    assert {"Erf", "Softmax"} <= set(kinds(model.ov_model))


@pytest.mark.parametrize("kind", ["LSTM", "GRU"])
def test_a_recurrent_layer_stays_one_op(kind: str, tmp_path: Path) -> None:
    model = load(recurrent(tmp_path / "model.onnx", kind))
    for found in (model.graph.kinds, kinds(model.ov_model)):
        assert f"{kind}Sequence" in found
        assert not {"TensorIterator", "Loop", "ReverseSequence"} & set(found)


# parts of ONNX that OpenVINO's reader lacks


def simple(path: Path, nodes: list[onnx.NodeProto], shape: list[int | str], **more: object) -> Path:
    """Write a model from x to y."""
    functions = more.pop("functions", [])
    ends = [helper.make_tensor_value_info(name, F, sizes) for name, sizes in (("x", shape), ("y", None))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], **more)
    domains = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=8, functions=functions), path)
    return path


def outputs_agree(path: Path) -> bool:
    model = load(path)
    inputs = model.random_inputs()
    expected = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(["y"], dict(inputs))[0]
    return bool(np.allclose(model.reference(None, "f32")(inputs)["y"], expected, rtol=1e-5))


def test_local_functions_are_inlined(tmp_path: Path) -> None:
    steps = [helper.make_node("Add", ["a", "a"], ["t"]), helper.make_node("Tanh", ["t"], ["b"])]
    function = helper.make_function("mine", "Twice", ["a"], ["b"], steps, [helper.make_opsetid("", 17)])
    nodes = [helper.make_node("Twice", ends[:1], ends[1:], domain="mine") for ends in (["x", "h"], ["h", "y"])]
    path = simple(tmp_path / "model.onnx", nodes, [2, 3], functions=[function])
    assert load(path).graph.kinds.count("Tanh") == 2
    assert outputs_agree(path)
    with Session(path, "ort:CPU@0", cache=None) as session:
        assert "onnx" in session.model.formats
        assert len(session.model.together) == 0


@pytest.mark.parametrize("places", [np.array([0, 5]), np.array([[0, 0], [1, 2]])])
def test_sparse_initializers_are_read(places: NDArray[np.int64], tmp_path: Path) -> None:
    values = numpy_helper.from_array(np.array([1.5, 2], np.float32), "w")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(places, "w places"), [2, 3])
    path = simple(tmp_path / "model.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [2, 3], sparse_initializer=[sparse])
    assert outputs_agree(path)


@pytest.mark.parametrize("folder", ["plain", "v1,2", 'quo\'te "s"', "\N{GRINNING FACE}", "line\nbreak"])
@pytest.mark.parametrize("name", ["a,b.onnx", "m.onnx,new.onnx", "it's.onnx"])
def test_a_file_of_any_name_is_the_one_that_is_read(folder: str, name: str, tmp_path: Path) -> None:
    (tmp_path / folder).mkdir()
    for other in (tmp_path / "v1", tmp_path / folder / "a", tmp_path / folder / "m.onnx"):
        simple(other, [helper.make_node("Relu", ["x"], ["y"])], [2, 3])
    path = simple(tmp_path / folder / name, [helper.make_node("Tanh", ["x"], ["y"])], [2, 3])
    assert "Tanh" in load(path).graph.kinds
    assert outputs_agree(path)


@pytest.mark.parametrize("name", ["twin", "a,b", "quo'te\"", "\N{GRINNING FACE}", "line\nbreak", "x", "y", "placeit 0"])
@pytest.mark.parametrize("devices", ["CPU@0", "ort:CPU@0"])
def test_ops_and_tensors_may_have_any_names(name: str, devices: str, tmp_path: Path) -> None:
    weights = numpy_helper.from_array(weight(4, 4), f"{name} weights")
    nodes = [
        helper.make_node("MatMul", ["x", f"{name} weights"], [f"{name} 1"], name=name),
        helper.make_node("Relu", [f"{name} 1"], [f"{name} 2,3"], name=name),
        helper.make_node("MatMul", [f"{name} 2,3", f"{name} weights"], ["y"], name=name),
    ]
    path = simple(tmp_path / "model.onnx", nodes, [2, 4], initializer=[weights])
    with Session(path, devices, cache=None) as session:
        inputs = session.model.random_inputs()
        expected = np.maximum(inputs["x"] @ weight(4, 4), 0) @ weight(4, 4)
        np.testing.assert_allclose(session.model.reference(None, "f32")(inputs)["y"], expected, rtol=1e-4, atol=1e-5)
        assert len(set(session.model.graph.names)) == len(session.model.graph)
        session.profile()
        assert min(session.costs.core.min(axis=1)) >= 0
        times = session.model.view.ops_named(",".join(session.model.view.op_of))
        assert set(times) == set(session.model.graph.names)


# sizes


def test_the_inputs_that_a_model_is_to_run_on_give_its_open_sizes(tmp_path: Path) -> None:
    path = simple(tmp_path / "model.onnx", [helper.make_node("Tanh", ["x"], ["y"])], ["n", "m"])
    with Session(path, "CPU@0", inputs={"x": np.ones((4, 7), np.float32)}, cache=None) as session:
        assert session.model.inputs[0].shape == (4, 7)
    assert load(path, input_shapes={"x": [2, 3]}, sample_shapes={"x": [4, 7]}).inputs[0].shape == (2, 3)
    with pytest.raises(UsageError, match=r"'x' has the shape \[4\]; the model expects \[\?,\?\]"):
        load(path, sample_shapes={"x": [4]})


def test_no_sizes_are_suggested_with_which_a_model_cannot_be_placed(tmp_path: Path) -> None:
    limits = [numpy_helper.from_array(np.array(i, np.int64), name) for i, name in enumerate(("0", "1"))]
    nodes = [
        helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
        helper.make_node("Cast", ["sum"], ["end"], to=I64),
        helper.make_node("Range", ["0", "end", "1"], ["steps"]),  # as long as the data say
        helper.make_node("Cast", ["steps"], ["y"], to=F),
    ]
    path = simple(tmp_path / "model.onnx", nodes, ["n", 3], initializer=limits)
    with pytest.raises(ModelError, match=r"none of those that were tried.*depends on the data") as caught:
        reader.load(path)
    assert "With these" not in str(caught.value)


def test_ops_that_openvino_does_not_know_are_refused_whatever_the_sizes(tmp_path: Path) -> None:
    path = simple(
        tmp_path / "model.onnx", [helper.make_node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml")], ["n", 3]
    )
    with pytest.raises(ModelError, match=r"OpenVINO does not know .*ai\.onnx\.ml\.TreeEnsembleRegressor") as caught:
        reader.load(path)
    assert "tried" not in str(caught.value)


def test_shapes_that_do_not_fit_name_the_op(tmp_path: Path) -> None:
    other = numpy_helper.from_array(weight(4), "w")
    nodes = [helper.make_node("Add", ["x", "w"], ["t"]), helper.make_node("Relu", ["t"], ["y"])]
    path = simple(tmp_path / "model.onnx", nodes, [2, 3], initializer=[other])
    with pytest.raises(ModelError, match=r"op 't' \(Add\)"):
        load(path)
    ops = openvino.opset13
    value = ops.parameter([-1, 3], np.float32, name="x")
    wrong = ops.add(value, ops.reshape(ops.relu(value), ops.constant(np.array([2, 3])), False), name="sum")
    openvino.save_model(openvino.Model([wrong], [value], "m"), tmp_path / "model.xml", compress_to_fp16=False)
    with pytest.raises(ModelError, match=r"op 'Reshape_\d+' \(Reshape\)|op '.*' \("):
        load(tmp_path / "model.xml", batch=3)
