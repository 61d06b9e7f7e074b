"""Programs for Intel GPUs: compiled at the same time for several GPUs, kept on disk, and abandoned when no caller waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.interrupts import INTERRUPTED
from placeit.devices import compiled
from placeit.devices.compiled import VARIABLE, from_cache
from placeit.devices.openvino import compile_model
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.runtime import Runtime

ops = ov.opset13
TIMEOUT_S = 120.0  # for a process to end; what hangs would do so for hours


def perceptron() -> OpenVinoModel:
    """Three layers, of which any two differ."""
    rng = np.random.default_rng(0)
    x = ops.parameter([4, 16], ov.Type.f32, name="x")
    value = x.output(0)
    for i, size in enumerate((32, 24, 8)):
        weights = ops.constant(rng.standard_normal((size, value.shape[-1]), np.float32) / 4, name=f"weights {i}")
        value = ops.tanh(ops.matmul(value, weights, False, True, name=f"layer {i}"), name=f"tanh {i}").output(0)
    return describe(ov.Model([ops.result(value, name="y")], [x], "perceptron"), Path("perceptron"))


def kernels(program: Any) -> list[tuple[str, str]]:
    """Names of kernels, and of the ops that they stand for."""
    found = program.get_runtime_model().get_ordered_ops()
    return [(kernel.get_friendly_name(), kernel.get_rt_info()["originalLayersNames"].astype(str)) for kernel in found]


def test_programs_are_kept_on_disk_with_what_their_kernels_stand_for(
    gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    assert all(map(compiled.compiles_slowly, gpus))
    gpu, x = Device(gpus[0], address=Address(gpus[0])), np.ones((4, 16), np.float32)
    first, second = (compile_model(perceptron().ov_model, gpu, "f32", PERF_COUNT=True) for _ in range(2))
    assert [from_cache(program) for program in (first, second)] == [False, True]
    assert kernels(first) == kernels(second)
    assert any("layer 1" in originals for _, originals in kernels(second))
    np.testing.assert_array_equal(first(x)[0], second(x)[0])
    assert list(tmp_path.glob("compiled/*/*.sha256"))


def test_programs_for_several_gpus_are_compiled_at_once(gpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    model = perceptron()
    grouping = Grouping.singletons(model.graph)
    cluster = Cluster(tuple(Device(name, address=Address(name)) for name in gpus))
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.arange(groups) % len(gpus), merge=len(gpus) == 1)
    inputs = model.random_inputs(1)
    with Runtime(model, grouping, cluster) as runtime, runtime.executor(plan) as executor:
        found = executor.run(inputs)
        assert runtime.compiler.compiling.kinds["GPU"].compiled == len(plan.programs)
    for name, value in model.reference(None, "f32")(inputs).items():
        np.testing.assert_allclose(found[name], value, atol=1e-4)


INTERRUPTED_WHILE_COMPILING = """
import itertools
import sys
from placeit.cli import main
from placeit.runtime.devices.openvino import OpenVinoDevice

compile_one, wanted, numbers = OpenVinoDevice.compile, int(sys.argv.pop()), itertools.count(1)

def compile(self, segment):
    if next(numbers) == wanted:
        print("compiling now", file=sys.stderr, flush=True)
    return compile_one(self, segment)

OpenVinoDevice.compile = compile
main()
"""


@pytest.mark.parametrize("after", [1, 2])
def test_ctrl_c_while_a_gpu_compiles_ends_the_command(gpus: list[str], tmp_path: Path, after: int) -> None:
    ov.save_model(perceptron().ov_model, tmp_path / "model.xml")
    command = [sys.executable, "-c", INTERRUPTED_WHILE_COMPILING, "profile", "model.xml", "-d", gpus[0], "--json", str(after)]
    environment = os.environ | {"PLACEIT_CACHE": str(tmp_path)}
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have started this process to ignore it
    try:
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8", cwd=tmp_path, env=environment
        )
    finally:
        signal.signal(signal.SIGINT, before)
    with process:
        try:
            assert process.stderr is not None
            assert process.stderr.readline() == "compiling now\n"
            process.send_signal(signal.SIGINT)
            out, error = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert process.returncode == INTERRUPTED, error
    assert (out, error) == ("", "interrupted\n")
