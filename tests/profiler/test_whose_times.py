"""Every group has different times on every device, and a profile assigns each time to its group and device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import openvino as ov
import pytest

from placeit.backends.openvino.model import OpenVinoModel, describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices import kinds
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs
from placeit.profiler import costs
from placeit.profiler.costs import profile
from placeit.runtime.runtime import Runtime
from tests.known_devices import EMPTY_S, Truth, truth
from tests.small_models import inception_like, ops, random_model

FREE = {"Parameter", "Result"}


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setitem(kinds.KINDS, "known", "tests.known_devices:KIND")
    monkeypatch.setattr(costs, "_MIN_PROGRAMS", 1000)  # so that every group is cut off, and none of it is predicted
    yield
    truth.clear()


def times(rng: np.random.Generator, names: list[str], devices: int, scale: float) -> dict[str, tuple[float, ...]]:
    """Different for every op and device."""
    table = scale * (1 + rng.permutation(len(names) * devices).reshape(len(names), devices) / 7)
    return dict(zip(names, map(tuple, table.tolist()), strict=True))


def profiled(model: OpenVinoModel, devices: int) -> tuple[Costs, list[int]]:
    names = [f"d{d}" for d in range(devices)]
    links = {(a, b): Link(1e12, 0.0, "measured") for a in names for b in names if a != b}
    cluster = Cluster(tuple(Device(name, "known", Address(name)) for name in names))
    grouping = Grouping.singletons(model.graph)
    with Runtime(model, grouping, cluster) as runtime:
        found = profile(model, grouping, cluster, runtime, budget_s=60.0)
    assert found.cluster.links.keys() == links.keys()
    return found, [g for g, kind in enumerate(grouping.groups.kinds) if kind not in FREE]


@pytest.mark.parametrize("model", [random_model(3, 9), inception_like()], ids=["random", "inception-like"])
@pytest.mark.parametrize("devices", [1, 2, 3])
def test_every_group_gets_its_own_times_on_every_device(model: OpenVinoModel, devices: int) -> None:
    rng = np.random.default_rng(devices)
    names = [name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind not in FREE]
    truth.append(Truth(times(rng, names, devices, 1e-3), times(rng, names, devices, 1e-4)))
    found, computing = profiled(model, devices)
    for g in computing:
        name = model.graph.names[g]
        np.testing.assert_allclose(found.core[g], truth[0].core[name], rtol=1e-6, err_msg=f"core of {name}")
        np.testing.assert_allclose(found.cut[g], truth[0].cut[name], rtol=1e-6, err_msg=f"cut of {name}")


@pytest.mark.parametrize("seed", range(4))
def test_groups_that_a_device_lacks_get_no_time_there_and_the_others_keep_theirs(seed: int) -> None:
    model, rng = random_model(seed, 9), np.random.default_rng(seed)
    names = [name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind not in FREE]
    lacking = set(rng.choice(names, 3, replace=False))
    truth.append(Truth(times(rng, names, 2, 1e-3), times(rng, names, 2, 1e-4), lacking={1: lacking}))
    found, computing = profiled(model, 2)
    for g in computing:
        name = model.graph.names[g]
        core, cut = truth[0].core[name], truth[0].cut[name]
        # nothing tells core and cut apart where the whole model cannot run
        there = np.inf if name in lacking else core[1] + cut[1]
        np.testing.assert_allclose(found.core[g], [core[0], there], rtol=1e-6, err_msg=f"core of {name}")
        np.testing.assert_allclose(found.cut[g], [cut[0], 0.0], rtol=1e-6, atol=1e-12, err_msg=f"cut of {name}")


def chain(lengths: list[int]) -> OpenVinoModel:
    """Ops one after the other whose tensors grow and shrink, with one that is read again later."""
    x = ops.parameter([1, lengths[0]], ov.Type.f32, name="x")
    values = [x.output(0)]
    for i, length in enumerate(lengths[1:]):
        value = ops.matmul(values[-1], ops.constant(np.ones((lengths[i], length), np.float32)), False, False).output(0)
        values.append(value)
    again = ops.concat([values[-1], values[2]], 1).output(0)
    return describe(ov.Model([ops.result(ops.relu(again))], [x], "chain"), Path("chain"))


@pytest.mark.slow
def test_load_reads_and_hand_overs_are_found_as_they_are() -> None:
    model, rng = chain([16, 48, 8, 100, 30, 64]), np.random.default_rng(5)
    names = [name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind not in FREE]
    gap = {(0, 0): 11e-6, (1, 1): 17e-6, (0, 1): 41e-6, (1, 0): 59e-6}
    truth.append(
        Truth(
            times(rng, names, 2, 1e-3),
            times(rng, names, 2, 1e-4),
            load=times(rng, names, 2, 1e-5),
            read=(2e-9, 5e-9, 0.0),
            gap=gap,
        )
    )
    found, computing = profiled(model, 2)
    for g in computing:
        np.testing.assert_allclose(found.load[g], truth[0].load[model.graph.names[g]], rtol=1e-3, err_msg=model.graph.names[g])
    np.testing.assert_allclose(found.read, truth[0].read[:2], rtol=1e-3)
    np.testing.assert_allclose(found.dispatch, [EMPTY_S + gap[0, 0], EMPTY_S + gap[1, 1]], rtol=1e-6)
    latency = found.cluster.latency()
    assert latency[0, 1] == pytest.approx(gap[0, 1] - gap[1, 1], rel=1e-3)
    assert latency[1, 0] == pytest.approx(gap[1, 0] - gap[0, 0], rel=1e-3)
