import os
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

from placeit.backends import files_of, load
from placeit.core.errors import FileError, ModelError
from placeit.session import Session

F, I64 = TensorProto.FLOAT, TensorProto.INT64


def refused(path, *parts, error=ModelError, **options):
    """Check that loading fails with one paragraph that names the file and says all of ``parts``."""
    with pytest.raises(error) as caught:
        load(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert str(path) in message
    for part in parts:
        assert part in message
    for noise in ("Exception from", "Check '", ".cpp", ".hpp"):
        assert noise not in message


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_file_that_is_not_there(tmp_path, suffix):
    refused(tmp_path / f"model{suffix}", "No such file", error=FileError)


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_folder(tmp_path, suffix):
    (tmp_path / f"model{suffix}").mkdir()
    refused(tmp_path / f"model{suffix}", "Is a directory", error=FileError)


@pytest.mark.parametrize("suffix", [".onnx", ".xml", ".pt2"])
def test_a_pipe_and_a_device_without_an_end(tmp_path, suffix):
    os.mkfifo(tmp_path / f"pipe{suffix}")
    (tmp_path / f"endless{suffix}").symlink_to("/dev/zero")
    for name in ("pipe", "endless"):
        refused(tmp_path / f"{name}{suffix}", "not a regular file", error=FileError)


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
@pytest.mark.parametrize("content", [b"", b"this is no model", bytes(range(256)) * 40, b"<?xml version='1.0'?><a/>"])
def test_a_file_that_holds_no_model(tmp_path, suffix, content):
    path = tmp_path / f"model{suffix}"
    path.write_bytes(content)
    path.with_suffix(".bin").write_bytes(b"")
    refused(path)


def test_an_onnx_file_that_is_cut_off(tmp_path):
    weights = numpy_helper.from_array(np.ones(300, np.float32), "w")
    value, output = (helper.make_tensor_value_info(name, F, [300]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [value], [output], [weights])
    whole = helper.make_model(graph).SerializeToString()
    for left in (len(whole) // 2, len(whole) - 20):
        (tmp_path / "model.onnx").write_bytes(whole[:left])
        refused(tmp_path / "model.onnx", "damaged or cut off: compare its size with the original")


@pytest.mark.parametrize("inputs", [[], ["x"]])
def test_an_onnx_file_without_outputs(tmp_path, inputs):
    path, values = tmp_path / "model.onnx", [helper.make_tensor_value_info(name, F, [300]) for name in inputs]
    path.write_bytes(helper.make_model(helper.make_graph([], "g", values, [])).SerializeToString())
    refused(path, f"{path} has no outputs: there is nothing to compute")


def test_what_is_no_onnx_model_is_not_tried_as_other_formats(tmp_path, capfd):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"\x08\x03\x12\x07pytorchb\x08")  # TensorFlow would complain on standard error
    refused(path, "it is not an ONNX model, or damaged")
    assert capfd.readouterr() == ("", "")


def test_a_name_that_is_not_utf_8(tmp_path):
    value = helper.make_tensor_value_info("input", F, [2])
    graph = helper.make_graph(
        [helper.make_node("Relu", ["input"], ["y"])], "g", [value], [helper.make_tensor_value_info("y", F, [2])]
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString().replace(b"input", b"inpu\xff"))
    refused(path, "not UTF-8")


def test_a_sequence_of_tensors_that_do_not_fit_together(tmp_path):
    nodes = [
        helper.make_node("SequenceConstruct", ["x", "z"], ["sequence"]),
        helper.make_node("ConcatFromSequence", ["sequence"], ["y"], axis=0),
    ]
    inputs = [helper.make_tensor_value_info(name, F, shape) for name, shape in (("x", [2, 3, 4]), ("z", [2, 1, 4]))]
    graph = helper.make_graph(nodes, "g", inputs, [helper.make_tensor_value_info("y", F, None)])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "model.onnx")
    refused(tmp_path / "model.onnx", "Argument shapes are inconsistent")


def test_a_pytorch_archive_is_recognised_and_not_unpickled(tmp_path):
    path = tmp_path / "model.onnx"
    torch.save({"weight": torch.ones(3)}, path)
    refused(path, "zip archive", "export it to ONNX")


@pytest.mark.parametrize("keep", [0.1, 0.5, 0.99])
def test_a_truncated_onnx_file(packaged, tmp_path, keep):
    content = packaged("onnx/backend/test/data/light/light_squeezenet.onnx").read_bytes()
    path = tmp_path / "model.onnx"
    path.write_bytes(content[: int(len(content) * keep)])
    refused(path)


def test_a_truncated_ir(ir_file):
    path = ir_file()
    path.write_text(path.read_text()[:-300])
    refused(path)


def test_an_ir_without_its_weights(ir_file):
    path = ir_file()
    path.with_suffix(".bin").unlink()
    refused(path, str(path.with_suffix(".bin")), "weights", error=FileError)


@pytest.mark.parametrize("change", [-4, 4])
def test_weights_of_another_size(ir_file, change):
    path = ir_file()
    weights = path.with_suffix(".bin").read_bytes()
    path.with_suffix(".bin").write_bytes((weights + b"1234")[: len(weights) + change])
    refused(path, f"has {len(weights) + change} bytes", f"expects {len(weights)}", "belongs to another model")


@pytest.mark.skipif(os.geteuid() == 0, reason="needs a user for whom a file can be unreadable, and this one is root")
def test_a_file_that_may_not_be_read(ir_file):
    path = ir_file()
    path.chmod(0)
    refused(path, "Permission denied", error=FileError)


def test_an_op_that_openvino_does_not_know(onnx_file):
    node = helper.make_node("Frobnicate", ["x"], ["y"], domain="com.acme")
    refused(onnx_file([node], [("x", F, [1])], [("y", F, [1])], domain="com.acme"), "com.acme.Frobnicate")


@pytest.mark.parametrize("dtype", ["strings", "complex64"])
def test_an_unknown_op_is_named_although_openvino_fails_at_its_constant(onnx_file, dtype):
    given = {"value_strings": ["a"]} if dtype == "strings" else {"value": numpy_helper.from_array(np.ones(1, dtype))}
    nodes = [
        helper.make_node("Constant", [], ["c"], name="c", **given),
        helper.make_node("Frobnicate", ["x", "c"], ["y"], domain="com.acme"),
    ]
    path = onnx_file(nodes, [("x", F, [1])], [("y", F, [1])], domain="com.acme")
    refused(path, f"Cannot read a model from {path}: OpenVINO does not know the ops com.acme.Frobnicate. Nor does ONNX Runtime")


@pytest.mark.parametrize(
    ("kind", "inputs", "domain"),
    [("Conv", ["x"], ""), ("Clip", [""], ""), ("Max", [], ""), ("Pad", ["x"], ""), ("Pad", ["x"], "com.microsoft")],
)
def test_an_op_without_the_inputs_that_it_needs(onnx_file, kind, inputs, domain):
    node = helper.make_node(kind, inputs, ["y"], domain=domain)  # OpenVINO's reader would end the process
    refused(onnx_file([node], [("x", F, [1, 3, 8, 8])], [("y", F, None)]), f"'y' ({kind})", "needs")


def test_an_op_inside_another_without_the_inputs_that_it_needs(onnx_file):
    ends = [helper.make_tensor_value_info("z", F, None)]
    body = helper.make_graph([helper.make_node("Conv", ["x"], ["z"])], "body", [], ends)
    node = helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    path = onnx_file([node], [("x", F, [1, 3, 8, 8]), ("c", TensorProto.BOOL, [])], [("y", F, None)])
    refused(path, "'z' (Conv)", "needs")


def test_a_version_of_onnx_that_cannot_be(onnx_file):
    path = onnx_file([helper.make_node("Relu", ["x"], ["y"])], [("x", F, [3])], [("y", F, [3])])
    model = onnx.load(path)
    model.opset_import[0].version = 1 << 40  # OpenVINO's reader would count up to it
    onnx.save(model, path)
    refused(path, "version 1099511627776")


def test_versions_of_the_operators_of_others_are_no_versions_of_onnx(onnx_file):
    node = helper.make_node("Slice", ["x"], ["y"], starts=[0], ends=[2], axes=[0])  # it has more inputs from version 10 on
    path = onnx_file([node], [("x", F, [3])], [("y", F, [2])])
    model = onnx.load(path)
    model.opset_import[0].version = 9
    model.opset_import.extend([helper.make_opsetid("com.ms.internal.nhwc", 22), helper.make_opsetid("com.acme", 2026)])
    onnx.save(model, path)
    assert [spec.shape for spec in load(path).outputs] == [(2,)]


def test_a_damaged_version_of_operators(onnx_file):
    path = onnx_file([helper.make_node("Relu", ["x"], ["y"])], [("x", F, [3])], [("y", F, [3])])
    good = helper.make_opsetid("", 17).SerializeToString()
    path.write_bytes(path.read_bytes().replace(good, good[:-1] + b"\xff"))
    refused(path)


def test_shapes_that_do_not_fit_name_the_op(onnx_file):
    node = helper.make_node("MatMul", ["a", "b"], ["product"])
    path = onnx_file([node], [("a", F, [1, 4]), ("b", F, [5, 4])], [("product", F, None)])
    refused(path, "op 'product' (MatMul)", "dimension")


def test_a_tensor_that_nothing_produces_before_it_is_read(onnx_file):
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    refused(onnx_file(nodes, [("x", F, [3])], [("b", F, [3])]), "'b'", "before any op produces it")


def test_strings(onnx_file):
    node = helper.make_node("Identity", ["x"], ["y"])
    refused(onnx_file([node], [("x", TensorProto.STRING, [3])], [("y", TensorProto.STRING, [3])]), "type string")


def test_inputs_of_a_type_that_numpy_does_not_have(onnx_file):
    node = helper.make_node("Relu", ["x"], ["y"])
    refused(onnx_file([node], [("x", TensorProto.BFLOAT16, [3])], [("y", TensorProto.BFLOAT16, [3])]), "'x'", "bfloat16")


def test_a_size_that_has_no_bound_is_known_to_onnx_runtime_when_it_is_computed(onnx_file):
    node = helper.make_node("Range", ["a", "b", "c"], ["y"], name="counter")
    path = onnx_file([node], [(name, I64, []) for name in "abc"], [("y", I64, None)])
    with Session(load(path), "CPU", cache=None) as session:
        assert [device.kind for device in session.cluster.devices] == ["ort"]


def test_weights_kept_in_a_file_that_is_gone(onnx_file, tmp_path):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = np.ones((64, 64), np.float32)
    path = onnx_file([node], [("x", F, [1, 64])], [("y", F, [1, 64])], initializers=(("w", weights),))
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="weights.data", size_threshold=0)
    assert load(path).statistics()["parameters"] == 64 * 64
    (tmp_path / "weights.data").unlink()
    refused(path, "weights.data", "No such file", error=FileError)


# options


@pytest.mark.parametrize("options", [{"input_shapes": {"x": [10**20, 3]}}, {"input_shapes": {"x": [0, 3]}}, {"batch": 10**20}])
def test_sizes_that_no_tensor_can_have(onnx_file, options):
    path = onnx_file([helper.make_node("Relu", ["x"], ["y"])], [("x", F, ["N", 3])], [("y", F, None)])
    refused(path, "a size that is not from 1 to" if "input_shapes" in options else "is not possible", **options)


def test_a_constant_that_is_too_large_to_compute(onnx_file):
    nodes = [helper.make_node("ConstantOfShape", ["s"], ["c"]), helper.make_node("MatMul", ["c", "x"], ["y"])]
    shape = ("s", np.array([40_000_000, 40_000_000], np.int64))
    refused(
        onnx_file(nodes, [("x", F, [40_000_000, 1])], [("y", F, None)], initializers=[shape]), "more memory than is available"
    )


def test_an_open_shape_says_which_option_resolves_it(packaged):
    refused(
        packaged("rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"),
        "input 'x'",
        "[?,3,?,?]",
        "--input-shape x:1,3,",
    )
    refused(packaged("magika/models/standard_v3_3/model.onnx"), "--input-shape bytes:1,2048` (or --batch 1)")
    recurrent = packaged("silero_vad/data/silero_vad_16k_op15.onnx")
    refused(recurrent, "can be read: `--input-shape input:1,512 --input-shape state:2,1,128`.")
    assert len(load(recurrent, input_shapes={"input": [1, 512], "state": [2, 1, 128]}).graph) > 10


def test_where_no_open_size_that_was_tried_fits_the_error_says_why(onnx_file):
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = np.ones((7, 3), np.float32)
    path = onnx_file([node], [("x", F, ["N", "M"])], [("y", F, None)], initializers=[("w", weights)])
    refused(path, "none of those that were tried: `--input-shape x:1,128` or ", "With the first of them: ", "MatMul")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({"batch": 4}, "no input takes a batch of 4 (inputs: 'image' [1,3,8,8])"),
        ({"batch": 0}, "a batch of 0 is not possible"),
        ({"input_shapes": {"picture": [1]}}, "no input 'picture', for which a shape is given; its inputs are image"),
        ({"input_shapes": {"image": [3, 8, 8]}}, "has 3 dimensions where the model has [1,3,8,8]"),
        ({"input_shapes": {"image": [1, 3, 8, -8]}}, "contains a size that is not from 1 to"),
        ({"input_shapes": {"image": [1, 4, 8, 8]}}, ""),
    ],
)
def test_options_that_do_not_fit_the_model(ir_file, options, part):
    refused(ir_file(), part, **options)


def with_data(folder: Path, location: str = "model.onnx_data") -> Path:
    """Write a model whose weights are in a separate file."""
    weights = numpy_helper.from_array(np.ones((64, 64), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 64]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "data", ends[:1], ends[1:], [weights])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder.mkdir(parents=True)
    onnx.save(model, folder / "model.onnx", save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    if location != "model.onnx_data":
        raw = onnx.load(folder / "model.onnx", load_external_data=False)
        raw.graph.initializer[0].external_data[0].value = location
        onnx.save(raw, folder / "model.onnx")
    return folder / "model.onnx"


def test_weights_in_a_file_beside_an_onnx_model(tmp_path: Path) -> None:
    path = with_data(tmp_path / "here")
    assert load(path).statistics()["parameters"] == 64 * 64
    assert files_of(path) == [path, tmp_path / "here" / "model.onnx_data"]
    path.with_name("model.onnx_data").unlink()
    with pytest.raises(FileError, match=r"model\.onnx_data, which holds weights of .*model\.onnx: No such file or directory"):
        load(path)


def test_a_name_of_a_weight_file_that_no_file_can_have(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"which holds weights of .*File name too long"):
        load(with_data(tmp_path / "here", "x" * 1000))


def test_weights_beside_the_file_that_a_model_is_a_link_to(tmp_path: Path) -> None:
    path = with_data(tmp_path / "here")
    (tmp_path / "model.onnx").symlink_to(path)
    refused(tmp_path / "model.onnx", "No such file", "It is beside the file that model.onnx is a link to", error=FileError)
    (tmp_path / "model.onnx_data").hardlink_to(path.with_name("model.onnx_data"))
    assert load(tmp_path / "model.onnx").graph.hash == load(path).graph.hash


@pytest.mark.parametrize("location", ["../secret", "/etc/hostname"])
def test_weights_outside_of_the_folder_of_the_model_are_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(64 * 64 * 4))
    path = with_data(tmp_path / "here", location)
    with pytest.raises(ModelError, match="outside of its folder"):
        load(path)
