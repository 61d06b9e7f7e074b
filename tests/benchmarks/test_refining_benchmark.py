"""A server of a small model that refines under load: what is reported, not how good it is."""

import pytest

from benchmarks import refining
from benchmarks._harness import Args, Report

pytestmark = pytest.mark.usefixtures("small_model")


@pytest.mark.slow
def test_every_request_is_answered_and_what_refining_takes_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(refining, "_MORE", 20)
    report = Report()
    refining.run(Args(quick=True, models=("inception_v3",)), report)
    claims = {claim["name"].partition(": ")[2]: claim for claim in report.claims}
    for name in ("requests that are not accounted for", "requests that failed", "requests with wrong outputs"):
        assert claims[name]["value"] == 0
    assert claims["share of requests and runs that explore"]["holds"]
    phases = {row["phase"]: row["requests"] for row in report.rows if "phase" in row}
    assert list(phases) == ["before", "trial", "after"]
    assert phases["before"] > 0
    last = report.rows[-1]
    assert last["core_s"] > 0
    assert bool(last["switches"]) == bool(phases["after"])
