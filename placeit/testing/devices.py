"""Conformance tests for devices, as test classes to inherit.

Use it like this::

    from placeit.testing.devices import ComputingDeviceConformance

    class TestMine(ComputingDeviceConformance):
        def open(self):
            return MyDevice(...)

Importing this module needs pytest; no other module of placeit does.
"""

# ruff: noqa: S101 (tests use assertions)
from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.core.errors import DeviceError, PlaceitError
from placeit.runtime.blank import is_blank
from placeit.runtime.devices.base import DoneCallback, Instance, RuntimeDevice
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.testing.segments import Broken, Pick, Source

__all__ = ["ComputingDeviceConformance", "DeviceConformance"]

_TIMEOUT_S = 60.0


class DeviceConformance:
    """Tests for all devices, including devices that compute nothing. Override :meth:`open`."""

    def open(self) -> RuntimeDevice:
        """Create a device. The tests close it."""
        raise NotImplementedError

    def let_time_pass(self) -> None:
        """Wait for started instances. Override this to advance the clock of a device with a virtual clock."""
        time.sleep(1e-3)

    @pytest.fixture
    def device(self) -> Iterator[RuntimeDevice]:
        """Open a device for one test."""
        device = self.open()
        yield device
        device.close()

    def test_it_says_what_it_is(self, device: RuntimeDevice) -> None:
        """Name, memory space and program key are set; programs and buffers have the requested shapes and types."""
        assert all(isinstance(text, str) and text for text in (device.name, device.space, device.program_key))
        source = Source()
        program = device.compile(source)
        assert tuple(program.inputs) == source.inputs
        assert tuple(program.outputs) == source.outputs
        instance = device.instance(program)
        buffers = [*(instance.output(i) for i in range(len(source.outputs))), *map(device.allocate, source.inputs)]
        for spec, buffer in zip([*source.outputs, *source.inputs], buffers, strict=True):
            assert buffer.space == device.space
            assert buffer.nbytes == np.zeros(spec.shape, spec.dtype).nbytes
            assert buffer.array().shape == spec.shape
            assert buffer.array().dtype == spec.dtype

    def test_instances_run_one_at_a_time_in_the_order_in_which_they_were_started(self, device: RuntimeDevice) -> None:
        """Each run is reported once, with its start and end time and without an error."""
        runs = _Runs()
        instances = self._instances(device, 3)
        for i in range(12):
            device.start(instances[i % 3], runs.done(i))
        self._wait(runs, 12)
        assert runs.labels == list(range(12))
        assert runs.errors == [None] * 12
        assert all(start <= finish for start, finish in runs.times)
        assert all(before[1] <= after[0] for before, after in pairwise(runs.times))

    def test_the_report_of_an_end_may_start_the_next_instance(self, device: RuntimeDevice) -> None:
        """The executor does this while it holds a lock, so a device must not report from within ``start``."""
        lock, runs = threading.Lock(), _Runs()
        (instance,) = self._instances(device, 1)
        entered = []

        def go_on(start: float, finish: float, error: BaseException | None) -> None:
            entered.append(lock.acquire(timeout=5.0))
            if entered[-1]:
                runs.done(len(runs.labels))(start, finish, error)
                if len(entered) < 30:
                    device.start(instance, go_on)
                lock.release()

        with lock:
            device.start(instance, go_on)
        self._wait(runs, 30)
        assert all(entered)
        assert runs.labels == list(range(30))

    def test_closing_ends_what_was_started_and_every_thread(self) -> None:
        """Closing twice is allowed; nothing is reported twice."""
        threads = set(threading.enumerate())
        device, runs = self.open(), _Runs()
        instances = self._instances(device, 2)
        for i in range(4):
            device.start(instances[i % 2], runs.done(i))
        self.let_time_pass()
        device.close()
        device.close()
        assert runs.labels == list(range(4))
        assert set(threading.enumerate()) <= threads

    def _instances(self, device: RuntimeDevice, count: int, *, seed: int = 0) -> list[Instance]:
        """Create instances of one program with different inputs."""
        program = device.compile(Source())
        instances = [device.instance(program) for _ in range(count)]
        for i, instance in enumerate(instances):
            for k, buffer in enumerate(_buffers(seed + i)):
                instance.bind(k, buffer)
        return instances

    def _run(self, device: RuntimeDevice, *instances: Instance) -> list[BaseException | None]:
        """Run instances one after the other; return their errors."""
        runs = _Runs()
        for i, instance in enumerate(instances):
            device.start(instance, runs.done(i))
        self._wait(runs, len(instances))
        return runs.errors

    def _wait(self, runs: _Runs, count: int) -> None:
        deadline = time.monotonic() + _TIMEOUT_S
        while len(runs.labels) < count and time.monotonic() < deadline:
            self.let_time_pass()
        assert len(runs.labels) == count, f"{len(runs.labels)} of {count} instances were reported in {_TIMEOUT_S:g} s"


class ComputingDeviceConformance(DeviceConformance):
    """Tests for devices that compute: contents of buffers, and handling of failures.

    Override :meth:`open`, and :meth:`failing` for a device whose kernels do not check indices.
    """

    def failing(self, device: RuntimeDevice) -> Instance:
        """Create an instance that fails when it runs. By default, an index is out of range."""
        source = Pick()
        instance = device.instance(device.compile(source))
        for i, (spec, value) in enumerate(zip(source.inputs, (1.0, 1000), strict=True)):
            buffer = HostBuffer(spec)
            buffer.array()[...] = value
            instance.bind(i, buffer)
        return instance

    def test_outputs_are_those_of_numpy(self, device: RuntimeDevice) -> None:
        """Inputs are a matrix, a scalar, integers, and an image in channels-last layout."""
        (instance,) = self._instances(device, 1, seed=3)
        assert self._run(device, instance) == [None]
        _check(instance, _values(3))

    def test_instances_of_one_program_share_no_memory(self, device: RuntimeDevice) -> None:
        """Outputs of one instance keep their values while others run."""
        instances = self._instances(device, 3)
        self._run(device, *instances)
        for i, instance in enumerate(instances):
            _check(instance, _values(i))

    def test_inputs_are_read_when_an_instance_runs(self, device: RuntimeDevice) -> None:
        """The next run reads values written to a bound buffer, and writes to the same output buffers."""
        (instance,) = self._instances(device, 1)
        buffers = _buffers(0)
        for k, buffer in enumerate(buffers):
            instance.bind(k, buffer)
        outputs = [instance.output(i) for i in range(len(Source().outputs))]
        for seed in (0, 1, 2):
            for buffer, value in zip(buffers, _values(seed), strict=True):
                buffer.array()[...] = value
            self._run(device, instance)
            _check(instance, _values(seed))
            for i, output in enumerate(outputs):
                np.testing.assert_array_equal(output.array(), instance.output(i).array())

    def test_an_input_can_be_bound_anew_after_a_run(self, device: RuntimeDevice) -> None:
        """The last buffer that was bound counts."""
        (instance,) = self._instances(device, 1)
        self._run(device, instance)
        for k, buffer in enumerate(_buffers(7)):
            instance.bind(k, buffer)
        self._run(device, instance)
        _check(instance, _values(7))

    def test_an_instance_reads_the_outputs_of_another_in_place(self, device: RuntimeDevice) -> None:
        """Several instances can read the same output."""
        first, second, third = self._instances(device, 3)
        for k, place in enumerate(Source.order):
            for reader in (second, third):
                reader.bind(place, first.output(k))
        self._run(device, first, second, third)
        once = _reference(_values(0))
        values: list[NDArray[np.generic]] = [once[0]] * len(once)
        for k, place in enumerate(Source.order):
            values[place] = once[k]
        _check(second, values)
        _check(third, values)

    def test_an_instance_writes_to_the_buffers_that_it_is_given(self, device: RuntimeDevice) -> None:
        """Applies to instances with ``write_to``; readers of the outputs then read those buffers."""
        first, second = self._instances(device, 2, seed=4)
        if not hasattr(first, "write_to"):
            return
        places = [device.allocate(spec) for spec in Source.outputs]
        for k, place in enumerate(places):
            first.write_to(k, place)
            assert first.output(k) is place
            second.bind(Source.order[k], place)
        for _ in range(2):
            self._run(device, first, second)
            _check(first, _values(4))
            values = _values(4)
            for k, index in enumerate(Source.order):
                values[index] = places[k].array()
            _check(second, values)
            for place in places:
                place.blank(0)

    @pytest.mark.parametrize("sentinel", [0, 1])
    def test_blank_outputs_hold_nan_until_they_are_written_again(self, device: RuntimeDevice, sentinel: int) -> None:
        """Integers hold the sentinel instead. Inputs, and outputs that another instance reads, keep their values."""
        first, second = self._instances(device, 2)
        for k, place in enumerate(Source.order):
            second.bind(place, first.output(k))
        buffers = _buffers(0)
        for k, buffer in enumerate(buffers):
            first.bind(k, buffer)
        for instance in (second, first):
            self._run(device, first, second)
            for k, spec in enumerate(Source.outputs):
                instance.output(k).blank(sentinel)
                assert is_blank(instance.output(k).array(), sentinel)
                assert instance.output(k).array().dtype == spec.dtype
            for buffer, value in zip(buffers, _values(0), strict=True):
                np.testing.assert_array_equal(buffer.array(), value)
            if instance is second:
                _check(first, _values(0))
        self._run(device, first)
        _check(first, _values(0))
        for spec in Source.inputs:
            empty = device.allocate(spec)
            empty.blank(sentinel)
            assert is_blank(empty.array(), sentinel)

    def test_a_run_that_fails_is_reported_and_others_work(self, device: RuntimeDevice) -> None:
        """``start`` raises nothing; the reported error is a PlaceitError and names the device."""
        (works,) = self._instances(device, 1, seed=5)
        before, error, after = self._run(device, works, self.failing(device), works)
        assert before is None
        assert isinstance(error, PlaceitError)
        assert device.name in str(error)
        assert after is None
        _check(works, _values(5))

    def test_an_instance_that_has_failed_works_once_its_inputs_are_right(self, device: RuntimeDevice) -> None:
        """Each failure is reported, and outputs of an earlier run are never reported as results of the failed run."""
        source = Pick()
        instance = device.instance(device.compile(source))
        values, index = (HostBuffer(spec) for spec in source.inputs)
        values.array()[...] = [1.0, 2.0, 3.0, 4.0]
        instance.bind(0, values)
        instance.bind(1, index)
        for _ in range(10):
            for place in range(4):
                index.array()[...] = 1000
                (error,) = self._run(device, instance)
                assert isinstance(error, PlaceitError)
                index.array()[...] = place
                assert self._run(device, instance) == [None]
                assert instance.output(0).array() == place + 1

    def test_a_segment_that_it_cannot_compile_is_a_device_error(self, device: RuntimeDevice) -> None:
        """The error names the device."""
        with pytest.raises(DeviceError, match=device.name):
            device.compile(Broken())

    def test_several_threads_may_compile_at_once(self, device: RuntimeDevice) -> None:
        """Runtimes compile segments in parallel, to prepare plans faster."""
        with ThreadPoolExecutor(4) as pool:
            programs = list(pool.map(device.compile, [Source() for _ in range(8)]))
        for seed, program in enumerate(programs):
            instance = device.instance(program)
            for k, buffer in enumerate(_buffers(seed)):
                instance.bind(k, buffer)
            self._run(device, instance)
            _check(instance, _values(seed))


class _Runs:
    """Records the reports of runs, in order."""

    def __init__(self) -> None:
        self.labels: list[int] = []
        self.times: list[tuple[float, float]] = []
        self.errors: list[BaseException | None] = []

    def done(self, label: int) -> DoneCallback:
        def done(start: float, finish: float, error: BaseException | None) -> None:
            self.times.append((start, finish))
            self.errors.append(error)
            self.labels.append(label)  # last: a test waits for it

        return done


def _values(seed: int) -> list[NDArray[np.generic]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(-9, 10, spec.shape).astype(spec.dtype) for spec in Source.inputs]


def _buffers(seed: int) -> list[HostBuffer]:
    buffers = [HostBuffer(spec) for spec in Source.inputs]
    for buffer, value in zip(buffers, _values(seed), strict=True):
        buffer.array()[...] = value
    return buffers


def _reference(values: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
    return [values[k] * values[k] + values[k] for k in Source.order]


def _check(instance: Instance, values: Sequence[NDArray[Any]]) -> None:
    for i, expected in enumerate(_reference(values)):
        np.testing.assert_array_equal(instance.output(i).array(), expected)
