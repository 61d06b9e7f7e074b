"""ONNX models with weights in separate files, which are never copied into a serialised model."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from placeit.backends import load
from placeit.backends.onnx.model import OnnxFileModel
from placeit.backends.onnx.segments import with_onnx
from placeit.backends.openvino import reader
from placeit.backends.openvino.model import OpenVinoModel
from placeit.core.errors import FileError, ModelError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.session import Session

WIDTH, LAYERS = 160, 2  # a weight of 100 KiB
X = {"x": np.random.default_rng(0).standard_normal((1, WIDTH)).astype(np.float32)}


def saved(folder: Path, *, function: bool = False, foreign: bool = False) -> Path:
    """Save a chain of products; the weights, and shapes that are constants, are in a file in a folder beside the model."""
    rng, nodes, weights, value = np.random.default_rng(0), [], {"shape": np.array([1, WIDTH])}, "x"
    for layer in range(LAYERS):
        weights[f"w{layer}"] = rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / WIDTH**0.5
        nodes += [
            helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]),
            helper.make_node("Bend" if function else "Tanh", [f"m{layer}"], [f"t{layer}"], domain="own" if function else ""),
            helper.make_node("Reshape", [f"t{layer}", "shape"], [f"r{layer}"]),
        ]
        value = f"r{layer}"
    if foreign:
        nodes.append(helper.make_node("Normalizer", [value], ["n"], domain="ai.onnx.ml", norm="L2"))
    nodes[-1].output[0] = "y"
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, WIDTH]) for name in "xy"]
    initializers = [onnx.numpy_helper.from_array(value, name) for name, value in weights.items()]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 1), helper.make_opsetid("own", 1)]
    bend = helper.make_function("own", "Bend", ["a"], ["b"], [helper.make_node("Tanh", ["a"], ["b"])], opsets[:1])
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:], initializers)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, functions=[bend] if function else [])
    (folder / "weights").mkdir()
    path = folder / "model.onnx"
    onnx.save(model, path, save_as_external_data=True, location="weights/all.data", size_threshold=0)
    return path


def expected(path: Path) -> np.ndarray:
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in onnx.load(path).graph.initializer}
    value = X["x"]
    for layer in range(LAYERS):
        value = np.tanh(value @ weights[f"w{layer}"])
    return value


def ran(session: Session, devices: list[int] | None = None) -> np.ndarray:
    """Run a model on a device, or each half of its ops on one."""
    graph = session.model.graph
    half = (session.grouping.group_of >= (len(session.grouping.groups) + 1) // 2).astype(np.int32)
    of = half if devices else np.zeros(len(graph), np.int32)
    placement = Placement(graph.names, np.take(devices or [0], of), session.cluster.names, graph.hash, of)
    plan = session.plan_of(placement)
    assert {segment.device for segment in plan.programs} == {*(devices or [0])}
    with session.executor(plan) as executor:
        (found,) = executor.run(X).values()
    return found


def test_weights_in_a_pipe_are_refused(tmp_path: Path) -> None:
    path = saved(tmp_path)
    (tmp_path / "weights" / "all.data").unlink()
    os.mkfifo(tmp_path / "weights" / "all.data")  # opening it would wait for ever
    with pytest.raises(FileError, match="not a regular file"):
        load(path)


@pytest.mark.parametrize("other", ["", pytest.param("ort:", marks=pytest.mark.two_cores)])
def test_segments_for_onnx_runtime_leave_weights_in_their_file(other: str, tmp_path: Path) -> None:
    path, core = saved(tmp_path), allowed_cores()[0]
    model = load(path)
    assert isinstance(model, OpenVinoModel)
    whole = with_onnx(model).segment("onnx", range(len(model.graph)), [], [])
    assert whole.ByteSize() < 10_000
    last = allowed_cores()[-1]
    with Session(model, [f"ort:CPU@{core}", f"{other}CPU@{last}"], cache=None) as session:
        np.testing.assert_allclose(ran(session, [0, 1]), expected(path), rtol=1e-4, atol=1e-5)


def test_a_model_that_only_onnx_runtime_reads_leaves_them_there_as_well(tmp_path: Path) -> None:
    path = saved(tmp_path, foreign=True)
    model = load(path)
    assert isinstance(model, OnnxFileModel)
    assert model.proto.ByteSize() < 10_000
    assert model.statistics()["parameter_bytes"] == LAYERS * WIDTH * WIDTH * 4 + 16
    value = expected(path)
    (found,) = model.reference(None, "f32")(X).values()
    np.testing.assert_allclose(found, value / np.linalg.norm(value), rtol=1e-4, atol=1e-5)
    with Session(model, f"ort:CPU@{allowed_cores()[0]}", cache=None) as session:
        np.testing.assert_allclose(ran(session), value / np.linalg.norm(value), rtol=1e-4, atol=1e-5)


def refuse(*_: object, **__: object) -> None:
    raise OSError(18, "Invalid cross-device link")


@pytest.mark.parametrize("linked", [True, False])
def test_openvino_reads_them_beside_local_functions(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path, temporary = saved(tmp_path, function=True), tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr("tempfile.tempdir", str(temporary))
    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    model = load(path)
    assert isinstance(model, OpenVinoModel)
    assert not [*temporary.iterdir()]
    (found,) = model.reference(None, "f32")(X).values()
    np.testing.assert_allclose(found, expected(path), rtol=1e-4, atol=1e-5)


def test_an_error_says_where_there_is_no_room_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    path = saved(tmp_path, function=True)
    monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(FileError, match=r"No space left on device\. Set TMPDIR"):
        load(path)


def in_hub_cache(folder: Path, **options: bool) -> Path:
    """Save a model as the cache of Hugging Face has it: its files are links to files that are called by their digests."""
    raw, cache = folder / "raw", folder / "models--acme--net"
    raw.mkdir(parents=True)
    saved(raw, **options)
    (cache / "blobs").mkdir(parents=True)
    for number, file in enumerate(sorted(path for path in raw.rglob("*") if path.is_file())):
        link = cache / "snapshots" / "rev" / "onnx" / file.relative_to(raw)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(os.path.relpath(file.rename(cache / "blobs" / f"sha{number}"), link.parent))
    return cache / "snapshots" / "rev" / "onnx" / "model.onnx"


@pytest.mark.parametrize("options", [{}, {"function": True}])
def test_links_inside_the_cache_of_hugging_face_are_followed_on_trust(options: dict[str, bool], tmp_path: Path) -> None:
    path, core = in_hub_cache(tmp_path, **options), allowed_cores()[0]
    with pytest.raises(
        ModelError, match=r"all\.data, which is a link to .*blobs/sha1, as in the cache of Hugging Face.*--trust "
    ):
        load(path)
    model, value = load(path, trust=True), expected(saved(tmp_path))
    for devices in ([f"CPU@{core}"], [f"ort:CPU@{core}"], [f"ort:CPU@{core}", f"CPU@{allowed_cores()[-1]}"]):
        with Session(model, devices, cache=None) as session:
            np.testing.assert_allclose(ran(session, [0, 1] if len(devices) == 2 else None), value, rtol=1e-4, atol=1e-5)
    foreign = load(in_hub_cache(tmp_path / "foreign", foreign=True), trust=True)
    assert isinstance(foreign, OnnxFileModel)
    (found,) = foreign.reference(None, "f32")(X).values()
    np.testing.assert_allclose(found, value / np.linalg.norm(value), rtol=1e-4, atol=1e-5)


def test_links_out_of_that_cache_are_not_followed(tmp_path: Path) -> None:
    path, secret = in_hub_cache(tmp_path), tmp_path / "secret"
    data = path.parent / "weights" / "all.data"
    data.resolve().rename(secret)
    data.unlink()
    data.symlink_to(secret)
    with pytest.raises(
        ModelError,
        match=f"link to {secret}.* `mkdir -p copy/weights && cp -L {path} copy/ && cp -L {data} copy/weights/all.data`",
    ):
        load(path, trust=True)


def _absolute(entry: onnx.StringStringEntryProto, folder: Path) -> None:
    entry.value = str(folder / entry.value)


def _no_number(entry: onnx.StringStringEntryProto, _: Path) -> None:
    entry.value = "many"


@pytest.mark.parametrize(("key", "damage"), [("location", _absolute), ("length", _no_number)])
def test_damaged_names_and_sizes_are_errors_of_the_model(
    key: str, damage: Callable[[onnx.StringStringEntryProto, Path], None], tmp_path: Path
) -> None:
    path = saved(tmp_path, function=True)
    raw = onnx.load(path, load_external_data=False)
    for tensor in raw.graph.initializer:
        for entry in tensor.external_data:
            if entry.key == key:
                damage(entry, tmp_path)
    path.write_bytes(raw.SerializeToString())
    with pytest.raises(ModelError, match=r"Cannot read .*model\.onnx"):
        load(path)


@pytest.mark.parametrize("linked", [True, False], ids=["linked", "another file system"])
def test_weights_inside_a_large_file_are_mapped_where_it_can_be_linked(
    linked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError("Invalid cross-device link")

    if not linked:
        monkeypatch.setattr(os, "link", refuse)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(reader, "_MIN_MAPPED", 1 << 16)
    path = tmp_path / "inside.onnx"
    onnx.save(onnx.load(saved(tmp_path)), path)
    model = load(path)

    def is_mapped() -> bool:
        return str(path.stat().st_ino) in {line.split()[4] for line in Path("/proc/self/maps").read_text().splitlines()}

    assert is_mapped() == linked
    np.testing.assert_allclose(model.reference(None, "f32")(X)["y"], expected(path), rtol=1e-4, atol=1e-5)
    assert {file.name for file in tmp_path.iterdir()} == {"inside.onnx", "model.onnx", "weights"}
    with Session(model, f"CPU@{allowed_cores()[0]}", cache=None) as session:
        assert not is_mapped()  # the file may change from now on
        np.testing.assert_allclose(ran(session), expected(path), rtol=1e-4, atol=1e-5)
