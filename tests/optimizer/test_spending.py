"""What the time of a search went into, what each placer made of it, and who is asked by default."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.devices.host import allowed_cores
from placeit.learning.exploring import EXPLORING
from placeit.optimizer.ledger import MEASURING, REST, Item, Ledger
from placeit.optimizer.options import Candidates
from placeit.optimizer.result import Optimized
from placeit.planning.profiled import Profiled
from placeit.profiler.cache import Cache
from placeit.report import as_text
from placeit.workbench.options import Constraints
from tests.small_models import inception_like
from tests.steady import optimize

CORE = f"CPU@{allowed_cores()[0]}"


def described(count: int) -> Cluster:
    names = [f"d{i}" for i in range(count)]
    links = {(a, b): Link(1e12, 1e-9, "described") for a in names for b in names if a != b}
    return Cluster(tuple(Device(name, kind="described", flops_per_s=1e9, bytes_per_s=1e12) for name in names), links)


@pytest.fixture(scope="module")
def found(cache: Cache) -> Optimized:
    cores = Address("CPU", (allowed_cores()[0],))
    links = {pair: Link(1e12, 1e-9, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    cluster = Cluster((Device("fast", address=cores), Device("slow", address=cores, slowdown=1.5)), links)
    return optimize(inception_like(), cluster, candidates=Candidates(placers=("heft", "metis")), budget=5, cache=cache)


def test_every_second_is_booked_once() -> None:
    ledger = Ledger()
    heft = Item("heft", placer=True)
    with ledger.on(MEASURING):
        with ledger.on(heft), ledger.on(MEASURING):
            pass
        inside = dict(ledger.seconds)
    total = ledger.book()
    assert list(ledger.seconds) == [REST, MEASURING, heft]
    assert total == sum(ledger.seconds.values())
    assert all(inside[item] <= ledger.seconds[item] for item in inside)


def test_what_the_time_went_into_adds_up(found: Optimized) -> None:
    assert sum(one.seconds for one in found.spending) == pytest.approx(found.spent_s)
    names = [one.what for one in found.spending]
    assert len(set(names)) == len(names)
    assert names[:2] == ["loading", "profiling"]
    assert names[-1] == "other steps"
    assert {"compiling", "measuring", "deciding"} <= set(names)
    assert [one.what for one in found.spending if one.placer] == ["heft", "metis", "search"]


def test_costs_of_a_busy_machine_are_said_to_be_in_one_line(found: Optimized) -> None:
    def said(spread: float) -> str:
        console = Console(width=250, file=(written := StringIO()))
        profiled = Profiled(at=0.0, load=1.34, cached=False, cut=3, groups=3, error=None, spread=spread)
        as_text.optimized(console, replace(found, profiled=profiled), None)
        return written.getvalue()

    (line,) = [line for line in said(0.4).splitlines() if line.startswith("machine ")]
    assert "the times of the whole model varied by 40 %, while other processes kept 1.3 cores busy" in line
    assert "busy while costs were measured" not in said(0.05)


def test_too_few_undisturbed_blocks_are_told_in_the_first_lines(found: Optimized) -> None:
    console = Console(width=250, file=(written := StringIO()))
    counts = {"blocks": 24, "disturbed_blocks": 21, "unsure": True}
    profiled = Profiled(at=0.0, load=None, cached=False, cut=3, groups=3, error=None, spread=0.1, **counts)
    busy = replace(found, profiled=profiled)
    as_text.optimized(console, busy, None)
    lines = [line for line in written.getvalue().splitlines() if line.strip()]
    (line,) = [line for line in lines[:3] if line.startswith("machine ")]
    assert "of 24 blocks of runs 21 were disturbed" in line
    assert as_text.answer(busy, None).endswith("; the machine was busy while costs were measured")
    assert {name: profiled.to_dict()[name] for name in counts} == counts


def test_what_each_placer_proposed_is_told(found: Optimized) -> None:
    rows = {one.what: one for one in found.spending if one.placer}
    proposed = [candidate for candidate in found.candidates if candidate.placer != "single"]
    assert sum(one.new for one in rows.values()) == len(proposed)
    assert all(one.new <= one.proposed for one in rows.values())
    for candidate in proposed:
        row = rows[candidate.placer]
        assert row.simulated_value is not None
        assert row.simulated_value <= candidate.simulated_value
    for row in rows.values():
        assert row.role != "answer" or found.chosen.placer != "single"
        assert row.role == "answer" or found.chosen.placer != row.what
    measured = {candidate.placer for candidate in proposed if candidate.measured is not None}
    assert {name for name, row in rows.items() if row.measured_value is not None} >= measured


def test_the_same_placement_of_a_placer_is_new_once(cache: Cache) -> None:
    twice = Candidates(placers=("metis", "metis:ways=120"))  # 120 is the default
    found = optimize(inception_like(), described(3), candidates=twice, budget=3, cache=cache)
    (row,) = [one for one in found.spending if one.what == "metis"]
    assert (row.proposed, row.new) == (2, 1)


def test_what_the_time_went_into_is_in_both_reports(found: Optimized) -> None:
    rows = found.to_dict()["spending"]
    assert [(row["what"], row["placer"], row["new"]) for row in rows] == [
        (one.what, one.placer, one.new) for one in found.spending
    ]
    console = Console(file=StringIO(), width=200)
    as_text.optimized(console, found, Path("p.json"))
    printed = console.file.getvalue()
    (total,) = [line.split() for line in printed.splitlines() if line.startswith("all ")]
    assert f"{found.spent_s:.1f} s" in " ".join(total)
    lines = [line.split()[0] for line in printed.partition("time went into")[2].splitlines()[1:] if line.strip()]
    assert lines[: len(found.spending)] == [one.what.split()[0] for one in found.spending]


def test_the_start_of_the_search_for_the_answer_is_marked(cache: Cache) -> None:
    found = optimize(
        inception_like(), described(3), candidates=Candidates(placers=("random:samples=1", "metis")), budget=3, cache=cache
    )
    known = {candidate.name: candidate for candidate in found.candidates}
    before, start = set(), found.chosen.start
    while start is not None:
        before.add(known[start].placer)
        start = known[start].start
    for one in found.spending:
        if one.role == "start":
            assert found.chosen.placer == "search"
        if one.placer and one.what in before - {found.chosen.placer}:
            assert one.role is not None


@pytest.mark.parametrize(("devices", "groups"), [(CORE, 96), (described(2), 1)], ids=["one device", "one group"])
def test_where_there_is_nothing_to_place_nobody_is_asked(cache: Cache, devices: str | Cluster, groups: int) -> None:
    found = optimize(
        inception_like(),
        devices,
        candidates=Candidates(placers=("heft", "annealing", EXPLORING)),
        budget=3,
        cache=cache,
        constraints=Constraints(max_groups=groups),
    )
    assert all(candidate.placer == "single" for candidate in found.candidates)
    rows = [one for one in found.spending if one.placer]
    assert [(one.what, one.note) for one in rows] == [(EXPLORING, "not asked: there is nothing to place")]
    assert found.unplanned == ()


@pytest.mark.slow
def test_a_search_by_default_does_not_import_torch() -> None:
    script = (
        "import sys\nfrom placeit import optimize\nfrom tests.small_models import inception_like\n"
        f"optimize(inception_like(), {CORE!r}, budget=2, cache=None)\nprint('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=Path(__file__).parents[2], capture_output=True, encoding="utf-8", check=True
    )
    assert done.stdout.strip() == "False"
