"""Times of launches are precise however long a run lasts, though drivers count milliseconds in float32."""

from __future__ import annotations

from collections import deque
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placeit.runtime.accelerators import times as times_module
from placeit.runtime.accelerators.times import Times

DAY = 86_400.0
LAUNCH_S, BETWEEN_S = 0.003, 0.001


class Device:
    """Devices whose events say when they were recorded; the time between two is a float32 of milliseconds, as CUDA has it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.made = 0

    def event(self, _: int) -> SimpleNamespace:
        self.made += 1
        return SimpleNamespace(at=None)

    def record(self, event: SimpleNamespace, _: str) -> None:
        event.at = self.now

    def elapsed(self, first: SimpleNamespace, second: SimpleNamespace) -> float:
        return float(np.float32((second.at - first.at) * 1e3)) / 1e3


@pytest.mark.parametrize("in_flight", [1, 3])
@pytest.mark.parametrize("pause", [5.0, 3600.0])
def test_a_request_after_a_day_is_timed_as_precisely_as_the_first(
    monkeypatch: pytest.MonkeyPatch, in_flight: int, pause: float
) -> None:
    device = Device()
    monkeypatch.setattr(times_module, "perf_counter", lambda: device.now)
    launch = SimpleNamespace(stream=0)
    layout = SimpleNamespace(streams=[0], launches=[launch], runs=[0], routes=[(0, 0)], tensor_of={})
    slots = [SimpleNamespace(begins=[device.event(0)], events=[device.event(0)]) for _ in range(in_flight)]
    launcher: Any = SimpleNamespace(accelerator=device, layout=layout, streams=["first"], slots=slots, pending=0)
    times, expected = Times(launcher), deque[float]()
    times.begin()
    alone = pause > 60
    number, end = 0, device.now + DAY
    while device.now < end:  # alone: one request after another; else there is always one in flight
        slot = slots[number % in_flight]
        if launcher.pending == (0 if alone else in_flight - 1):
            times.refresh()
        slot.begins[0].at = device.now
        slot.events[0].at = device.now + LAUNCH_S
        expected.append(device.now)
        launcher.pending += 1
        device.now += LAUNCH_S + BETWEEN_S
        if launcher.pending == (1 if alone else in_flight):
            ended = slots[(number + 1) % in_flight] if not alone and in_flight > 1 else slot
            launcher.pending -= 1
            times.ended(0, ended, only=True)
            ((_, start, finish),), _ = times.last()
            assert abs(start - expected.popleft()) < 1e-4
            assert abs(finish - start - LAUNCH_S) < 1e-6
            device.now += pause
        number += 1
    assert device.made - 2 * in_flight <= 2
