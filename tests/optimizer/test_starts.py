"""Placements to begin with: they are candidates, measured and searched on from, and what does not fit says why."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from small_models import inception_like, random_model

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import FileError, PlacementError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.optimizer.optimize import optimize
from placeit.optimizer.search import Search
from placeit.optimizer.starts import divide_for, read_starts
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.simulator.objectives import Latency


def described(*names: str) -> Cluster:
    links = {(a, b): Link(1e12, 1e-9, "described") for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, "described", flops_per_s=1e9, bytes_per_s=1e12) for name in names), links)


def alternating(devices: int = 2, names: tuple[str, ...] = ("d0", "d1")) -> Placement:
    """Ops on one device and the next in turn, whatever groups there are: nothing that a placer would propose."""
    graph = inception_like().graph
    return Placement(graph.names, (np.arange(len(graph)) % devices).astype(np.int32), names, graph.hash)


def test_a_start_is_a_candidate_though_groups_are_split_for_it(cache: Cache, tmp_path: Path) -> None:
    alternating().save(tmp_path / "mine.json")
    found = optimize(
        inception_like(), described("d0", "d1"), placers=("heft",), budget=3, cache=cache, start=tmp_path / "mine.json"
    )
    (mine,) = (candidate for candidate in found.candidates if candidate.placer == "start")
    assert mine.name == f"start {tmp_path / 'mine.json'}"
    assert mine.placement.as_dict() == alternating().as_dict()
    assert found.groups == found.ops
    assert any(candidate.placer == "segment-search" for candidate in found.candidates)


@pytest.mark.slow
def test_a_start_is_measured_though_it_is_simulated_to_be_hopeless(cache: Cache) -> None:
    cores = (allowed_cores()[0],)
    links = {pair: Link(1e6, 1e-3, "emulated") for pair in (("d0", "d1"), ("d1", "d0"))}
    slow = Device("d1", address=Address("CPU", cores), slowdown=2.0)
    cluster = Cluster((Device("d0", address=Address("CPU", cores)), slow), links)
    with Session(inception_like(), cluster, cache=cache) as session:
        session.profile()
        groups = (np.arange(len(session.grouping.groups)) % 2).astype(np.int32)
        start = session.placement(groups)
        search = Search(session, Latency(), np.inf, 0, None)
        search.singles()
        search.begin_with({"start": groups})
        search.propose(("heft", "cpop", "metis", "random-task-eft", "random"))
        assert "start" in {candidate.name for candidate in search.promising()}
    found = optimize(inception_like(), cluster, placers=("heft", "metis"), budget=12, cache=cache, start=start)
    (mine,) = (candidate for candidate in found.candidates if candidate.name == "start")
    assert mine.measured is not None
    assert mine.output_error is not None
    assert mine.output_error.max_rel < 1e-4
    assert found.chosen.placer == "single"


def test_the_search_among_plans_begins_with_each_start(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bytes] = []
    search_on = Search.improved

    def improved(self: Search, groups: np.ndarray, seed: int) -> np.ndarray:
        begun.append(groups.tobytes())
        return search_on(self, groups, seed)

    monkeypatch.setattr(Search, "improved", improved)
    with Session(inception_like(), described("d0", "d1"), cache=cache) as session:
        starts = [
            session.placement(np.random.default_rng(seed).integers(2, size=len(session.grouping.groups))) for seed in (1, 2)
        ]
        keys = {session.placing.groups_of(start).tobytes() for start in starts}
    optimize(inception_like(), described("d0", "d1"), placers=("heft",), budget=3, cache=cache, start=starts)
    assert keys <= set(begun)


def test_a_start_that_is_a_single_device_is_that_candidate(cache: Cache) -> None:
    graph = inception_like().graph
    start = Placement(graph.names, np.zeros(len(graph), np.int32), ("d0",), graph.hash)
    found = optimize(inception_like(), described("d0"), placers=("heft",), budget=3, cache=cache, start=start)
    assert [candidate.name for candidate in found.candidates] == ["d0"]


@pytest.mark.parametrize(
    ("names", "options", "says"),
    [
        (("d0", "d2"), {}, "on 'd2', which is not one of the devices d0, d1"),
        (("d0", "d1"), {"pins": {"image": "d1"}}, "on d0, and it is pinned to d1"),
        (("d0", "d1"), {"memory": {"d1": 1.0}}, "d1 has 1 B of memory"),
    ],
)
def test_a_start_that_does_not_fit_names_the_file_and_says_why(
    cache: Cache, tmp_path: Path, names: tuple[str, ...], options: dict[str, dict[str, object]], says: str
) -> None:
    file = tmp_path / "mine.json"
    alternating(names=names).save(file)
    with pytest.raises(PlacementError, match=says) as caught:
        optimize(inception_like(), described("d0", "d1"), cache=cache, start=[file], **options)  # type: ignore[arg-type]
    assert f"The search cannot begin with '{file}'" in str(caught.value)


def test_a_start_of_another_model_is_refused(cache: Cache) -> None:
    graph = random_model(0, 5).graph
    start = Placement(graph.names, np.zeros(len(graph), np.int32), ("d0",), graph.hash)
    with (
        Session(inception_like(), described("d0", "d1"), cache=cache) as session,
        pytest.raises(PlacementError, match="belongs to another model"),
    ):
        divide_for(session, read_starts(start))


def test_a_file_that_is_no_placement_is_refused_before_any_work(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"Cannot read .*nowhere.json"):
        optimize("there is no such model.onnx", "CPU", start=tmp_path / "nowhere.json")
    (tmp_path / "bad.json").write_text('{"format": "placeit-placement", "devices": ["a"]}')
    with pytest.raises(PlacementError, match=r"bad.json"):
        optimize("there is no such model.onnx", "CPU", start=[tmp_path / "bad.json"])
