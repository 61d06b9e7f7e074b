"""Pins: which ops they are about, how groups are split for them, and that every candidate keeps them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.backends.openvino.model import describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import InfeasibleError, PlacementError, UsageError
from placeit.core.graph import topological_order
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.optimizer.options import Candidates
from placeit.placers.registry import parse_placer
from placeit.planning.coarsen import coarsen
from placeit.planning.pins import divided, parse_pins, pinned_ops
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.simulate import SimulatedCost
from placeit.workbench.options import Constraints
from tests.small_models import inception_like, random_model
from tests.steady import optimize

OPS = ("conv1", "conv1/bias", "Conv1", "conv2", "a[0]", "y")
DEVICES = ("CPU@0", "CPU@1")
PLACERS = ("heft", "cpop", "critical-path", "metis", "random-task-eft", "annealing:evaluations=500", "random", "local-search")


def described(count: int) -> Cluster:
    names = [f"d{i}" for i in range(count)]
    links = {(a, b): Link(1e12, 1e-9, "described") for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, kind="described", flops_per_s=1e9, bytes_per_s=1e12) for name in names), links)


def on(placement: Placement, ops: Sequence[str]) -> set[str]:
    return {placement.as_dict()[op] for op in ops}


def test_a_pin_is_a_pattern_and_a_device() -> None:
    assert parse_pins(["conv1*=CPU@0", " a=b = CPU@1 "]) == {"conv1*": "CPU@0", "a=b": "CPU@1"}


@pytest.mark.parametrize("text", ["conv1", "=CPU@0", "conv1=", ""])
def test_what_is_no_pin_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="write PATTERN=DEVICE"):
        parse_pins([text])


def test_one_pattern_on_two_devices_is_refused() -> None:
    with pytest.raises(UsageError, match="two devices, CPU@0 and CPU@1"):
        parse_pins(["conv1=CPU@0", "conv1=CPU@1"])


@pytest.mark.parametrize(
    ("pins", "expected"),
    [
        ({"conv1*": "CPU@0"}, [0, 0, -1, -1, -1, -1]),
        ({"conv1": "CPU@1"}, [1, -1, -1, -1, -1, -1]),
        ({"a[0]": "CPU@0"}, [-1, -1, -1, -1, 0, -1]),  # names are taken as they are, too
        ({"conv?": "CPU@0", "*bias": "CPU@1"}, [0, 1, -1, 0, -1, -1]),
        ({"*": "CPU@1", "conv2": "CPU@1"}, [1] * 6),
    ],
)
def test_patterns_find_ops_by_name(pins: dict[str, str], expected: list[int]) -> None:
    assert pinned_ops(pins, OPS, DEVICES).tolist() == expected


@pytest.mark.parametrize(
    ("pins", "says"),
    [
        ({"conv3*": "CPU@0"}, "matches no op; there are ops such as 'conv"),
        ({"CONV2": "CPU@0"}, "matches no op; there are ops such as 'conv2'"),
        ({"zzzz": "CPU@0"}, "matches no op"),
        ({"conv1": "CPU@2"}, "names an unknown device; the devices are CPU@0, CPU@1 (did you mean 'CPU@"),
        ({"conv*": "CPU@0", "*1": "CPU@1"}, "Op 'conv1' is pinned twice: 'conv*=CPU@0' and '*1=CPU@1'"),
    ],
)
def test_pins_that_fit_nothing_say_what_is_there(pins: dict[str, str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        pinned_ops(pins, OPS, DEVICES)


@settings(max_examples=60)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 6), st.integers(1, 3))
def test_split_groups_have_one_device_each_and_no_cycle(seed: int, nodes: int, most: int, devices: int) -> None:
    graph = random_model(seed, nodes).graph
    grouping = coarsen(graph, max_groups=most)
    wanted = np.random.default_rng(seed).integers(-1, devices, len(graph)).astype(np.int32)
    found = divided(grouping, wanted)
    assert topological_order(found.groups.edges, len(found.groups)) is not None
    for group in range(len(found.groups)):
        members = found.group_of == group
        assert len(set(wanted[members].tolist()) - {-1}) <= 1
        assert len(set(grouping.group_of[members].tolist())) == 1  # nothing is merged
    if len(set(wanted.tolist()) - {-1}) <= 1:
        assert found is grouping


def test_every_placer_and_every_search_keeps_pins(cache: Cache) -> None:
    model = inception_like()
    convolutions = [name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind == "Convolution"]
    pins = {convolutions[0]: "d1", convolutions[-1]: "d2", convolutions[2]: "d0"}
    with Session(model, described(3), cache=cache, constraints=Constraints(pins=pins)) as session:
        session.profile()
        problem = session.segmenter.problem()
        assert problem.single_devices == ()
        cost = SimulatedCost(problem)
        for name in PLACERS:
            placed = session.placement(parse_placer(name).place(problem, cost, seed=0, evaluations=200))
            assert {op: placed.as_dict()[op] for op in pins} == pins, name
    found = optimize(
        model, described(3), candidates=Candidates(placers=PLACERS), budget=3, cache=cache, constraints=Constraints(pins=pins)
    )
    assert found.best_single is None
    assert found.to_dict()["pins"] == pins
    for candidate in found.candidates:
        assert {op: candidate.placement.as_dict()[op] for op in pins} == pins, candidate.name


def test_a_single_device_that_keeps_all_pins_is_a_candidate(cache: Cache) -> None:
    found = optimize(
        inception_like(),
        described(2),
        candidates=Candidates(placers=("heft",)),
        budget=3,
        cache=cache,
        constraints=Constraints(pins={"*": "d1"}),
    )
    assert [candidate.name for candidate in found.candidates] == ["d1"]
    assert set(found.placement.as_dict().values()) == {"d1"}


def test_one_core_measures_only_what_keeps_pins(cache: Cache) -> None:
    cores = (allowed_cores()[0],)
    links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    cluster = Cluster(
        (Device("fast", address=Address("CPU", cores)), Device("slow", address=Address("CPU", cores), slowdown=2.0)), links
    )
    model = inception_like()
    op = next(name for name, kind in zip(model.graph.names, model.graph.kinds, strict=True) if kind == "Convolution")
    found = optimize(
        model,
        cluster,
        candidates=Candidates(placers=("heft",)),
        budget=2,
        cache=cache,
        constraints=Constraints(pins={op: "slow"}),
    )
    assert "fast" not in {candidate.name for candidate in found.candidates}
    assert all(candidate.placement.as_dict()[op] == "slow" for candidate in found.candidates)
    assert found.chosen.output_error is not None
    assert found.chosen.output_error.max_rel < 1e-4


def test_an_op_pinned_where_it_cannot_run_is_infeasible(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    model = inception_like()
    with Session(model, described(2), cache=cache) as session:
        costs = session.profile()
        costs.core[session.grouping.group_of[model.graph.index["image"]], 1] = np.inf
    monkeypatch.setattr("placeit.profiler.estimates.estimated", lambda *_, **__: costs)
    with (
        Session(model, described(2), cache=cache, constraints=Constraints(pins={"image": "d1"})) as session,
        pytest.raises(InfeasibleError, match="Op 'image' is pinned to d1, which cannot run it"),
    ):
        session.profile()


def test_ops_that_share_state_cannot_be_pinned_apart(cache: Cache) -> None:
    ops = ov.opset13
    x = ops.parameter([1, 8], ov.Type.f32, name="x")
    read = ops.read_value(ops.constant(np.zeros((1, 8), np.float32)), "state", ov.Type.f32, [1, 8], name="read")
    total = ops.add(read, x, name="total")
    write = ops.assign(total, "state", name="write")
    model = describe(ov.Model([ops.result(total, name="y")], [write], [x], "adder"), Path("adder"))
    with pytest.raises(PlacementError, match="run on one device, because they share state"):
        Session(model, described(2), cache=cache, constraints=Constraints(pins={"read": "d0", "total": "d1"}))
    with pytest.raises(PlacementError, match="run on one device"):
        Session(model, described(2), cache=cache).divide(
            Placement(model.graph.names, (np.arange(len(model.graph)) % 2).astype(np.int32), ("d0", "d1"))
        )


def test_a_placement_that_breaks_a_pin_is_refused(cache: Cache) -> None:
    model = inception_like()
    with Session(model, described(2), cache=cache, constraints=Constraints(pins={"image": "d1"})) as session:
        placement = Placement(model.graph.names, np.zeros(len(model.graph), np.int32), ("d0", "d1"))
        with pytest.raises(PlacementError, match="on d0, and it is pinned to d1"):
            session.placing.groups_of(placement)
