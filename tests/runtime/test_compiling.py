"""Compiling: its counts, its expected time, and the messages that are shown in that time."""

from __future__ import annotations

import locale
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import DeviceError
from placeit.devices.compiled import VARIABLE
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import coarsen
from placeit.planning.segments import Costs, Plan, Segmenter
from placeit.runtime.compiling import Compiling
from placeit.runtime.devices.base import Program, SegmentSource
from placeit.runtime.runtime import Runtime
from tests.null_devices import NullDevice, VirtualClock
from tests.small_models import inception_like

CLUSTER = Cluster((Device("CPU@0", address=Address("CPU", (0,))), Device("GPU.0", address=Address("GPU.0"))))


class Compiler(NullDevice):
    """Counts what it compiles, and what it finds on its disk."""

    def __init__(self, name: str, *, kept: bool = False, compiling: Callable[[], object] = lambda: None) -> None:
        super().__init__(name, VirtualClock(), lambda _: 1.0)
        self.kept, self.compiling = kept, compiling

    def compile(self, segment: SegmentSource) -> Program:
        self.compiling()
        program = super().compile(segment)
        program.from_disk = self.kept  # type: ignore[attr-defined]
        return program

    def keeps(self, segment: SegmentSource) -> bool:
        assert segment.identity
        return self.kept


def runtime_with(gpu: Compiler) -> tuple[Runtime, list[Plan]]:
    """A model on a CPU and a GPU, and its plans: on the GPU alone, and on both in turns."""
    model = inception_like()
    grouping = coarsen(model.graph, max_groups=6)
    groups = len(grouping.groups)
    segmenter = Segmenter(grouping, Costs.zero(groups, CLUSTER))
    plans = [segmenter.plan(np.ones(groups, int)), segmenter.plan(np.arange(groups) % 2, merge=False)]
    return Runtime(model, grouping, CLUSTER, devices=[Compiler("CPU@0"), gpu]), plans


def on_gpu(plan: Plan) -> int:
    return sum(segment.device for segment in plan.programs)


def test_programs_are_counted_by_kind_of_device() -> None:
    runtime, (whole, mixed) = runtime_with(Compiler("GPU.0"))
    with runtime:
        for plan in (whole, mixed, mixed):
            runtime.executor(plan)
        gpu, cpu = runtime.compiler.compiling.kinds["GPU"], runtime.compiler.compiling.kinds["CPU"]
    assert (gpu.compiled, gpu.from_disk, gpu.reused) == (1 + on_gpu(mixed), 0, on_gpu(mixed))
    assert (cpu.compiled, cpu.reused) == (len(mixed.programs) - on_gpu(mixed),) * 2
    assert runtime.compiler.compiling.seconds == pytest.approx(gpu.seconds + cpu.seconds)


def test_programs_from_disk_are_counted_as_such_and_take_little() -> None:
    runtime, (whole, mixed) = runtime_with(Compiler("GPU.0", kept=True))
    fresh, (also_whole, _) = runtime_with(Compiler("GPU.0"))
    with runtime, fresh:
        assert runtime.compiler.expected_s([whole]) < fresh.compiler.expected_s([also_whole])
        runtime.executor(mixed)
        gpu = runtime.compiler.compiling.kinds["GPU"]
    assert (gpu.compiled, gpu.from_disk) == (0, on_gpu(mixed))


def test_what_is_there_takes_no_time_and_what_plans_share_is_compiled_once() -> None:
    runtime, (whole, mixed) = runtime_with(Compiler("GPU.0"))
    with runtime:
        both = runtime.compiler.expected_s([whole, mixed])
        assert both == pytest.approx(runtime.compiler.expected_s([whole]) + runtime.compiler.expected_s([mixed]))
        assert runtime.compiler.expected_s([mixed, mixed]) == runtime.compiler.expected_s([mixed])
        runtime.executor(mixed)
        assert runtime.compiler.expected_s([mixed]) == 0


def test_a_gpu_is_expected_to_compile_slowly_until_it_was_seen_to_do_otherwise() -> None:
    compiling = Compiling()
    assert compiling.expected_s("GPU", 10) > 10 * compiling.expected_s("CPU", 10)
    for _ in range(20):
        compiling.record("GPU", 50.0, 10)
        compiling.record("CPU", 0.01, 10)
    assert compiling.expected_s("GPU", 10) == pytest.approx(50.0, rel=0.05)
    assert compiling.expected_s("CPU", 10) == pytest.approx(0.01, rel=0.05)
    assert compiling.expected_s("NPU", 10) == Compiling().expected_s("NPU", 10)


def test_what_comes_from_disk_says_nothing_of_what_compiling_takes() -> None:
    compiling = Compiling()
    compiling.record("GPU", 50.0, 10)
    before = compiling.expected_s("GPU", 10)
    for _ in range(20):
        compiling.record("GPU", 0.5, 10, from_disk=True)
    assert compiling.expected_s("GPU", 10) == before
    assert compiling.expected_s("GPU", 10, on_disk=True) == pytest.approx(0.5, rel=0.1)


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        (Device("CPU@0", address=Address("CPU", (0,))), "CPU"),
        (Device("igpu", address=Address("GPU.1")), "GPU"),
        (Device("cuda:0", "cuda", Address("cuda:0")), "cuda"),
        (Device("ort:CPU@0", "ort", Address("CPU", (0,), runtime="ort")), "ort:CPU"),
    ],
)
def test_kinds_are_those_of_the_hardware_and_its_runtime(device: Device, kind: str) -> None:
    assert Compiling.kind(device) == kind


def test_it_is_said_what_is_compiled_while_somebody_waits() -> None:
    told = threading.Event()
    said: list[tuple[str, float]] = []

    def progress(what: str, share: float) -> None:
        said.append((what, share))
        told.set()

    runtime, (whole, _) = runtime_with(Compiler("GPU.0", compiling=told.wait))
    runtime.compiler.compiling.progress = progress
    with runtime:
        runtime.executor(whole)
    what, share = said[0]
    assert what == "compiling 1 of 1 segments for GPU.0"
    assert 0 <= share < 1


def test_a_compiler_may_take_far_longer_than_expected() -> None:
    gpu = CLUSTER.devices[1]
    assert [Compiling().timeout_s(gpu, seconds) for seconds in (0.0, 30.0, 100.0)] == [300.0, 300.0, 1000.0]


def test_what_cannot_be_compiled_is_not_counted() -> None:
    def fails() -> None:
        raise DeviceError("no kernel")

    runtime, (whole, _) = runtime_with(Compiler("GPU.0", compiling=fails))
    with runtime, pytest.raises(DeviceError, match="no kernel"):
        runtime.executor(whole)
    assert "GPU" not in cast("dict[str, object]", runtime.compiler.compiling.kinds)


def test_segments_that_are_cut_anew_are_found_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    core = Address("CPU", allowed_cores()[:1])
    cluster = Cluster((Device("a", address=core), Device("b", address=core)))
    model = inception_like()
    grouping = coarsen(model.graph, max_groups=6)
    groups = len(grouping.groups)
    plan = Segmenter(grouping, Costs.zero(groups, cluster)).plan(np.arange(groups) // 2 % 2)
    counts, before = [], locale.setlocale(locale.LC_ALL)
    for _ in range(2):
        with Runtime(model, grouping, cluster) as runtime:
            expected = runtime.compiler.expected_s([plan])
            runtime.executor(plan).close()
            counts.append((expected, runtime.compiler.compiling.kinds["CPU"]))
    assert locale.setlocale(locale.LC_ALL) == before  # OpenVINO changes it while it compiles
    (fresh_s, fresh), (found_s, found) = counts
    assert fresh.compiled == found.from_disk == len(plan.programs) > 2
    assert fresh.from_disk == found.compiled == 0
    assert found_s <= fresh_s
