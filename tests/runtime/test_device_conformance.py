"""Every kind of device that ships with placeit passes the suite that it ships for others."""

from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from placeit.core.address import Address
from placeit.core.cluster import Device
from placeit.core.errors import DeviceError, ExecutionError
from placeit.core.threads import Worker
from placeit.devices.host import allowed_cores
from placeit.runtime.devices.base import (
    BufferSpec,
    CompilesSlowly,
    DividedIntoStreams,
    OnThread,
    PinsMemory,
    ReadsInPlace,
    RuntimeDevice,
    ServesSlots,
    Slowed,
)
from placeit.runtime.devices.emulated import EmulatedLink, slowed
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.testing.devices import ComputingDeviceConformance, DeviceConformance
from tests.null_devices import NullDevice, VirtualClock
from tests.small_models import random_model

CORES = allowed_cores()


class TestOneCore(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return OpenVinoDevice(Device("one", address=Address("CPU", CORES[:1])))


class TestAllCores(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return OpenVinoDevice(Device("all", address=Address("CPU"), all_cores=CORES))


class TestSlowed(ComputingDeviceConformance):
    def open(self) -> RuntimeDevice:
        return slowed(OpenVinoDevice(Device("slow", address=Address("CPU", CORES[:1]))), 3.0)


class Able(OpenVinoDevice):
    """Has abilities that OpenVINO's device lacks."""

    worker_of = streams = compile_within = OpenVinoDevice.close


def test_a_slowed_device_keeps_the_abilities_of_the_real_one_and_gets_no_others() -> None:
    device = slowed(Able(Device("one", address=Address("CPU", CORES[:1]))), 2.0)
    try:
        assert isinstance(device, Slowed)
        for ability in (ServesSlots, DividedIntoStreams, CompilesSlowly, OnThread, ReadsInPlace):
            assert isinstance(device, ability)
        assert not isinstance(device, PinsMemory)
    finally:
        device.close()


def test_programs_for_one_core_start_no_threads() -> None:
    """OpenVINO would start two for each, and a search compiles thousands."""
    device = TestOneCore().open()
    try:
        kept, counts = [], []
        for seed in range(20):
            model = random_model(seed, 4)
            segment = SimpleNamespace(inputs=(), outputs=(), identity="", in_format=lambda _, model=model: model.ov_model)
            kept.append(device.compile(segment))  # type: ignore[arg-type]
            counts.append(len(list(Path("/proc/self/task").iterdir())))
        assert max(counts) == counts[0]
    finally:
        device.close()


class TestNull(DeviceConformance):
    def open(self) -> RuntimeDevice:
        self.clock = VirtualClock()
        return NullDevice("null", self.clock, lambda _: 0.5)

    def let_time_pass(self) -> None:
        self.clock.run()


def test_jobs_of_a_worker_run_in_order_also_those_that_jobs_submit() -> None:
    worker, ran = Worker("jobs"), list[int]()

    def job(number: int) -> None:
        ran.append(number)
        if number < 3:
            worker.submit(lambda: job(number + 10))

    for number in range(5):
        worker.submit(lambda number=number: job(number))  # type: ignore[misc]
    ended = threading.Event()
    worker.submit(lambda: worker.submit(ended.set))
    assert ended.wait(30)
    worker.close()
    assert ran == [0, 1, 2, 3, 4, 10, 11, 12]


def test_a_closed_worker_refuses_jobs() -> None:
    worker = Worker("placeit spare")
    worker.close()
    with pytest.raises(ExecutionError, match="placeit spare is closed"):
        worker.submit(lambda: None)


def test_a_worker_without_a_core_to_run_on_is_a_device_error() -> None:
    with pytest.raises(DeviceError, match="placeit spare: no thread can be bound to the CPU cores 4001, 4002"):
        Worker("placeit spare", (4001, 4002))


def test_a_link_moves_one_tensor_at_a_time_in_order() -> None:
    link, buffer = EmulatedLink("placeit link", bandwidth=1e6, latency=1e-3), HostBuffer(BufferSpec((1000,), "float32"))
    times: list[tuple[float, float]] = []
    over = threading.Semaphore(0)

    def done(start: float, finish: float, _: BaseException | None) -> None:
        times.append((start, finish))
        over.release()

    for _ in range(3):
        link.start(buffer, buffer, done)
    assert all(over.acquire(timeout=30) for _ in range(3))
    link.close()
    assert all(before[1] <= after[0] for before, after in pairwise(times))
    assert all(finish - start >= 4e-3 for start, finish in times)
