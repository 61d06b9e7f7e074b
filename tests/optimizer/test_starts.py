"""Placements to begin with: they are candidates, measured and searched on from, and what does not fit says why."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import FileError, PlacementError
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.optimizer import improving
from placeit.optimizer.improving import refine
from placeit.optimizer.measuring import promising
from placeit.optimizer.options import Candidates
from placeit.optimizer.proposing import ask_all
from placeit.optimizer.result import Optimized
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.optimizer.starts import divide_for, read_starts
from placeit.placers.registry import parse_placer
from placeit.profiler.cache import Cache
from placeit.report import as_text
from placeit.session import Session
from placeit.simulator.objectives.latency import Latency
from placeit.workbench.options import Constraints
from tests.small_models import inception_like, random_model
from tests.steady import optimize

CORES = [f"CPU@{core}" for core in allowed_cores()[:2]]
PLAIN = next((device.name for device in plain_devices(discover(CORES))), "CPU")


def whole_on(device: str) -> Placement:
    graph = inception_like().graph
    return Placement(graph.names, np.zeros(len(graph), np.int32), (device,), graph.hash)


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
        inception_like(),
        described("d0", "d1"),
        candidates=Candidates(placers=("heft",), start=tmp_path / "mine.json"),
        budget=3,
        cache=cache,
    )
    (mine,) = (candidate for candidate in found.candidates if candidate.placer == "start")
    assert mine.name == f"start {tmp_path / 'mine.json'}"
    assert mine.placement.as_dict() == alternating().as_dict()
    assert found.groups == found.ops
    assert any(candidate.placer == "search" for candidate in found.candidates)


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
        search = Search(RunOptions(session, Latency()))
        search.singles()
        search.begin_with({"start": groups})
        ask_all(search, {name: parse_placer(name) for name in ("heft", "cpop", "metis", "random-task-eft", "random")})
        refine(search)
        assert "start" in {candidate.name for candidate in promising(search)}
    found = optimize(
        inception_like(), cluster, candidates=Candidates(placers=("heft", "metis"), start=start), budget=12, cache=cache
    )
    (mine,) = (candidate for candidate in found.candidates if candidate.name == "start")
    assert mine.measured is not None
    assert mine.output_error is not None
    assert mine.output_error.max_rel < 1e-4
    assert found.chosen.placer == "single"


def test_the_search_among_plans_begins_with_each_start(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[bytes] = []
    search_on = improving.improved

    def improved(search: Search, groups: np.ndarray, seed: int) -> np.ndarray:
        begun.append(groups.tobytes())
        return search_on(search, groups, seed)

    monkeypatch.setattr(improving, "improved", improved)
    with Session(inception_like(), described("d0", "d1"), cache=cache) as session:
        starts = [
            session.placement(np.random.default_rng(seed).integers(2, size=len(session.grouping.groups))) for seed in (1, 2)
        ]
        keys = {session.placing.groups_of(start).tobytes() for start in starts}
    optimize(
        inception_like(), described("d0", "d1"), candidates=Candidates(placers=("heft",), start=starts), budget=3, cache=cache
    )
    assert keys <= set(begun)


def test_a_start_that_is_a_single_device_is_that_candidate(cache: Cache) -> None:
    graph = inception_like().graph
    start = Placement(graph.names, np.zeros(len(graph), np.int32), ("d0",), graph.hash)
    found = optimize(
        inception_like(), described("d0"), candidates=Candidates(placers=("heft",), start=start), budget=3, cache=cache
    )
    assert [candidate.name for candidate in found.candidates] == ["d0"]


@pytest.mark.parametrize(
    ("names", "constraints", "says"),
    [
        (("d0", "d2"), Constraints(), "on 'd2', which is not one of the devices d0, d1"),
        (("d0", "d1"), Constraints({"image": "d1"}), "on d0, and it is pinned to d1"),
        (("d0", "d1"), Constraints(memory={"d1": 1.0}), "d1 has 1 B of memory"),
    ],
)
def test_a_start_that_does_not_fit_names_the_file_and_says_why(
    cache: Cache, tmp_path: Path, names: tuple[str, ...], constraints: Constraints, says: str
) -> None:
    file = tmp_path / "mine.json"
    alternating(names=names).save(file)
    with pytest.raises(PlacementError, match=says) as caught:
        optimize(
            inception_like(), described("d0", "d1"), cache=cache, candidates=Candidates(start=[file]), constraints=constraints
        )
    assert f"The search cannot start from '{file}'" in str(caught.value)


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
        optimize("there is no such model.onnx", "CPU", candidates=Candidates(start=tmp_path / "nowhere.json"))
    (tmp_path / "bad.json").write_text('{"format": "placeit-placement", "devices": ["a"]}')
    with pytest.raises(PlacementError, match=r"bad.json"):
        optimize("there is no such model.onnx", "CPU", candidates=Candidates(start=[tmp_path / "bad.json"]))


@pytest.mark.two_cores
def test_a_start_on_the_plain_device_is_that_candidate_and_says_so(cache: Cache) -> None:
    found = optimize(
        inception_like(), CORES, candidates=Candidates(placers=("heft",), start=whole_on(PLAIN)), budget=1, cache=cache
    )
    (plain,) = (one for one in found.candidates if set(one.placement.as_dict().values()) == {PLAIN})
    assert (plain.name, plain.placer, plain.given) == (PLAIN, "single", True)
    console = Console(width=250, file=(written := StringIO()))
    as_text.optimized(console, found, None)
    assert f"{PLAIN} (single, start)" in written.getvalue()


def test_a_start_on_cores_that_the_devices_have_takes_part_and_can_be_chosen(cache: Cache) -> None:
    found = optimize(
        inception_like(), "CPU", candidates=Candidates(placers=("heft",), start=whole_on(CORES[0])), budget=5, cache=cache
    )
    (mine,) = (one for one in found.candidates if one.given)
    assert (mine.name, mine.placer, mine.failed) == ("start", "single", None)
    assert mine.measured is not None
    assert set(mine.placement.as_dict().values()) == {CORES[0]}


@pytest.mark.two_cores
def test_a_start_on_other_cores_has_a_row_that_says_why_it_cannot_be_chosen(cache: Cache) -> None:
    found = optimize(
        inception_like(), CORES[0], candidates=Candidates(placers=("heft",), start=whole_on(PLAIN)), budget=1, cache=cache
    )
    (mine,) = (one for one in found.candidates if one.given)
    assert mine.failed == f"It is on {PLAIN}, which is not among the devices {CORES[0]}."
    assert found.chosen.name == CORES[0]


@pytest.mark.two_cores
@pytest.mark.parametrize(
    ("constraints", "says"),
    [
        (Constraints({"image": CORES[0]}), f"It is on {PLAIN}, and pins assign ops to"),
        (Constraints(memory={CORES[0]: 1.0}), f"{PLAIN} has 1 B of memory"),
    ],
)
def test_a_start_on_the_plain_device_keeps_to_pins_and_limits(cache: Cache, constraints: Constraints, says: str) -> None:
    with pytest.raises(PlacementError, match=says):
        optimize(inception_like(), CORES, cache=cache, candidates=Candidates(start=whole_on(PLAIN)), constraints=constraints)


def test_replicas_that_a_search_found_are_a_start_of_the_next_one_for_throughput(cache: Cache, tmp_path: Path) -> None:
    def search(objective: str, start: Path | None) -> Optimized:
        cluster = described("d0", "d1")
        return optimize(
            inception_like(),
            cluster,
            candidates=Candidates(placers=("heft",), start=start),
            budget=3,
            cache=cache,
            objective=objective,
        )

    found = search("throughput", None)
    assert found.chosen.replicas
    found.save(tmp_path / "mine.json")
    again = search("throughput", tmp_path / "mine.json")
    (mine,) = (one for one in again.candidates if one.given)
    assert mine.name == f"start {tmp_path / 'mine.json'}"
    assert [one.as_dict() for one in mine.placement.every] == [one.as_dict() for one in found.placement.every]
    assert sum(len(one.plans) == 2 for one in again.candidates) == sum(len(one.plans) == 2 for one in found.candidates)
    with pytest.raises(PlacementError, match="the objective is latency: give it to a search for throughput"):
        search("latency", tmp_path / "mine.json")
