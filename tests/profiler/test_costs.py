"""What the profiler asks of devices, and what it makes of groups that run on some of them only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from small_models import inception_like

from placeit.backends.coarsen import Grouping, coarsen
from placeit.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.errors import DeviceError, ExecutionError, InfeasibleError
from placeit.profiler import costs
from placeit.profiler.cache import Cache
from placeit.profiler.costs import profile, supported
from placeit.runtime.runtime import Runtime
from placeit.runtime.segments import Segmenter

CORES = allowed_cores()[:1]
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
    fake = _Core(lacking)
    monkeypatch.setattr("placeit.runtime.devices.openvino.core", lambda: fake)
    return fake


def devices(*names: str) -> Cluster:
    return Cluster(tuple(Device(name, runs_on=name) for name in names))


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


def test_a_group_that_no_device_supports_as_a_whole_is_named_by_its_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    group = int(np.bincount(COARSE.group_of).argmax())
    first, *_, last = COARSE.members(group)
    answering(monkeypatch, NPU={first}, GPU={last})
    with pytest.raises(InfeasibleError, match=f"'{first}' to '{last}'"):
        supported(MODEL, COARSE, devices("NPU", "GPU"))
    assert supported(MODEL, Grouping.singletons(MODEL.graph), devices("NPU", "GPU")).any(axis=1).all()


def test_a_runtime_that_does_not_answer_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, CPU=set())
    with pytest.raises(DeviceError, match=r"what GPU\.1 supports: .*not registered"):
        supported(MODEL, COARSE, devices("CPU", "GPU.1"))


def on_one_core(*names: str) -> Cluster:
    links = {(a, b): Link(1e9, 0.0) for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, runs_on=f"CPU@{CORES[0]}", cores=CORES, driver=name) for name in names), links)


def test_a_group_that_a_device_lacks_costs_infinitely_much_there_and_the_others_are_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    cluster, can = on_one_core("a", "b"), np.ones((len(COARSE.groups), 2), bool)
    lacking = [2, len(can) - 1]
    can[lacking, 1] = False
    monkeypatch.setattr(costs, "supported", lambda *_: can)
    with Runtime(MODEL, COARSE, cluster) as runtime:
        found = profile(MODEL, COARSE, cluster, runtime, budget=1.0)
        np.testing.assert_array_equal(np.isfinite(found.core), can)
        assert (found.core[can] >= 0).all()
        assert np.isfinite(found.cut).all()
        assert not found.cut[:, 1].any(), "without a pass of the whole model there is nothing to compare cut groups with"
        assert found.core[:, 0].sum() > 0
        problem = Segmenter(COARSE, found).problem()
        assert problem.single_devices == (0,)

        first = profile(MODEL, COARSE, cluster, runtime, budget=0.1, cache=Cache(tmp_path))
        again = profile(MODEL, COARSE, cluster, runtime, budget=0.1, cache=Cache(tmp_path))
    np.testing.assert_array_equal(first.core, again.core)
    np.testing.assert_array_equal(first.dispatch, again.dispatch)


def test_profiling_that_fails_leaves_no_thread_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any) -> float:
        raise ExecutionError("out of memory")

    cluster = on_one_core("a", "b")
    monkeypatch.setattr("placeit.runtime.executor.Executor.time", fails)
    with pytest.raises(ExecutionError, match="out of memory"), Runtime(MODEL, COARSE, cluster) as runtime:
        profile(MODEL, COARSE, Cluster(cluster.devices), runtime, budget=0.1)
