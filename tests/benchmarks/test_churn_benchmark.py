"""Rounds of nodes that fail, and what is claimed of them."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import churn
from benchmarks._harness import Args, Report
from benchmarks._network import cluster, network, reason_why_not

WELL = {
    "how": churn.CUT,
    "lost": 0,
    "answered_twice": 0,
    "wrong": 0,
    **dict.fromkeys(churn.PHASES, 0.5),
    **dict.fromkeys(("before_ms", "after_ms", "again_ms"), 20.0),
}
UNMEASURED: dict[str, Any] = dict.fromkeys(("silent_s", "decided_s", "compiled_s", "first_answer_s", "used_again_s"))


def claims(*rows: dict[str, Any]) -> dict[str, tuple[float | None, bool | None]]:
    report = Report()
    for row in rows:
        report.row(**row)
    churn.claim(report)
    return {str(one["name"]): (one["value"], one["holds"]) for one in report.claims}  # type: ignore[misc]


def test_what_went_well_holds_and_phases_are_told_by_their_median_and_their_worst() -> None:
    told = claims(WELL, WELL, {**WELL, "decided_s": 0.9})
    assert not [name for name, (_, holds) in told.items() if holds is False]
    assert told["decision, median"] == (0.5, None)
    assert told["decision, worst"] == (0.9, True)
    for what in churn.PHASES.values():
        assert f"{what}, median" in told
        assert f"{what}, worst" in told


def test_a_round_without_a_replacement_fails_and_leaves_the_figures_of_the_others() -> None:
    told = claims(WELL, {**WELL, **UNMEASURED, "how": churn.KILLED, "next_answer_s": churn.ANSWER_S})
    assert told["rounds without a replacement"] == (1, False)
    assert told["decision, worst"] == (0.5, True)
    assert told["from a failure to the next answer, worst"] == (churn.ANSWER_S, False)
    assert claims({**WELL, **UNMEASURED})["decision, worst"] == (None, None)


def test_a_node_that_came_back_and_was_not_used_again_fails() -> None:
    told = claims(WELL, {**WELL, "used_again_s": None}, {**WELL, "how": churn.STOPPED, "used_again_s": None})
    assert told["nodes that came back and were not used again"] == (1, False)


def test_a_round_that_ends_by_an_error_fails_and_leaves_the_figures_of_the_others() -> None:
    told = claims(WELL, {"how": churn.CUT, "failed": "Ray has not noticed what became of edge1 for 60 s."})
    assert told["rounds that ended by an error"] == (1, False)
    assert told["rounds without a replacement"] == (0, True)
    assert told["nodes that came back and were not used again"] == (0, True)
    assert told["decision, worst"] == (0.5, True)


@pytest.mark.parametrize("what", ["lost", "answered twice", "wrong"])
def test_one_bad_request_of_one_round_fails(what: str) -> None:
    assert claims(WELL, {**WELL, what.replace(" ", "_"): 1})[f"requests {what}"] == (1, False)


def test_every_node_fails_in_every_way() -> None:
    todo = churn.rounds(churn.ROUNDS, churn.NODES[1:], (churn.KILLED, churn.STOPPED, churn.CUT, churn.GONE))
    assert len(todo) == 100
    assert len(set(todo)) == 8
    assert {how for _, how in todo[: churn.QUICK]} == {churn.KILLED, churn.STOPPED, churn.CUT, churn.GONE}


def check(report: Report) -> None:
    for row in report.rows:
        assert [row[what] for what in ("lost", "answered_twice", "wrong")] == [0, 0, 0]
        assert isinstance(row["requests"], int)
        assert row["requests"] > 0
        assert None not in [row[name] for name in ("silent_s", "decided_s", "compiled_s", "first_answer_s", "next_answer_s")]


@pytest.mark.slow
@pytest.mark.timeout(280, method="thread")
def test_nodes_on_the_loopback_interface_are_killed_and_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray")
    monkeypatch.setattr(churn, "reason_why_not", lambda: "This is a test.")
    monkeypatch.setattr(churn, "QUICK", 2)
    report = Report()
    churn.run(Args(quick=True), report)
    assert [row["how"] for row in report.rows] == [churn.KILLED, churn.STOPPED]
    check(report)


@pytest.mark.slow
@pytest.mark.timeout(280, method="thread")
@pytest.mark.skipif(bool(reason_why_not()), reason=reason_why_not())
def test_a_node_that_is_cut_off_and_added_again_is_used_again() -> None:
    pytest.importorskip("ray")
    with network(churn.NODES) as made, cluster(made) as ray:
        report = made.call(churn.NODES[0], churn.churn, [("edge1", churn.CUT)], 0, ray, made)
    (row,) = report.rows
    check(report)
    assert row["used_again_s"] is not None
    assert row["requests_meanwhile"]
