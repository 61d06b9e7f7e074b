"""Inputs of the user's own: what commands measure and check on, for a model that no random inputs are valid for."""

import io
import json
import struct
import tracemalloc
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper

from placeit.backends import load
from placeit.backends.archive import read_tensors
from placeit.backends.base import TensorSpec
from placeit.backends.torch import model as torch_backend
from placeit.core.errors import FileError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.learning.workloads import tensor_program
from placeit.optimizer.options import Candidates
from placeit.profiler.cache import Cache
from placeit.session import Session
from tests.steady import optimize
from tests.torch_models import Calling

CORE = f"CPU@{allowed_cores()[0]}"


@pytest.fixture(scope="module")
def picky(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sum along an axis that is itself the sum of two inputs, and only valid if that is zero."""
    nodes = [
        helper.make_node("Add", ["a", "b"], ["axis"]),
        helper.make_node("CumSum", ["x", "axis"], ["sums"]),
        helper.make_node("Relu", ["sums"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [64]) for name in "xy"]
    axes = [helper.make_tensor_value_info(name, TensorProto.INT32, []) for name in "ab"]
    model = helper.make_model(
        helper.make_graph(nodes, "picky", [ends[0], *axes], ends[1:]), opset_imports=[helper.make_opsetid("", 17)], ir_version=9
    )
    path = tmp_path_factory.mktemp("picky") / "picky.onnx"
    onnx.save(model, path)
    return path


@pytest.fixture
def valid(tmp_path: Path) -> Path:
    path = tmp_path / "valid.npz"
    np.savez(path, x=np.arange(64, dtype=np.float32), a=np.int32(1), b=np.int32(-1))
    return path


@pytest.mark.timeout(20)
def test_inputs_from_what_never_ends_are_refused() -> None:
    with pytest.raises(FileError, match="not a regular file"):
        read_tensors(Path("/dev/zero"), {})


def arguments(command: str, model: Path, devices: str, folder: Path) -> list[object]:
    """A valid command line; a placement that is asked for lies in the folder."""
    placement = folder / "placement.json"
    more: dict[str, list[object]] = {
        "profile": [],
        "optimize": ["--budget", 2, "--placer", "heft", "-o", placement],
        "run": ["-p", placement, "--runs", 6],
        "compare": ["-p", placement, "--runs", 6],
    }
    return [command, model, "--devices", devices, *more[command]]


@pytest.mark.slow
def test_every_command_that_measures_takes_inputs(cli: Any, picky: Path, valid: Path, cores: Sequence[str]) -> None:
    for command in ("profile", "optimize", "run", "compare"):
        asked = arguments(command, picky, ",".join(cores), valid.parent)
        result = cli(*asked, "--inputs", valid, "--json")
        assert result.exit_code == 0, (command, result.stderr, result.stdout[-1500:])
        data = json.loads(result.stdout)
        for checked in data.get("candidates", [data] if command == "run" else []):
            assert checked["output_error"]["max_abs"] in (0.0, None)
        refused = cli(*asked)
        assert refused.exit_code == 1
        assert refused.stderr.startswith("error: ")
        assert len(refused.stderr.splitlines()) == 1


def archive(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


X = np.zeros((1, 3, 16, 16), np.float32)


def zipped(head: bytes, size: int = 0, name: str = "x.npy") -> bytes:
    """Write an archive of one member: a head and a number of zeros, which take next to no space in it."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as whole, whole.open(name, "w", force_zip64=True) as member:
        member.write(head)
        for _ in range(size >> 20):
            member.write(bytes(1 << 20))
    return stream.getvalue()


def head(shape: str, dtype: str = "<f4", length: int | None = None) -> bytes:
    """Begin a file of NumPy's as it says that it goes on."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text) if length is None else length) + text


@pytest.mark.parametrize("command", ["profile", "optimize", "run", "compare"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "No such file"),
        (b"not an archive", "is not a NumPy archive"),
        (archive(x=np.array([{}], object)), "is not a NumPy archive"),
        (archive(x=X, y=X), "no input 'y'; its inputs are x"),
        (archive(), "The input 'x' is missing"),
        (archive(x=X[:, :2]), "is float32 [1, 2, 16, 16]; the model expects float32 [1, 3, 16, 16]"),
        (archive(x=X.astype(np.complex64)), "is complex64 [1, 3, 16, 16]"),
        (archive(x=X.astype(str)), "the model expects float32"),
        (zipped(head("(1024, 1024, 1024)"), 1 << 26), "bytes; the model expects float32 [1, 3, 16, 16]"),
        (zipped(head("f(1)")), "the head of 'x.npy' is damaged."),
    ],
    ids=["missing", "text", "pickled", "other name", "too few", "other shape", "other type", "strings", "large", "head"],
)
def test_inputs_that_do_not_fit_are_one_paragraph_before_any_work(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], command: str, content: bytes | None, says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    def work(*args: object, **kwargs: object) -> None:
        pytest.fail("work was done before the inputs were looked at")

    monkeypatch.setattr("placeit.profiler.costs.profile", work)
    inputs = placement.parent / "x.npz"
    if content is not None:
        inputs.write_bytes(content)
    result = cli(*arguments(command, tiny, ",".join(cores), placement.parent), "--inputs", inputs)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert says in result.stderr


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (zipped(head("(1024, 1024, 1024)"), 1 << 26), "bytes; the model expects float32"),
        (zipped(head("(1, 3, 16, 16)"), 1 << 26), "bytes; the model expects float32"),
        (zipped(head("(1000000, 1000000)")), r"is float32 \[1000000, 1000000\]; the model expects"),
        (zipped(head("(1, 3, 16, 16)", length=1 << 26), 1 << 26), "bytes; the model expects float32"),
        (zipped(head("(1, 3, 16, 16)", length=2**32 - 1)), "is not a NumPy archive"),
        (zipped(head("(" * 400)), "is not a NumPy archive"),
        (zipped(head("(1, 3, 16, 16)", dtype="<O")), "is not a NumPy archive"),
        (zipped(head("(1, 3, 16, 16)")), "is not a NumPy archive"),
        (zipped(head("(5,)"), 1 << 26, "y.npy"), "no input 'y'"),
    ],
    ids=["large", "larger than said", "large by its head", "long head", "cut head", "deep head", "objects", "cut", "other"],
)
def test_inputs_take_no_more_memory_than_the_model_wants(tiny: Path, tmp_path: Path, content: bytes, says: str) -> None:
    wanted = {spec.name: spec for spec in load(tiny).inputs}
    (tmp_path / "x.npz").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises((FileError, UsageError), match=says):
            read_tensors(tmp_path / "x.npz", wanted)
        assert tracemalloc.get_traced_memory()[1] < 1 << 22
    finally:
        tracemalloc.stop()


def test_inputs_may_have_any_size_in_a_range_however_small_the_typical_size_is(tmp_path: Path) -> None:
    wanted = {"x": TensorSpec("x", "x", (1, 4096), "float32", ((1, 64), (4096, 4096)))}
    np.savez(tmp_path / "x.npz", x=np.ones((64, 4096), np.float32))
    assert read_tensors(tmp_path / "x.npz", wanted)["x"].shape == (64, 4096)


@pytest.mark.parametrize("more", [(), ("--batch", 3)])
def test_inputs_give_the_sizes_that_a_model_leaves_open(cli: Any, more: tuple[object, ...], tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", "m"]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("Tanh", ["x"], ["y"])], "open", ends[:1], ends[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "open.onnx")
    np.savez(tmp_path / "x.npz", x=np.ones((3, 8), np.float32))
    result = cli("profile", tmp_path / "open.onnx", "-d", CORE, "--no-cache", "--inputs", tmp_path / "x.npz", *more)
    assert result.exit_code == 0, result.stderr
    result = cli("inspect", tmp_path / "open.onnx", "--inputs", tmp_path / "x.npz", *more, "--json")
    assert [one["shape"] for one in json.loads(result.stdout)["outputs"]] == [[3, 8]]
    result = cli("export", tmp_path / "open.onnx", "--inputs", tmp_path / "x.npz", *more, "-o", tmp_path / "fixed.xml")
    assert result.exit_code == 0, result.stderr
    assert load(tmp_path / "fixed.xml").inputs[0].shape == (3, 8)
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    for command in (["profile", "-d", CORE], ["inspect"], ["export", "-o", tmp_path / "bad.xml"]):
        result = cli(command[0], tmp_path / "open.onnx", *command[1:], "--inputs", tmp_path / "bad.npz")
        assert result.exit_code in (1, 2)
        assert "is not a NumPy archive" in result.stderr
    result = cli("export", tmp_path / "open.onnx", "--inputs", tmp_path / "x.npz", *more, "-o", tmp_path / "x.npz")
    assert result.exit_code == 2


def test_costs_are_kept_for_each_inputs_apart(picky: Path, tmp_path: Path) -> None:
    def entries(x: float, a: int = 0, b: int = 0) -> int:
        inputs = {"x": np.full(64, x), "a": np.int8(a), "b": np.int32(b)}
        with Session(picky, CORE, inputs=inputs, cache=Cache(tmp_path)) as session:
            session.profile()
            assert np.isfinite(session.costs.core).all()
        return len([path for path in tmp_path.glob("*.json") if '"group costs"' in path.read_text()])

    assert entries(1.0) == 1
    assert entries(1.0) == 1
    assert entries(2.0) == 2
    assert entries(2.0, 1, -1) == 3
    assert entries(2.0, -1, 1) == 4


def test_a_pytorch_model_runs_on_the_inputs_given() -> None:
    table = torch.arange(20.0)
    model = torch_backend.load(Calling(lambda _, ids: table[ids].relu()), (torch.zeros(3, dtype=torch.int64),))
    (name,) = (spec.name for spec in model.inputs)
    with Session(model, CORE, inputs={name: np.array([4, 19, 7])}, cache=None) as session:
        session.profile()
        ops = session.model.graph.names
        report = session.run(Placement(ops, np.zeros(len(ops), np.int32), (CORE,), session.model.graph.hash), runs=2)
    (output,) = report.outputs.values()
    assert output.tolist() == [4, 19, 7]
    assert report.output_error.max_abs == 0


def test_a_tensor_program_takes_whole_inputs_by_name() -> None:
    model = tensor_program.tensor_model("chain-mm", shards=2, size=8)
    given = {name: np.full_like(value.numpy(), 0.5) for name, value in model.values.items()}
    with Session(model, CORE, inputs=given, cache=None) as session:
        session.profile()
        with session.executor(session.segmenter.plan(np.zeros(len(session.grouping.groups), np.int32))) as executor:
            outputs = executor.run({})
        assert session.model.given_digest not in (None, model.with_inputs(given | {"A": given["A"] * 2}).given_digest)
    expected = model.whole.run({name: torch.from_numpy(value) for name, value in given.items()})
    for name, whole in session.model.join(outputs).items():
        np.testing.assert_allclose(whole, expected[name], rtol=1e-5)
    with pytest.raises(UsageError, match="'A' is missing"):
        Session(model, CORE, inputs={})
    with pytest.raises(UsageError, match="no input 'Z'"):
        Session(model, CORE, inputs=given | {"Z": given["A"]})


@pytest.mark.usefixtures("steady")
def test_optimize_measures_and_checks_on_the_inputs_given(picky: Path, cores: Sequence[str]) -> None:
    inputs = {"x": np.arange(64.0), "a": np.int32(0), "b": np.int32(0)}
    with optimize(picky, ",".join(cores), candidates=Candidates(placers="heft"), budget=2, inputs=inputs, cache=None) as found:
        assert found.chosen.output_error is not None
        assert found.chosen.output_error.max_abs == 0
        np.testing.assert_array_equal(found.run(inputs)["y"], np.cumsum(np.arange(64.0)))
