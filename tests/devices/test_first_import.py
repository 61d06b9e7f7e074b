"""An optional runtime whose import ends the process is left out, and the rest goes on; its import is tried once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from placeit.devices.host import allowed_cores

ROOT = Path(__file__).parents[2]
CORE = f"CPU@{allowed_cores()[0]}"
DIES = "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"


class Machine:
    """Commands in an environment whose ONNX Runtime is a module that counts its imports."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.cache = folder, folder / "cache"
        self.imports = folder / "imports.txt"
        self.model = folder / "model.onnx"
        ends = [[helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])] for name in "xy"]
        graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", *ends)
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), self.model)

    def install(self, code: str) -> None:
        package = self.folder / "site" / "onnxruntime"
        package.mkdir(parents=True, exist_ok=True)
        counting = f"with open({str(self.imports)!r}, 'a') as file:\n    file.write('x')\n"
        (package / "__init__.py").write_text(counting + code)

    def placeit(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(self.folder / "site"), str(ROOT)])
        environment = {**os.environ, "PYTHONPATH": path, "PLACEIT_CACHE": str(self.cache), "COLUMNS": "1000"}
        command = [sys.executable, "-m", "placeit", *map(str, arguments)]
        return subprocess.run(command, env=environment, cwd=self.folder, capture_output=True, text=True, check=False)

    @property
    def tried(self) -> int:
        return len(self.imports.read_text()) if self.imports.exists() else 0


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_runtime_that_dies_at_its_import_is_tried_once_and_left_out_with_the_reason(machine: Machine) -> None:
    machine.install(DIES)
    searched = machine.placeit("optimize", machine.model, "-d", CORE, "--budget", "1", "-q", "-o", "placement.json")
    assert searched.returncode == 0, searched.stderr
    listed = machine.placeit("devices", "--no-links")
    why = "importing it ends the process by SIGSEGV"
    assert f"ONNX Runtime cannot be used: {why}" in listed.stdout
    assert "ort:" not in listed.stdout
    unusable = json.loads(machine.placeit("devices", "--no-links", "--json").stdout)["unusable_runtimes"]
    assert [*unusable] == ["ONNX Runtime"]
    asked = machine.placeit("run", machine.model, "-d", f"ort:{CORE}", "--runs", "1")
    assert asked.returncode == 1
    assert f"error: ONNX Runtime cannot be used: {why}" in asked.stderr
    assert machine.tried == 1


def test_another_version_of_the_runtime_is_tried_anew(machine: Machine) -> None:
    machine.install(DIES)
    machine.placeit("devices", "--no-links")
    machine.install("def set_default_logger_severity(severity): pass")
    for _ in range(2):
        listed = machine.placeit("devices", "--no-links")
        assert f"ort:{CORE}" in listed.stdout
        assert "cannot be used" not in listed.stdout
    assert machine.tried == 2


def test_an_import_that_fails_is_explained_and_tried_by_each_process(machine: Machine) -> None:
    machine.install("raise ImportError('libcudnn.so.9: cannot open shared object file')")
    for _ in range(2):
        listed = machine.placeit("devices", "--no-links")
        assert "ONNX Runtime cannot be used: importing it fails: ImportError: libcudnn.so.9: cannot open" in listed.stdout
    assert machine.tried == 2
