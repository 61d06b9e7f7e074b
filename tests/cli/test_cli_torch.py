"""PyTorch programs on the command line."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import placeit.backends
from placeit.backends.torch import model as torch_backend
from tests.torch_models import Calling, ConvNet


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Save a program, as a user would."""
    path = tmp_path_factory.mktemp("torch") / "net.pt2"
    torch.manual_seed(0)
    torch.export.save(torch_backend.load(ConvNet(), (torch.randn(1, 3, 8, 8),)).program, path)
    return path


def test_a_program_is_inspected(cli: Any, program: Path) -> None:
    result = cli("inspect", program, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["inputs"] == [{"name": "image", "shape": [1, 3, 8, 8], "dtype": "float32", "sizes": None}]
    assert data["kinds"]["conv2d"] == 3
    assert data["graph"]["groups"] < data["graph"]["ops"]
    assert data["parameters"] == sum(weight.numel() for weight in [*ConvNet().parameters(), *ConvNet().buffers()]) - 1


def test_a_program_is_optimized_and_run(cli: Any, program: Path, cores: Sequence[str], tmp_path: Path) -> None:
    placement = tmp_path / "placement.json"
    devices = ("--devices", ",".join(cores))
    found = cli("optimize", program, *devices, "--budget", 2, "--placer", "heft", "-o", placement, "--json")
    assert found.exit_code == 0, found.stderr
    result = cli("run", program, "-p", placement, "--runs", 6, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["output_error"]["max_rel"] < 1e-4
    assert {name.rpartition(":")[2] for name in data["devices"]} <= {*cores, "CPU"}  # the whole CPU is a candidate


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
def test_a_program_is_exported(cli: Any, program: Path, tmp_path: Path, suffix: str) -> None:
    output = tmp_path / f"net{suffix}"
    result = cli("export", program, "-o", output, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["output"] == str(output)
    assert data["placement_file"] is None
    assert data["weights"] == (str(tmp_path / "net.bin") if suffix == ".xml" else None)
    first, second = (placeit.backends.load(path) for path in (program, output))
    inputs = first.random_inputs()
    ours, theirs = (model.reference(None, "f32")(inputs) for model in (first, second))
    np.testing.assert_allclose(theirs["scores"], ours["scores"], rtol=1e-4, atol=1e-5)


def test_a_placement_of_a_program_is_not_for_hetero(cli: Any, program: Path, tmp_path: Path) -> None:
    placement = tmp_path / "placement.json"
    placement.write_text("{}")
    result = cli("export", program, "-p", placement, "-o", tmp_path / "net.xml")
    assert result.exit_code == 2
    assert "write the model alone" in " ".join(result.stderr.split())


def test_mapping_devices_without_a_placement_is_a_usage_error(cli: Any, program: Path, tmp_path: Path) -> None:
    result = cli("export", program, "-o", tmp_path / "net.xml", "--map", "CPU@0=CPU")
    assert result.exit_code == 2
    assert not (tmp_path / "net.xml").exists()


def test_an_onnx_file_is_exported_as_ir_and_not_as_onnx(cli: Any, tiny: Path, tmp_path: Path) -> None:
    assert cli("export", tiny, "-o", tmp_path / "tiny.xml").exit_code == 0
    assert placeit.backends.load(tmp_path / "tiny.xml").inputs == placeit.backends.load(tiny).inputs
    assert cli("export", tiny, "-o", tmp_path / "tiny2.onnx").exit_code == 1
    assert cli("export", tiny, "-o", tmp_path / "tiny.pt2").exit_code == 2


def test_a_program_that_draws_random_numbers_is_announced(cli: Any, tmp_path: Path) -> None:
    path = tmp_path / "train.pt2"
    torch.export.save(torch.export.export(torch.nn.Dropout(0.5).train(), (torch.ones(2, 3),)), path)
    result = cli("inspect", path)
    assert result.exit_code == 0
    assert "draws random numbers (op 'native_dropout'" in result.stderr
    assert "module.eval()" in result.stderr


@pytest.mark.parametrize("command", ["inspect", "profile", "optimize", "compare"])
def test_what_is_no_program_is_one_paragraph(cli: Any, tmp_path: Path, command: str) -> None:
    path = tmp_path / "weights.pt2"
    torch.save({"weight": torch.ones(2)}, path)
    result = cli(command, path)
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "torch.export.save(" in result.stderr


def test_an_op_without_a_kernel_for_its_type_is_named(cli: Any, cores: Sequence[str], tmp_path: Path) -> None:
    path = tmp_path / "complex.pt2"
    model = torch_backend.load(Calling(lambda _, x: torch.complex(x, x).relu().abs()), (torch.ones(2, 3),))
    torch.export.save(model.program, path)
    result = cli("optimize", path, "--devices", cores[0])
    assert result.exit_code == 1
    assert len(result.stderr.strip().splitlines()) == 1
    assert "supports op 'relu' (relu)" in result.stderr
