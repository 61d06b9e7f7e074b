"""Verdicts of benchmarks on results made up, the models that they are about, and what they compare placeit with."""

import numpy as np
import onnx
import pytest

from benchmarks import _levels, decision, executor, models, onnx_nodes
from benchmarks._architectures import make
from benchmarks._harness import Args, Report
from benchmarks._loading_models import KINDS, write_model
from benchmarks._model_trial import Trial, Wrong
from benchmarks._models import random_splits
from benchmarks._node_cases import FORMS
from placeit.backends import load
from placeit.core.address import Address
from placeit.core.cluster import Cluster, Device
from placeit.core.errors import UsageError
from placeit.core.telemetry import import_onnxruntime
from placeit.devices.host import allowed_cores
from placeit.learning.workloads.tensor_program import tensor_model
from placeit.measuring.check import OutputDifference
from placeit.planning.coarsen import Grouping
from placeit.planning.segments import Costs, Segmenter
from placeit.runtime.runtime import Runtime

FFNN = {"batch": 64, "features": 8, "hidden": 64}


def broken(report):
    return {claim["name"].partition(",")[0]: claim["value"] for claim in report.claims if claim["holds"] is False}


def test_what_does_not_hold_of_a_model_is_counted_and_listed_once_for_each_kind_of_failure():
    report = Report(commit=None)
    splits = [Wrong("right", f"split {number} of seed 0 on CPU@0, CPU@1", "off by 1") for number in range(9)]
    models.fill(report, {"good": Trial(splits=4), "bad": Trial(wrong=[*splits, Wrong("reads", "constants", "too many")])})
    assert {row["model"]: row["holds"] for row in report.rows if "holds" in row} == {"good": True, "bad": False}
    listed = [row["where"] for row in report.rows if "does_not_hold" in row]
    assert listed == [*(splits[number].where for number in range(models.MAX_SHOWN)), "constants"]
    assert broken(report) == {"models not read": 1, "models with wrong outputs": 1}


def test_bad_outcomes_of_onnx_cases_are_listed_and_no_claim_of_theirs_holds():
    report, good, bad = Report(commit=None), onnx_nodes.Outcome("passed"), onnx_nodes.Outcome("wrong", "outputs differ")
    onnx_nodes._report(report, {("openvino", "a"): dict.fromkeys(FORMS, good) | {"cut": bad}}, 1)
    assert [(row["case"], row["reason"]) for row in report.rows if "case" in row] == [("a", "outputs differ")]
    assert broken(report) == {"wrong": 1}


@pytest.mark.parametrize(("correlated", "expected"), [(False, 0.0), (True, 0.8)])
def test_correlated_noise_of_decisions_stays_as_large_and_is_correlated(correlated, expected):
    machine = decision.Machine(0.1, correlated=correlated, random=np.random.default_rng(0))
    logs = np.log([machine.factor() for _ in range(20_000)])
    assert logs.std() == pytest.approx(0.1, rel=0.05)
    assert np.corrcoef(logs[1:], logs[:-1])[0, 1] == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("groups", [2, 3, 20])
def test_random_splits_use_both_devices_however_few_groups_there_are(groups):
    splits = random_splits(np.random.default_rng(0), groups, 8)
    assert [sorted(set(split.tolist())) for split in splits] == [[0, 1]] * 8


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "CNN"])
def test_every_kind_of_model_that_loading_measures_can_be_read(kind, tmp_path):
    path = write_model(kind, tmp_path, 32)
    wanted = {"LSTM": "LSTM", "GRU": "GRU", "dynamic int8": "MatMulInteger", "branches": "If"}
    wanted |= dict.fromkeys(("int8 QDQ", "int8 weights", "int4 weights"), "DequantizeLinear")
    assert wanted.get(kind, "MatMul") in {node.op_type for node in onnx.load(path).graph.node}
    assert load(path).outputs[0].name == "y"


HAND_WRITTEN = ["branch", "contrib", "contrib_own", "external_weights", "loop", "old", "scan", "tree_ensemble", "emoji"]


@pytest.mark.parametrize("kind", HAND_WRITTEN)
def test_graphs_that_are_written_by_hand_are_models_with_finite_outputs(kind, tmp_path):
    session = import_onnxruntime().InferenceSession(make(kind, tmp_path).path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    outputs = session.run(None, {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in session.get_inputs()})
    assert all(np.isfinite(value).all() and np.ptp(value) > 0 for value in outputs)


def finest_plan(model, seconds=0.0):
    cores = min(allowed_cores()), max(allowed_cores())
    cluster = Cluster(tuple(Device(name, "torch", Address("CPU", (core,))) for name, core in zip("ab", cores, strict=True)))
    grouping, costs = Grouping.singletons(model.graph), Costs.zero(len(model.graph), cluster)
    costs.core[:] = seconds
    return Segmenter(grouping, costs).plan([v % 2 for v in range(len(model.graph))], merge=False), grouping, cluster


def test_level_by_level_computes_the_same_and_no_segment_shares_a_level_with_one_that_it_reads_from():
    model = tensor_model("ffnn", shards=3, **FFNN)
    plan, grouping, cluster = finest_plan(model)
    with Runtime(model, grouping, cluster) as runtime:
        levels = _levels.LevelByLevel(runtime, plan)
        assert levels.time() > 0
        assert OutputDifference.between(levels.outputs(), model.reference(None, "f32")({})).max_rel < 1e-4
    level = {s: number for number, numbers in enumerate(_levels.levels(plan)) for s in numbers}
    assert sorted(level) == [s for s, segment in enumerate(plan.segments) if not segment.passthrough]
    assert all(level[u] < level[v] for u, v in plan.problem.edges.tolist() if v in level)


@pytest.mark.two_cores
def test_a_level_takes_as_long_as_its_busiest_device_and_what_the_host_adds():
    plan, _, _ = finest_plan(tensor_model("ffnn", shards=4, **FFNN), seconds=2.0)
    on = [[plan.segments[s].device for s in numbers] for numbers in _levels.levels(plan)]
    expected = sum(2.0 * max(devices.count(0), devices.count(1)) for devices in on)
    assert _levels.simulated(plan, 0.1, 0.1) == pytest.approx(expected)
    assert _levels.simulated(plan, 0.1, 0.1) >= plan.schedule.makespan
    assert _levels.simulated(plan, 0.1, 0.5) == pytest.approx(expected + 0.4 * len(on))


@pytest.mark.parametrize(("model", "backend"), [("ffnn", "openvino"), ("resnet50", "torch")])
def test_a_tensor_graph_needs_the_torch_backend_and_an_onnx_model_the_other(model, backend):
    with pytest.raises(UsageError, match=f"'{model}' is .*tensor graph"):
        executor.run(Args(models=(model,), backend=backend), Report())
