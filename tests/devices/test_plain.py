"""Plain devices: what one would do without placeit is a row of the race, wins where it is fastest, and can be run."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.core.address import Address, format_cores
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import PlacementError
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.kinds import kind_of
from placeit.devices.plain import plain_devices
from placeit.optimizer.options import Candidates
from placeit.optimizer.races import Races
from placeit.optimizer.result import Optimized
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.workbench import Workbench
from placeit.workbench.options import Constraints
from tests.broken_executors import taking
from tests.small_models import inception_like
from tests.steady import optimize

CORES = allowed_cores()[:2]
PAIR = ",".join(f"CPU@{core}" for core in CORES)
PLAIN = next((device.name for device in plain_devices(discover(PAIR))), "CPU")
SINGLE, SPLIT = 0.02, 0.03


def core_set(*cores: int, kind: str = "openvino", **options: Any) -> Device:
    address = Address("CPU", cores, runtime="ort" if kind == "ort" else "")
    return Device(str(address), kind, address, memory_bytes=1e9, **options)


def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    monkeypatch.setattr("placeit.devices.plain.one_per_physical_core", lambda cores: cores)


def plain_takes(monkeypatch: pytest.MonkeyPatch, plain: float, split: float = SPLIT) -> None:
    taking(monkeypatch, lambda s, used: plain if s.cluster.names == (PLAIN,) else SINGLE if len(used) == 1 else split)


def found_on_pair(cache: Cache, **options: Any) -> Optimized:
    return optimize(
        inception_like(), **({"devices": PAIR, "candidates": Candidates("heft"), "budget": 4.0, "cache": cache} | options)
    )


# --- which devices


@pytest.mark.parametrize(
    ("sets", "plain"),
    [
        ([core_set(0, 1), core_set(2, 3)], {"CPU": (0, 1, 2, 3)}),
        ([core_set(0), core_set(1)], {"CPU@0-1": (0, 1)}),
        ([core_set(0, 1, kind="ort"), core_set(2, 3, kind="ort")], {"ort:CPU": (0, 1, 2, 3)}),
        ([core_set(0, 1, kind="ort"), core_set(2, 3)], {"ort:CPU": (0, 1, 2, 3), "CPU": (0, 1, 2, 3)}),
        ([core_set(0, kind="torch"), core_set(2, kind="torch")], {"CPU@0+2": (0, 2)}),
        ([core_set(0), core_set(1), Device("GPU.0", address=Address("GPU.0"))], {"CPU@0-1": (0, 1)}),
        ([core_set(0, 1), core_set(0), core_set(1), core_set(2)], {"CPU@0-2": (0, 1, 2)}),
        ([core_set(0, 1, 2, 3), core_set(0, 1), core_set(2)], {"CPU": (0, 1, 2, 3)}),
        ([core_set(0, 1), core_set(0), core_set(1)], {}),  # the first is all of them
        ([Device("CPU", address=Address("CPU"), all_cores=(0, 1, 2, 3)), core_set(0), core_set(1)], {}),
        ([core_set(0), core_set(0, kind="ort")], {}),
        ([core_set(0, 1, 2, 3)], {}),
        ([Device("CPU", address=Address("CPU"), all_cores=(0, 1, 2, 3)), Device("GPU.0", address=Address("GPU.0"))], {}),
        ([core_set(0, 1), core_set(2, 3, slowdown=1.5)], {}),
        ([core_set(0, 1), core_set(2, 3), Device("edge", "described")], {}),
    ],
)
def test_the_plain_devices_are_all_core_sets_at_once(
    monkeypatch: pytest.MonkeyPatch, sets: list[Device], plain: dict[str, tuple[int, ...]]
) -> None:
    four_cores(monkeypatch)
    found = plain_devices(Cluster(tuple(sets)))
    assert {device.name: device.cores for device in found} == plain
    assert all(str(device.address) == device.name and device.memory_bytes <= 1e9 * len(sets) for device in found)


def test_a_link_that_is_held_back_stands_for_another_machine_which_no_plain_device_is(monkeypatch: pytest.MonkeyPatch) -> None:
    four_cores(monkeypatch)
    sets = (core_set(0, 1), core_set(2, 3))
    names = tuple(device.name for device in sets)
    assert plain_devices(Cluster(sets, {names: Link(1e9, 0.0, "measured")}))
    assert not plain_devices(Cluster(sets, {names: Link(1e9, 0.0, "emulated")}))


@pytest.mark.parametrize(
    ("tags", "kind", "precision", "other"),
    [
        ({"fp32", "bf16", "fp16"}, "openvino", "f32", "bf16"),
        ({"fp32", "fp16"}, "openvino", "f32", "f16"),
        ({"fp32", "int8"}, "openvino", "f32", None),
        ({"fp32", "bf16"}, "openvino", "bf16", "f32"),
        (set(), "ort", "f32", None),
        (set(), "torch", "f32", "bf16"),
    ],
)
def test_the_other_precision_is_one_that_the_device_has(tags: set[str], kind: str, precision: str, other: str | None) -> None:
    device = core_set(0, kind=kind, tags=frozenset(tags))
    assert kind_of(device).other_precision(device, precision) == other


# --- in the race


@pytest.mark.two_cores
def test_the_whole_cpu_is_measured_and_wins_where_it_is_fastest(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    plain_takes(monkeypatch, 0.01)
    found = found_on_pair(cache)
    chosen = found.chosen
    assert (chosen.name, chosen.placer, chosen.plain) == (PLAIN, "single", True)
    assert chosen is found.best_single
    assert chosen.measured is not None
    assert chosen.output_error is not None
    assert chosen.output_error.max_rel < 1e-4
    assert chosen.segments == 1
    assert [candidate.name for candidate in found.candidates if candidate.plain] == [PLAIN]
    assert found.simulator_error is not None
    rows = {row["name"]: row for row in json.loads(json.dumps(found.to_dict(), allow_nan=False))["candidates"]}
    assert (rows[PLAIN]["simulated_s"], rows[PLAIN]["simulated_value"]) == (None, None)
    assert rows[PLAIN]["devices"] == {PLAIN: found.ops}
    assert not rows[f"CPU@{CORES[0]}"]["plain"]


@pytest.mark.two_cores
def test_the_whole_cpu_is_what_a_split_has_to_beat_only_where_it_is_the_best_single_device(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_takes(monkeypatch, 0.05, split=0.01)
    with Session(inception_like(), PAIR, cache=cache) as session:
        session.profile()
        split = session.placement(np.arange(len(session.grouping.groups)) % 2)
    found = found_on_pair(
        cache, candidates=Candidates("heft", split), budget=300.0
    )  # given, so that it runs whatever is simulated
    assert found.best_single is not None
    assert found.best_single.name.startswith("CPU@")
    assert found.chosen.placer != "single"
    plain = next(candidate for candidate in found.candidates if candidate.plain)
    assert plain.measured is not None


@pytest.mark.two_cores
@pytest.mark.parametrize(("devices", "counted"), [(PAIR, 2), (f"CPU@{format_cores(CORES)},{PAIR}", 1)])
def test_a_plain_run_keeps_every_core_set_busy_and_no_core_twice(cache: Cache, devices: str, counted: int) -> None:
    found = found_on_pair(cache, devices=devices, objective="total-cost")
    plain = [candidate for candidate in found.candidates if candidate.plain]
    assert len(plain) == 1 or PLAIN in devices  # of more cores than two, all of which the cluster has as one device
    for candidate in plain:
        assert candidate.value is not None
        assert candidate.measured is not None
        assert (candidate.value.samples <= counted * candidate.measured.samples).all()
        assert (candidate.value.samples > 0).all()


@pytest.mark.two_cores
def test_a_plain_device_that_cannot_run_is_out_and_the_others_go_on(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    original = Workbench.executor

    def executor(self: Session, plan: Any, **options: Any) -> Any:
        if self.cluster.names == (PLAIN,):
            raise MemoryError("no room")
        return original(self, plan, **options)

    monkeypatch.setattr(Workbench, "executor", executor)
    monkeypatch.setattr(Races, "_by_itself", lambda *_: None)
    found = found_on_pair(cache)
    assert next(candidate for candidate in found.candidates if candidate.plain).failed == "MemoryError: no room."
    assert found.chosen.measured is not None


@pytest.mark.two_cores
def test_a_device_of_a_cluster_file_may_have_the_plain_devices_name(cache: Cache) -> None:
    one, two = discover(PAIR).devices
    found = optimize(
        inception_like(), Cluster((replace(one, name=PLAIN), two)), candidates=Candidates(placers="heft"), budget=2, cache=cache
    )
    assert {PLAIN, f"plain {PLAIN}"} <= {candidate.name for candidate in found.candidates}
    assert len({candidate.name for candidate in found.candidates}) == len(found.candidates)


@pytest.mark.two_cores
def test_pins_leave_the_plain_device_out(cache: Cache) -> None:
    op = inception_like().graph.names[5]
    found = found_on_pair(cache, constraints=Constraints({op: f"CPU@{CORES[0]}"}), budget=1.0)
    assert not any(candidate.plain for candidate in found.candidates)


# --- afterwards


@pytest.mark.two_cores
def test_the_answer_on_the_whole_cpu_runs_and_is_kept_like_any_other(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    model = inception_like()
    with monkeypatch.context() as patch:
        plain_takes(patch, 0.01)
        found = found_on_pair(cache)
    inputs = model.random_inputs(1)
    found.save(tmp_path / "p.json")
    placement = Placement.load(tmp_path / "p.json")
    assert placement.device_names == (PLAIN,)
    again = found_on_pair(cache, candidates=Candidates("heft", placement), budget=1.0)
    assert [candidate.name for candidate in again.candidates if candidate.plain] == [PLAIN]
    for devices in (PAIR, PLAIN):
        with Session(model, devices, cache=cache) as session:
            session.profile()
            report = session.run(placement, runs=6, inputs=inputs)
            expected = session.reference(inputs)
        assert report.failed is None
        assert set(report.utilization) == {PLAIN}
        for name, value in found.run(inputs).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5)
            np.testing.assert_allclose(report.outputs[name], expected[name], rtol=1e-3, atol=1e-5)
    with (
        Session(model, f"CPU@{CORES[0]}", cache=cache) as session,
        pytest.raises(PlacementError, match=f"'{PLAIN}', which is not"),
    ):
        session.run(placement)


@pytest.mark.two_cores
def test_where_only_one_single_device_can_be_raced_it_is_not_chosen_before_the_whole_cpu_was_run(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain_takes(monkeypatch, 1e-9)
    monkeypatch.setattr("placeit.optimizer.search.race_s", lambda seconds, *_, **__: 0.0 if len(list(seconds)) < 2 else 1e9)
    assert found_on_pair(cache).chosen.name == PLAIN


# --- other precisions


@pytest.mark.two_cores
def test_another_precision_is_measured_beside_the_plain_device_and_is_no_candidate(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking(monkeypatch, lambda s, _: 0.001 if s.precision == "bf16" else 0.01 if s.cluster.names == (PLAIN,) else SINGLE)
    cluster = Cluster(tuple(replace(device, tags=frozenset({"fp32", "bf16"})) for device in discover(PAIR).devices))
    found = optimize(
        inception_like(), cluster, candidates=Candidates(placers="heft", compare_precisions=True), budget=4, cache=cache
    )
    (other,) = found.precisions
    assert (other.row.name, other.row.of) == (f"{PLAIN} in bf16", PLAIN)
    assert other.row.measured is not None
    assert other.row.output_error is not None
    assert other.ratio is not None
    assert other.ratio.ratio == pytest.approx(0.1)
    assert found.without_precisions == ()
    assert f"{PLAIN} in bf16" not in {candidate.name for candidate in found.candidates}
    assert found.chosen.name == PLAIN
    plain = found.chosen.measured
    assert plain is not None
    assert (other.row.measured.rounds == plain.rounds).all()
    (row,) = json.loads(json.dumps(found.to_dict(), allow_nan=False))["precisions"]
    assert (row["of"], row["measured_s"], row["ratio"]) == (PLAIN, pytest.approx(0.001), pytest.approx(0.1))


def test_a_device_without_another_precision_says_so(cache: Cache) -> None:
    (device,) = discover(f"CPU@{CORES[0]}").devices
    cluster = Cluster((replace(device, tags=frozenset({"fp32"})),))
    found = optimize(
        inception_like(), cluster, candidates=Candidates(placers="heft", compare_precisions=True), budget=2, cache=cache
    )
    assert found.precisions == ()
    assert found.without_precisions == (f"{device.name} has neither bf16 nor f16",)


def test_of_described_devices_no_other_precision_is_told(cache: Cache) -> None:
    links = {pair: Link(1e9, 0.0, "described") for pair in (("a", "b"), ("b", "a"))}
    figures: dict[str, Any] = {"kind": "described", "flops_per_s": 1e9, "bytes_per_s": 1e9}
    cluster = Cluster((Device("a", **figures), Device("b", **figures)), links)
    options: dict[str, Any] = {"candidates": Candidates("heft", compare_precisions=True), "budget": 2, "cache": cache}
    assert optimize(inception_like(), cluster, **options).without_precisions == ("a is only described", "b is only described")
    model = inception_like()
    pins = {model.graph.names[0]: "a", model.graph.names[-1]: "b"}
    (why,) = optimize(model, cluster, constraints=Constraints(pins=pins), **options).without_precisions
    assert "no single device" in why


def test_with_bf16_asked_for_the_other_precision_is_f32(cache: Cache) -> None:
    device = f"CPU@{CORES[0]}"
    found = optimize(
        inception_like(),
        device,
        candidates=Candidates(placers="heft", compare_precisions=True),
        budget=2,
        precision="bf16",
        cache=cache,
    )
    assert [other.row.name for other in found.precisions] == [f"{device} in f32"]
    assert found.chosen.name == device
