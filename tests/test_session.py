"""Sessions: costs, placements by name, running one, and clusters with described devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.decoder import TINY, write_decoder
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.errors import DeviceError, PlacementError, UsageError
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.devices.openvino import openvino_core
from placeit.measuring.check import OutputDifference
from placeit.profiler.cache import Cache
from placeit.session import Session
from placeit.workbench.options import Constraints, Inputs
from tests.small_models import inception_like

CORE = f"CPU@{allowed_cores()[0]}"


def two_on_one_core(**slow: float) -> Cluster:
    """Two devices on one core: enough to test everything but speed."""
    cores = (allowed_cores()[0],)
    links = {pair: Link(1e9, 1e-4, "emulated") for pair in (("a", "b"), ("b", "a"))}
    return Cluster((Device("a", address=Address("CPU", cores)), Device("b", address=Address("CPU", cores), **slow)), links)


@pytest.fixture
def session(cache: Cache) -> Iterator[Session]:
    with Session(inception_like(), two_on_one_core(), cache=cache) as opened:
        opened.profile()
        yield opened


def test_costs_are_finite_and_add_up_to_a_pass_of_the_whole_model(session: Session) -> None:
    costs = session.costs
    assert np.isfinite(costs.core).all()
    assert (costs.core >= 0).all()
    assert (costs.cut >= 0).all()
    assert (costs.dispatch > 0).all()
    whole = session.segmenter.plan(np.zeros(len(session.grouping.groups), int))
    assert whole.schedule.makespan == pytest.approx(costs.core[:, 0].sum() + costs.dispatch[0] + costs.hosts[0])


def test_a_slowed_device_costs_more_in_proportion(cache: Cache) -> None:
    with Session(inception_like(), two_on_one_core(slowdown=8.0), cache=cache) as session:
        session.profile()
        whole = [session.segmenter.plan(np.full(len(session.grouping.groups), d)).schedule.makespan for d in range(2)]
    # both are measured on the same core; a factor of eight shows through any noise
    assert whole[1] > 2 * whole[0]


def test_costs_are_taken_from_the_cache_the_second_time(tmp_path: Path) -> None:
    said: list[str] = []
    cluster, cache = two_on_one_core(), Cache(tmp_path)
    with Session(inception_like(), cluster, cache=cache) as session:
        first = session.profile()
    with Session(inception_like(), cluster, cache=cache) as session:
        second = session.profile(progress=lambda what, _: said.append(what))
    np.testing.assert_array_equal(first.core, second.core)
    np.testing.assert_array_equal(first.cut, second.cut)
    assert not any("profiling" in what for what in said)


def test_no_runs_are_refused(session: Session) -> None:
    with pytest.raises(UsageError, match="at least one"):
        session.run(session.placement(np.zeros(len(session.grouping.groups), np.int32)), runs=0)


def test_a_placement_round_trips_through_ops_and_groups(session: Session) -> None:
    groups = np.random.default_rng(0).integers(2, size=len(session.grouping.groups))
    placement = session.placement(groups)
    assert len(placement) == len(session.model.graph)
    np.testing.assert_array_equal(session.placing.groups_of(placement), groups)


def test_a_placement_of_another_model_is_refused(session: Session) -> None:
    graph = session.model.graph
    other = Placement(graph.names, np.zeros(len(graph), np.int32), ("a", "b"), "0123456789abcdef")
    with pytest.raises(PlacementError, match="belongs to another model"):
        session.run(other)


@pytest.mark.parametrize("groups", [[0], [], [[0, 1]], "more"])
def test_devices_of_groups_are_checked(session: Session, groups: object) -> None:
    count = len(session.grouping.groups)
    with pytest.raises(PlacementError, match=f"this model's {count} groups is {count} device numbers, 0 to 1; got"):
        session.placement([2] * count if groups == "more" else groups)  # type: ignore[arg-type]


def test_a_file_of_a_placement_is_as_good_as_the_placement(session: Session, tmp_path: Path) -> None:
    session.placement(np.zeros(len(session.grouping.groups), int)).save(tmp_path / "p.json")
    inputs = session.model.random_inputs()
    with session.serve(str(tmp_path / "p.json")) as server:
        served = server.submit(inputs).result()
    ran = session.run(tmp_path / "p.json", runs=1, inputs=inputs).outputs
    assert all(np.array_equal(served[name], ran[name]) for name in ran)
    assert session.planned(tmp_path / "p.json").plan is not None
    session.build(tmp_path / "p.json", tmp_path / "app")
    assert (tmp_path / "app").is_dir()


def test_a_closed_session_runs_nothing(cache: Cache) -> None:
    with Session(inception_like(), two_on_one_core(), cache=cache) as session:
        session.profile()
        placement = session.placement(np.zeros(len(session.grouping.groups), int))
        session.run(placement, runs=1)
    for attempt in (lambda: session.run(placement, runs=1), lambda: session.serve(placement), session.optimize):
        with pytest.raises(UsageError, match="The session is closed"):
            attempt()


def test_a_placement_that_tears_a_group_apart_names_the_op(session: Session) -> None:
    graph = session.model.graph
    group = np.bincount(session.grouping.group_of).argmax()
    member = np.flatnonzero(session.grouping.group_of == group)[-1]
    devices = np.zeros(len(graph), np.int32)
    devices[member] = 1
    with pytest.raises(PlacementError, match=graph.names[member]):
        session.run(Placement(graph.names, devices, ("a", "b"), graph.hash))


def test_weights_that_do_not_fit_are_refused(cache: Cache) -> None:
    cluster = two_on_one_core(memory_bytes=100.0)
    with Session(inception_like(), cluster, cache=cache) as session:
        session.profile()
        placement = session.placement(np.ones(len(session.grouping.groups), int))
        with pytest.raises(PlacementError, match="100 B of memory"):
            session.run(placement)


def test_the_segments_of_a_placement_are_what_runs(session: Session) -> None:
    groups = np.zeros(len(session.grouping.groups), np.int32)
    finest = session.segmenter.plan(groups, merge=False)
    merged = session.segmenter.plan(groups)
    assert len(finest.segments) > len(merged.segments)
    for plan, placement in (
        (finest, session.placement(groups, finest)),
        (merged, session.placement(groups, merged)),
        (merged, session.placement(groups)),
    ):
        ran = session.run(placement, runs=1).plan
        assert [segment.groups for segment in ran.segments] == [segment.groups for segment in plan.segments]


def test_segments_of_other_groups_are_planned_anew(cache: Cache, session: Session) -> None:
    groups = np.random.default_rng(1).integers(2, size=len(session.grouping.groups))
    placement = session.placement(groups, session.segmenter.plan(groups, merge=False))
    with Session(inception_like(), two_on_one_core(), constraints=Constraints(max_groups=3), cache=cache) as coarse:
        coarse.profile()
        same = replace(placement, devices=np.zeros(len(placement), np.int32))
        assert len(coarse.plan_of(same).segments) == 1


def test_what_has_segments_of_its_own_runs_without_a_profile_and_nothing_else_does(
    session: Session, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    groups = np.arange(len(session.grouping.groups)) % 2
    plan = session.segmenter.plan(groups)
    placement = session.placement(groups, plan)
    monkeypatch.setattr("placeit.profiler.costs.profile", lambda *_, **__: pytest.fail("profiled"))
    with Session(inception_like(), two_on_one_core(), cache=cache) as other:
        for ask in (lambda: other.costs, lambda: other.segmenter, lambda: other.run(replace(placement, segments=None))):
            with pytest.raises(UsageError, match=r"call the session's profile\(\) first"):
                ask()
        report = other.run(placement, runs=2)
        np.testing.assert_array_equal(report.plan.segment_of, plan.segment_of)
        assert report.simulated_s is None
        assert other.recall()
        np.testing.assert_array_equal(other.costs.core, session.costs.core)
        assert other.run(placement, runs=2).simulated_s == plan.schedule.makespan
    with Session(inception_like(), two_on_one_core(), cache=None) as other:
        assert not other.recall()


def test_costs_are_not_recalled_for_other_typical_sizes_after_the_first(tmp_path: Path) -> None:
    decoder, cache = write_decoder(TINY, tmp_path / "decoder.xml"), Cache(tmp_path / "costs")

    def at(step: int, times: str = "x0") -> Session:
        tokens, text = f"1..64@8{times}/{step}", f"1..64@8{times}/{8 + step}"
        shapes = {"input_ids": (1, tokens), "attention_mask": (1, text), "position_ids": (1, tokens)}
        return Session(decoder, "CPU@0", inputs=Inputs(shapes=shapes), cache=cache)

    with at(1) as session:
        session.profile(budget_s=0.1)
    for other, known in ((at(1), True), (at(2), False), (at(1, "x3"), False)):
        with other:
            assert other.recall() is known


def test_segments_that_wait_for_each_other_are_refused(session: Session) -> None:
    placement = session.placement(np.zeros(len(session.grouping.groups), np.int32))
    backwards = session.grouping.group_of.max() - session.grouping.group_of
    with pytest.raises(PlacementError, match="reads from a later one"):
        session.run(replace(placement, segments=backwards))


def test_running_reports_latency_utilization_and_the_output_error(session: Session) -> None:
    groups = np.random.default_rng(1).integers(2, size=len(session.grouping.groups))
    report = session.run(session.placement(groups), runs=8)
    assert 0 < report.latency.ci_low <= report.latency.median <= report.latency.ci_high
    assert report.utilization.keys() >= {"a", "b"}
    assert all(0 <= share <= 1 for share in report.utilization.values())
    assert report.output_error.max_rel < 1e-4
    ran = [name for span in report.spans for name in span.ops]
    assert len(ran) == len(set(ran))


def test_outputs_belong_to_the_inputs_given(session: Session) -> None:
    inputs = {name: value * 2 for name, value in session.model.random_inputs(seed=5).items()}
    groups = np.arange(len(session.grouping.groups)) % 2
    report = session.run(session.placement(groups), runs=6, inputs=inputs)
    expected = openvino_core().compile_model(session.model.ov_model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(
        list(inputs.values())
    )
    for i, spec in enumerate(session.model.outputs):
        np.testing.assert_allclose(report.outputs[spec.name], expected[i], rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match="is missing"):
        session.run(session.placement(groups), inputs={})


def test_with_a_described_device_costs_are_estimated_and_nothing_can_run(cache: Cache) -> None:
    edge = Device("edge", kind="described", flops_per_s=1e9, bytes_per_s=1e9)
    fast = Device("fast", kind="described", flops_per_s=1e12, bytes_per_s=1e12)
    links = {pair: Link(1e6, 1e-3, "described") for pair in (("edge", "fast"), ("fast", "edge"))}
    with Session(inception_like(), Cluster((edge, fast), links), cache=cache) as session:
        session.profile()
        assert not session.cluster.executable
        assert (session.costs.core[:, 0] >= session.costs.core[:, 1]).all()
        placement = session.placement(np.zeros(len(session.grouping.groups), int))
        with pytest.raises(DeviceError, match="exists in simulation only"):
            session.run(placement)


def test_real_devices_are_measured_beside_described_ones(cache: Cache) -> None:
    described = Device("edge", kind="described", flops_per_s=1e9, bytes_per_s=1e9)
    real = Device(CORE, address=Address("CPU", (allowed_cores()[0],)))
    links = {pair: Link(1e8, 1e-3, "described") for pair in ((CORE, "edge"), ("edge", CORE))}
    with Session(inception_like(), Cluster((real, described), links), cache=cache) as session:
        session.profile()
        assert session.costs.dispatch[0] > 0
        assert session.costs.dispatch[1] == 0
        assert np.isfinite(session.costs.core).all()


@pytest.mark.parametrize(
    ("ours", "theirs", "max_abs", "max_rel"),
    [
        ([1.0, 2.0], [1.0, 2.0], 0.0, 0.0),
        ([1.0, 2.5], [1.0, 2.0], 0.5, 0.25),
        ([np.nan, 1.0], [np.nan, 1.0], 0.0, 0.0),
        ([np.inf], [np.inf], 0.0, 0.0),
        ([np.nan], [1.0], np.inf, np.inf),
        ([1.0], [np.inf], np.inf, np.inf),
        ([0.5], [0.0], 0.5, 0.5),
    ],
)
def test_the_output_error_compares_element_by_element(
    ours: list[float], theirs: list[float], max_abs: float, max_rel: float
) -> None:
    error = OutputDifference.between({"y": np.array(ours)}, {"y": np.array(theirs)})
    assert (error.max_abs, error.max_rel) == (max_abs, max_rel)
