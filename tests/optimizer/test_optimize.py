"""Optimising a model end to end: what is returned, what is chosen and why, and what can interrupt it."""

from __future__ import annotations

import gc
import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from placeit.backends.openvino.model import describe
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link, Power
from placeit.core.errors import DeviceError, InfeasibleError, UsageError
from placeit.core.placement import Placement
from placeit.core.problem import Problem
from placeit.devices.host import allowed_cores
from placeit.measuring.check import OutputDifference
from placeit.optimizer.options import Candidates
from placeit.placers import Measured
from placeit.placers.annealing import Annealing
from placeit.placers.bound import lower_bound
from placeit.planning.segments import Costs
from placeit.profiler.cache import Cache
from placeit.profiler.costs import profile
from placeit.session import Session
from placeit.simulator.simulate import simulate
from tests.small_models import inception_like
from tests.steady import optimize

CORE = f"CPU@{allowed_cores()[0]}"
PLACERS = ("heft", "metis")


def emulated(slowdown: float, bandwidth: float, latency: float) -> Cluster:
    """A core, and the same core slowed down behind a link: a split can only lose, whatever else the machine does."""
    cores = (allowed_cores()[0],)
    links = {pair: Link(bandwidth, latency, "emulated") for pair in (("fast", "slow"), ("slow", "fast"))}
    return Cluster(
        (Device("fast", address=Address("CPU", cores)), Device("slow", address=Address("CPU", cores), slowdown=slowdown)), links
    )


def described(count: int, **figures: float) -> Cluster:
    names = [f"d{i}" for i in range(count)]
    links = {(a, b): Link(1e12, 1e-9, "described") for a in names for b in names if a != b}
    given_figures = {"flops_per_s": 1e9, "bytes_per_s": 1e12} | figures
    return Cluster(tuple(Device(name, kind="described", **given_figures) for name in names), links)


def powered(cluster: Cluster, *watts: tuple[float, float]) -> Cluster:
    devices = (replace(device, power=Power(*power)) for device, power in zip(cluster.devices, watts, strict=True))
    return Cluster(tuple(devices), cluster.links)


def test_a_slow_device_behind_a_slow_link_leaves_the_model_on_the_fast_one(cache: Cache) -> None:
    found = optimize(inception_like(), emulated(20.0, 1e6, 0.01), candidates=Candidates(placers=PLACERS), budget=2, cache=cache)
    assert found.chosen.name == "fast"
    assert found.chosen is found.best_single
    assert set(found.placement.as_dict().values()) == {"fast"}
    assert "the lower bound, ignoring cut costs" in found.reason
    assert found.speedup is not None
    assert found.speedup.ratio == 1.0


def test_the_answer_has_every_field_that_scripts_rely_on(cache: Cache) -> None:
    found = optimize(inception_like(), emulated(1.5, 1e9, 1e-5), candidates=Candidates(placers=PLACERS), budget=5, cache=cache)
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert answer["graph"] == {"ops": found.ops, "edges": found.edges, "groups": found.groups}
    assert {c["name"] for c in answer["candidates"]} >= {"fast", "slow"}
    for candidate in answer["candidates"]:
        assert sum(candidate["devices"].values()) == found.ops
        assert (candidate["measured_s"] is None) == (candidate["output_error"]["max_abs"] is None)
        if candidate["measured_s"] is not None:
            assert candidate["output_error"]["max_rel"] < 1e-4
    assert answer["simulator"].keys() == {"mape", "pearson", "spearman"}
    both = [one for one in answer["candidates"] if one["measured_s"] is not None and one["simulated_s"] is not None]
    assert len(both) >= 5 or answer["simulator"]["pearson"] is answer["simulator"]["spearman"] is None
    assert answer["budget"]["asked_s"] == 5
    assert answer["best_single"]["placer"] == "single"
    shown = repr(found)
    assert len(shown.splitlines()) <= 20
    for fact in (found.model, found.chosen.name, found.reason, "fast, slow", "latency"):
        assert fact in shown
    assert all(repr(one) in shown for one in found.candidates[:3])


def test_the_saved_placement_runs_again(cache: Cache, tmp_path: Path) -> None:
    model, cluster = inception_like(), emulated(1.5, 1e9, 1e-5)
    found = optimize(model, cluster, candidates=Candidates(placers=PLACERS), budget=3, cache=cache)
    found.save(tmp_path / "p.json")
    with Session(model, cluster, cache=cache) as session:
        report = session.run(Placement.load(tmp_path / "p.json"), runs=6)
    assert report.output_error.max_rel < 1e-4


def test_the_answer_runs_on_inputs_of_the_users_own_and_stops_its_threads_in_the_end(cache: Cache) -> None:
    model = inception_like()
    found = optimize(model, emulated(1.5, 1e9, 1e-5), candidates=Candidates(placers="heft"), budget=3, cache=cache)
    before = threading.active_count()
    for seed in (1, 2):
        inputs = model.random_inputs(seed)
        with Session(model, CORE, cache=cache) as session:
            expected = session.reference(inputs)
        for name, value in found.run(inputs).items():
            np.testing.assert_allclose(value, expected[name], rtol=1e-3, atol=1e-5)
    with pytest.raises(UsageError, match="'image' is missing"):
        found.run({})
    assert threading.active_count() > before
    del found
    gc.collect()
    assert threading.active_count() == before


def test_a_closed_answer_has_no_threads_and_runs_again(cache: Cache) -> None:
    model = inception_like()
    inputs = model.random_inputs(1)
    before = threading.active_count()
    with optimize(model, emulated(1.5, 1e9, 1e-5), candidates=Candidates(placers="heft"), budget=3, cache=cache) as found:
        first = found.run(inputs)
        assert threading.active_count() > before
    assert threading.active_count() == before
    again = found.run(inputs)
    found.close()
    found.close()
    assert threading.active_count() == before
    for name, value in first.items():
        np.testing.assert_allclose(value, again[name], rtol=1e-5, atol=1e-6)


def test_an_answer_for_described_devices_runs_nowhere(cache: Cache) -> None:
    found = optimize(inception_like(), described(2), candidates=Candidates(placers=PLACERS), budget=3, cache=cache)
    with pytest.raises(DeviceError, match="simulation only"):
        found.run(inception_like().random_inputs())


def test_one_device_is_its_own_answer(cache: Cache) -> None:
    found = optimize(inception_like(), CORE, candidates=Candidates(placers=PLACERS), budget=3, cache=cache)
    assert found.chosen.name == CORE
    assert [candidate.name for candidate in found.candidates] == [CORE]


def test_a_model_that_computes_nothing_has_an_answer(cache: Cache) -> None:
    x = ov.opset13.parameter([1, 8], ov.Type.f32, name="x")
    model = describe(ov.Model([ov.opset13.result(x, name="same")], [x], "nothing"), Path("nothing"))
    found = optimize(model, emulated(2.0, 1e9, 1e-5), candidates=Candidates(placers=PLACERS), budget=3, cache=cache)
    assert found.chosen.segments == 0
    assert found.chosen.output_error == OutputDifference(0.0, 0.0)
    assert len(set(found.placement.as_dict().values())) == 1


def test_described_devices_are_decided_by_the_simulator_and_nothing_is_measured(cache: Cache) -> None:
    found = optimize(inception_like(), described(3), candidates=Candidates(placers=PLACERS), budget=3, cache=cache)
    assert all(candidate.measured is None for candidate in found.candidates)
    assert found.simulator_error is None
    assert found.speedup is None
    assert found.best_single is not None
    assert found.chosen.simulated_s <= found.best_single.simulated_s
    assert "nothing was measured" in found.reason


@pytest.mark.parametrize(("objective", "unit"), [("total-cost", "s"), ("energy", "J")])
def test_described_devices_are_decided_by_the_simulated_objective(cache: Cache, objective: str, unit: str) -> None:
    cluster = powered(described(2), (0.0, 40.0), (0.0, 2.0))
    found = optimize(
        inception_like(), cluster, candidates=Candidates(placers=PLACERS), budget=3, objective=objective, cache=cache
    )
    assert (found.objective.name, found.objective.unit) == (objective, unit)
    values = [candidate.simulated_value for candidate in found.candidates]
    assert values == sorted(values)
    assert found.best_single is not None
    assert found.chosen.simulated_value <= min(found.best_single.simulated_value, values[0] * 1.02)
    assert found.chosen.simulated_s <= next(c for c in found.candidates if c.simulated_value == values[0]).simulated_s
    assert all(candidate.value is None and candidate.measured is None for candidate in found.candidates)
    assert "nothing was measured" in found.reason
    if objective == "energy":
        assert found.best_single.name == "d1"


def test_energy_chooses_a_frugal_device_that_is_slower_and_never_calls_joules_measured(cache: Cache) -> None:
    cluster = powered(emulated(1.5, 1e9, 1e-5), (0.0, 1000.0), (0.0, 1.0))
    found = optimize(
        inception_like(), cluster, candidates=Candidates(placers=PLACERS), budget=4, objective="energy", cache=cache
    )
    answer = found.to_dict()
    assert (answer["objective"], answer["objective_unit"]) == ("energy", "J")
    singles = {candidate.name: candidate for candidate in found.candidates if candidate.placer == "single"}
    assert found.best_single is singles["slow"]
    assert found.chosen.value is not None
    assert singles["slow"].value is not None
    assert found.chosen.value.median <= singles["slow"].value.median * 1.05
    for candidate in answer["candidates"]:
        assert (candidate["value_from_runs"] is None) == (candidate["measured_s"] is None)
    for name, watts in (("fast", 1000.0), ("slow", 1.0)):
        single = singles[name]
        assert single.value is not None
        assert single.measured is not None
        # the only device at work is busy for at most the whole run
        assert (single.value.samples > 0).all()
        assert (single.value.samples <= watts * single.measured.samples).all()


def test_total_cost_stays_on_the_fast_device(cache: Cache) -> None:
    cluster = emulated(20.0, 1e6, 0.01)
    found = optimize(
        inception_like(), cluster, candidates=Candidates(placers=PLACERS), budget=2, objective="total-cost", cache=cache
    )
    assert found.chosen.name == "fast"
    assert found.chosen.value is not None
    assert found.chosen.measured is not None
    assert found.chosen.value.median <= found.chosen.measured.median


def test_the_same_seed_gives_the_same_answer_in_simulation(cache: Cache) -> None:
    answers = [
        optimize(
            inception_like(), described(2), candidates=Candidates(placers=("annealing:evaluations=2000",)), seed=3, cache=cache
        )
        for _ in range(2)
    ]
    assert answers[0].placement.as_dict() == answers[1].placement.as_dict()


def test_weights_that_fit_nowhere_are_infeasible(cache: Cache) -> None:
    with pytest.raises(InfeasibleError):
        optimize(
            inception_like(), described(2, memory_bytes=64.0), candidates=Candidates(placers=("heft",)), budget=3, cache=cache
        )


def test_weights_that_fit_only_together_are_split(cache: Cache) -> None:
    with Session(inception_like(), described(2), cache=cache) as session:
        needed = session.grouping.groups.param_bytes.sum()
    found = optimize(
        inception_like(), described(2, memory_bytes=needed * 0.7), candidates=Candidates(placers=PLACERS), budget=3, cache=cache
    )
    assert found.best_single is None
    assert min(found.placement.counts().values()) > 0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"objective": "speed"}, "objective 'speed' is not known; there are latency, throughput, total-cost, energy"),
        ({"objective": "tokens"}, r"placeit.optimize_texts\(session\)"),
        ({"objective": "energy"}, "needs the power of every device, and the power of CPU is not known"),
        ({"budget": 0}, "must be positive"),
        ({"budget": float("inf")}, "must be positive and finite"),
        ({"candidates": Candidates(("hefty",))}, "hefty"),
        ({"candidates": Candidates(("heft:speed=3",))}, "speed"),
        ({"candidates": Candidates("hefty")}, "'hefty'"),
        ({"seed": -1}, "must not be negative"),
    ],
)
def test_options_that_make_no_sense_are_refused_before_any_work(options: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        optimize("there is no such model.onnx", "CPU", **options)  # type: ignore[arg-type]


def test_placers_go_on_from_what_was_measured(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[Problem, Measured, float | None]] = []
    answers: list[np.ndarray] = []

    def refine(
        self: Annealing, problem: Problem, cost: Any, measured: Measured, *, seed: int, deadline: float | None = None
    ) -> np.ndarray:
        asked.append((problem, measured, deadline))
        known = {row.tobytes() for row in measured.placements}
        for v in range(len(problem)):  # the best of all, but for one group
            answer = measured.placements[0].copy()
            answer[v] = 1 - answer[v]
            if answer.tobytes() not in known:
                answers.append(answer)
        return answers[-1]

    def equal(_: Any, grouping: Any, cluster: Cluster, *__: Any, **___: Any) -> Costs:  # so that splits are worth a run
        free = Costs.zero(len(grouping.groups), cluster)
        return replace(free, core=np.full_like(free.core, 1e-4))

    monkeypatch.setattr("placeit.profiler.costs.profile", equal)
    monkeypatch.setattr(Annealing, "refine", refine)
    placers = ("annealing:evaluations=100", "metis")
    found = optimize(inception_like(), emulated(1.5, 1e9, 1e-5), candidates=Candidates(placers=placers), budget=30, cache=cache)
    assert asked
    problem, measured, deadline = asked[0]
    assert measured.values.tolist() == sorted(measured.values)
    assert deadline is not None
    assert not np.allclose(problem.compute, 1e-4)  # corrected by measurements
    rows = {candidate.groups.tobytes() for candidate in found.candidates}
    assert {row.tobytes() for row in measured.placements} <= rows
    (again,) = [candidate for candidate in found.candidates if candidate.name == "annealing:evaluations=100, turn 2"]
    assert again.placer == "annealing"
    assert again.groups.tobytes() in {answer.tobytes() for answer in answers}


def test_ctrl_c_keeps_the_best_placement_so_far(cache: Cache) -> None:
    def interrupt(what: str, _: float) -> None:
        if "finalists" in what:
            raise KeyboardInterrupt

    found = optimize(
        inception_like(),
        emulated(1.5, 1e9, 1e-5),
        candidates=Candidates(placers=PLACERS),
        budget=60,
        cache=cache,
        progress=interrupt,
    )
    assert found.interrupted
    assert found.chosen.placer == "single"
    assert any(candidate.measured is not None for candidate in found.candidates)
    assert "interrupted" in found.reason


def test_a_budget_too_short_for_a_decision_leaves_the_single_device_and_says_so(
    cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cutting_is_free(*args: Any, **options: Any) -> Costs:  # so there is a split to decide about
        found = profile(*args, **options)
        return Costs(found.core, 0 * found.cut, 0 * found.dispatch, found.cluster)

    monkeypatch.setattr("placeit.profiler.costs.profile", cutting_is_free)
    found = optimize(
        inception_like(), emulated(1.0, 1e12, 1e-9), candidates=Candidates(placers="heft"), budget=0.01, cache=cache
    )
    assert found.chosen is found.best_single
    assert "no time was left to decide" in found.reason
    assert found.chosen.measured is not None
    assert found.chosen.output_error is not None


@settings(max_examples=50)
@given(st.integers(0, 10_000), st.integers(1, 12), st.integers(1, 3))
def test_no_placement_beats_the_bound(seed: int, ops: int, devices: int) -> None:
    rng = np.random.default_rng(seed)
    pairs = [(u, v) for v in range(ops) for u in range(v) if rng.random() < 0.3]
    problem = Problem.from_arrays(
        rng.random((ops, devices)) + 0.01,
        pairs,
        np.zeros(len(pairs)),
        np.full((devices, devices), np.inf),
        np.zeros((devices, devices)),
    )
    placements = rng.integers(devices, size=(20, ops))
    assert (simulate(problem, placements) >= lower_bound(problem) * (1 - 1e-9)).all()
