"""Graphs and models on nodes, small ones: what is told of them, here and on an emulated network."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from small_models import inception_like

from benchmarks import _edge_graphs, _edge_models
from benchmarks._harness import Args, Report
from benchmarks._network import Network, cluster, network, reason_why_no_quotas, reason_why_not
from placeit.devices.host import allowed_cores

pytest.importorskip("ray")
from placeit.devices.nodes import local

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280, method="thread")]

WAYS = [_edge_graphs.OURS, "Ray's references", "Ray's compiled graph"]


def small_graphs(args: Args, ray: local.LocalCluster, made: Network | None) -> Report:
    """Graphs of three hops; in whatever process it is called."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_edge_graphs, "HOPS", {False: 3, True: 3})
        patch.setattr(_edge_graphs, "SIZES", (1000,))
        return _edge_graphs.graphs(args, ray, made)


def small_model(args: Args, ray: local.LocalCluster, made: Network) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_edge_models, "load_model", lambda _: inception_like())
        return _edge_models.on_nodes("small", args, ray, made)


def test_graphs_are_raced_in_three_ways_and_take_no_less_than_their_critical_path(tmp_path: Path) -> None:
    file = tmp_path / "cluster.json"
    ray = local.start(_edge_graphs.NODES, file)
    try:
        report = small_graphs(Args(quick=True), ray, None)
    finally:
        ray.stop(file)
    assert [(row["graph"], row["what"]) for row in report.rows] == [(g, way) for g in ("chain", "diamonds") for way in WAYS]
    for row in report.rows:
        assert row["critical_path_ms"] == pytest.approx(6)
        assert row["median_ms"] >= 6
    assert len(report.claims) == 2


@pytest.mark.skipif(bool(reason_why_not()), reason=reason_why_not())
def test_on_a_network_at_least_the_tensors_cross_whoever_sends_them() -> None:
    with network(_edge_graphs.NODES) as made, cluster(made) as ray:
        report = made.call("head", small_graphs, Args(quick=True), ray, made)
    assert [row["what"] for row in report.rows] == WAYS * 2
    for row in report.rows:
        assert row["bytes_that_cross_kb"] >= row["tensors_that_cross_kb"] > 0
        assert row["cores_of_the_switch"] > 0


@pytest.mark.skipif(bool(reason_why_no_quotas()), reason=reason_why_no_quotas())
@pytest.mark.skipif(len(allowed_cores()) < 2, reason="needs two CPU cores, and this process may use one")
def test_bytes_that_cross_are_told_of_models_too_ours_and_those_of_references() -> None:
    with network(_edge_graphs.NODES, rate=1e9, delay=0) as made, cluster(made) as ray:
        report = made.call("head", small_model, Args(quick=True), ray, made)
    rows = {str(row["what"]).partition("/")[0]: row for row in report.rows}
    assert list(rows) == [*_edge_graphs.NODES, "split", "split, Ray's references"]
    for what in ("edge1", "edge2", "split", "split, Ray's references"):
        assert rows[what]["bytes_that_cross_kb"] > 0
    assert all(math.isfinite(float(row["median_ms"])) for row in report.rows)
