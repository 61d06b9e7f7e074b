"""A small graph placed anew when a node becomes slow, and when it is lost."""

from __future__ import annotations

import pytest

from benchmarks import adaptivity
from benchmarks._harness import Args, Report

pytest.importorskip("ray")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(280, method="thread")]


def test_each_way_to_place_a_graph_anew_is_timed_and_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptivity, "OPS", 8)
    report = Report()
    adaptivity.run(Args(quick=True), report)
    ways = ["HEFT", "GiPH", "search", "server"]
    assert [(row["node"], row["placed_by"]) for row in report.rows] == [
        *(("slow", way) for way in [*ways, "nothing"]),
        *(("lost", way) for way in ways),
    ]
    for row in report.rows:
        assert row["decision_s"] >= 0
        assert row["predicted_ms"] > 0
        assert row["latency_ms"] > 0
    names = {claim["name"] for claim in report.claims}
    assert "latency with a slow node, nothing over HEFT" in names
    assert "latency with a lost node, server over HEFT" in names
