"""Stand-ins for the drivers of devices."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.devices.fake_nvml import FakeNvml


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeNvml]:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield fake
    assert fake.open == 0, "the driver was left open"
