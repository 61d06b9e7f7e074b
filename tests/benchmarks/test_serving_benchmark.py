"""A server under load for a second: every request is accounted for."""

import pytest

from benchmarks import serving
from benchmarks._harness import Args, Report

pytestmark = pytest.mark.usefixtures("small_model")


def test_every_request_is_accounted_for_and_no_thread_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_QUICK", 1.0)
    report = Report()
    serving.run(Args(quick=True), report)
    claims = {claim["name"].partition(": ")[2]: claim["value"] for claim in report.claims}
    assert claims["requests that are not accounted for"] == claims["requests that failed"] == 0
    assert claims["threads over those after a tenth"] == 0
    assert report.rows[-2]["requests"] > 0
    assert report.rows[-2]["done"] > 0
