"""ONNX Runtime on the command line: models on it alone and beside OpenVINO, and what cannot be."""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from onnx import TensorProto, helper


@pytest.fixture(scope="session")
def devices(cores: Sequence[str]) -> tuple[str, ...]:
    """Return ONNX Runtime on the first core and OpenVINO on the second, if there is one."""
    return (f"ort:{cores[0]}", *cores[1:])


def paragraph(result: Any, *words: object) -> None:
    """Check that a command failed with one line that names what is wrong."""
    assert result.exit_code in (1, 2), result.stdout
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert all(str(word) in result.stderr for word in ("error: ", *words)), result.stderr


def test_a_model_is_placed_on_both_runtimes_and_run(cli: Any, tiny: Path, devices: Sequence[str], tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    options = ("--devices", ",".join(devices), "--budget", 2, "--placer", "heft", "-o", file, "--json")
    found = cli("optimize", tiny, *options)
    assert found.exit_code == 0, found.stderr
    measured = [candidate for candidate in json.loads(found.stdout)["candidates"] if candidate["measured_s"] is not None]
    assert {device for candidate in measured for device in candidate["devices"]} >= set(devices)
    assert all(candidate["output_error"]["max_rel"] < 1e-4 for candidate in measured)
    assert cli("run", tiny, "-p", file, "--runs", 6).exit_code == 0


@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_placement_names_the_runtime_of_each_device(
    cli: Any, tiny: Path, place_on: Callable[[Sequence[str]], Path], devices: Sequence[str], command: str
) -> None:
    result = cli(command, tiny, "-p", place_on(devices), "--runs", 6, "--json")
    assert result.exit_code == 0, result.stderr
    assert all(device in result.stdout for device in devices)


def test_a_device_of_onnx_runtime_does_not_boast_of_what_openvino_can_do(cli: Any, devices: Sequence[str]) -> None:
    listed = json.loads(cli("devices", "--devices", devices[0], "--json").stdout)["devices"]
    assert [(device["name"], device["kind"], device["tags"]) for device in listed] == [(devices[0], "ort", [])]


def test_what_cannot_be_is_one_paragraph(cli: Any, tiny: Path, devices: Sequence[str], tmp_path: Path) -> None:
    device = devices[0]
    paragraph(cli("optimize", tiny, "-d", "ort:GPU.0"), "'ort:GPU.0'", "ONNX Runtime runs on the CPU and on NVIDIA GPUs")
    paragraph(cli("optimize", tiny, "-d", "ort:auto"), "'ort:auto'", "name the devices")
    paragraph(
        cli("profile", tiny, "-d", ",".join(devices), "--precision", "bf16"), device, "the precision bf16 is for OpenVINO"
    )
    assert cli("export", tiny, "-o", tmp_path / "tiny.xml").exit_code == 0
    paragraph(cli("optimize", tmp_path / "tiny.xml", "-d", device), "tiny.xml", "start from the ONNX file")
    program = torch.export.export(torch.nn.Linear(3, 3).bfloat16(), (torch.ones(2, 3, dtype=torch.bfloat16),))
    torch.export.save(program, tmp_path / "linear.pt2")  # in a type that is not converted
    paragraph(cli("optimize", tmp_path / "linear.pt2", "-d", device), device, "linear.pt2", "placeit export")


def test_an_nvidia_gpu_that_is_not_there_is_one_paragraph(cli: Any, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeit.runtime.kinds.cuda.gpus", list)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    paragraph(cli("optimize", tiny, "-d", "ort:cuda:0"), "no NVIDIA GPU 'cuda:0'", "placeit[cuda]")


def test_an_op_that_onnx_runtime_has_no_kernel_for_is_named(cli: Any, devices: Sequence[str], tmp_path: Path) -> None:
    ends = [helper.make_tensor_value_info(name, TensorProto.INT16, [8]) for name in "xy"]
    nodes = [helper.make_node("Neg", ["x"], ["minus"]), helper.make_node("Relu", ["minus"], ["y"])]
    graph = helper.make_graph(nodes, "graph", ends[:1], ends[1:])
    path = tmp_path / "int16.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    paragraph(cli("profile", path, "-d", devices[0]), devices[0], "op 'y' (Relu)", "add a device that supports it")
