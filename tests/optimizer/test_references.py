"""What OpenVINO does by itself races beside the answer, is checked and reported, and cannot be chosen."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import placeit
from placeit.backends.openvino.own_mode import OwnModeRunner
from placeit.core.cluster import Cluster, Device
from placeit.devices.host import allowed_cores
from placeit.devices.own_modes import OwnMode
from placeit.optimizer.candidates import Beside, Candidate
from placeit.optimizer.deciding import decided, guests
from placeit.optimizer.options import Candidates
from placeit.optimizer.references import enter_references, references_beside
from placeit.optimizer.runs import RunOptions
from placeit.optimizer.search import Search
from placeit.profiler.cache import Cache
from placeit.report import as_text
from placeit.session import Session
from placeit.simulator.objectives.registry import get_objective
from placeit.workbench.options import Constraints
from tests.small_models import inception_like
from tests.steady import STEADY

CORES = allowed_cores()
PAIR = [f"CPU@{core}" for core in CORES[:2]]
BUDGET_S = 120.0  # far more than a search takes that must not run out of time
pytestmark = pytest.mark.two_cores


@pytest.fixture
def as_modes(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has OpenVINO other modes on the devices of a session, by their targets."""

    def replaced(*targets: str) -> None:
        def own_modes(devices: Any, whole: Any, *, steady: bool, single: bool) -> list[OwnMode]:
            return [OwnMode(target, target, tuple(devices), steady) for target in targets]

        monkeypatch.setattr("placeit.optimizer.references.own_modes", own_modes)

    return replaced


@dataclass(frozen=True)
class Raced:
    """One device, and what OpenVINO does by itself on both, in one race."""

    search: Search
    answer: Candidate
    references: list[Beside]


@pytest.fixture
def raced(cache: Cache) -> Iterator[Callable[[], Raced]]:
    """Has OpenVINO's own modes for many requests race beside one device."""
    with Session(inception_like(), PAIR, cache=cache, policy=STEADY) as session:
        session.profile()

        def race() -> Raced:
            search = Search(RunOptions(session, get_objective("throughput", session.cluster)))
            search.singles()
            decision = decided(search, search.known[PAIR[0]], None)
            assert decision is not None
            assert decision.winner is not None
            return Raced(search, decision.winner, references_beside(search, decision.winner))

        yield race


def test_the_throughput_mode_and_batches_race_in_the_rounds_of_the_answer_and_cannot_be_chosen(
    raced: Callable[[], Raced],
) -> None:
    found = raced()
    assert [reference.row.name for reference in found.references] == ["CPU in throughput mode", "BATCH:CPU(8)"]
    assert found.search.races[-1].measured.keys() == {found.answer.name, *(one.row.name for one in found.references)}
    assert found.answer.measured is not None
    for reference in found.references:
        assert reference.row not in found.search.candidates
        assert reference.row.used == ("CPU",)
        assert reference.row.measured is not None
        assert (reference.row.measured.rounds == found.answer.measured.rounds).all()
        assert reference.row.output_error is not None
        assert reference.row.output_error.max_rel < 1e-4
        assert reference.ratio is not None


def test_a_reference_that_beats_the_answer_is_named_in_the_report(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, as_modes: Callable[..., None]
) -> None:
    as_modes("MULTI:CPU")
    monkeypatch.setattr(OwnModeRunner, "time", lambda self: 1e-9)
    monkeypatch.setattr("placeit.optimizer.deciding.decision_rounds", lambda single, split: 6)
    found = placeit.optimize(
        inception_like(),
        PAIR,
        candidates=Candidates(placers=["heft"]),
        budget=BUDGET_S,
        objective="throughput",
        cache=cache,
        constraints=Constraints(max_groups=2),
        policy=STEADY,
    )
    (reference,) = found.references
    name = reference.row.name
    assert name not in {found.chosen.name, *(one.name for one in found.candidates)}
    assert f"; {name}, a mode of OpenVINO and not a placement, takes 0.000 of its " in found.reason
    (row,) = json.loads(json.dumps(found.to_dict(), allow_nan=False))["references"]
    assert (row["name"], row["target"], row["used"], row["failed"], row["not_run"]) == (name, "MULTI:CPU", ["CPU"], None, None)
    assert reference.ratio is not None
    assert row["ratio"] == pytest.approx(reference.ratio.ratio)
    console = Console(width=250, file=(written := StringIO()))
    as_text.optimized(console, found, None)
    assert f"{name}, on CPU: " in written.getvalue()
    assert f"{name} (reference)" in written.getvalue()


def test_a_reference_that_openvino_cannot_compile_is_left_out_with_the_reason(
    raced: Callable[[], Raced], as_modes: Callable[..., None]
) -> None:
    as_modes("NOTHING:CPU", "MULTI:CPU")
    failed, other = raced().references
    assert failed.row.failed is not None
    assert "OpenVINO cannot compile inception-like for NOTHING:CPU" in failed.row.failed
    assert (failed.row.measured, failed.ratio) == (None, None)
    assert other.row.measured is not None


def test_a_reference_whose_outputs_are_wrong_in_one_request_is_out(
    raced: Callable[[], Raced], monkeypatch: pytest.MonkeyPatch
) -> None:
    run_all = OwnModeRunner.run_all

    def damaged(self: OwnModeRunner) -> None:
        run_all(self)
        for value in self.written()[-1].values():
            value.flat[0] -= 100.0

    monkeypatch.setattr(OwnModeRunner, "run_all", damaged)
    found = raced()
    for reference in found.references:
        assert reference.row.failed is not None
        assert "Its outputs are wrong" in reference.row.failed
        assert reference.ratio is None
    assert found.answer.failed is None


def test_a_reference_that_does_nothing_is_out(raced: Callable[[], Raced], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(OwnModeRunner, "run_all", lambda self: None)
    assert all(reference.row.failed is not None for reference in raced().references)


def test_a_reference_that_never_ends_is_left_behind(raced: Callable[[], Raced], monkeypatch: pytest.MonkeyPatch) -> None:
    end = threading.Event()
    monkeypatch.setattr(OwnModeRunner, "time", lambda self: end.wait(30))
    monkeypatch.setattr("placeit.optimizer.races.Races.left", lambda self: 0.1)
    monkeypatch.setattr("placeit.optimizer.runs._TIMEOUT_S", 0.1)
    monkeypatch.setattr("placeit.optimizer.deciding.guests", lambda search, *_: enter_references(search, search.problem))
    reference, _ = raced().references
    end.set()
    assert reference.row.failed is not None
    assert "OpenVINO did not finish within 0 s, so the run was abandoned" in reference.row.failed


def test_references_are_not_run_where_there_is_no_time_to_compile_them(
    raced: Callable[[], Raced], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("placeit.runtime.segment_compiler.SegmentCompiler.expected_whole_s", lambda self, device: math.inf)
    for reference in raced().references:
        assert (reference.row.measured, reference.row.failed, reference.ratio) == (None, None, None)
        assert reference.row.not_run == "there was no time left to compile and run it"


def test_a_reference_whose_runs_take_too_long_leaves_before_the_rounds(cache: Cache) -> None:
    with Session(inception_like(), PAIR, cache=cache, policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, get_objective("throughput", session.cluster)))
        search.singles()
        single = search.known[PAIR[0]]
        beside = guests(search, [single], 6)
        assert len(beside) == 2
        search.deadline = 0.0  # long ago
        found = search.race([single], "measuring", rounds=6, share=1.0, min_rounds=6, guests=beside)
        assert found.keys() == {single.name}
        left = search.known[beside[0].name]
        assert left.measured is None
        assert left.not_run is not None
        assert "there was no time left for 6 rounds" in left.not_run


def test_for_latency_references_race_beside_the_answer_too(cache: Cache, as_modes: Callable[..., None]) -> None:
    with Session(inception_like(), PAIR, cache=cache, policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, get_objective("latency", session.cluster)))
        search.singles()
        assert guests(search, search.candidates, 6) == []  # core sets are one device
    as_modes("AUTO:CPU", "HETERO:CPU")
    gpu = Device("GPU.0")

    def hardware(races: Any, problem: Any) -> Any:
        device = session.cluster.devices[0]
        return [device, gpu], [device, gpu]

    with Session(inception_like(), PAIR, cache=cache, policy=STEADY) as session, pytest.MonkeyPatch.context() as patch:
        patch.setattr("placeit.optimizer.references._hardware", hardware)
        as_f32 = {"INFERENCE_PRECISION_HINT": "f32"}  # some CPUs would compute in bf16
        patch.setattr("placeit.backends.openvino.own_mode._properties", lambda device, precision: as_f32)
        patch.setattr("placeit.backends.openvino.own_mode._BY_DEVICE", ())
        session.profile()
        split = session.placement(np.arange(len(session.grouping.groups)) % 2)
        found = placeit.compare(session, {"mine": split}, runs=6)
    assert {one.name for one in found.references} == {"AUTO:CPU", "HETERO:CPU"}
    assert all(one.measured is not None and len(one.measured.samples) == 6 for one in found.references)
    assert not {one.name for one in found.references} & {one.name for one in found.candidates}
    rows = found.to_dict()["references"]
    assert {row["name"]: row["used"] for row in rows} == {"AUTO:CPU": ["CPU"], "HETERO:CPU": ["CPU"]}


@pytest.mark.parametrize("why", ["pins", "energy", "slowed", "no plain devices"])
def test_there_are_no_references(why: str, cache: Cache) -> None:
    cluster = placeit.discover(PAIR)
    if why == "slowed":
        cluster = Cluster((cluster.devices[0], replace(cluster.devices[1], slowdown=2.0)))
    model = inception_like()
    pins = {model.graph.names[3]: PAIR[0]} if why == "pins" else {}
    objective = "total-cost" if why == "energy" else "throughput"
    with Session(model, cluster, cache=cache, constraints=Constraints(pins=pins), policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, get_objective(objective, session.cluster)))
        search.singles(plain=why != "no plain devices")
        assert guests(search, search.candidates, 6) == []
        assert all(one.reference is None for one in search.known.values())


def test_a_plain_device_is_called_as_a_program_calls_it_and_leaves_a_race_like_others(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    time = OwnModeRunner.time
    monkeypatch.setattr(OwnModeRunner, "time", lambda self: 1000 * time(self))
    with Session(inception_like(), PAIR, cache=cache, policy=STEADY) as session:
        session.profile()
        search = Search(RunOptions(session, get_objective("latency", session.cluster)))
        search.singles()
        search.race(search.candidates, "measuring", rounds=12, share=1.0, min_rounds=6)
        plain = next(one for one in search.candidates if one.plain and one.name == "CPU")
        assert plain.failed is None
        assert plain.measured is not None
        assert len(plain.measured.samples) == 6
        assert plain.inner_s is None
        assert plain.used == ()
        assert plain.output_error is not None
        assert plain.output_error.max_rel < 1e-4
        assert search.known[PAIR[0]].inner_s is not None
