"""Damaged model files: loading one fails with a PlaceitError or succeeds; it never raises anything else, hangs or crashes.

OpenVINO parses the files in C++, so they are loaded in a separate process, which runs this file as a program.
"""

import json
import random
import re
import resource
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from placeit.backends import load
from placeit.core.errors import PlaceitError

ROUNDS = 80


def damage(content: bytes, rng: random.Random) -> bytes:
    """Change a few things in a file: bits, bytes, digits, words, or its length."""
    data = bytearray(content)
    for _ in range(rng.choice([1, 1, 2, 4])):
        at = rng.randrange(len(data))
        digits = [i for i, byte in enumerate(data) if byte in b"0123456789"]
        words = [match.span() for match in re.finditer(rb"[A-Za-z_]{3,}", bytes(data))]
        match rng.choice(["bit", "byte", "digit", "word", "cut", "repeat", "zeros", "insert"]):
            case "bit":
                data[at] ^= 1 << rng.randrange(8)
            case "byte":
                data[at] = rng.randrange(256)
            case "digit" if digits:
                data[rng.choice(digits)] = rng.choice(b"0123456789-9")
            case "word" if len(words) > 1:
                (a, b), (c, d) = rng.sample(words, 2)
                data[a:b] = data[c:d]
            case "cut":
                del data[max(1, at) :]
            case "repeat":
                data[at:at] = data[at : at + rng.randrange(1, 200)]
            case "zeros":
                data[at : at + 8] = bytes(len(data[at : at + 8]))
            case _:
                data[at:at] = rng.randbytes(rng.randrange(1, 16))
    return bytes(data)


@pytest.fixture
def small_onnx(onnx_file):
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"], axis=0),
        helper.make_node("Transpose", ["rows"], ["columns"], perm=[0, 2, 1]),
        helper.make_node("Conv", ["columns", "kernel"], ["mixed"], kernel_shape=[3], pads=[1, 1]),
        helper.make_node("Relu", ["mixed"], ["active"]),
        helper.make_node("ReduceMean", ["active"], ["mean"], axes=[2], keepdims=0),
        helper.make_node("Gemm", ["mean", "weights", "bias"], ["scores"], transB=1),
        helper.make_node("Softmax", ["scores"], ["probabilities"], axis=1),
    ]
    shapes = {"table": (50, 8), "kernel": (4, 8, 3), "weights": (5, 4), "bias": (5,)}
    weights = tuple((name, rng.standard_normal(shape).astype(np.float32)) for name, shape in shapes.items())
    inputs, outputs = [("ids", TensorProto.INT64, [1, 6])], [("probabilities", TensorProto.FLOAT, [1, 5])]
    return onnx_file(nodes, inputs, outputs, initializers=weights)


@pytest.mark.parametrize("source", ["onnx", "ir", "weights"])
def test_a_damaged_file_is_an_error_of_ours_or_loads(source, small_onnx, ir_file, tmp_path):
    path = small_onnx if source == "onnx" else ir_file()
    (tmp_path / "work").mkdir()
    command = [sys.executable, __file__, str(path), source, str(tmp_path / "work"), str(ROUNDS)]
    child = subprocess.run(command, capture_output=True, encoding="utf-8", timeout=240, check=False)
    assert child.returncode == 0, f"something else than an error of ours:\n{child.stderr[-2000:]}"
    summary = json.loads(child.stdout)
    assert summary["bad_messages"] == []
    assert summary["refused"] + summary["loaded"] == ROUNDS
    assert summary["refused"] > 0
    assert summary["loaded"] > 0


def main(path: Path, source: str, folder: Path, rounds: int) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    summary = {"refused": 0, "loaded": 0, "bad_messages": []}
    files = [path] if source == "onnx" else [path, path.with_suffix(".bin")]
    victim = 1 if source == "weights" else 0
    for seed in range(rounds):
        for i, file in enumerate(files):
            content = file.read_bytes()
            (folder / file.name).write_bytes(damage(content, random.Random(seed)) if i == victim else content)
        try:
            model = load(folder / path.name)
            model.random_inputs()
            model.statistics()
            summary["loaded"] += 1
        except PlaceitError as error:
            summary["refused"] += 1
            if "\n" in str(error) or str(folder) not in str(error):
                summary["bad_messages"].append(f"seed {seed}: {error}")
    sys.stdout.write(json.dumps(summary))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]))
