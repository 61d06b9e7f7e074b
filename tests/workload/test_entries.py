"""Workload files: what they say, what they get wrong, and that they are written as they are read."""

from __future__ import annotations

from pathlib import Path

import pytest

from placeit.core.errors import FileError, UsageError, WorkloadError
from placeit.serving.latency import LatencyLimit
from placeit.workload.entries import Correction, Entry, Workload
from placeit.workload.interference import Pair
from tests.workload.nets import write_workload


def test_a_file_says_what_each_model_serves_and_paths_are_relative_to_it(tmp_path: Path) -> None:
    path = write_workload(
        tmp_path,
        "model: a/net.onnx, rate: 2.5, latency_limit: p95=20ms, weight: 3",
        "model: /b.onnx, name: b, in_flight: 4, inputs: b.npz, placement: b.json",
    )
    first, second = found = Workload.load(path)
    assert first == Entry("net", tmp_path / "a/net.onnx", rate=2.5, limit=LatencyLimit(95, 0.02), weight=3.0)
    assert second == Entry("b", Path("/b.onnx"), in_flight=4, inputs=tmp_path / "b.npz", placement=tmp_path / "b.json")
    assert [entry.rate for entry in found.scaled(2.0)] == [5.0, None]
    assert found.files() == [path, first.model, second.model, second.inputs, second.placement]


def test_shorter_limits_go_first_and_no_limit_last() -> None:
    limits = [LatencyLimit(95, 0.1), None, LatencyLimit(99, 0.02), LatencyLimit(50, 0.1)]
    entries = tuple(Entry(f"m{k}", Path("m"), rate=1.0, limit=limit) for k, limit in enumerate(limits))
    assert Workload(entries).priorities == [-1, 0, -2, -1]


def test_a_workload_is_read_as_it_was_written(tmp_path: Path) -> None:
    entries = (
        Entry("a.b-c", tmp_path / "it's a: model.onnx", rate=1 / 3, limit=LatencyLimit(99, 0.0015), weight=0.1),
        Entry("d", tmp_path / "x" / "d.onnx", in_flight=1, inputs=tmp_path / "d.npz", placement=tmp_path / "#d.json"),
        Entry(
            "e",
            tmp_path / "e.onnx",
            rate=1.0,
            devices=("CPU@0", "edge1/CPU"),
            arrives_at="edge1",
            shapes={"ids: x": ["1", "16..64@32"], "scalar": []},
        ),
    )
    slowdowns = (Pair(("a.b-c", "d"), ("CPU@0", "edge1/CPU"), (1.25, 0.875)),)
    corrections = {"a.b-c": Correction((0.0, 1 / 3, 1e-7), 1e-4)}
    Workload(entries, slowdowns=slowdowns, corrections=corrections).save(tmp_path / "w.yaml")
    found = Workload.load(tmp_path / "w.yaml")
    assert (found.entries, found.slowdowns, found.corrections) == (entries, slowdowns, corrections)


CORRECTED = "models: [{model: m, rate: 1}]\ncorrections:"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devices: {}", r"line 1: the file has the unknown key 'devices'; known: models"),
        ("models:", "'models' is not a list"),
        ("models: []", "1 to 1000 models; got 0"),
        ("models: [3]", "line 1: 'models.0.' is not a mapping"),
        pytest.param("models: " + "[" * 5000, "w.yaml: not valid YAML: it is nested too deeply", id="deep"),
        ("models: [{model: '', rate: 3}]", "line 1: 'models.0..model' is empty"),
        ("models: [{rate: 3}]", "line 1: 'models.0.' has no 'model'"),
        ("models:\n- {model: m.onnx}", "line 2: The model 'm' needs either 'rate' or 'in_flight'"),
        ("models: [{model: m, rate: 1, in_flight: 1}]", "needs either 'rate' or 'in_flight'"),
        ("models: [{model: m, rat: 1}]", "unknown key 'rat' .did you mean 'rate'"),
        ("models: [{model: m, rate: 1, devices: [a, b, a]}]", "'models.0..devices' names 'a' twice"),
        ("models: [{model: m, rate: 0}]", "'models.0..rate' is 0; it must be above 0"),
        ("models: [{model: m, rate: -1}]", "negative"),
        ("models: [{model: m, rate: inf}]", "cannot be infinite"),
        ("models: [{model: m, rate: 1e300}]", r"'rate' of 'm' is 1e\+300; it must be from 1e-12 to 1e\+12"),
        ("models: [{model: m, rate: 1, weight: 1e-300}]", "'weight' of 'm' is 1e-300; it must be from 1e-12"),
        ("models: [{model: m, in_flight: 1.5}]", "is 1.5; it must be a whole number"),
        ("models: [{model: m, in_flight: 65}]", "is 65; it must be 1 to 64"),
        ("models: [{model: m, rate: 1, weight: 0}]", "'models.0..weight' is 0; it must be above 0"),
        ("models: [{model: m, rate: 1, latency_limit: 20ms}]", "'models.0..latency_limit': Cannot read the limit '20ms'"),
        ("models: [{model: m, rate: 1, latency_limit: p95=0s}]", "positive, finite time"),
        ("models: [{model: m, rate: 1, devices: CPU}]", "'models.0..devices' is not a list"),
        ("models: [{model: m, rate: 1, devices: []}]", "'models.0..devices' names no device"),
        ("models: [{model: m, rate: 1, input_shapes: [x]}]", "'models.0..input_shapes' is not a mapping"),
        ("models: [{model: m, rate: 1, input_shapes: {x: [1, -3]}}]", "of 'x' has '-3'; sizes are numbers, or ranges"),
        ("models: [{model: m, rate: 1, name: a/b}]", "'a/b' cannot name a model"),
        ("models: [{model: m, rate: 1}]\nslowdowns: [{models: [m, n], devices: [a, b]}]", "'slowdowns.0.' has no 'slowdown'"),
        (
            "models: [{model: m, rate: 1}]\nslowdowns: [{models: [m, n], devices: [a], slowdown: [2, 2]}]",
            "does not have two models",
        ),
        ("models: [{model: m, rate: 1}]\nslowdowns: [{models: [m, n], devices: [a, b], slowdown: [2, 1e9]}]", "1000 at most"),
        (f"{CORRECTED} [1, 2, 3]", "line 2: 'corrections' is not a mapping"),
        (f"{CORRECTED} {{m: {{waits: [1, 2, 3]}}}}", "line 2: 'corrections.m' has no 'host'"),
        (f"{CORRECTED} {{m: {{host: 0, waits: [1ms, 2ms]}}}}", "'corrections.m.waits' does not have three times"),
        (f"{CORRECTED} {{m: {{host: 0, waits: [1, 2, 1e308]}}}}", "three times of at most 1e.09 s"),
        (f"{CORRECTED} {{m: {{host: 0, waits: [1, -2, 3]}}}}", "'corrections.m.waits': '-2' is negative"),
        (f"{CORRECTED} {{m: {{host: 1e10, waits: [1, 2, 3]}}}}", "'corrections.m.host' is 1e.10 s; it must be at most 1e.09 s"),
        ("models: [{model: a/m.x, rate: 1}, {model: b/m.y, rate: 1}]", "Two models of the workload are named 'm'"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "w.yaml").write_text(text)
    with pytest.raises(WorkloadError, match=message):
        Workload.load(tmp_path / "w.yaml")


def test_a_workload_that_is_not_from_a_file_is_checked_too(tmp_path: Path) -> None:
    with pytest.raises(FileError):
        Workload.load(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="'rate' of 'm' is 0"):
        Entry("m", Path("m"), rate=0.0)
    with pytest.raises(UsageError, match="'weight' of 'm' is inf"):
        Entry("m", Path("m"), rate=1.0, weight=float("inf"))
