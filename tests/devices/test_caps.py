"""Limits on memory: how they are read, and that placers, searches and measured candidates keep to them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import InfeasibleError, PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.core.units import about_bytes
from placeit.devices.caps import capped, parse_caps
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.optimizer.options import Candidates
from placeit.placers.feasibility import fits
from placeit.placers.registry import parse_placer
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.simulate import SimulatedCost
from placeit.workbench.options import Constraints
from tests.small_models import inception_like
from tests.steady import optimize

PLACERS = ("heft", "cpop", "critical-path", "metis", "random-task-eft", "annealing:evaluations=500", "random", "local-search")


def described(count: int, memory: float = float("inf")) -> Cluster:
    names = [f"d{i}" for i in range(count)]
    links = {(a, b): Link(1e12, 1e-9, "described") for a in names for b in names if a != b}
    devices = (Device(name, "described", flops_per_s=1e9, bytes_per_s=1e12, memory_bytes=memory) for name in names)
    return Cluster(tuple(devices), links)


def weights() -> float:
    return float(inception_like().graph.param_bytes.sum())


def used(placement: Placement) -> dict[str, float]:
    sizes = np.bincount(placement.devices, inception_like().graph.param_bytes, len(placement.device_names))
    return dict(zip(placement.device_names, sizes.tolist(), strict=True))


def test_a_limit_is_a_device_and_a_size() -> None:
    assert parse_caps(["CPU@0=2GB", "GPU.0 = 1 MiB", "a=b=64"]) == {"CPU@0": 2e9, "GPU.0": 2.0**20, "a=b": 64.0}


@pytest.mark.parametrize(
    ("texts", "says"),
    [
        (["CPU@0"], "write DEVICE=SIZE"),
        (["=2GB"], "write DEVICE=SIZE"),
        (["CPU@0="], "write DEVICE=SIZE"),
        (["CPU@0=2gb"], "Cannot read --memory 'CPU@0=2gb': 'gb' is not a unit of memory, did you mean 'GB'"),
        (["CPU@0=-2GB"], "negative"),
        (["CPU@0=2GB", "CPU@0=1GB"], "gives 'CPU@0' two limits"),
    ],
)
def test_what_is_no_limit_is_refused(texts: list[str], says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        parse_caps(texts)


def test_a_limit_never_raises_what_a_device_has() -> None:
    cluster = capped(described(3, 1e6), {"d0": "2 GB", "d1": 5e5})
    assert [device.memory_bytes for device in cluster.devices] == [1e6, 5e5, 1e6]
    assert capped(cluster, None) is cluster


@pytest.mark.parametrize(
    ("caps", "says"),
    [
        ({"d9": 1.0}, "names an unknown device; the devices are d0, d1"),
        ({"d0": float("nan")}, "must be a number that is not negative"),
        ({"d0": -1.0}, "must be a number that is not negative"),
        ({"d0": None}, "is None bytes; it must be a number that is not negative"),
        ({"d0": "much"}, "is not a number with a unit"),
    ],
)
def test_limits_that_fit_nothing_are_refused(caps: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Session(inception_like(), described(2), constraints=Constraints(memory=caps))


def test_every_placer_and_every_search_keeps_to_the_limits(cache: Cache) -> None:
    caps = {"d0": weights() * 0.6, "d1": weights() * 0.5}
    with Session(inception_like(), described(3, weights() * 0.4), cache=cache) as session:
        assert session.memory == {}
    with Session(inception_like(), described(3), cache=cache, constraints=Constraints(memory=caps | {"d2": 0.0})) as session:
        session.profile()
        problem = session.segmenter.problem()
        assert problem.single_devices == ()
        for name in PLACERS:
            answer = parse_placer(name).place(problem, SimulatedCost(problem), seed=0, evaluations=200)
            assert fits(problem, np.asarray(answer, np.int32)), name
    found = optimize(
        inception_like(),
        described(2),
        candidates=Candidates(placers=PLACERS),
        budget=3,
        cache=cache,
        constraints=Constraints(memory=caps),
    )
    assert found.best_single is None
    assert found.to_dict()["memory_limits"] == caps
    for candidate in found.candidates:
        assert all(size <= caps[name] for name, size in used(candidate.placement).items()), candidate.name


def test_what_is_measured_keeps_to_the_limits(cache: Cache) -> None:
    cores = (allowed_cores()[0],)
    links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    slow = Device("slow", address=Address("CPU", cores), slowdown=2.0)
    cluster = Cluster((Device("fast", address=Address("CPU", cores)), slow), links)
    most = weights() * 0.7
    found = optimize(
        inception_like(),
        cluster,
        candidates=Candidates(placers=("heft",)),
        budget=2,
        cache=cache,
        constraints=Constraints(memory={"fast": most}),
    )
    assert found.best_single is not None
    assert found.best_single.name == "slow"
    assert "fast" not in {candidate.name for candidate in found.candidates}
    assert all(used(candidate.placement)["fast"] <= most for candidate in found.candidates)
    both = {"fast": most, "slow": most}
    found = optimize(
        inception_like(),
        cluster,
        candidates=Candidates(placers=("heft",)),
        budget=2,
        cache=cache,
        constraints=Constraints(memory=both),
    )
    assert "no single device has memory for the whole model" in found.reason
    assert found.chosen.output_error is not None
    assert found.chosen.output_error.max_rel < 1e-4


def test_weights_that_fit_nowhere_are_explained(cache: Cache) -> None:
    model = inception_like()
    with pytest.raises(InfeasibleError) as caught:
        optimize(
            model,
            described(2),
            candidates=Candidates(placers=PLACERS),
            budget=3,
            cache=cache,
            constraints=Constraints(memory={"d0": 64.0, "d1": "1 kB"}),
        )
    message = str(caught.value)
    assert f"they take {about_bytes(weights())} in all, and the devices may hold d0 64 B, d1 1 kB" in message
    assert "fit on no device that can run it (d0, d1)" in message
    assert message.count("fit on no device") == 1  # not once for each placer


def test_a_placement_beyond_the_limits_is_refused(cache: Cache) -> None:
    model = inception_like()
    with Session(model, described(2), cache=cache, constraints=Constraints(memory={"d0": 64})) as session:
        session.profile()
        placement = Placement(model.graph.names, np.zeros(len(model.graph), np.int32), ("d0", "d1"))
        with pytest.raises(PlacementError, match="d0 has 64 B of memory"):
            session.run(placement)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (812, "812 B"), (1e3, "1 kB"), (2.154e9, "2.15 GB"), (3e15, "3e+03 TB"), (np.inf, "no limit")],
)
def test_sizes_are_written_for_people(size: float, text: str) -> None:
    assert about_bytes(size) == text


@pytest.mark.two_cores
@pytest.mark.parametrize("shares", [(0.6, 0.6), (0.6, 2.0)])
def test_limits_of_core_sets_hold_for_the_whole_cpu(shares: tuple[float, float], cache: Cache) -> None:
    names = [f"CPU@{core}" for core in allowed_cores()[:2]]
    limits = {name: share * weights() for name, share in zip(names, shares, strict=True)}
    found = optimize(
        inception_like(),
        names,
        candidates=Candidates(placers=["heft"]),
        budget=1.0,
        cache=cache,
        constraints=Constraints(memory=limits),
    )
    for one in found.candidates:
        assert all(held <= limits.get(name, 0.0) for name, held in used(one.placement).items()), one.name
    with Session(inception_like(), names, cache=cache, constraints=Constraints(memory=limits)) as session:
        (plain,) = plain_devices(session.cluster)
        whole = session.alone(plain).placement(np.zeros(len(session.grouping.groups)))
        whole = replace(whole, segments=np.zeros_like(whole.devices))
        with pytest.raises(PlacementError, match="of memory"):
            session.run(whole, runs=1)


@pytest.mark.two_cores
def test_the_whole_cpu_is_a_candidate_where_each_core_set_may_hold_the_model(cache: Cache) -> None:
    names = [f"CPU@{core}" for core in allowed_cores()[:2]]
    limits = dict.fromkeys(names, 2.0 * weights())
    found = optimize(
        inception_like(),
        names,
        candidates=Candidates(placers=["heft"]),
        budget=1.0,
        cache=cache,
        constraints=Constraints(memory=limits),
    )
    assert [one.name for one in found.candidates if one.plain]
