"""Plans on a core and Intel GPUs that compiled lanes run: without Python between segments, whatever goes wrong at any time."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from numpy.typing import NDArray

from placeit.backends.openvino.model import describe
from placeit.core.errors import ExecutionError
from placeit.runtime.devices.base import Program
from placeit.runtime.devices.emulated import EmulatedLink
from placeit.runtime.devices.openvino import NativeInstance, OpenVinoDevice, OpenVinoInstance
from placeit.runtime.executor import Executor
from tests.beside import beside
from tests.gpu_plans import CPU, FIRST, SECOND, SHAPE, Devices, Opened, expected, inputs, needs_two

pytestmark = pytest.mark.timeout(280, method="thread")

ops = ov.opset13


def check_outputs(executor: Executor) -> None:
    np.testing.assert_allclose(executor.run(inputs(), timeout=100)["y"], expected(inputs()), atol=1e-5)


@pytest.fixture
def mixed(opened: Opened) -> Devices:
    """A core and two GPUs."""
    devices = opened()
    needs_two(devices.gpus)
    return devices


ALL = {"one": FIRST, "two": SECOND, "three": FIRST}
"""Where the ops of a model run that begins and ends on the core."""


def test_no_python_runs_between_segments_of_cores_and_gpus(opened: Opened, gpus: list[str]) -> None:
    """This thread keeps the interpreter for itself from when the first segment has ended until the last one has."""
    needs_two(gpus)
    links = {(CPU, gpu): EmulatedLink(f"placeit link {gpu}", 1e9, latency=0.5) for gpu in (FIRST, SECOND)}
    with opened(links=links).executor(**ALL) as executor:
        check_outputs(executor)
        assert executor.native
        first, last = _written(executor, "stem"), _written(executor, "head")
        assert executor.blank(0) is None
        keep_gil, interval = ctypes.PyDLL(None).usleep, sys.getswitchinterval()  # unlike CDLL, which would release it
        with beside(lambda: executor.time(timeout=100)) as seconds:
            while np.isnan(first).any():
                time.sleep(0)
            sys.setswitchinterval(1e3)  # no other thread gets the interpreter unless this one waits
            try:
                until = time.monotonic() + 60  # of lanes that wait for the interpreter
                while np.isnan(last).any() and time.monotonic() < until:
                    keep_gil(1000)
                ended = not np.isnan(last).any()
            finally:
                sys.setswitchinterval(interval)
        assert ended
        assert isinstance(seconds[0], float)
        np.testing.assert_allclose(executor.outputs()["y"], expected(inputs()), atol=1e-5)


def _written(executor: Executor, op: str) -> NDArray[np.generic]:
    """What the segment of an op writes."""
    (number,) = [s for s, one in enumerate(executor.plan.segments) if executor.book.op_names(one) == [op]]
    return executor._slots[0].writes[number,][0].array()


class InPython(OpenVinoDevice):
    """A GPU whose segments run through a function of Python, which counts."""

    calls = 0

    def instance(self, program: Program) -> NativeInstance | OpenVinoInstance:
        made = super().instance(program)
        compute = made.run

        def run() -> object:
            InPython.calls += 1
            return compute()

        made.run = run
        return made


def test_segments_that_need_python_run_on_the_lanes_of_cores_and_gpus(opened: Opened, gpus: list[str]) -> None:
    needs_two(gpus)
    devices = opened(lambda device: (InPython if device.name == gpus[1] else OpenVinoDevice)(device))
    with devices.executor(in_flight=2, **ALL) as executor:
        assert not executor.native
        check_outputs(executor)
        InPython.calls = 0
        executor.times(20, timeout=100)
        assert InPython.calls == 20
        check_outputs(executor)


class Refusing(OpenVinoDevice):
    """A GPU that is given no request to run."""

    def instance(self, program: Program) -> NativeInstance | OpenVinoInstance:
        made = super().instance(program)
        assert isinstance(made, NativeInstance)
        made.request.entry = made.request.entry[0], 0
        return made


def test_a_gpu_that_fails_is_an_execution_error_and_leaves_no_lane_waiting(opened: Opened, gpus: list[str]) -> None:
    needs_two(gpus)
    devices = opened(lambda device: (Refusing if device.name == gpus[1] else OpenVinoDevice)(device))
    with devices.executor(in_flight=2, **ALL) as failing, devices.executor(one=FIRST, three=FIRST) as other:
        for _ in range(5):
            with pytest.raises(ExecutionError, match=f"starts with 'two' failed on {gpus[1]}: .*[a-z]"):
                failing.times(4, timeout=100)
            check_outputs(other)


def test_a_run_on_gpus_that_takes_too_long_ends_by_itself(mixed: Devices) -> None:
    with mixed.executor(in_flight=3, **ALL) as executor, mixed.executor(one=SECOND) as other:
        for _ in range(5):
            with pytest.raises(ExecutionError, match="The time-out is over, and the run is not"):
                executor.times(10**9, timeout=0.05)
            check_outputs(other)
        check_outputs(executor)


@pytest.mark.parametrize("what", ["executor", "runtime"])
def test_closing_in_the_middle_of_a_run_on_gpus_ends_it(mixed: Devices, what: str) -> None:
    executor = mixed.executor(in_flight=2, **ALL)
    check_outputs(executor)

    def close_when_it_runs() -> None:
        while executor._engine.over:
            time.sleep(0)
        mixed.runtime.close() if what == "runtime" else executor.give_up("nobody wants it")

    with (
        beside(close_when_it_runs),
        pytest.raises(ExecutionError, match="is closed" if what == "runtime" else "nobody wants it"),
    ):
        executor.times(10**9)
    if what == "executor":
        check_outputs(executor)
    executor.close()


def test_a_segment_with_state_runs_in_python_and_reads_in_place_what_is_there(opened: Opened, gpus: list[str]) -> None:
    """The C library cannot reset state, so that segment is compiled through the Python binding, for the same GPU."""
    x = ops.parameter(SHAPE, ov.Type.f32, name="x")
    stem = ops.tanh(ops.relu(x, name="first"), name="stem")
    state = ops.read_value(ops.constant(np.zeros(SHAPE, np.float32)), "state")
    total = ops.add(state, stem, name="total")
    model = ov.Model([ops.result(ops.abs(total, name="head"), name="y")], [ops.assign(total, "state")], [x], "stateful")
    devices = opened(model=describe(model, Path("stateful")))
    with devices.executor(stem=FIRST, total=FIRST) as executor:
        instances = {type(instance) for instance in executor._slots[0].instances if instance is not None}
        assert instances == {NativeInstance, OpenVinoInstance}
        assert not executor.native
        before = devices.memory(FIRST, "usm_device")
        value = inputs()["x"]
        for _ in range(3):  # each from the initial state
            np.testing.assert_allclose(executor.run({"x": value})["y"], np.abs(np.tanh(np.maximum(value, 0))), atol=1e-5)
        assert devices.memory(FIRST, "usm_device") == before


def test_python_exits_while_a_run_on_gpus_is_under_way(gpus: list[str]) -> None:
    program = f"""
import sys, threading, time
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from tests.gpu_plans import Devices
executor = Devices({gpus[:1]!r}).executor(one=1, three=1)
threading.Thread(target=lambda: executor.times(10**9), daemon=True).start()
while executor._engine.over:
    time.sleep(0)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=200, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
