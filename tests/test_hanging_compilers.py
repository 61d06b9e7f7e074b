"""Compilers that never return: their devices are left out, and the process ends as if they had returned."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError
from placeit.devices.host import allowed_cores
from placeit.optimizer.options import Candidates
from placeit.planning.segments import Costs, Segmenter
from placeit.profiler.cache import Cache
from placeit.runtime import segment_compiler
from placeit.runtime.compiling import Compiling
from placeit.runtime.devices.base import SegmentSource
from placeit.runtime.devices.openvino import OpenVinoDevice
from placeit.session import Session
from tests.small_models import inception_like
from tests.steady import optimize

PAIR = Cluster(
    tuple(Device(name, address=Address("CPU", (core,))) for name, core in zip("ab", allowed_cores()[:2] * 2, strict=False)),
    dict.fromkeys([("a", "b"), ("b", "a")], Link(1e9, 1e-5, "emulated")),
)


@dataclass
class Hanging:
    """Compilers of the devices in ``names`` hang for segments for which ``which`` holds, until ``returns`` is set."""

    names: Sequence[str] = ("b",)
    which: Callable[[SegmentSource], bool] = lambda segment: True
    entered: set[str] = field(default_factory=set)
    returns: threading.Event = field(default_factory=threading.Event)
    count: int = 0
    abandoned: int = 0


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hanging]:
    hangs, compile_one = Hanging(), OpenVinoDevice.compile

    def hang(self: OpenVinoDevice, segment: SegmentSource) -> Any:
        if self.name in hangs.names and hangs.which(segment):
            hangs.count += 1
            hangs.entered.add(self.name)
            hangs.returns.wait()
        return compile_one(self, segment)

    def abandon() -> None:
        hangs.abandoned += 1

    monkeypatch.setattr(OpenVinoDevice, "compile", hang)
    monkeypatch.setattr(Compiling, "timeout_s", lambda _, device, __: 0.0 if device.name in hangs.entered else math.inf)
    monkeypatch.setattr(segment_compiler, "exit_without_libraries", abandon)
    yield hangs
    hangs.returns.set()


def is_whole(segment: SegmentSource) -> bool:
    whole = inception_like()
    ends, of = ([tuple(one.shape) for one in (*some.inputs, *some.outputs)] for some in (segment, whole))
    return ends == of


def worth_splitting(_: Any, grouping: Any, cluster: Cluster, *__: Any, **___: Any) -> Costs:
    free = Costs.zero(len(grouping.groups), cluster)
    return replace(free, core=np.full_like(free.core, 1e-4))


@pytest.mark.parametrize("when", ["at once", "when parts are compiled", "after profiling"])
def test_a_search_leaves_the_device_out(
    when: str, hanging: Hanging, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    if when == "after profiling":
        monkeypatch.setattr("placeit.profiler.costs.profile", worth_splitting)
    if when != "at once":
        hanging.which = lambda segment: not is_whole(segment)
    candidates, cache = Candidates(placers="heft"), Cache(tmp_path, runs=False)
    with caplog.at_level(logging.WARNING):
        found = optimize(inception_like(), PAIR, candidates=candidates, budget=30.0, cache=cache)
    assert hanging.count == hanging.abandoned <= 2  # segments that were compiled at the same time
    (said,) = [record.message for record in caplog.records if "hangs" in record.message]
    assert said.startswith("b hangs: it has not compiled a segment within")
    assert said.endswith("It is placed on a only.")
    assert len(set(found.placement.as_dict().values())) == 1
    if when != "after profiling":  # when b has a program of the whole model
        assert found.placement.as_dict().popitem()[1] == "a"


def test_nothing_is_compiled_for_the_device_until_its_compiler_returns(hanging: Hanging) -> None:
    with Session(inception_like(), PAIR) as session:
        groups, compiler = len(session.grouping.groups), session.runtime.compiler
        segment = Segmenter(session.grouping, Costs.zero(groups, PAIR)).plan(np.ones(groups, int)).segments[0]
        for _ in range(2):
            with pytest.raises(DeviceError, match=r"^b hangs: .* The segment has the \d+ ops 'image' to ") as caught:
                compiler.compile([segment])
            assert caught.value.device == "b"
        assert (hanging.count, hanging.abandoned) == (1, 1)
        hanging.entered.clear()
        hanging.returns.set()
        returned, _ = compiler.compiling.hung[PAIR.devices[1].where]
        assert returned.wait(60)
        compiler.compile([segment])
