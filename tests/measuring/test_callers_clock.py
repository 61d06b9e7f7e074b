"""The time of a request by an executor: the seconds from the call to the answer, and the seconds of its lanes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from placeit.backends.base import Sample
from placeit.core.cluster import Cluster, Device
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime import engine_run, executor, plan_executor, run_ends
from placeit.runtime.devices.base import Buffer
from placeit.runtime.devices.host_buffer import HostBuffer
from placeit.runtime.runtime import Runtime
from tests.null_devices import NullDevice, VirtualClock
from tests.small_models import random_model

FILL_S, READ_S, SEGMENT_S = 3.0, 5.0, 100.0


class SlowBuffer:
    """A buffer that takes its time, by a virtual clock, to be read."""

    def __init__(self, buffer: Any, clock: VirtualClock) -> None:
        self._buffer, self._clock = buffer, clock
        self.spec, self.nbytes = buffer.spec, buffer.nbytes

    def array(self) -> NDArray[np.generic]:
        self._clock.now += READ_S
        return self._buffer.array()


class SlowInstance:
    def __init__(self, instance: Any, clock: VirtualClock) -> None:
        self.of, self._clock = instance, clock

    def bind(self, index: int, buffer: Buffer) -> None: ...

    def output(self, index: int) -> Any:
        return SlowBuffer(self.of.output(index), self._clock)


class SlowDevice(NullDevice):
    def __init__(self, clock: VirtualClock) -> None:
        super().__init__("d", clock, lambda _: SEGMENT_S)

    def instance(self, program: Any) -> Any:
        return SlowInstance(super().instance(program), self._clock)

    def start(self, instance: Any, done: Any) -> None:
        super().start(instance.of, done)


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch):
    """An executor of a model in one segment, whose clock is virtual, and the model."""
    clock = VirtualClock()
    for module in (engine_run, executor, plan_executor, run_ends):
        monkeypatch.setattr(module, "perf_counter", lambda: clock.now)

    def fill(_: HostBuffer, value: NDArray[np.generic]) -> None:
        clock.now += FILL_S

    monkeypatch.setattr(HostBuffer, "fill", fill)  # of the inputs
    model = random_model(1, 5)
    grouping, cluster = Grouping.singletons(model.graph), Cluster((Device("d", "described"),))
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.zeros(groups, np.int32))
    assert len(plan.programs) == 1
    with (
        Runtime(model, grouping, cluster, devices=[SlowDevice(clock)], transports={}, wait=lambda _: clock.run()) as runtime,
        runtime.executor(plan, in_flight=2) as made,
    ):
        yield made, model


def test_a_request_counts_from_the_call_to_the_answer(opened: Any) -> None:
    made, model = opened
    made.set_inputs(model.random_inputs())
    seconds = made.time()
    copies = FILL_S * len(model.inputs) + READ_S * len(model.outputs)
    assert seconds == SEGMENT_S + copies
    assert made.inner == SEGMENT_S
    assert made.window[1] - made.window[0] == SEGMENT_S


def test_timing_on_the_inputs_of_the_last_run_costs_what_the_run_did(opened: Any) -> None:
    made, model = opened
    made.run(model.random_inputs())
    assert made.time() == SEGMENT_S + FILL_S * len(model.inputs) + READ_S * len(model.outputs)


def test_without_inputs_only_outputs_are_made(opened: Any) -> None:
    made, model = opened
    assert made.time() == SEGMENT_S + READ_S * len(model.outputs)


def test_of_many_requests_each_in_flight_has_its_inputs_and_outputs(opened: Any) -> None:
    made, model = opened
    for request in range(2):
        made.set_inputs(model.random_inputs(), request=request)
    copies = FILL_S * len(model.inputs) + READ_S * len(model.outputs)
    assert made.times(3) == 3 * SEGMENT_S + 2 * copies
    assert made.inner == 3 * SEGMENT_S


def test_requests_of_several_sizes_count_by_their_shares_both_ways(opened: Any) -> None:
    made, model = opened
    inputs = model.random_inputs()
    made.set_requests([Sample(inputs, 0.25), Sample(inputs, 0.75)])
    copies = FILL_S * len(model.inputs) + READ_S * len(model.outputs)
    assert made.time() == SEGMENT_S + copies
    assert made.inner == SEGMENT_S
