"""How tensors move between the host and Intel GPUs, and between two of them."""

from __future__ import annotations

import functools
import itertools
import operator
import threading
from typing import cast

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.devices.openvino import openvino_core
from placeit.runtime.devices.base import BufferSpec, Instance, Program, RuntimeDevice
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.openvino import NativeInstance, OpenVinoDevice, OpenVinoInstance
from placeit.testing.devices import ComputingDeviceConformance
from tests.gpu_plans import BYTES, FIRST, SECOND, SHAPE, Opened, expected, inputs, needs_two


class TestIntelGpu(ComputingDeviceConformance):
    @pytest.fixture(autouse=True)
    def _gpu(self, gpus: list[str], compiled_once: None) -> None:
        self.gpu = gpus[0]

    def open(self) -> RuntimeDevice:
        return OpenVinoDevice(Device("gpu", address=Address(self.gpu)))

    def failing(self, device: RuntimeDevice) -> Instance:
        instance = cast("OpenVinoInstance", super().failing(device))
        instance.run = functools.partial(operator.getitem, (), 0)
        return instance

    test_an_instance_that_has_failed_works_once_its_inputs_are_right = None  # type: ignore[assignment]  # no kernel fails


def needs_integrated(gpu: str) -> None:
    if "INTEGRATED" not in str(openvino_core().get_property(gpu, "DEVICE_TYPE")):
        pytest.skip(f"{gpu} is a discrete GPU, and this needs one that shares the host's memory")


def test_a_gpu_reads_and_writes_the_memory_of_the_host_in_place(opened: Opened) -> None:
    """Where its plugin copies, it first allocates memory on the device for the copy."""
    devices = opened()
    needs_integrated(devices.gpus[0])
    with devices.executor(one=FIRST) as executor:
        before = devices.memory(FIRST, "usm_device")
        for _ in range(2):
            np.testing.assert_allclose(executor.run(inputs())["y"], expected(inputs()), atol=1e-5)
        assert devices.memory(FIRST, "usm_device") == before


def test_a_tensor_in_other_memory_is_copied_to_the_gpu_which_shows(opened: Opened) -> None:
    """So that the test before this one proves something."""
    devices = opened()
    needs_integrated(devices.gpus[0])
    device, spec = devices.runtime.devices[FIRST], BufferSpec(SHAPE, "float32")
    (segment,) = [segment for segment in devices.plan(two=FIRST).programs if segment.device == FIRST]
    instance = device.instance(cast("Program", devices.runtime.compiler.compile([segment])[0]))
    ended = threading.Semaphore(0)
    for where, grows in ((device.allocate(spec), 0), (HostBuffer(spec), BYTES)):
        instance.bind(0, where)
        before = devices.memory(FIRST, "usm_device")
        device.start(instance, lambda *_: ended.release())
        assert ended.acquire(timeout=60)
        assert devices.memory(FIRST, "usm_device") == before + grows


def test_a_tensor_crosses_once_to_a_gpu_that_cannot_use_the_memory_of_the_other(opened: Opened) -> None:
    devices = opened()
    needs_two(devices.gpus)
    needs_integrated(devices.gpus[0])
    needs_integrated(devices.gpus[1])
    with devices.executor(one=FIRST, two=SECOND, three=SECOND) as executor:
        before = [devices.memory(gpu, "usm_device") for gpu in (FIRST, SECOND)]
        for _ in range(2):
            np.testing.assert_allclose(executor.run(inputs())["y"], expected(inputs()), atol=1e-5)
        after = [devices.memory(gpu, "usm_device") for gpu in (FIRST, SECOND)]
        assert after == [before[0], before[1] + 2 * BYTES]  # 'stem', which the first GPU reads in place, and 'one'


@pytest.mark.parametrize("library", ["C", "Python"])
def test_results_are_right_and_checked_on_every_mix_of_devices(
    opened: Opened, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between segments and after the last one, buffers are blanked and written anew, in whatever memory they are."""
    if library == "Python":
        monkeypatch.setattr("placeit.runtime.devices.openvino.native_openvino", lambda: None)
    devices = opened()
    every = range(1 + len(devices.gpus))
    for one, two, three in itertools.product(every, repeat=3):
        with devices.executor(one=one, two=two, three=three) as executor:
            assert executor.native == (library == "C")
            for _ in range(2):
                assert executor.blank(0) is None
                np.testing.assert_allclose(executor.run(inputs())["y"], expected(inputs()), atol=1e-5)


def test_memory_is_given_back_when_executors_are_closed(opened: Opened) -> None:
    devices = opened()
    where = {"one": FIRST, "three": len(devices.gpus)}
    with devices.executor(**where) as executor:
        executor.run(inputs())
    before = [devices.memory(gpu + 1, kind) for gpu in range(len(devices.gpus)) for kind in ("usm_host", "usm_device")]
    for _ in range(20):
        with devices.executor(in_flight=3, **where) as executor:
            executor.times(6)
    after = [devices.memory(gpu + 1, kind) for gpu in range(len(devices.gpus)) for kind in ("usm_host", "usm_device")]
    assert after == before


class Meeting(OpenVinoDevice):
    """A GPU on which inference begins when it is about to begin on another one."""

    barrier = threading.Barrier(2)

    def instance(self, program: Program) -> NativeInstance | OpenVinoInstance:
        made = super().instance(program)
        compute = made.run

        def run() -> object:
            self.barrier.wait(60)
            return compute()

        made.run = run
        return made


def test_two_gpus_work_at_the_same_time(gpus: list[str], opened: Opened) -> None:
    """A segment of each begins when both are about to: if one waited for the other's end, neither would ever begin."""
    needs_two(gpus)
    with opened(Meeting).executor(one=FIRST, two=SECOND) as executor:
        np.testing.assert_allclose(executor.run(inputs())["y"], expected(inputs()), atol=1e-5)
        spans = [span for span in executor.spans() if span.kind == "compute" and span.where[0] in gpus]
        assert {span.where for span in spans} == {(name,) for name in gpus[:2]}
        assert max(span.start for span in spans) < min(span.finish for span in spans)
