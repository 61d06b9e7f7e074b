"""What sessions record of runs: on core sets, emulated links, shared cores, streams, and with several requests in flight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from placeit.backends.torch.model import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device, Link
from placeit.core.placement import Placement
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache
from placeit.profiler.recording import read_recording, write_recording
from placeit.session import Session
from placeit.workbench.options import Constraints, Traffic
from tests.eager_streams import devices, run_at_once
from tests.recorded_run import check
from tests.small_models import inception_like
from tests.torch_models import ConvNet

FIRST, LAST = allowed_cores()[0], allowed_cores()[-1]


def two(first: int, last: int) -> Cluster:
    """Two core sets with emulated links, so that tensors are moved."""
    links = {pair: Link(1e9, 1e-4, "emulated") for pair in (("a", "b"), ("b", "a"))}
    return Cluster((Device("a", address=Address("CPU", (first,))), Device("b", address=Address("CPU", (last,)))), links)


def halves(session: Session) -> NDArray[np.int64]:
    groups = len(session.grouping.groups)
    return np.arange(groups) * 2 // groups


def split(session: Session) -> Placement:
    return session.placement(halves(session))


@pytest.fixture
def session(cache: Cache) -> Iterator[Session]:
    with Session(inception_like(), two(FIRST, LAST), cache=cache) as opened:
        opened.profile()
        yield opened


def test_single_requests_are_recorded_with_transfers_costs_and_predictions(session: Session, tmp_path: Path) -> None:
    report = session.run(split(session), runs=5)
    recording = session.recording(report)
    check(recording, tmp_path)
    assert len(recording.requests) == 5
    inside = sum(one.ended - one.begun for one in report.done)  # the time between them is left out
    assert recording.wall_s == pytest.approx(inside, rel=1e-3)
    assert inside <= report.latency.samples.sum()
    assert recording.plan is not None
    crossing = [
        tensor
        for tensor in recording.plan.tensors
        if tensor.producer is not None
        and len({recording.plan.segments[s].device for s in (tensor.producer, *tensor.consumers)}) > 1
    ]
    (use,) = recording.link_use
    assert (use.src, use.dst) == ("a", "b")
    assert use.transfers == 5 * len(crossing)
    assert use.bytes == 5 * sum(tensor.bytes for tensor in crossing)
    assert use.busy_s >= 5 * 1e-4
    assert recording.critical_path is not None
    assert recording.critical_path.transfers_s >= 1e-4
    assert recording.critical_path.cuts_s is not None
    assert recording.predicted is not None
    assert recording.predicted.makespan_s == report.simulated_s
    measured = {one.op for one in recording.ops if one.measured_s is not None}
    kinds = [op.kind for op in recording.graph.ops]
    assert {v for v, kind in enumerate(kinds) if kind == "Convolution"} <= measured
    assert all(one.flops_per_s for one in recording.ops if one.op is not None and kinds[one.op] == "Convolution")
    assert all(group.predicted_s is not None for group in recording.groups)
    for device in recording.devices:
        rates = [one.flops_per_s for one in recording.ops if one.device == device.name and one.flops_per_s is not None]
        assert device.peak_flops_per_s is not None
        assert device.peak_flops_per_s >= max(rates)
        assert device.peak_bytes_per_s is not None


def test_without_costs_nothing_is_said_about_cuts_and_predictions(session: Session, tmp_path: Path) -> None:
    with Session(inception_like(), two(FIRST, LAST), cache=None) as other:
        placement = session.placement(halves(session), session.plan_of(split(session)))
        recording = other.recording(other.run(placement, runs=2), ops=False)
    check(recording, tmp_path)
    assert recording.critical_path is not None
    assert recording.critical_path.cuts_s is recording.predicted is None
    assert recording.ops == ()


def test_devices_that_share_cores_wait_for_each_other(cache: Cache, tmp_path: Path) -> None:
    with Session(inception_like(), two(FIRST, FIRST), cache=cache) as session:
        session.profile()
        recording = session.recording(
            session.run(session.placement(np.arange(len(session.grouping.groups)) % 2), runs=3), ops=False
        )
    check(recording, tmp_path)
    assert [device.conflicts for device in recording.devices] == [("b",), ("a",)]
    spans = sorted((s for s in recording.spans if s.kind == "compute"), key=lambda s: s.start_s)
    assert all(before.finish_s <= after.start_s for before, after in pairwise(spans))


@pytest.mark.parametrize("rate", [None, 2000.0])
def test_requests_in_flight_and_replicas_are_recorded(session: Session, tmp_path: Path, rate: float | None) -> None:
    alone = [session.placement(np.full(len(session.grouping.groups), d)) for d in (0, 1)]
    for placement in (split(session), replace(alone[0], replicas=(alone[1],))):
        report = session.run(placement, traffic=Traffic(rate, requests=60, queue=60))
        recording = session.recording(report, ops=False)
        check(recording, tmp_path)
        assert len(recording.requests) == 60
        assert {request.replica for request in recording.requests} <= {0, 1}
        assert [one.begun_s for one in recording.requests] == sorted(one.begun_s for one in recording.requests)
        if not placement.replicas:
            assert {span.where for span in recording.spans} == {("a",), ("b",), ("a", "b")}


def test_a_long_run_keeps_its_last_requests(session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from placeit.workbench import recording_runs as module

    report = session.run(split(session), traffic=Traffic(requests=40))
    monkeypatch.setattr(module, "MAX_SPANS", 50)
    recording = session.recording(report, ops=False)
    check(recording, tmp_path)
    assert 0 < len(recording.spans) <= 50
    assert recording.requests[-1].ended_s - recording.requests[0].arrived_s <= recording.wall_s


@pytest.mark.parametrize("beside", [(), (Device(f"CPU@{FIRST}", kind="torch", address=Address("CPU", (FIRST,))),)])
def test_streams_are_recorded(monkeypatch: pytest.MonkeyPatch, cache: Cache, tmp_path: Path, beside: Sequence[Device]) -> None:
    run_at_once(monkeypatch)
    torch.manual_seed(0)
    model = load(ConvNet(), (torch.randn(1, 3, 16, 16),))
    names = ("cpu",) if beside else ("cpu", "cpu:0")
    with Session(model, Cluster((*devices(*names), *beside)), cache=cache, constraints=Constraints(max_groups=8)) as session:
        session.profile()
        placement = split(session)
        single = session.recording(session.run(placement, runs=3), ops=False)
        served = session.recording(session.run(placement, traffic=Traffic(requests=8)), ops=False)
    for recording in (single, served):
        check(recording, tmp_path)
        assert any("host" in span.where for span in recording.spans)
        assert recording.plan is not None
        moved = {recording.plan.tensors[span.tensor].name for span in recording.spans if span.tensor is not None}
        assert {spec.name for spec in (*model.inputs, *(() if beside else model.outputs))} <= moved


def test_a_placement_that_did_not_run_has_a_plan_and_a_prediction(session: Session, tmp_path: Path) -> None:
    recording = session.planned(split(session))
    write_recording(tmp_path / "plan.json", recording)
    assert read_recording(tmp_path / "plan.json") == recording
    assert recording.plan is not None
    assert recording.predicted is not None
    assert recording.spans == recording.states == ()


@pytest.mark.parametrize("name", ["<script>alert(1)</script>", "tab\t, \x00 and \x1b[31m", "\N{PARTY POPPER}", "x" * 10_000])
def test_any_name_of_an_op_is_kept_as_it_is(session: Session, tmp_path: Path, name: str) -> None:
    recording = session.planned(split(session))
    ops = (replace(recording.graph.ops[0], name=name), *recording.graph.ops[1:])
    recording = replace(recording, graph=replace(recording.graph, ops=ops))
    write_recording(tmp_path / "run.json", recording)
    assert read_recording(tmp_path / "run.json").graph.ops[0].name == name
