import dataclasses

import pytest

from benchmarks import decision
from benchmarks._harness import Args, Report


def test_every_case_has_a_row_and_the_claims_are_about_the_worst(monkeypatch: pytest.MonkeyPatch) -> None:
    real = decision.summary
    monkeypatch.setattr(decision, "summary", lambda case, trials, seed: real(case, trials // 20, seed))
    report = Report()
    decision.run(Args(quick=True), report)
    cases = (*decision.NOT_FASTER, *decision.FASTER, *decision.OTHERS)
    assert len(report.rows) == len(cases)
    slower = [row for row, case in zip(report.rows, cases, strict=True) if case in decision.NOT_FASTER]
    false, covered, in_time = report.claims
    assert false["value"] == max(row["false_percent"] for row in slower)
    assert covered["value"] == min(row["covered_percent"] for row in report.rows[: -len(decision.OTHERS)])
    assert 0 <= in_time["value"] <= 100
    assert [claim["target"] for claim in report.claims] == ["<= 2.5", ">= 94", ">= 80"]


def test_correlated_noise_stays_as_large_and_is_correlated() -> None:
    plain = decision.Machine(0.1, correlated=False, random=decision.np.random.default_rng(0))
    correlated = dataclasses.replace(plain, correlated=True)
    for machine, expected in ((plain, 0.0), (correlated, 0.8)):
        logs = decision.np.log([machine.factor() for _ in range(20_000)])
        assert logs.std() == pytest.approx(0.1, rel=0.05)
        assert decision.np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(expected, abs=0.03)
