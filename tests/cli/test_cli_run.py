import errno
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import pytest

from placeit.core.placement import Placement
from tests.broken_executors import broken


@pytest.fixture
def image() -> np.ndarray:
    return np.random.default_rng(3).standard_normal((1, 3, 16, 16)).astype(np.float32)


def test_json_has_latency_utilisation_and_output_error(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    result = cli("run", tiny, "-p", placement, "--devices", ",".join(cores), "--runs", 8, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    low, high = data["latency_s"]["ci"]
    assert 0 < low <= data["latency_s"]["median"] <= high
    assert data["latency_s"]["p95"] >= data["latency_s"]["median"]
    assert data["runs"] == 8
    assert set(cores) <= data["utilization"].keys()
    assert all(0 <= share <= 1 for share in data["utilization"].values())
    assert data["output_error"]["max_rel"] < 1e-5
    assert sum(data["devices"].values()) == 8
    assert data["trace_file"] is None
    assert data["emulated"] == []


@pytest.mark.parametrize(("options", "code"), [((), 1), (("--tolerance", 0.1), 0)])
def test_wrong_outputs_are_said_to_be_wrong(
    cli: Any, tiny: Path, placement: Path, monkeypatch: pytest.MonkeyPatch, options: tuple[object, ...], code: int
) -> None:
    broken(monkeypatch, "wrong", lambda plan: True)
    result = cli("run", tiny, "-p", placement, "--runs", 2, *options, "--json")
    assert result.exit_code == code, result.stderr
    data = json.loads(result.stdout)
    assert data["output_error"]["max_rel"] == pytest.approx(0.01, rel=0.1)
    assert (data["failed"] is None) == (code == 0)
    result = cli("run", tiny, "-p", placement, "--runs", 2, *options)
    assert result.exit_code == code
    assert ("Its outputs are wrong: they are off by 1.0e-02" in result.stdout) == (code == 1)


def test_gpus_are_shown_if_their_driver_answers(cli: Any, tiny: Path, placement: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert json.loads(cli("run", tiny, "-p", placement, "--runs", 2, "--json").stdout)["gpus"] == {}
    assert "driver" not in cli("run", tiny, "-p", placement, "--runs", 2).stdout
    library = SimpleNamespace(
        NVMLError=OSError,
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetUtilizationRates=lambda handle: SimpleNamespace(gpu=50, memory=30),
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(used=2e9),
        nvmlDeviceGetPowerUsage=lambda handle: 100_000,
    )
    monkeypatch.setitem(sys.modules, "pynvml", library)
    use = json.loads(cli("run", tiny, "-p", placement, "--runs", 2, "--json").stdout)["gpus"]["cuda:0"]
    assert (use["utilization"], use["peak_memory_bytes"], use["power_w"]) == (0.5, 2e9, 100.0)
    assert use["energy_j"] > 0
    lines = [" ".join(line.split()) for line in cli("run", tiny, "-p", placement, "--runs", 2).stdout.splitlines()]
    assert any(line.startswith("cuda:0 50 % 2.00 GB 100 W") for line in lines)


def test_too_few_runs_have_no_interval(cli: Any, tiny: Path, placement: Path) -> None:
    data = json.loads(cli("run", tiny, "-p", placement, "--runs", 2, "--json").stdout)
    assert data["latency_s"]["ci"][1] is None
    assert "interval      - " in cli("run", tiny, "-p", placement, "--runs", 2).stdout


def test_the_devices_are_those_of_the_placement_unless_said_otherwise(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str]
) -> None:
    text = cli("run", tiny, "-p", placement, "--runs", 7).stdout
    assert "output error" in text
    for core in cores:
        assert core in text


def test_a_placement_on_names_of_a_cluster_file_asks_for_that_file(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    placement.write_text(placement.read_text().replace(cores[0], "fast"))
    result = cli("run", tiny, "-p", placement)
    assert result.exit_code == 2
    assert "fast" in result.stderr
    assert "--devices" in result.stderr
    file = tmp_path / "cluster.yaml"
    others = "".join(f"  {core}: {{runs_on: {core}}}\n" for core in cores[1:])
    file.write_text(f"devices:\n  fast: {{runs_on: {cores[0]}, slowdown: 2}}\n{others}")
    result = cli("run", tiny, "-p", placement, "--devices", file, "--runs", 2)
    assert result.exit_code == 0, result.stderr
    assert f"fast is emulated: {cores[0]}, slowed 2 times." in result.stdout


def test_the_trace_has_a_track_for_each_device_and_names_of_ops(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.json"
    assert cli("run", tiny, "-p", placement, "--runs", 1, "--trace", trace).exit_code == 0
    events = json.loads(trace.read_text())["traceEvents"]
    assert set(cores) <= {event["args"]["name"] for event in events if event["name"] == "thread_name"}
    ops = [op for event in events if event["ph"] == "X" for op in event["args"].get("ops", ())]
    assert {"stem", "left", "right"} <= set(ops)


def test_outputs_are_those_of_another_runtime_for_the_same_inputs(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, image: np.ndarray
) -> None:
    np.savez(tmp_path / "x.npz", x=image)
    result = cli("run", tiny, "-p", placement, "--runs", 1, "--inputs", tmp_path / "x.npz", "--outputs", tmp_path / "y.npz")
    assert result.exit_code == 0, result.stderr
    session = onnxruntime.InferenceSession(tiny, providers=["CPUExecutionProvider"])
    with np.load(tmp_path / "y.npz") as outputs:
        assert outputs.files == ["y"]
        np.testing.assert_allclose(outputs["y"], session.run(None, {"x": image})[0], rtol=1e-4, atol=1e-5)


def archive(**arrays: Any) -> bytes:
    stream = io.BytesIO()
    np.savez(stream, **arrays)
    return stream.getvalue()


def single_array() -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.zeros(3))
    return stream.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"PK\x03\x04 but no archive",
        b"not an archive",
        single_array(),
        archive(x=np.array([{}], object)),
        archive(x=np.zeros((1, 3, 5, 5), np.float32)),
        archive(wrong=np.zeros((1, 3, 16, 16), np.float32)),
        archive(x=np.zeros((1, 3, 16, 16), np.float32))[:-200],
        None,
    ],
    ids=["empty", "damaged", "text", "npy", "pickled", "other shape", "other name", "truncated", "missing"],
)
def test_inputs_that_do_not_fit_are_an_error_and_nothing_is_written(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / "x.npz").write_bytes(content)
    outputs = tmp_path / "y.npz"
    result = cli("run", tiny, "-p", placement, "--inputs", tmp_path / "x.npz", "--outputs", outputs)
    assert result.exit_code in (1, 2)
    assert result.stderr.startswith("error: ")
    assert len(result.stderr.splitlines()) == 1
    assert not outputs.exists()


def test_a_full_disk_leaves_no_half_written_outputs(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object, **kwargs: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(np.lib.format, "write_array", full)
    folder = tmp_path / "results"
    folder.mkdir()
    result = cli("run", tiny, "-p", placement, "--runs", 1, "--outputs", folder / "y.npz")
    assert result.exit_code == 1
    assert f"Cannot write {folder / 'y.npz'}: No space left on device" in result.stderr
    assert list(folder.iterdir()) == []


@pytest.mark.two_cores
def test_a_group_whose_ops_are_on_two_devices_is_split(cli: Any, tiny: Path, placement: Path, cores: Sequence[str]) -> None:
    loaded = Placement.load(placement)
    devices = loaded.devices.copy()
    devices[loaded.op_names.index("left_relu")] ^= 1
    Placement(loaded.op_names, devices, loaded.device_names, loaded.graph_hash).save(placement)
    result = cli("run", tiny, "-p", placement, "--runs", 2, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["devices"] == Placement.load(placement).counts()
    assert data["output_error"]["max_rel"] < 1e-5


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_described_device_cannot_run_anything(cli: Any, tiny: Path, place_on: Any, tmp_path: Path, command: str) -> None:
    cluster = tmp_path / "cluster.yaml"
    cluster.write_text("devices: {edge: {catalog: jetson-orin-nano}}")
    result = cli(command, tiny, "-p", place_on(["edge"]), "--devices", cluster)
    assert result.exit_code == 1
    assert "edge" in result.stderr
    assert "simulation only" in result.stderr


@pytest.mark.usefixtures("steady")
@pytest.mark.parametrize("more", [(), ("--max-groups", 2)])
def test_a_placement_with_its_own_segments_runs_without_being_profiled(
    cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Sequence[object]
) -> None:
    found = cli("optimize", tiny, "-d", ",".join(cores), "--budget", 3, "-o", tmp_path / "p.json", "--json")
    assert found.exit_code == 0, found.stderr
    placement = Placement.load(tmp_path / "p.json")
    graph_order = replace(placement, devices=np.zeros(len(placement), np.int32), device_names=(cores[0],))
    segments = np.arange(len(placement), dtype=np.int32)  # each op by itself, as no plan would have it
    replace(graph_order, segments=segments).save(tmp_path / "fine.json")
    monkeypatch.setattr("placeit.profiler.costs._Profile", lambda *_: pytest.fail("profiled"))
    result = cli("run", tiny, "-p", tmp_path / "fine.json", "--runs", 2, "--no-cache", "--json", *more)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["simulated_s"] is None
    assert data["segments"] > found_segments(found)
    assert data["output_error"]["max_rel"] < 1e-5


def found_segments(found: Any) -> int:
    return int(json.loads(found.stdout)["chosen"]["segments"])


def test_without_a_placement_a_device_is_benchmarked(cli: Any, tiny: Path) -> None:
    result = cli("run", tiny, "-d", "CPU", "--runs", 3, "--outputs", "y.npz", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["placement_file"], data["devices"], data["runs"]) == (None, {"CPU": 8}, 3)
    assert data["output_error"]["max_abs"] == 0
    assert data["latency_s"]["median"] > 0
    with np.load("y.npz") as outputs:
        assert outputs["y"].shape == (1, 16, 16, 16)
    loaded = json.loads(cli("run", tiny, "-d", "CPU", "--requests", 3, "--json").stdout)
    assert (loaded["placement_file"], loaded["ended"]) == (None, 3)


def test_without_a_placement_several_devices_are_compared(cli: Any, tiny: Path, cores: Sequence[str]) -> None:
    devices = ("-d", ",".join(["CPU", *cores]))
    result = cli("run", tiny, *devices, "--runs", 2, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert {"CPU", *cores} <= {candidate["name"] for candidate in data["candidates"]}
    assert data["rounds"] == 2
    answer = cli("run", tiny, *devices, "--runs", 2, "--quiet")
    assert re.fullmatch(r"\S+: [\d.]+ [mu]s, .* times as fast as \S+(, which may be chance)?\n", answer.stdout)


@pytest.mark.parametrize(
    "option",
    [
        ("--trace", "t.json"),
        ("--outputs", "y.npz"),
        ("--csv", "t.csv"),
        ("--record", "r.json"),
        ("--requests", 5),
        ("--metrics-port", 0, "--rate", 20),
    ],
)
def test_what_is_about_one_placement_is_refused_where_devices_are_compared(
    cli: Any, tiny: Path, cores: Sequence[str], option: tuple[str, object]
) -> None:
    result = cli("run", tiny, "-d", ",".join(["CPU", *cores]), *option)
    assert result.exit_code == 2
    assert f"error: {option[0]} is about one placement, and --devices names CPU, {cores[0]}" in result.stderr
    assert "name one, or give --placement" in result.stderr


def test_a_run_needs_a_placement_or_devices(cli: Any, tiny: Path) -> None:
    result = cli("run", tiny)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "error: Give --placement; or 'placeit run' takes --devices alone" in result.stderr


@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_file_that_is_missing_is_named_before_an_option_that_is(cli: Any, tmp_path: Path, command: str) -> None:
    result = cli(command, tmp_path / "missing.onnx")
    assert "missing.onnx: No such file or directory." in " ".join(result.stderr.split())


def test_a_folder_with_neither_a_bundle_nor_a_model_is_said_to_have_neither(cli: Any, tmp_path: Path) -> None:
    result = cli("run", tmp_path)
    assert "the folder has neither bundle.json, which 'placeit build' writes, nor a model (" in " ".join(result.stderr.split())


HANGING = """
import sys
import threading
from placeit.cli import main
from placeit.runtime.compiling import Compiling
from placeit.runtime.devices.openvino import OpenVinoDevice

OpenVinoDevice.compile = lambda *_: threading.Event().wait()
Compiling.timeout_s = lambda *_: 0.0
main(sys.argv[1:])
"""


def test_a_run_whose_compiler_hangs_ends_with_an_error(tiny: Path, cores: Sequence[str]) -> None:
    command = [sys.executable, "-c", HANGING, "run", str(tiny), "--devices", cores[0]]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 1
    assert re.fullmatch(rf"error: {cores[0]} hangs: it has not compiled a segment .*\n", done.stderr), done.stderr
