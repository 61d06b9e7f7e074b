"""Models are placed together; with described devices by prediction, with real ones by measuring."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from placeit.core import clock
from placeit.core.errors import ClusterError, FileError, InfeasibleError, ModelError, UsageError, WorkloadError
from placeit.devices.host import allowed_cores
from placeit.serving.load_run import offer_all
from placeit.session import Session
from placeit.simulator.load import constant_arrivals, poisson_arrivals
from placeit.workload import measuring
from placeit.workload.entries import Entry, Workload
from placeit.workload.optimize import optimize_workload
from tests.schema_check import check_schema
from tests.serving.test_batching import saved
from tests.simulator.test_replicas import of_two_queues
from tests.steady import STEADY
from tests.workload.nets import described, net, write_workload

CORE = f"CPU@{allowed_cores()[0]}"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    net(tmp_path, "big", 96, 3)
    net(tmp_path, "small", 32, 2)
    return tmp_path


def test_the_model_that_can_goes_to_the_slower_device(models: Path) -> None:
    # alone, both are best on the fast device, where they take 111 ms and 8 ms
    path = write_workload(
        models,
        "model: big/model.onnx, name: big, rate: 4.5, latency_limit: p95=500ms",
        "model: small/model.onnx, name: small, rate: 5, latency_limit: p95=90ms",
    )
    found = optimize_workload(path, described(fast=1e6, slow=2e5), budget=4, cache=None)
    assert found.turns == 0
    assert found.chosen is not None
    assert found.chosen.name == "joint"
    alone = next(one for one in found.every if one.name == "each alone")
    assert [option.name for option in alone.options] == ["fast", "fast"]
    assert not alone.kept
    assert [option.placement.counts() for option in found.chosen.options][1]["slow"] > 0
    assert 1 <= found.factor < 2
    found.save(models / "placed.yaml")
    again = optimize_workload(models / "placed.yaml", described(fast=1e6, slow=2e5), budget=4, cache=None)
    assert again.best.predicted[1].p95 == pytest.approx(found.best.predicted[1].p95, rel=0.01)
    data = {"schema": "placeit.workload/1", **found.to_dict(), "workload_file": None}
    check_schema(json.loads(json.dumps(data)), "placeit.workload/1")


@pytest.mark.parametrize("load", [0.3, 0.5])
def test_predicted_percentiles_agree_with_a_direct_simulation_of_two_queues(models: Path, load: float) -> None:
    net(models, "middle", 64, 3)
    rates = load / 2 / 0.1106, load / 2 / 0.0493  # each model keeps the device busy for half of the load
    big, middle = (f"model: {name}/model.onnx, name: {name}, rate: " for name in ("big", "middle"))
    path = write_workload(models, f"{big}{rates[0]}", f"{middle}{rates[1]}")
    found = optimize_workload(path, described(only=1e6), budget=1, cache=None).best
    alone = [option.seconds for option in found.options]
    assert np.dot(alone, rates) == pytest.approx(load, rel=0.01)
    arrivals = [poisson_arrivals(rate, round(2e4 * rate), seed=seed) for seed, rate in enumerate(rates)]
    waited = [ended - times for ended, times in zip(of_two_queues(alone, arrivals), arrivals, strict=True)]
    expected = [float(np.percentile(each, 95)) for each in waited]
    assert [point.p95 for point in found.predicted] == pytest.approx(expected, rel=0.06)


def test_what_serves_now_is_left_only_for_what_pays(models: Path) -> None:
    cluster = described(fast=1e6, slow=2e5)
    big, small = (f"model: {name}/model.onnx, name: {name}, rate: 1" for name in ("big", "small"))
    small += ", devices: [fast]"
    before = write_workload(models, f"{big}, devices: [slow]", small)
    optimize_workload(before, cluster, budget=2, cache=None).save(models / "before.yaml")
    path = write_workload(models, big, small, "model: big/model.onnx, name: new, rate: 0.1, devices: [slow]")
    found = optimize_workload(path, cluster, budget=3, cache=None, start=models / "before.yaml")
    assert found.chosen is not None
    assert found.chosen.moves == ("big",)
    found.save(models / "after.yaml")
    again = optimize_workload(path, cluster, budget=3, cache=None, start=models / "after.yaml")
    assert again.chosen is not None
    assert (again.chosen.moves, "now" in again.chosen.name) == ((), True)
    with pytest.raises(UsageError, match="'big' has no 'placement'"):
        optimize_workload(path, cluster, budget=2, start=path)


def test_a_placed_workload_that_serves_may_move_by_whatever_path_it_is_named(
    models: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = described(fast=1e6, slow=2e5)
    path = write_workload(models, "model: big/model.onnx, name: big, rate: 1, devices: [slow]")
    optimize_workload(path, cluster, budget=2, cache=None).save(models / "placed.yaml")
    placed = Workload.load(models / "placed.yaml")
    replace(placed, entries=(replace(placed.entries[0], devices=()),)).save(models / "placed.yaml")
    monkeypatch.chdir(models)
    found = optimize_workload(models / "placed.yaml", cluster, budget=3, cache=None, start="placed.yaml")
    assert found.chosen is not None
    assert found.chosen.moves == ("big",)


def test_slowdowns_that_were_measured_before_count_where_nothing_is_measured(models: Path) -> None:
    big, small = (
        f"model: {name}/model.onnx, name: {name}, rate: 3, devices: [{on}]" for name, on in (("big", "fast"), ("small", "slow"))
    )
    path, cluster = write_workload(models, big, small), described(fast=1e6, slow=2e5)
    alone = optimize_workload(path, cluster, budget=2, cache=None)
    alone.save(models / "placed.yaml")
    assert "slowdowns" not in (models / "placed.yaml").read_text()
    pair, gone = (f"{{models: [big, {name}], devices: [fast, slow], slowdown: [3, 2]}}" for name in ("small", "gone"))
    with (models / "placed.yaml").open("a") as file:
        file.write(f"slowdowns: [{pair}, {gone}]\n")
    slowed = optimize_workload(path, cluster, budget=2, cache=None, start=models / "placed.yaml")
    assert [one.models for one in slowed.interference.pairs] == [("big", "small")]
    assert slowed.best.predicted[0].p95 > 1.1 * alone.best.predicted[0].p95
    slowed.save(models / "next.yaml")
    assert Workload.load(models / "next.yaml").slowdowns == slowed.interference.pairs


def test_corrections_that_were_measured_before_count_where_nothing_is_measured(models: Path) -> None:
    path = write_workload(models, *(f"model: {name}/model.onnx, name: {name}, rate: 1" for name in ("big", "small")))
    alone = optimize_workload(path, described(fast=1e6), budget=1, cache=None)
    alone.save(models / "placed.yaml")
    assert "corrections" not in (models / "placed.yaml").read_text()
    with (models / "placed.yaml").open("a") as file:
        small, gone = "{waits: [1ms, 500ms, 600ms], host: 0}", "{waits: [1, 1, 1], host: 0}"
        file.write(f"corrections: {{small: {small}, gone: {gone}}}\n")
    again = optimize_workload(path, described(fast=1e6), budget=1, cache=None, start=models / "placed.yaml")
    added = [now.p95 - before.p95 for now, before in zip(again.best.predicted, alone.best.predicted, strict=True)]
    assert added == pytest.approx([0.0, 0.5], abs=0.01)
    again.save(models / "next.yaml")
    assert Workload.load(models / "next.yaml").corrections == {"small": ((0.001, 0.5, 0.6), 0.0)}


def test_a_model_uses_only_the_devices_that_it_may_use(models: Path) -> None:
    big, small = "model: big/model.onnx, name: big, rate: 4.5", "model: small/model.onnx, name: small, rate: 5"
    path = write_workload(models, big, f"{small}, devices: [slow]")
    found = optimize_workload(path, described(fast=1e6, slow=2e5), budget=4, cache=None)
    assert found.chosen is not None
    assert found.chosen.options[1].placement.device_names == ("slow",)
    missing = write_workload(models, big, f"{small}, devices: [slower]")
    with pytest.raises(ClusterError, match=r"The model 'small' of the workload: There is no device 'slower'.* fast, slow"):
        optimize_workload(missing, described(fast=1e6, slow=2e5), budget=4, cache=None)


def test_what_cannot_be_kept_is_named_with_the_rates_that_would_be(models: Path) -> None:
    path = write_workload(
        models,
        "model: big/model.onnx, name: big, rate: 10, latency_limit: p95=500ms",
        "model: small/model.onnx, name: small, rate: 1, latency_limit: p95=500ms",
    )
    found = optimize_workload(path, described(only=1e6), budget=2, cache=None)
    assert found.chosen is None
    assert 0.2 < found.factor < 1
    assert f"all limits would be kept at {found.factor:.2f} times the rates" in found.reason
    assert "big: p95 is" in found.reason
    tight = write_workload(models, "model: big/model.onnx, name: big, rate: 1, latency_limit: p95=100ms")
    found = optimize_workload(tight, described(only=1e6), budget=2, cache=None)
    assert found.factor == 0
    assert [way.name for way in found.every] == ["joint, each alone"]
    assert found.reason.startswith("no placement keeps the limits: big takes 11")
    ((name, limit),) = found.longer.items()
    assert f"all limits would be kept with {name}: {limit} (predicted)" in found.reason
    longer = write_workload(models, f"model: big/model.onnx, name: big, rate: 1, latency_limit: {limit}")
    assert optimize_workload(longer, described(only=1e6), budget=2, cache=None).chosen is not None


def test_models_that_do_not_fit_are_named(models: Path) -> None:
    entries = [f"model: {name}/model.onnx, name: {name}, rate: 1" for name in ("big", "small")]
    path = write_workload(models, *entries)
    with pytest.raises(
        WorkloadError, match=r"do not fit together: big, small would have 119 kB of weights on only, which may hold 115 kB"
    ):
        optimize_workload(path, described(only=1e6, memory=115e3), budget=2, cache=None)
    found = optimize_workload(path, described(one=1e6, two=1e6, memory=115e3), budget=2, cache=None)
    assert all(sum(option.weight_bytes.get(name, 0) for option in found.best.options) <= 115e3 for name in ("one", "two"))
    with pytest.raises(InfeasibleError, match="The model 'big' of the workload: "):
        optimize_workload(path, described(only=1e6, memory=1e3), budget=2, cache=None)


def test_models_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    (tmp_path / "m.onnx").write_bytes(b"no model")
    for entry, error in (("model: m.onnx, rate: 1", ModelError), ("model: none.onnx, name: m, rate: 1", FileError)):
        with pytest.raises(error, match="The model 'm' of the workload: "):
            optimize_workload(write_workload(tmp_path, entry), described(only=1e6), budget=2, cache=None)


def test_open_sizes_are_given_in_the_file(tmp_path: Path) -> None:
    weight = np.ones((4, 4), np.float32)
    saved(tmp_path, "(float[N, 4] x) => (float[N, 4] y)", "y = MatMul (x, w)", w=weight)
    open_sizes = write_workload(tmp_path, "model: model.onnx, rate: 2")
    with pytest.raises(ModelError, match=r"The model 'model' .* open sizes: give them as its 'input_shapes' .*\{x: \[1, 4\]\}"):
        optimize_workload(open_sizes, described(fast=1e6), budget=4, cache=None)
    given = write_workload(tmp_path, "model: model.onnx, rate: 2, input_shapes: {x: [3, 4]}")
    found = optimize_workload(given, described(fast=1e6), budget=4, cache=None)
    assert found.chosen is not None
    conditions = found.chosen.options[0].placement.conditions
    assert conditions is not None
    assert conditions.shapes == {"x": (3, 4)}


def test_the_mix_is_measured_on_real_devices_and_served_from_its_file(models: Path) -> None:
    path = write_workload(
        models,
        "model: big/model.onnx, name: big, rate: 50, latency_limit: p95=60s",
        "model: small/model.onnx, name: small, in_flight: 1",
    )
    found = optimize_workload(path, [CORE], budget=3, cache=None, policy=STEADY)
    assert found.turns >= 6
    assert found.chosen is not None
    for way in found.every:
        assert way.measured is not None
        assert all(point.requests >= 6 for point in way.measured)
        assert found.error(way, 0) is not None
    found.save(models / "placed.yaml")
    big, _ = Workload.load(models / "placed.yaml")
    assert big.placement is not None
    with Session(big.model, [CORE], cache=None) as session, session.serve(big.placement) as server:
        assert [one.in_flight for one in server.executors] == [found.chosen.options[0].replicas[0].in_flight]
    again = optimize_workload(models / "placed.yaml", [CORE], budget=2, cache=None, policy=STEADY)
    assert again.chosen is not None
    assert len(again.every[0].options) == 2


@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two cores")
def test_models_on_two_core_sets_are_measured_beside_each_other(models: Path) -> None:
    names = [f"CPU@{core}" for core in allowed_cores()[:2]]
    entries = [f"model: {name}/model.onnx, name: {name}, rate: 20" for name in ("big", "small")]
    path = write_workload(models, f"{entries[0]}, arrives_at: {names[0]}", entries[1])
    found = optimize_workload(path, names, budget=4, cache=None, policy=STEADY)
    first = found.interference.pairs[0]
    assert {*first.models} == {"big", "small"}
    assert first.devices[0] != first.devices[1]
    assert min(first.slowdown) > 0
    options = [option for way in found.every for option in way.options]
    assert all(one.shared != option.plain for option in options for one in option.replicas)
    found.save(models / "placed.yaml")
    predicted = optimize_workload(models / "placed.yaml", names, budget=2, cache=None, policy=STEADY, measure=False)
    assert predicted.turns == 0
    assert predicted.interference.pairs == found.interference.pairs
    assert predicted.workload.corrections == found.workload.corrections
    data = json.loads(json.dumps(found.to_dict()))
    assert {*data["interference"]["pairs"][0]["models"]} == {"big", "small"}
    check_schema({"schema": "placeit.workload/1", **data, "workload_file": None}, "placeit.workload/1")


def test_ctrl_c_in_the_search_for_a_model_ends_the_search_for_all(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, searched = (
        write_workload(models, *(f"model: {name}/model.onnx, rate: 5, name: {name}" for name in ("big", "small"))),
        [],
    )

    def interrupted(session: Session, *args: Any, **options: Any) -> Any:
        searched.append(session.model.path)
        return replace(optimize(session, *args, **options), interrupted=True)

    optimize = Session.optimize
    monkeypatch.setattr(Session, "optimize", interrupted)
    with pytest.raises(KeyboardInterrupt):
        optimize_workload(path, described(only=1e6), budget=2, cache=None)
    assert searched == [models / "big" / "model.onnx"]


@pytest.mark.parametrize("rate", [1e-6, 1e9])
def test_a_rate_that_no_turn_can_have_is_measured_in_the_budget_all_the_same(models: Path, rate: float) -> None:
    """Five requests of the model would take two months, and a tenth of a second of them 100 million requests."""
    path = write_workload(models, f"model: small/model.onnx, name: small, rate: {rate}")
    found = optimize_workload(path, [CORE], budget=2, cache=None, policy=STEADY)
    assert found.turns >= 6
    assert all(way.measured is not None for way in found.every)


def test_requests_are_offered_to_several_servers_at_once(models: Path) -> None:
    with (
        Session(models / "big" / "model.onnx", [CORE], cache=None) as one,
        Session(models / "small" / "model.onnx", [CORE], cache=None) as other,
    ):
        one.profile(budget_s=0.1)
        other.profile(budget_s=0.1)
        servers = [session.serve(session.placement([0] * len(session.grouping.groups))) for session in (one, other)]
        with servers[0], servers[1]:
            first, second = offer_all(
                [
                    (servers[0], one.model.sample_inputs(), constant_arrivals(200.0, 10)),
                    (servers[1], other.model.sample_inputs(), constant_arrivals(500.0, 25)),
                ]
            )
    assert (first.arrived, second.arrived) == (10, 25)
    assert first.error is second.error is None
    assert len(first.latencies) + first.dropped == 10


def test_a_turn_without_rates_is_long_enough_for_a_few_of_the_longest_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = []

    def turn(workload: Workload, servers: object, inputs: object, seconds: float, rng: object) -> None:
        lengths.append(seconds)

    session: Any = SimpleNamespace(serve=lambda *_, **__: contextlib.nullcontext(), model=SimpleNamespace(sample_inputs=dict))
    options: Any = [[SimpleNamespace(seconds=seconds, placement=None)] for seconds in (0.1, 0.4)]
    workload = Workload(tuple(Entry(name, Path(), in_flight=2) for name in ("quick", "slow")))
    monkeypatch.setattr(measuring, "_turn", turn)
    with pytest.raises(KeyboardInterrupt):
        measuring.measure_choices([session] * 2, workload, options, {"joint": (0, 0)}, until=clock.now(), seed=0, progress=None)
    assert lengths == [pytest.approx(5 * 0.4 / 2)]
