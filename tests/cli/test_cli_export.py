import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from placeit.devices.openvino import openvino_core


def mapping(cores: Sequence[str]) -> list[str]:
    return [word for core in cores for word in ("--map", f"{core}=CPU")]


def test_the_exported_model_computes_the_same(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    output = tmp_path / "placed.xml"
    result = cli("export", tiny, "-p", placement, "-o", output, *mapping(cores), "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["device"] == "HETERO:CPU"
    assert data["output"] == str(output)
    assert sum(data["devices"].values()) == 8
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    core = openvino_core()
    ours, theirs = (core.compile_model(path, "CPU")([image])[0] for path in (output, tiny))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def test_the_text_says_how_to_run_it(cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path) -> None:
    output = tmp_path / "placed.xml"
    text = cli("export", tiny, "-p", placement, "-o", output, *mapping(cores)).stdout
    assert f'core.read_model("{output}")' in text
    assert 'core.compile_model(model, "HETERO:CPU")' in text


def test_core_sets_need_a_name_that_openvino_knows(cli: Any, tiny: Path, placement: Path, tmp_path: Path) -> None:
    result = cli("export", tiny, "-p", placement, "-o", tmp_path / "placed.xml")
    assert result.exit_code == 1
    assert str(placement) in result.stderr
    assert "--map CPU@" in result.stderr
    assert not (tmp_path / "placed.xml").exists()
    assert not (tmp_path / "placed.bin").exists()


def test_a_mapping_of_a_device_that_the_placement_does_not_know(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], tmp_path: Path
) -> None:
    result = cli("export", tiny, "-p", placement, "-o", tmp_path / "p.xml", *mapping(cores), "--map", "fast=CPU")
    assert result.exit_code == 2
    assert "'fast'" in result.stderr
    assert str(placement) in result.stderr


@pytest.mark.parametrize("options", [["--map", "CPU"], ["--map", "=CPU"], ["--map", "a=CPU", "--map", "a=GPU"]])
def test_a_mapping_that_cannot_be_read_is_a_usage_error(
    cli: Any, tiny: Path, placement: Path, tmp_path: Path, options: list[str]
) -> None:
    assert cli("export", tiny, "-p", placement, "-o", tmp_path / "placed.xml", *options).exit_code == 2
