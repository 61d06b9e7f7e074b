"""Benchmarks that run models for real, on a model that takes a millisecond: what they report, not how good it is."""

import os
from collections.abc import Callable

import numpy as np
import pytest

from benchmarks import _models, executor, fidelity, heterogeneous, measured_cost, openings, optimize, runtimes, shared_cores
from benchmarks._harness import Args, Report, main
from benchmarks._models import model_file
from placeit.core.errors import UsageError

pytestmark = pytest.mark.usefixtures("small_model")


def report_of(run: Callable[[Args, Report], None]) -> Report:
    report = Report()
    run(Args(quick=True), report)
    return report


@pytest.mark.slow
def test_the_executor_is_raced_against_every_other_way_to_run_the_model():
    report = report_of(executor.run)
    rows = {row["candidate"]: row for row in report.rows if "candidate" in row}
    for name in ("OpenVINO, one core", "OpenVINO, both cores", "OpenVINO HETERO, on both", "placeit"):
        assert rows[name]["median_ms"] > 0
    assert sum(name.startswith("ONNX Runtime") for name in rows) == 3
    assert all(row["output_error"] < 1e-4 for row in rows.values() if row["output_error"] is not None)
    assert rows["OpenVINO, one core"]["ratio_to_one_core"] == 1
    assert rows["lower bound, ignoring cut costs"]["ratio_to_one_core"] <= 1
    claims = {claim["name"]: claim["value"] for claim in report.claims}
    assert claims["inception_v3: placeit over one core"] == rows["placeit"]["ratio_to_one_core"]
    assert claims["inception_v3: dispatch per segment, median"] > 0


@pytest.mark.slow
def test_a_plan_is_raced_against_itself_in_openings_of_its_own():
    report = report_of(openings.run)
    [row] = report.rows
    assert 0.2 < row["lowest_ratio"] <= row["highest_ratio"] < 5
    assert row["lowest_ratio"] < row["highest_ratio"]
    assert row["chance"] > 0
    assert all(claim["value"] * row["races"] in range(row["races"] + 1) for claim in report.claims)
    assert len(report.claims) == 2


@pytest.mark.slow
def test_both_runtimes_and_their_mixture_are_raced_and_give_the_same_outputs():
    report = report_of(runtimes.run)
    rows = {row["candidate"]: row for row in report.rows if "candidate" in row}
    names = (runtimes.OPENVINO, runtimes.ONNX_RUNTIME)
    expected = {kind.format(name) for kind in (runtimes.ALONE, runtimes.ONE_DEVICE, runtimes.TWO_DEVICES) for name in names}
    assert rows.keys() >= expected | {runtimes.TWO_DEVICES.format(runtimes.BOTH)}
    assert rows[runtimes.REFERENCE]["ratio_to_one_core"] == 1
    assert rows[runtimes.REFERENCE]["output_error"] == 0
    assert all(
        row["output_error"] < 1e-4 and row["ci_low_ms"] <= row["median_ms"] <= row["ci_high_ms"] for row in rows.values()
    )
    first, second = _models.two_cores()
    used = {device.split()[0] for row in rows.values() if row["devices"] for device in row["devices"].split(", ")}
    assert used >= {f"CPU@{first}", f"ort:CPU@{first}"}
    dispatch = [(row["cluster"], row["device"], row["dispatch_us"] > 0) for row in report.rows if "dispatch_us" in row]
    assert dispatch == [
        (runtimes.OPENVINO, f"CPU@{first}", True),
        (runtimes.OPENVINO, f"CPU@{second}", True),
        (runtimes.ONNX_RUNTIME, f"ort:CPU@{first}", True),
        (runtimes.ONNX_RUNTIME, f"ort:CPU@{second}", True),
        (runtimes.BOTH, f"ort:CPU@{first}", True),
        (runtimes.BOTH, f"CPU@{second}", True),
    ]
    errors = next(claim for claim in report.claims if "output error" in claim["name"])
    assert (errors["target"], errors["holds"]) == ("<= 0.0001", True)
    assert errors["value"] == max(row["output_error"] for row in rows.values())


def test_fidelity_compares_every_random_placement_with_its_simulation():
    report = report_of(fidelity.run)
    placements = [row for row in report.rows if "kind" in row]
    assert [row["kind"] for row in placements] == ["dense", "runs"] * 6
    claims = {claim["name"].partition(": ")[2]: claim["value"] for claim in report.claims}
    off = {row["simulator"]: row["mean_error_percent"] for row in report.rows if "simulator" in row}
    for simulator, column in (("as profiled", "profiled_ms"), ("calibrated", "calibrated_ms")):
        errors = [abs(row[column] / row["measured_ms"] - 1) * 100 for row in placements]
        assert off[simulator] == claims[f"mean error {simulator}"] == pytest.approx(np.mean(errors))
    chosen = {row["chosen_by"]: row for row in report.rows if "chosen_by" in row}
    assert all((row["ci_low"] < 1 < row["ci_high"]) == (row["sign"] == "open") for row in chosen.values())
    signs = [row["sign"] for row in chosen.values() if row["sign"] != "open"]
    assert claims["chosen placements with the sign right"] == (np.mean(np.equal(signs, "right")) if signs else None)


@pytest.mark.slow
def test_the_heterogeneous_cases_say_what_was_chosen_and_why():
    report = report_of(heterogeneous.run)
    reasons = {row["case"]: row["reason"] for row in report.rows if "reason" in row}
    assert set(reasons) == {"A", "B"}
    assert all(reasons.values())
    # a model this small is never worth a network
    assert next(claim["value"] for claim in report.claims if claim["name"].startswith("B")) == 1


@pytest.mark.slow
def test_shared_cores_are_raced_against_the_whole_cpu_and_the_best_split():
    report = report_of(shared_cores.run)
    raced = [row for row in report.rows if "what" in row]
    names = [row["what"] for row in raced]
    first, second = _models.two_cores()
    assert {f"CPU@{first} alone", f"CPU@{second} alone"} <= set(names)
    assert all(row["low_ms"] <= row["median_ms"] <= row["high_ms"] for row in raced)
    solved = [row for row in report.rows if "cp_sat_ms" in row]
    if solved:
        (exact,) = solved
        assert exact["cp_sat_bound_ms"] <= exact["cp_sat_ms"] * 1.001
        rest = raced[len(raced) - names[::-1].index(names[0]) - 1 :]
        assert rest[-1]["what"] == shared_cores.EXACT
        beaten = [row["ratio_high"] < 1 for row in rest[:-1]]
        if not all(beaten):
            assert report.claims[-2]["value"] == pytest.approx(exact["cp_sat_in_segments_ms"] / exact["better_simulated_ms"])
        assert report.claims[-1]["value"] == all(beaten)
    else:
        assert names[-1] == shared_cores.SHARED
        assert all(row["ratio_high"] < 1 for row in raced[:-1])
        assert report.claims[-1]["value"] == 1


@pytest.mark.slow
def test_optimize_is_timed_from_an_empty_and_from_a_full_cache():
    report = report_of(optimize.run)
    cold, warm = report.rows
    assert (cold["cache"], warm["cache"]) == ("cold", "warm")
    assert [claim["value"] for claim in report.claims] == [cold["wall_s"], warm["wall_s"]]


@pytest.mark.slow
def test_every_plan_is_measured_and_compiling_is_counted_apart():
    report = report_of(measured_cost.run)
    row, best = report.rows
    assert (row["plans"], row["failed"]) == (12, 0)
    assert row["measured"] + row["dropped"] == 12
    assert row["compile_s"] + row["run_s"] <= row["wall_s"]
    assert row["samples"] >= 6 * row["measured"]
    assert best["fastest_ms"] <= best["slowest_ms"]
    assert best["winner_ms"] > 0
    assert report.claims[0]["value"] == row["wall_s"]


def test_a_command_that_fails_is_reported_with_its_own_words(small_file, monkeypatch):
    monkeypatch.setattr(optimize, "model_file", lambda _: small_file.with_name("missing.onnx"))
    with pytest.raises(Exception, match=r"failed with exit code 1: .*missing\.onnx"):
        report_of(optimize.run)


def test_models_are_exported_once(monkeypatch, tmp_path):
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path))
    exported = []

    def export_model(name, path):
        exported.append(name)
        path.write_bytes(b"")

    monkeypatch.setattr(_models.models, "export_model", export_model)
    assert model_file("resnet50") == model_file("resnet50")
    assert model_file("bert_base") != model_file("resnet50")
    assert exported == ["resnet50", "bert_base"]


def test_one_core_is_too_few_to_compare_two(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3})
    with pytest.raises(UsageError, match="one core only"):
        _models.two_cores()


def test_what_a_benchmark_cannot_do_is_said_without_a_traceback(small_file, monkeypatch):
    monkeypatch.setattr(_models, "model_file", lambda _: small_file.with_name("missing.onnx"))
    with pytest.raises(SystemExit, match=r"benchmarks\.fidelity: .*missing\.onnx"):
        main("fidelity", fidelity.run, [])


def test_models_that_a_benchmark_knows_can_be_asked_for(capsys):
    asked = []
    main("some", lambda args, _: asked.append(args.models), ["--json", "--models", "b"], models=("a", "b"))
    assert asked == [("b",)]
    with pytest.raises(SystemExit):
        main("some", lambda args, _: None, ["--models", "c"], models=("a", "b"))
    assert "invalid choice: 'c'" in capsys.readouterr().err
