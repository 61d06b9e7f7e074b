"""ONNX's own test cases: what placeit makes of them, and that whoever tries them survives what happens."""

import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from benchmarks import onnx_nodes
from benchmarks._child import Child
from benchmarks._harness import Args, Report
from benchmarks._node_cases import FORMS, OutputDifference
from placeit.devices.host import allowed_cores

ON_BOTH = ("test_cumsum_1d_reverse", "test_layer_normalization_2d_axis1_expanded")
ON_OPENVINO = ("test_roialign_mode_max", "test_bernoulli_seed_expanded")
ON_NEITHER = ("test_reduce_sum_keepdims_example",)


def tried(**options: object) -> Report:
    if len(allowed_cores()) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    report = Report(commit=None)
    onnx_nodes.run(Args(**options), report)
    bad = [row for row in report.rows if row.get("status")]
    assert not bad, bad
    assert [claim["holds"] for claim in report.claims] == [True] * 4
    return report


@pytest.mark.slow
def test_cases_pass_or_are_refused_with_a_clear_error_on_both_runtimes() -> None:
    report = tried(cases=ON_BOTH + ON_OPENVINO + ON_NEITHER)
    counts = {(row["runtime"], row["form"]): row for row in report.rows if "form" in row}
    assert set(counts) == {(runtime, form) for runtime in onnx_nodes.RUNTIMES for form in FORMS}
    for (runtime, _), row in counts.items():
        assert (row["passed"], row["refused"]) == ((5, 0) if runtime == "openvino" else (3, 2))
    assert sum(row["refused"] for row in report.rows if "reason" in row) == 2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_tenth_case_passes_or_is_refused_with_a_clear_error() -> None:
    report = tried(quick=True)
    assert all(row["passed"] > 60 for row in report.rows if "form" in row)


def misbehaving(connection: Connection, log: str) -> None:
    """Serve cases that crash, hang and answer."""
    connection.send(["answers", "crashes", "crashes plain", "hangs"])
    while (request := connection.recv()) is not None:
        name, _ = request
        connection.send(onnx_nodes.PLAIN if name == "crashes plain" else "cut")
        if name.startswith("crashes"):
            os.kill(os.getpid(), signal.SIGSEGV)
        if name == "hangs":
            time.sleep(60)
        connection.send(dict.fromkeys(FORMS, onnx_nodes.Outcome("passed")))


@pytest.mark.slow
def test_a_child_that_crashes_or_hangs_is_told_and_replaced(tmp_path: Path) -> None:
    (tmp_path / "log.txt").write_text("")
    with Child(tmp_path, misbehaving, case_s=1.0) as child:
        found = {name: onnx_nodes.ask(child, name, ("a", "b")) for name in child.greeting}
    assert {name: {outcome.status for outcome in outcomes.values()} for name, outcomes in found.items()} == {
        "answers": {"passed"},
        "crashes": {"crashed"},
        "crashes plain": {"refused"},
        "hangs": {"hung"},
    }
    assert "SIGSEGV" in found["crashes"]["cut"].reason
    assert "in: cut" in found["hangs"]["cut"].reason


def test_bad_outcomes_are_listed_and_no_claim_of_theirs_holds() -> None:
    report = Report(commit=None)
    good, bad = onnx_nodes.Outcome("passed"), onnx_nodes.Outcome("wrong", "outputs differ")
    onnx_nodes._report(report, {("openvino", "a"): dict.fromkeys(FORMS, good) | {"cut": bad}}, 1)
    assert [(row["case"], row["reason"]) for row in report.rows if "case" in row] == [("a", "outputs differ")]
    assert {claim["name"].partition(",")[0]: claim["holds"] for claim in report.claims} == {
        "unclear": True,
        "wrong": False,
        "crashed": True,
        "hung": True,
    }
    assert OutputDifference.between({"y": np.zeros(2)}, {"y": np.ones(2)}).max_rel == 1
