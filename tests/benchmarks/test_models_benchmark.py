"""Real kinds of models beside the plain runtimes: what is told of those that hold, and of those that do not."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import models
from benchmarks._architectures import graphs
from benchmarks._architectures.sample import Make, Sample
from benchmarks._harness import Report
from benchmarks._model_trial import CALLED, ONNX_RUNTIME, OPENVINO, OWN, PLACEIT, Trial, Wrong, tried
from benchmarks._models import random_splits
from placeit.core.telemetry import import_onnxruntime
from placeit.devices.host import allowed_cores
from placeit.profiler.cache import Cache


def trial_of(sample: Sample, folder: Path) -> Trial:
    cores = sorted(allowed_cores())[:2]
    if len(cores) < 2:
        pytest.skip("needs two CPU cores, and this process may use one")
    return tried(sample, (cores[0], cores[1]), Cache(folder / "costs"), budget=0.5, splits=1, rounds=6, seed=0)


def test_a_model_is_read_answered_raced_and_split_as_by_the_plain_runtimes(tmp_path: Path) -> None:
    trial = trial_of(graphs.many_ends(tmp_path), tmp_path)
    assert [
        wrong for wrong in trial.wrong if wrong.what not in ("in time", "for its caller")
    ] == []  # how fast it is depends on the machine
    assert trial.plain == {OPENVINO: "", ONNX_RUNTIME: ""}
    assert set(trial.times) == {OPENVINO, ONNX_RUNTIME, PLACEIT, OWN, CALLED}
    assert trial.splits == 2
    assert trial.error is not None
    assert trial.tolerance is not None
    assert trial.error <= trial.tolerance
    assert trial.ratio is not None


def test_why_a_model_does_not_hold_is_told_in_the_words_of_the_error(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model at all")
    trial = trial_of(Sample(path), tmp_path)
    assert [wrong.what for wrong in trial.wrong] == ["reads"]
    assert str(path) in trial.wrong[0].reason
    assert not trial.times


def test_what_does_not_hold_is_counted_and_listed_once_for_each_kind_of_failure() -> None:
    report = Report(commit=None)
    splits = [Wrong("right", f"split {number} of seed 0 on CPU@0, CPU@1", "off by 1") for number in range(9)]
    models.fill(report, {"good": Trial(splits=4), "bad": Trial(wrong=[*splits, Wrong("reads", "constants", "too many")])})
    assert {row["model"]: row["holds"] for row in report.rows if "holds" in row} == {"good": True, "bad": False}
    listed = [row["where"] for row in report.rows if "does_not_hold" in row]
    assert listed == [*(splits[number].where for number in range(models.MOST_SHOWN)), "constants"]
    claims = {claim["name"]: claim["value"] for claim in report.claims if claim["holds"] is False}
    assert claims == {
        "models not read, or with more constants than OpenVINO has, of 2": 1,
        "models with wrong outputs, or with splits that fail, of 2": 1,
    }


@pytest.mark.parametrize("groups", [2, 3, 20])
def test_random_splits_use_both_devices_however_few_groups_there_are(groups: int) -> None:
    splits = random_splits(np.random.default_rng(0), groups, 8)
    assert [sorted(set(split.tolist())) for split in splits] == [[0, 1]] * 8


@pytest.mark.parametrize(
    "make",
    [
        graphs.branch,
        graphs.contrib,
        graphs.contrib_own,
        graphs.external_weights,
        graphs.loop,
        graphs.old,
        graphs.scan,
        graphs.tree_ensemble,
        graphs.named("модель, 🙂.onnx", "вход 🙂", "a,b"),
    ],
)
def test_graphs_that_are_written_by_hand_are_models_with_finite_outputs(make: Make, tmp_path: Path) -> None:
    session = import_onnxruntime().InferenceSession(make(tmp_path).path, providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    inputs = {one.name: rng.standard_normal(one.shape).astype(np.float32) for one in session.get_inputs()}
    outputs = session.run(None, inputs)
    assert all(np.isfinite(value).all() and np.ptp(value) > 0 for value in outputs)
