"""Searches that go on from what an earlier one measured, and files that do not allow it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import FileError, UsageError
from placeit.devices.host import allowed_cores
from placeit.measuring.check import OutputDifference
from placeit.measuring.statistics import FEWEST, summed_up
from placeit.optimizer.candidate_state import Ran
from placeit.optimizer.candidates import Candidate, OtherDevices
from placeit.optimizer.journal import open_journal
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.options import Budget, Candidates
from placeit.optimizer.replicas import enter_replicas
from placeit.optimizer.result import Optimized
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.profiler.cache import Cache
from placeit.profiler.costs import Progress
from placeit.session import Session
from placeit.simulator.objectives.latency import Latency
from placeit.simulator.objectives.throughput import Throughput
from placeit.workbench.options import Constraints
from tests.small_models import inception_like, random_model
from tests.steady import STEADY, optimize

CORE = allowed_cores()[0]


def emulated(slowdown: float = 1.5) -> Cluster:
    cores = (CORE,)
    links = {pair: Link(1e9, 1e-5, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    slow = Device("slow", address=Address("CPU", cores), slowdown=slowdown)
    return Cluster((Device("fast", address=Address("CPU", cores)), slow), links)


def searcher(cache: Cache, file: Path) -> Callable[..., Optimized]:
    def run(**options: Any) -> Optimized:
        given = {"candidates": Candidates(("heft", "metis")), "cache": cache}
        budget = Budget(options.pop("budget", 4), options.pop("resume", file))
        model, cluster = options.pop("model", inception_like()), options.pop("cluster", emulated())
        return optimize(model, cluster, budget=budget, **(given | options))

    return run


@pytest.fixture
def search(cache: Cache, tmp_path: Path) -> Callable[..., Optimized]:
    """Search with a file in a folder of the test's own."""
    return searcher(cache, tmp_path / "search.jsonl")


@pytest.fixture(scope="module")
def kept(cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The file of a search that was interrupted before its finalists were measured again."""
    file = tmp_path_factory.mktemp("kept") / "search.jsonl"
    searcher(cache, file)(budget=0.5, progress=interrupt)
    return file.read_text()


@pytest.fixture
def races(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[bool]]]:
    """What each race was for, and whether each of those in it had been measured before."""
    seen: list[tuple[str, list[bool]]] = []
    race = Search.race

    def watched(self: Search, candidates: Sequence[Candidate], what: str, **options: Any) -> Any:
        seen.append((what, [candidate.measured is not None for candidate in candidates]))
        return race(self, candidates, what, **options)

    monkeypatch.setattr(Search, "race", watched)
    return seen


def interrupt(what: str, _: float) -> None:
    if "finalists" in what:
        raise KeyboardInterrupt


def interrupt_later(what: str, share: float) -> None:
    if "finalists" in what and share > 0:
        raise KeyboardInterrupt


@pytest.mark.parametrize("progress", [interrupt, interrupt_later])
def test_a_search_that_was_interrupted_goes_on_and_decides_afresh(
    search: Callable[..., Optimized], races: list[tuple[str, list[bool]]], tmp_path: Path, progress: Progress
) -> None:
    first = search(budget=30, progress=progress)
    assert first.interrupted
    measured = {c.name: c for c in first.candidates if c.measured is not None}
    head, *lines = (tmp_path / "search.jsonl").read_text().splitlines()
    assert json.loads(head)["format"] == "placeit-search"
    assert {json.loads(line)["name"] for line in lines} == set(measured)
    races.clear()
    second = search(budget=30)
    assert not second.interrupted
    turns = [known for what, known in races if what.startswith("measuring") and what.endswith("placements")]
    assert all(not all(known) for known in turns)  # those known run only beside others that are not
    assert not turns or turns[0].count(True) <= 2
    assert races[-1][0] in ("deciding between the finalists", "measuring the finalists")
    names = {c.name: c for c in second.candidates}
    assert names.keys() >= measured.keys()
    for name, candidate in measured.items():
        assert names[name].placement.as_dict() == candidate.placement.as_dict()
        if names[name].earlier:
            assert candidate.measured is not None
            assert names[name].measured.samples.tolist() == candidate.measured.samples.tolist()  # type: ignore[union-attr]
            assert names[name].segments == candidate.segments
    for candidate in second.to_dict()["candidates"]:
        assert candidate["measured_earlier"] == names[candidate["name"]].earlier
    assert not second.chosen.earlier or second.best_single is second.chosen
    assert len({c.name for c in second.candidates}) == len(second.candidates)


def test_what_the_turns_of_a_search_measured_is_not_measured_again(
    search: Callable[..., Optimized], races: list[tuple[str, list[bool]]]
) -> None:
    first = search(budget=30, progress=interrupt)
    measured = {c.name for c in first.candidates if c.measured is not None}
    races.clear()
    known = {c.name for c in search(budget=30, progress=interrupt).candidates if c.earlier or c.name in measured}
    assert measured <= known
    assert races
    assert sum(not before for _, candidates in races for before in candidates) < len(measured)
    assert any(before for _, candidates in races for before in candidates)


def test_a_search_goes_on_from_measured_costs_and_they_from_a_search(
    search: Callable[..., Optimized], cache: Cache, tmp_path: Path
) -> None:
    with Session(inception_like(), emulated(), cache=cache, policy=STEADY) as session:
        session.profile()
        groups = len(session.grouping.groups)
        rows = np.random.default_rng(3).integers(2, size=(4, groups)).astype(np.int32)
        cost = MeasuredCost(session, hopeless=None, journal=tmp_path / "search.jsonl")
        values = {one.devices.tobytes(): one for one in cost.outcomes(rows) if one.source == "measured"}
        assert values
        found = search(progress=interrupt)
        earlier = {one.groups.tobytes(): one for one in found.candidates if one.earlier}
        assert earlier
        for key in earlier.keys() & values.keys():
            measured, value = values[key].measured, earlier[key].measured
            assert measured is not None
            assert value is not None
            assert value.samples.tolist() == measured.samples.tolist()
        assert {one.groups.tobytes() for one in found.candidates} >= values.keys()
        again = MeasuredCost(session, hopeless=None, journal=tmp_path / "search.jsonl")
        known = {one.devices.tobytes() for one in again.tried if one.source == "measured"}
        assert known >= values.keys()
        assert known >= {
            one.groups.tobytes()
            for one in found.candidates
            if one.placer == "single" and one.measured is not None and one.steady and len(one.measured.samples) >= FEWEST
        }
        again(np.stack([np.frombuffer(key, np.int32) for key in values]))
        assert again.samples == 0


def test_a_line_that_was_not_completed_is_dropped(search: Callable[..., Optimized], tmp_path: Path) -> None:
    file = tmp_path / "search.jsonl"
    search(progress=interrupt)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join(lines[:-1]) + lines[-1][: len(lines[-1]) // 2])
    found = search(progress=interrupt)
    assert found.chosen.measured is not None
    for line in file.read_text().splitlines():
        json.loads(line)


def test_what_is_no_placement_on_these_devices_is_not_kept(cache: Cache, tmp_path: Path) -> None:
    with Session(inception_like(), emulated(), cache=cache, policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, Latency(), 1e9))
        search.resume(open_journal(tmp_path / "search.jsonl", session, search.objective))
        search.singles()
        fast, slow = search.candidates
        search.enter(replace(fast, name="elsewhere"), OtherDevices(session, np.ones(2)))
        for name in ("elsewhere", slow.name):
            measured = summed_up(name, [0.1] * 6, range(6))
            search.set_state(name, Ran(measured, measured), "measured")
            search.update_facts(name, output_error=OutputDifference(0.0, 0.0))
        search.keep(["elsewhere", slow.name])
    assert [json.loads(line)["name"] for line in (tmp_path / "search.jsonl").read_text().splitlines()[1:]] == ["slow"]


@pytest.mark.two_cores
def test_what_was_measured_of_replicas_is_kept(cache: Cache, tmp_path: Path) -> None:
    cores = allowed_cores()[:2]
    samples = [0.1, 0.2, 0.1, 0.1, 0.2, 0.1]
    with Session(inception_like(), [f"CPU@{core}" for core in cores], cache=cache, policy=STEADY) as session:
        session.profile()

        def begun() -> Search:
            search = Search(RunOptions(session, Throughput(), 1e9))
            search.resume(open_journal(tmp_path / "search.jsonl", session, search.objective))
            search.singles(plain=False)
            enter_replicas(search)
            return search

        first = begun()
        (replicas,) = (one for one in first.candidates if one.replicas)
        measured = summed_up(replicas.name, samples, range(6))
        first.set_state(replicas.name, Ran(measured, measured, cost=0.12), "measured")
        first.update_facts(replicas.name, output_error=OutputDifference(0.0, 0.0))
        first.keep([replicas.name])
        (again,) = (one for one in begun().candidates if one.replicas)
        assert (again.name, again.earlier, again.cost) == (replicas.name, True, 0.12)
        assert again.measured is not None
        assert again.measured.samples.tolist() == samples
        for ours, theirs in zip(again.plans, replicas.plans, strict=True):
            assert ours.placement.tolist() == theirs.placement.tolist()
            assert ours.schedule.makespan == theirs.schedule.makespan
        cost = MeasuredCost(session, "throughput", journal=tmp_path / "search.jsonl")
        assert cost.tried == []  # which is about placements of the groups


def test_what_breaks_a_pin_or_a_limit_now_is_left_out(search: Callable[..., Optimized]) -> None:
    search(progress=interrupt)
    found = search(constraints=Constraints({"*": "slow"}), progress=interrupt)
    assert [candidate.name for candidate in found.candidates] == ["slow"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"objective": "total-cost"}, "its objective is 'latency', and now it is 'total-cost'"),
        ({"constraints": Constraints(max_groups=3)}, "its groups is"),
        ({"cluster": emulated(3.0)}, "measurements of another search"),
        ({"cluster": f"CPU@{CORE}"}, "its devices is 'fast, slow'"),
        ({"model": random_model(0, 5)}, "its graph is"),
    ],
)
def test_measurements_of_something_else_are_refused(
    search: Callable[..., Optimized], kept: str, tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    file = tmp_path / "search.jsonl"
    file.write_text(kept)
    with pytest.raises(UsageError, match=says):
        search(**options)
    assert file.read_text() == kept


def _changed(**fields: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda record: record | fields


@pytest.mark.parametrize(
    "damage",
    [
        _changed(name=3),
        _changed(samples=[]),
        _changed(samples=[0.1] * 5 + [float("nan")], values=[0.1] * 6),
        _changed(samples=[0.1] * 5 + [-0.1], values=[0.1] * 6),
        _changed(samples=[0.1] * 5 + [10**400], values=[0.1] * 6),
        _changed(values=[0.1]),
        _changed(devices=[7]),
        _changed(segment_s=[1.0] * 1000),
        _changed(output_error={"max_abs": None, "max_rel": None}),
        _changed(output_error=None),
        _changed(replicas=None),
        _changed(replicas=[{}]),
        lambda record: record | {"replicas": [{name: record[name] for name in ("devices", "segments")}]},  # on the same device
        lambda record: record | {"segments": [max(record["segments"]) + 1 - s for s in record["segments"]]},
        lambda record: record | {"segments": [len(record["segments"]) - 1 - s for s in range(len(record["segments"]))]},
        lambda record: record | {"devices": [2] * len(record["devices"])} | {"segments": [0] * 3},
        lambda _: {},
    ],
)
def test_a_damaged_line_is_named(
    search: Callable[..., Optimized], kept: str, tmp_path: Path, damage: Callable[[Any], Any]
) -> None:
    file = tmp_path / "search.jsonl"
    head, *lines = kept.splitlines()
    file.write_text("\n".join([head, json.dumps(damage(json.loads(lines[0]))), *lines[1:]]) + "\n")
    with pytest.raises(FileError, match=r"search.jsonl, line 2 is damaged"):
        search()


@pytest.mark.parametrize(
    "content", [b"not a search\n", b'{\n  "format": "placeit-placement"}', b"\x08\x07 onnx", b'{"a": 1}\n']
)
def test_a_file_of_another_kind_is_left_as_it_is(search: Callable[..., Optimized], tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "search.jsonl"
    file.write_bytes(content)
    done: list[str] = []
    with pytest.raises(FileError, match="not a file that a search can be resumed from"):
        search(cache=None, progress=lambda what, _: done.append(what))
    assert file.read_bytes() == content
    assert done == []  # it is refused before anything is compiled or measured


def test_a_folder_and_an_impossible_place_are_refused(search: Callable[..., Optimized], tmp_path: Path) -> None:
    with pytest.raises(FileError, match="not a regular file"):
        search(resume=tmp_path)
    with pytest.raises(FileError, match="Cannot write"):
        search(resume=tmp_path / "nowhere" / "search.jsonl")


def test_there_is_nothing_to_resume_where_nothing_is_measured(search: Callable[..., Optimized]) -> None:
    with pytest.raises(UsageError, match="measures nothing"):
        search(cluster=Cluster((Device("d", "described", flops_per_s=1e9, bytes_per_s=1e12),)))


def test_what_was_measured_with_a_larger_tolerance_has_failed_by_a_smaller_one(cache: Cache, kept: str, tmp_path: Path) -> None:
    head, *lines = kept.splitlines()
    off = [json.loads(line) | {"output_error": {"max_abs": 1.0, "max_rel": 0.01, "not_checked": None}} for line in lines]
    (tmp_path / "search.jsonl").write_text("\n".join([head, *map(json.dumps, off)]) + "\n")
    with Session(inception_like(), emulated(), cache=cache, constraints=Constraints(tolerance=0.001), policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, Latency()))
        search.resume(open_journal(tmp_path / "search.jsonl", session, Latency()))
        assert {one.name for one in search.candidates} == {record["name"] for record in off}
        assert all(one.failed is not None and one.measured is None for one in search.candidates)
