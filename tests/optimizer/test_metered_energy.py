"""Searches by joules of meters: what decides, what the model says beside it, and what becomes of a meter that is lost."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from placeit import Budget, Candidates
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Power
from placeit.core.errors import UsageError
from placeit.devices import kinds
from placeit.devices.energy import EnergyMeter, EnergyMeters
from placeit.devices.meters import Meter
from placeit.measuring.check import OutputDifference
from placeit.optimizer.measured_cost import MeasuredCost
from placeit.optimizer.result import Optimized
from placeit.report import as_text
from placeit.session import Session
from placeit.simulator.objectives import energy
from placeit.workbench import Workbench
from placeit.workbench.reference import Reference
from tests.broken_executors import Wrapped
from tests.known_devices import EMPTY_S, Truth, truth
from tests.small_models import random_model
from tests.steady import STEADY

MODEL = random_model(3, 9)
OPS = [name for name, kind in zip(MODEL.graph.names, MODEL.graph.kinds, strict=True) if kind not in ("Parameter", "Result")]
TRUE_W = {"d0": 200.0, "d1": 10.0}
MODEL_W = {"d0": 10.0, "d1": 100.0}  # by which d0 would be the frugal one


class Plug:
    """A meter of all devices; its joules belong to the requests that were served, and to nothing else."""

    def __init__(self) -> None:
        self.joules, self.requests, self.fails_after = 0.0, 0, 10**9

    def read(self) -> float:
        if self.requests > self.fails_after:
            raise OSError("unplugged")
        return self.joules

    def meters(self, cluster: Cluster) -> EnergyMeters:
        meter = Meter("energy", "J", "plug", self.read, counts=True)
        return EnergyMeters([EnergyMeter(meter, "plug", cluster.names, window_s=0.02)])


class Metered(Wrapped):
    """An executor whose runs take the time and the joules that its devices say."""

    plug: Plug

    def __exit__(self, *_: object) -> None:
        self.executor.close()

    def time(self) -> float:
        self.executor.time()
        spans = [span for span in self.executor.spans() if span.kind == "compute"]
        self.plug.requests += 1
        self.plug.joules += sum(TRUE_W[span.where[0]] * span.seconds for span in spans) + 1e-9
        return float(max(span.finish for span in spans) - min(span.start for span in spans)) or EMPTY_S


@pytest.fixture
def plug(monkeypatch: pytest.MonkeyPatch) -> Iterator[Plug]:
    """Sessions on two devices of known times; d1 takes 1.5 times as long as d0."""
    rng, original, plug = np.random.default_rng(7), Workbench.executor, Plug()
    table = {op: (seconds, 1.5 * seconds, seconds) for op, seconds in zip(OPS, rng.uniform(1e-4, 8e-4, len(OPS)), strict=True)}
    monkeypatch.setattr(Metered, "plug", plug, raising=False)
    monkeypatch.setitem(kinds.KINDS, "known", "tests.known_devices:KIND")
    monkeypatch.setattr(Workbench, "executor", lambda *args, **options: Metered(original(*args, **options)))
    monkeypatch.setattr(Reference, "check", lambda *_, **__: OutputDifference(0.0, 0.0))
    monkeypatch.setattr(energy, "energy_meters", plug.meters)
    truth.append(Truth(table, dict.fromkeys(OPS, (1e-05,) * 3)))
    yield plug
    truth.clear()


def opened() -> Session:
    devices = (Device(name, "known", Address(name), power=Power(0.0, watts)) for name, watts in MODEL_W.items())
    return Session(MODEL, Cluster(tuple(devices)), cache=None, policy=STEADY)


def searched(session: Session, **budget: Any) -> Optimized:
    return session.optimize("energy", budget=Budget(20, **budget), candidates=Candidates(("heft",), plain=False))


def test_joules_of_meters_decide_and_those_of_the_model_stand_beside_them(plug: Plug) -> None:
    with opened() as session:
        found = searched(session)
    answer = found.to_dict()
    assert found.chosen.name == "d1"
    assert answer["energy"] == {
        "source": "measured",
        "meters": [{"name": "plug", "devices": ["d0", "d1"]}],
        "without_meter": {},
        "fault": None,
    }
    assert "of its energy" in found.reason or "was measured to be better by energy" in found.reason
    raced = {one["name"]: one for one in answer["candidates"] if one["measured_s"] is not None}
    assert raced.keys() >= {"d0", "d1"}
    console = Console(file=io.StringIO(), width=240)
    as_text.optimized(console, found, None)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    for part in ("joules modelled", "joules measured", "energy     measured by plug (covers d0, d1)"):
        assert " ".join(part.split()) in " ".join(said.split())
    for name in ("d0", "d1"):  # alone, a device is busy all the time, and the others take nothing
        one = raced[name]
        assert one["value_from_runs"] == one["joules_measured"] == pytest.approx(TRUE_W[name] * one["measured_s"], rel=0.02)
        assert one["joules_modelled"] == pytest.approx(MODEL_W[name] * one["measured_s"], rel=0.02)
        assert one["simulated_value"] == pytest.approx(MODEL_W[name] * one["measured_s"], rel=0.1)


def test_a_front_that_was_raced_has_measured_joules(plug: Plug) -> None:
    with opened() as session:
        found = session.optimize(budget=40, candidates=Candidates(("heft",), plain=False, pareto=True))
    assert found.pareto
    raced = [one for one in found.pareto if one.latency_from == "measured"]
    assert {one.energy_from for one in raced} == {"measured"}
    frugal = found.pareto[-1]
    assert set(frugal.placement.as_dict().values()) == {"d1"}
    assert frugal.energy_j == pytest.approx(TRUE_W["d1"] * frugal.latency_s, rel=0.02)
    assert found.energy is not None
    assert found.to_dict()["energy"]["source"] == "measured"


def test_requests_are_repeated_until_the_meters_can_be_read(plug: Plug) -> None:
    with opened() as session:
        session.profile(budget_s=60)
        cost, before = MeasuredCost(session, "energy", rounds=3), plug.requests
        outcomes = cost.outcomes(np.zeros((1, len(session.grouping.groups)), np.int32))
        assert outcomes[0].measured is not None
        seconds = outcomes[0].measured.median
        assert outcomes[0].value == pytest.approx(TRUE_W["d0"] * seconds, rel=0.02)
    assert plug.requests - before == 3 * np.ceil(0.02 / seconds)


def test_a_meter_that_is_lost_leaves_all_to_the_model(plug: Plug, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened() as session:
        session.profile(budget_s=60)
        plug.fails_after = plug.requests + 60  # in the second race
        with caplog.at_level(logging.WARNING):
            found = searched(session, resume=tmp_path / "search.jsonl")
    assert found.chosen.name == "d0"
    assert found.energy is not None
    assert str(found.energy) == "modelled; plug could not be read any more: unplugged"
    assert sum("plug could not be read" in record.getMessage() for record in caplog.records) == 1
    assert found.objective.note == "joules by a power model from busy times, not measured"
    for one in found.candidates:
        assert one.value is one.modelled


def test_measured_and_modelled_joules_are_not_kept_in_one_file(
    plug: Plug, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "search.jsonl"
    with opened() as session:
        first = searched(session, resume=file)
        again = searched(session, resume=file)
        assert again.chosen.name == first.chosen.name
        monkeypatch.setattr(
            energy, "energy_meters", lambda cluster: EnergyMeters((), dict.fromkeys(cluster.names, "of no reason"))
        )
        with pytest.raises(UsageError, match="its objective is 'energy, by meters', and now it is 'energy'"):
            searched(session, resume=file)


def test_without_a_meter_for_each_device_the_model_decides_and_no_joules_are_measured(
    plug: Plug, monkeypatch: pytest.MonkeyPatch
) -> None:
    def half(cluster: Cluster) -> EnergyMeters:
        return EnergyMeters(plug.meters(cluster).meters, {"d1": "it has none"})

    monkeypatch.setattr(energy, "energy_meters", half)
    with opened() as session:
        found = searched(session)
    assert found.chosen.name == "d0"
    answer = found.to_dict()
    assert answer["energy"]["source"] == "modelled"
    assert answer["energy"]["without_meter"] == {"d1": "it has none"}
    assert str(found.energy) == "modelled; no meter for d1: it has none"
    for one in answer["candidates"]:
        assert one["joules_measured"] is None
        assert one["value_from_runs"] == one["joules_modelled"]
