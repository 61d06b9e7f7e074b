"""What the profiler asks of devices, and what it makes of groups that run on some of them only."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import openvino as ov
import pytest

from placeit.core import clock
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, ExecutionError, InfeasibleError
from placeit.devices import parse_device
from placeit.devices.host import allowed_cores
from placeit.planning.coarsen import Grouping, coarsen
from placeit.planning.segments import Segmenter
from placeit.profiler import costs
from placeit.profiler.cache import Cache
from placeit.profiler.costs import profile
from placeit.profiler.machine_load import MachineLoad
from placeit.profiler.passes import Calm, Passes
from placeit.profiler.support import supported
from placeit.runtime.devices.kernels import Kernel
from placeit.runtime.runtime import Runtime
from tests.small_models import inception_like

CORES = allowed_cores()[:1]
BUDGET_S = 60.0  # far more than these take, also on a busy machine
MODEL = inception_like()
COARSE = coarsen(MODEL.graph)


class _Core:
    """Says that devices support everything but the ops that are listed for them."""

    def __init__(self, lacking: dict[str, set[str]]) -> None:
        self.lacking = lacking
        self.asked: list[str] = []

    def query_model(self, model: ov.Model, target: str) -> dict[str, str]:
        self.asked.append(target)
        if target not in self.lacking:
            raise RuntimeError(f'Device with "{target}" name is not registered')
        return {op.get_friendly_name(): target for op in model.get_ops() if op.get_friendly_name() not in self.lacking[target]}


def answering(monkeypatch: pytest.MonkeyPatch, **lacking: set[str]) -> _Core:
    importlib.import_module("placeit.runtime.kinds.openvino")  # a module that is loaded with the fake in place would keep it
    fake = _Core(lacking)
    monkeypatch.setattr("placeit.devices.openvino.openvino_core", lambda: fake)
    return fake


def devices(*names: str) -> Cluster:
    return Cluster(tuple(Device(name, address=parse_device(name)) for name in names))


def test_a_group_runs_where_all_of_its_ops_do_and_each_runtime_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    group = int(np.bincount(COARSE.group_of).argmax())
    lacking = COARSE.members(group)[-1]
    fake = answering(monkeypatch, CPU=set(), GPU={lacking})
    can = supported(MODEL, COARSE, devices("CPU@0", "GPU", "CPU@1"))
    expected = np.ones((len(COARSE.groups), 3), bool)
    expected[group, 1] = False
    np.testing.assert_array_equal(can, expected)
    assert fake.asked == ["CPU", "GPU"]


def test_an_op_that_no_device_supports_is_named_with_its_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = MODEL.graph.names[5]
    answering(monkeypatch, NPU={lacking}, GPU={lacking})
    with pytest.raises(InfeasibleError, match=rf"NPU, GPU supports op '{lacking}' \({MODEL.graph.kinds[5]}\)"):
        supported(MODEL, COARSE, devices("NPU", "GPU"))


def test_ops_of_a_group_that_no_device_supports_as_a_whole_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    group = int(np.bincount(COARSE.group_of).argmax())
    first, *_, last = COARSE.members(group)
    answering(monkeypatch, NPU={first}, GPU={last})
    with pytest.raises(InfeasibleError, match=f"NPU not '{first}', GPU not '{last}'"):
        supported(MODEL, COARSE, devices("NPU", "GPU"))
    assert supported(MODEL, Grouping.singletons(MODEL.graph), devices("NPU", "GPU")).any(axis=1).all()


def test_a_runtime_that_does_not_answer_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, CPU=set())
    with pytest.raises(DeviceError, match=r"what GPU\.1 supports: .*not registered"):
        supported(MODEL, COARSE, devices("CPU", "GPU.1"))


def on_one_core(*names: str) -> Cluster:
    links = {(a, b): Link(1e9, 0.0) for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, address=Address("CPU", CORES), driver=name) for name in names), links)


def test_a_group_that_a_device_lacks_costs_infinitely_much_there_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster, can = on_one_core("a", "b"), np.ones((len(COARSE.groups), 2), bool)
    lacking = [2, len(can) - 1]
    can[lacking, 1] = False
    monkeypatch.setattr(costs, "supported", lambda *_: can)
    with Runtime(MODEL, COARSE, cluster) as runtime:
        found = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S)
        np.testing.assert_array_equal(np.isfinite(found.core), can)
        assert (found.core[can] >= 0).all()
        assert np.isfinite(found.cut).all()
        assert not found.cut[:, 1].any(), "without a pass of the whole model there is nothing to compare cut groups with"
        assert found.core[:, 0].sum() > 0
        problem = Segmenter(COARSE, found).problem()
        assert problem.single_devices == (0,)

        first = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=Cache(tmp_path))
        again = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=Cache(tmp_path))
    np.testing.assert_array_equal(first.core, again.core)
    np.testing.assert_array_equal(first.dispatch, again.dispatch)


def test_devices_that_share_cores_are_not_measured_beside_each_other() -> None:
    cores = {"wide": CORES, "one": CORES, "other": (allowed_cores()[-1],)}
    cluster = Cluster(tuple(Device(name, address=Address("CPU", some), driver=name) for name, some in cores.items()))
    with Runtime(MODEL, COARSE, cluster) as runtime:
        found = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S)
    assert found.load.any(axis=0).tolist() == [True] * 3 if len(allowed_cores()) > 1 else [False] * 3
    with Runtime(MODEL, COARSE, Cluster(cluster.devices[:2])) as runtime:
        found = profile(MODEL, COARSE, runtime.cluster, runtime, budget_s=BUDGET_S)
    assert not found.load.any()
    assert (found.core > 0).any(axis=0).all()


@pytest.mark.parametrize("budget", [30.0, 40.0, 60.0])
def test_slow_models_are_profiled_within_the_budget(budget: float, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster, now = on_one_core("a", "b"), 0.0

    def run(passes: Passes, in_row: int) -> float:
        nonlocal now
        now += in_row
        passes._executor.time()
        return 1.0

    def last_times(passes: Passes) -> tuple[np.ndarray, np.ndarray]:
        ends = np.linspace(0.0, 1.0, len(passes._executor.plan.segments) + 1)
        return ends[:-1], ends[1:]

    def kernels(model: Any, grouping: Grouping, device: Device, precision: str, passes: int) -> list[Kernel]:
        nonlocal now
        now += passes
        return [Kernel(tuple(range(len(grouping.graph))), 1.0)]

    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(Passes, "_run", run)
    monkeypatch.setattr(Passes, "_last_times", last_times)
    monkeypatch.setattr(costs, "device_kind", lambda _: SimpleNamespace(kernels=kernels))
    with Runtime(MODEL, COARSE, cluster) as runtime:
        found = profile(MODEL, COARSE, cluster, runtime, budget_s=budget, watch=Calm)
    assert found.core.sum(axis=0) == pytest.approx([1.0, 1.0], rel=1e-3)
    assert now <= budget


def changed(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change what the cache holds for groups."""
    for path in folder.glob("*.json"):
        entry = json.loads(path.read_text())
        if entry["key"]["what"] == "group costs":
            change(entry["value"])
            path.write_text(json.dumps(entry))


@pytest.mark.parametrize(
    ("whole", "budget", "holds"),
    [([1e-9, 10.0], 1e3, True), ([1e-9, 2e-9], 1.0, False), ([100.0, 101.0], 1e4, False), ([100.0, 101.0], 1.0, True)],
    ids=["within", "slower now", "faster now", "no time to look"],
)
def test_costs_that_the_whole_model_contradicts_are_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: list[float], budget: float, *, holds: bool
) -> None:
    cluster = on_one_core("a", "b")
    with Runtime(MODEL, COARSE, cluster) as runtime:
        first = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=Cache(tmp_path))
        changed(tmp_path, lambda value: value["whole"].__setitem__(1, whole))
        unchecked = profile(MODEL, COARSE, cluster, runtime, budget_s=budget, cache=Cache(tmp_path))
        assert unchecked.profiled is not None
        assert unchecked.profiled.cached
        assert not caplog.records
        # the other device's interval is too narrow to rely on while the machine is busy
        changed(tmp_path, lambda value: value["whole"].__setitem__(0, [1e-9, 10.0] if budget > 1 else [1e-9, 0.05]))
        again = profile(MODEL, COARSE, cluster, runtime, budget_s=budget, cache=Cache(tmp_path), check=True)
    assert again.profiled is not None
    assert again.profiled.cached == holds
    assert ("are no longer valid: on b the model takes" in caplog.text) != holds
    assert first.profiled is not None
    assert (again.profiled.at == first.profiled.at) == holds
    assert not first.profiled.cached


@pytest.mark.parametrize(
    "damage",
    [
        lambda value: value["core"][0].__setitem__(0, 10**400),
        pytest.param(lambda value: value["core"][0].__setitem__(0, -1e-9), marks=pytest.mark.slow),
        pytest.param(lambda value: value["core"][0].__setitem__(0, 1e8), marks=pytest.mark.slow),
        pytest.param(lambda value: value["core"][0].__setitem__(0, None), marks=pytest.mark.slow),
        pytest.param(lambda value: value["load"][0].__setitem__(0, -(10**400)), marks=pytest.mark.slow),
        lambda value: value["latency"][0].__setitem__(0, "1"),
        pytest.param(lambda value: value["whole"].__setitem__(0, None), marks=pytest.mark.slow),
        lambda value: value["whole"].__setitem__(0, [2.0, 1.0]),
        pytest.param(lambda value: value["whole"].__setitem__(0, [0.0, 10**400]), marks=pytest.mark.slow),
        lambda value: value.pop("whole"),
        pytest.param(lambda value: value.update(core=[[0.0]] * len(value["core"])), marks=pytest.mark.slow),
    ],
)
def test_impossible_costs_in_the_cache_are_measured_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: Callable[[dict[str, Any]], object]
) -> None:
    cluster = on_one_core("a")
    with Runtime(MODEL, COARSE, cluster) as runtime:
        profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=Cache(tmp_path))
        changed(tmp_path, damage)
        again = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=Cache(tmp_path))
    assert "is damaged; it is measured again" in caplog.text
    assert again.profiled is not None
    assert not again.profiled.cached
    assert np.isfinite(again.core).all()


def test_the_load_of_the_machine_leaves_out_our_own_work() -> None:
    load = MachineLoad()
    until = time.perf_counter() + 0.05
    while time.perf_counter() < until:
        pass
    cores = load.cores()
    assert cores is None or cores >= 0


def test_profiling_that_fails_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> float:
        raise ExecutionError("out of memory")

    cluster = on_one_core("a", "b")
    monkeypatch.setattr("placeit.runtime.executor.Executor.time", fails)
    with pytest.raises(ExecutionError, match="out of memory"), Runtime(MODEL, COARSE, cluster) as runtime:
        profile(MODEL, COARSE, Cluster(cluster.devices), runtime, budget_s=BUDGET_S)


class Watched:
    """A watch that says of each period whether it was disturbed, and counts periods."""

    def __init__(self, disturbed: Callable[[int], bool]) -> None:
        self.said, self.periods = disturbed, 0

    def begin(self) -> None:
        self.periods += 1

    def disturbed(self, *, alone: bool = True) -> bool:
        return self.said(self.periods)


@pytest.mark.parametrize("quiet_from", [9, None], ids=["at first", "always"])
def test_disturbed_blocks_are_repeated_and_counted(quiet_from: int | None) -> None:
    watch = Watched(lambda period: quiet_from is None or period < quiet_from)
    cluster = on_one_core("a", "b")
    with Runtime(MODEL, COARSE, cluster) as runtime:
        found = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, watch=lambda: watch).profiled
    assert found is not None
    if quiet_from is None:
        assert found.disturbed_blocks == found.blocks
        assert found.unsure
        assert found.disturbed
        assert watch.periods <= 2 * found.blocks + 1, "repeating takes no longer than all else"
    else:
        assert 0 < found.disturbed_blocks < quiet_from - 1, "there is time to repeat some of those of the first turn"
        assert watch.periods == found.blocks + quiet_from - 1 - found.disturbed_blocks
        assert not found.unsure


def test_the_host_part_is_measured_for_each_device_and_for_several_and_kept(tmp_path: Path) -> None:
    cluster, cache = on_one_core("a", "b"), Cache(tmp_path)
    with Runtime(MODEL, COARSE, cluster) as runtime:
        first = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=cache)
        again = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=cache)
        changed(tmp_path, lambda value: value["host"].pop())
        anew = profile(MODEL, COARSE, cluster, runtime, budget_s=BUDGET_S, cache=cache)
    assert first.hosts.shape == (3,)
    assert (first.hosts >= 0).all()
    assert first.hosts.any()
    np.testing.assert_array_equal(first.hosts, again.hosts)
    assert anew.profiled is not None
    assert not anew.profiled.cached
    segmenter = Segmenter(COARSE, first)
    for placement in (np.zeros(len(COARSE.groups), np.int32), np.arange(len(COARSE.groups), dtype=np.int32) % 2):
        plan = segmenter.plan(placement)
        assert plan.schedule.makespan - plan.schedule.finish.max() == pytest.approx(first.hosts[2 if placement.any() else 0])
