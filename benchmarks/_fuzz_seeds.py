"""Small files of every kind that placeit reads, made by placeit itself and by the libraries whose formats they are."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import zipfile
import zlib
from pathlib import Path

from benchmarks._fuzz_cases import TRAIN
from benchmarks._fuzz_mutations import make_archive

__all__ = ["make_seeds"]

_PACKAGED = (
    *("pytorch-operator/test_operator_params", "pytorch-operator/test_operator_index", "pytorch-operator/test_operator_pad"),
    *("pytorch-converted/test_Embedding", "pytorch-converted/test_Conv2d_groups", "pytorch-converted/test_PReLU_2d"),
    *("pytorch-converted/test_BatchNorm2d_eval", "pytorch-converted/test_ConvTranspose2d", "simple/test_expand_shape_model1"),
    *("simple/test_sequence_model4", "simple/test_strnorm_model_monday_empty_output", "simple/test_gradient_of_add"),
)
"""Models that are part of ONNX, of a few ops each."""

_DESCRIBED = """\
devices:
  a: {flops: 2 TFLOP/s, memory_bandwidth: 100 GB/s, memory: 8 GiB, tags: [big], idle_power: 5 W, busy_power: 25 W}
  b: {flops: 500 GFLOP/s, memory_bandwidth: 20 GB/s, op_overhead: 5 us, full_name: a small one, busy_power: 2 W}
  c: {catalog: CATALOG, busy_power: 30 W}
links:
  - {between: [a, b], bandwidth: 10 Gbit/s, latency: 50 us}
  - {from: b, to: c, bandwidth: 1 GB/s, latency: 1 ms}
default_link: {bandwidth: 100 Mbit/s, latency: 2 ms}
"""
_REAL = """\
devices:
  fast: {runs_on: FIRST, memory: 4 GiB, tags: [x, y]}
  slow: {runs_on: SECOND, slowdown: 1.5, busy_power: 25 W}
links:
  - {between: [fast, slow], bandwidth: 10 Gbit/s, latency: 50 us}
"""


def make_seeds(folder: Path, devices: tuple[str, str]) -> None:
    """Fill a folder with a folder of seeds for each kind. Call it in a separate process, because it sets environment variables.

    Args:
        folder: the folder, which is created.
        devices: names of two devices of one CPU core each.
    """
    for name in ("onnx", "ir", "pt2", "placement", "cluster", "checkpoint", "inputs"):
        (folder / name).mkdir(parents=True)
    os.environ["PLACEIT_CACHE"] = str(folder / "cache")
    _onnx(folder / "onnx")
    _rest(folder, devices)
    _programs(folder / "pt2")
    _learned(folder)


def _onnx(folder: Path) -> None:
    import numpy as np
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(0)

    def tensor(name: str, *shape: int) -> TensorProto:
        return numpy_helper.from_array((0.1 * rng.standard_normal(shape)).astype(np.float32), name)

    def write(name: str, nodes: list, inputs: list, outputs: list, weights: list) -> onnx.ModelProto:
        borders = [[helper.make_tensor_value_info(*each) for each in each_side] for each_side in (inputs, outputs)]
        graph = helper.make_graph(nodes, name, *borders, weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        onnx.save(model, folder / f"{name}.onnx")
        return model

    conv = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], name="stem", pads=[1] * 4),
        helper.make_node("Conv", ["c0", "w1"], ["c1"], name="left", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], name="left_relu"),
        helper.make_node("Conv", ["c0", "w2"], ["c2"], name="right", pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"], name="right_relu"),
        helper.make_node("Concat", ["r1", "r2"], ["y"], name="join", axis=1),
    ]
    weights = [tensor("w0", 4, 3, 3, 3), tensor("w1", 4, 4, 3, 3), tensor("w2", 4, 4, 3, 3)]
    ends = [("x", TensorProto.FLOAT, [1, 3, 16, 16])], [("y", TensorProto.FLOAT, [1, 8, 16, 16])]
    tiny = write("tiny", conv, *ends, weights)
    text = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], axis=0),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["columns", "kernel"], ["mixed"], kernel_shape=[3], pads=[1, 1]),
        helper.make_node("ReduceMean", ["mixed"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Gemm", ["mean", "weights", "bias"], ["scores"], transB=1),
        helper.make_node("Reshape", ["scores", "size"], ["flat"]),
        helper.make_node("Softmax", ["flat"], ["probabilities"], axis=0),
    ]
    held = [tensor("table", 50, 8), tensor("kernel", 4, 8, 3), tensor("weights", 5, 4), tensor("bias", 5)]
    held.append(numpy_helper.from_array(np.array([5]), "size"))
    write("text", text, [("ids", TensorProto.INT64, [1, 6])], [("probabilities", TensorProto.FLOAT, [5])], held)
    branches = [helper.make_graph([helper.make_node(op, ["x"], ["b"])], op, [], [helper.make_tensor_value_info("b", 1, [2, 3])])
                for op in ("Relu", "Tanh")]  # fmt: skip
    flow = [
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "limit"], ["big"]),
        helper.make_node("If", ["big"], ["y"], then_branch=branches[0], else_branch=branches[1]),
    ]
    limit = [numpy_helper.from_array(np.float32(0.5), "limit")]
    write("flow", flow, [("x", TensorProto.FLOAT, [2, 3])], [("y", TensorProto.FLOAT, [2, 3])], limit)
    gates = [tensor("W", 1, 16, 3), tensor("R", 1, 16, 4), tensor("B", 1, 32)]
    nodes = [helper.make_node("LSTM", ["x", "W", "R", "B"], ["", "h"], hidden_size=4)]
    write("lstm", nodes, [("x", TensorProto.FLOAT, [5, 1, 3])], [("h", TensorProto.FLOAT, [1, 1, 4])], gates)
    onnx.save(
        tiny,
        folder / "outside.onnx",
        save_as_external_data=True,
        all_tensors_to_one_file=True,
        location="weights.bin",
        size_threshold=0,
    )
    packaged = Path(onnx.__file__).parent / "backend" / "test" / "data"
    for name in _PACKAGED:
        if (packaged / name / "model.onnx").exists():
            shutil.copy(packaged / name / "model.onnx", folder / f"{name.rpartition('/')[2]}.onnx")


def _rest(folder: Path, devices: tuple[str, str]) -> None:
    """Write IR, placements, clusters, inputs, and files of the profiler."""
    import numpy as np

    from placeit.backends import load
    from placeit.core.placement import Placement
    from placeit.core.telemetry import import_openvino
    from placeit.devices.described import catalog

    openvino = import_openvino()

    for name in ("tiny", "text", "flow", "lstm"):
        openvino.save_model(openvino.convert_model(folder / "onnx" / f"{name}.onnx"), folder / "ir" / f"{name}.xml", False)
    tiny = folder / "onnx" / "tiny.onnx"
    graph = load(tiny).graph
    left = np.array([name.startswith("left") for name in graph.names])
    for name, places in (("split", left), ("whole", np.zeros(len(graph)))):
        Placement(graph.names, places.astype(np.int32), devices, graph.hash).save(folder / "placement" / f"{name}.json")
    cluster = folder / "cluster"
    (cluster / "described.yaml").write_text(_DESCRIBED.replace("CATALOG", next(iter(catalog()))))
    (cluster / "real.yaml").write_text(_REAL.replace("FIRST", devices[0]).replace("SECOND", devices[1]))
    np.savez(folder / "inputs" / "x.npz", x=np.ones((1, 3, 16, 16), np.float32))
    np.savez_compressed(folder / "inputs" / "packed.npz", x=np.ones((1, 3, 16, 16), np.float64))
    (folder / "inputs" / "bomb.npz").write_bytes(_bomb())
    both = ",".join(devices)
    _call("profile", str(tiny), "-d", both)
    _call("devices", "-d", both)


def _bomb(gigabytes: int = 2) -> bytes:
    """Make an ``.npz`` file of a few megabytes that unpacks to gigabytes of zeros, as one array and as a separate one."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({gigabytes << 28},), }}\n".encode()
    start = b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head
    block = bytes(1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = packer.compress(start) + packer.flush(zlib.Z_FULL_FLUSH)
    middle = packer.compress(block) + packer.flush(zlib.Z_FULL_FLUSH)  # is independent of other blocks, so it can be repeated
    checksum, times = zlib.crc32(start), gigabytes << 10
    for _ in range(times):
        checksum = zlib.crc32(block, checksum)
    return _one_member("x.npy", first + middle * times + packer.flush(), checksum, len(start) + times * len(block))


def _one_member(name: str, packed: bytes, checksum: int, size: int) -> bytes:
    """Make a zip archive with one member that is already compressed."""
    shell = make_archive([(name, b"")], zipfile.ZIP_DEFLATED)
    with zipfile.ZipFile(io.BytesIO(shell)) as archive:
        info = archive.getinfo(name)
    info.CRC, info.compress_size, info.file_size, info.header_offset, info.flag_bits = checksum, len(packed), size, 0, 0
    body = info.FileHeader(zip64=False) + packed
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        assert archive.fp is not None
        archive.fp.write(body)
        archive.filelist.append(info)
        archive.NameToInfo[name] = info
        archive.start_dir = archive.fp.tell()
        archive._didModify = True  # type: ignore[attr-defined]
    return stream.getvalue()


def _programs(folder: Path) -> None:
    import torch

    class Small(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("shift", torch.ones(4))

        def forward(self, x: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
            return {"y": torch.relu(self.linear(x["a"])) + self.shift * x["a"].shape[0]}

    sizes = {"x": {"a": {0: 2 * torch.export.Dim("half", min=1, max=8)}}}
    torch.export.save(torch.export.export(Small(), ({"a": torch.ones(4, 4)},), dynamic_shapes=sizes), folder / "small.pt2")
    layers = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(784, 3)).eval()
    torch.export.save(torch.export.export(layers, (torch.ones(1, 3, 16, 16),)), folder / "layers.pt2")


def _learned(folder: Path) -> None:
    """Write policies, problems, and a training that has ended."""
    from placeit.learning.checkpoint import save_agent
    from placeit.learning.registry import make_agent

    for name, options in (("giph", {}), ("giph", {"variant": "giph-task-eft"}), ("placeto", {}), ("hdp", {})):
        save_agent(make_agent(name, seed=0, **options), folder / "checkpoint" / f"{name}{len(options)}.safetensors", note="")
    with contextlib.chdir(folder):
        _call("generate", "single", "--count", "3", "-o", "problems")
        for path in Path("problems").glob("single-*.json"):  # with its key, every changed cost would be refused at once
            path.write_text(json.dumps({**json.loads(path.read_text()), "key": None}))
        _call(*TRAIN)
    (folder / "out.safetensors").replace(folder / "checkpoint" / "trained.safetensors")


def _call(*argv: str) -> None:
    from placeit.cli import main

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main(argv)
    except SystemExit as end:
        if end.code:
            raise RuntimeError(f"The seeds cannot be made: placeit {' '.join(argv)} ends with {end.code}.") from None
