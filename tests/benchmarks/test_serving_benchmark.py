"""A server in trouble for a second: every request is accounted for, and memory stays within the bound of 20 minutes."""

import pytest

from benchmarks import serving
from benchmarks._harness import Args, Report

pytestmark = pytest.mark.usefixtures("small_model")


def test_every_request_is_accounted_for_and_memory_and_threads_do_not_grow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_WAITING", (10, 100))
    report = Report()
    serving.run(Args(quick=True, seconds=1.0), report)
    claims = {claim["name"].partition(": ")[2]: claim for claim in report.claims}
    for name in (
        "requests that are not accounted for",
        "requests that failed, beyond those that were hit",
        "requests that failed for another reason",
        "requests with wrong outputs",
        "requests that ended twice",
        "threads over those after a tenth",
    ):
        assert claims[name]["value"] == 0
    assert claims["memory over that after a tenth"]["holds"]
    assert claims["kinds of trouble"]["value"] > 0
    assert any(row.get("done", 0) for row in report.rows)
