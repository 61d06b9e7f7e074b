"""Throughput of a model that takes a millisecond: what is compared and reported, not how good it is."""

import pytest

from benchmarks import throughput
from benchmarks._harness import Args, Report

pytestmark = pytest.mark.usefixtures("small_model")


@pytest.mark.slow
def test_simulated_and_measured_seconds_per_request_stand_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throughput, "_QUICK_S", 5.0)
    report = Report()
    throughput.run(Args(quick=True), report)
    rows = {row["plan"]: row for row in report.rows if "plan" in row}
    assert rows.keys() > {f"{throughput._ONE}, 0", throughput._REPLICAS, throughput._OPENVINO, throughput._SEARCHED}
    for who, row in rows.items():
        assert row["requests_per_s"] == pytest.approx(1e3 / row["measured_ms"])
        assert (row["error"] is None) == (row["simulated_ms"] is None) == (who == throughput._OPENVINO)
    claims = {claim["name"].partition(": ")[2]: claim for claim in report.claims}
    for name in (
        "mean error of simulated seconds per request",
        "throughput of two cores over that of the better one",
        f"seconds per request over those of {throughput._OPENVINO}",
    ):
        assert claims[name]["value"] > 0
    for case in ("slowed", "memory"):
        assert any(
            claim["name"].startswith(f"inception_v3, {case}: seconds per request of the best split") for claim in report.claims
        )
        (answer,) = (row for row in report.rows if row.get("case") == f"inception_v3, {case}" and "answer" in row)
        assert answer["reason"]
