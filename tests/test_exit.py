"""Programs that end without having closed what they opened."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from placeit.devices.host import allowed_cores

PROGRAM = """
import placeit
session = placeit.Session({path!r}, {device!r}, cache=None)
session.profile()
placement = session.placement([0] * len(session.grouping.groups))
inputs = session.model.random_inputs()

def repeat(call):
    while True:
        call()

def call_in_threads():
    import threading, time
    for call in (lambda: executor.run(inputs), *2 * [lambda: server.submit(inputs).result()]):
        threading.Thread(target=repeat, args=(call,), daemon=True).start()
    time.sleep(0.05)

{last}
print("reached the end")
"""
ENDS = {
    "costs": ("CPU@{0}", "pass"),
    "a run": ("ort:CPU@{0}", "session.run(placement, runs=2)"),
    "an executor": ("CPU@{0}", "executor = session.executor(session.plan_of(placement)); executor.run(inputs)"),
    "a server": ("ort:CPU@{0}", "server = session.serve(placement); server.submit(inputs).result()"),
    "a busy server": ("CPU@{0}", "server = session.serve(placement); kept = [server.submit(inputs) for _ in range(50)]"),
    "threads": (
        "CPU@{0}",
        "executor = session.executor(session.plan_of(placement)); server = session.serve(placement); call_in_threads()",
    ),
    "a cycle": ("CPU@{0}", "placement = [session]; placement.append(placement)"),
}
"""What a program leaves open: its device, and its last line."""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "layer.onnx"
    weights = numpy_helper.from_array(np.eye(8, dtype=np.float32), "w")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy")
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "layer", [x], [y], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.mark.parametrize(("device", "last"), ENDS.values(), ids=ENDS)
def test_a_program_may_end_with_anything_open(model: Path, device: str, last: str) -> None:
    program = PROGRAM.format(path=str(model), device=device.format(allowed_cores()[0]), last=last)
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "reached the end\n", "")
