"""What commands write: never over what they read, and never at the price of the result."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from placeit.core.placement import Placement
from placeit.learning.checkpoint import save_agent
from placeit.learning.registry import make_agent
from placeit.profiler.recording import write_recording
from placeit.testing.problems import random_problem
from tests.report.made_recordings import a_recording


def refused(result: Any, path: Path) -> None:
    assert result.exit_code == 2, result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert f"error: {path} is named twice" in result.stderr


def external(tiny: Path, folder: Path, weights: str) -> Path:
    """Write the tiny model with its weights in a file beside it."""
    folder.mkdir(exist_ok=True, parents=True)
    path = folder / "model.onnx"
    onnx.save(onnx.load(tiny), path, save_as_external_data=True, location=weights, size_threshold=0)
    return path


def test_a_default_name_is_that_of_the_model_and_beside_it(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    for name in ("a/model.onnx", "b/model.onnx"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(tiny, tmp_path / name)
    for name in ("a/model.onnx", "b/model.onnx"):
        result = cli("optimize", tmp_path / name, "-d", cores[0], "--budget", 1, "--placer", "heft", "--json")
        assert result.exit_code == 0, result.stderr
        answer = tmp_path / f"{name}.placement.json"
        assert json.loads(result.stdout)["placement_file"] == str(answer)
        assert len(Placement.load(answer)) == 8
    assert list(Path().iterdir()) == []


def test_files_that_are_read_are_not_written(cli: Any, tiny: Path, cores: Sequence[str], tmp_path: Path) -> None:
    cluster, weights, policy = tmp_path / "cluster.yaml", tmp_path / "model" / "weights.bin", tmp_path / "giph.safetensors"
    cluster.write_text(f"devices: {{a: {{runs_on: {cores[0]}}}}}")
    model = external(tiny, tmp_path / "model", "weights.bin")
    save_agent(make_agent("giph", seed=0), policy)
    link, hard = tmp_path / "link", tmp_path / "hard"
    link.symlink_to(weights)
    hard.hardlink_to(cluster)
    files = (model, weights, cluster, policy, link, hard)
    before = [file.read_bytes() for file in files]
    for file in files:
        refused(cli("optimize", model, "-d", cluster, "--placer", f"giph:weights={policy}", "-o", file), file)
        if file is not policy:
            refused(cli("profile", model, "-d", cluster, "-o", file), file)
    refused(cli("run", model, "-p", tmp_path / "p.json", "--trace", weights), weights)
    refused(cli("run", model, "-p", link, "--outputs", weights), weights)
    assert [file.read_bytes() for file in files] == before


@pytest.mark.parametrize(
    "words",
    [
        "run MODEL -p FILE --trace FILE",
        "run MODEL -p p.json --inputs FILE --outputs FILE",
        "run FILE -p p.json --csv FILE",
        "run MODEL -p p.json --trace FILE --record FILE",
        "profile MODEL --inputs FILE -o FILE",
        "profile FILE --csv FILE",
        "optimize MODEL --inputs FILE -o FILE",
        "optimize MODEL --resume FILE -o FILE",
        "optimize MODEL --pareto --start best.point-2.json -o best.json",
        "export FILE -p p.json -o FILE",
        "report FILE -o FILE",
    ],
)
def test_no_command_writes_over_what_it_reads_or_writes_besides(cli: Any, tiny: Path, words: str) -> None:
    file = Path("best.point-2.json" if "best" in words else "model.xml" if words.startswith("export") else "file")
    file.write_bytes(b"as it was")
    refused(cli(*words.replace("MODEL", str(tiny)).replace("FILE", str(file)).split()), file)
    assert file.read_bytes() == b"as it was"


def test_an_export_does_not_write_over_the_weights_of_its_model(cli: Any, tiny: Path, tmp_path: Path) -> None:
    model = external(tiny, tmp_path, "model.bin")
    before = (tmp_path / "model.bin").read_bytes()
    refused(cli("export", model, "-o", tmp_path / "model.xml"), tmp_path / "model.bin")
    assert (tmp_path / "model.bin").read_bytes() == before
    alone = tmp_path / "alone.onnx"
    shutil.copy(tiny, alone)
    assert cli("export", alone, "-o", tmp_path / "alone.xml").exit_code == 0  # nothing of that name is read


def test_a_training_does_not_write_over_its_state_or_its_problems(cli: Any, tmp_path: Path) -> None:
    assert cli("generate", "random", "-n", 3, "-o", tmp_path / "problems").exit_code == 0
    problem = tmp_path / "problems" / "random-000.json"
    start = ["train", "giph", "--problems", tmp_path / "problems", "--folder", tmp_path / "run"]
    for file in (problem, tmp_path / "run" / "best.safetensors", tmp_path / "run" / "state.safetensors"):
        refused(cli(*start, "-o", file), file)
    refused(cli("train", "giph", "--problems", "random", "--evaluate-on", tmp_path / "problems", "-o", problem), problem)


@pytest.mark.parametrize("command", ["optimize", "run", "profile", "train"])
def test_what_cannot_be_written_costs_no_result(
    cli: Any, tiny: Path, placement: Path, cores: Sequence[str], command: str
) -> None:
    full, problems = "/dev/full", Path("problems")  # a disk on which there is no room
    problems.mkdir()
    random_problem(5, 3, 0).to_json(problems / "p.json")
    arguments: dict[str, list[object]] = {
        "optimize": [tiny, "-d", cores[0], "--budget", 1, "--placer", "heft", "-o", full],
        "run": [tiny, "-p", placement, "--runs", 2, "--trace", full, "--record", full, "--outputs", full],
        "profile": [tiny, "-d", cores[0], "-o", full],
        "train": ["placeto:devices=3,rounds=1", "--problems", problems, "--held-out", 0, "--updates", 1, "-o", full],
    }
    lost = {"optimize": "the placement", "run": "the trace", "profile": "the recording", "train": "the policy"}
    result = cli(command, *arguments[command], "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)
    errors = [line for line in result.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    for word in ("error: Cannot write /dev/full: No space left on device", f"Lost: {lost[command]}."):
        assert word in errors[0]
    if command == "run":
        assert "Lost: the recording." in errors[0]
        assert "Lost: the outputs of the model." in errors[0]


@pytest.mark.parametrize(
    "words",
    ["report run.json -o FULL", "profile MODEL -d CORE -o FULL", "optimize MODEL -d CORE --placer heft --budget 1s -o FULL -q"],
)
def test_a_file_that_was_not_written_is_not_named_as_a_result(cli: Any, tiny: Path, cores: Sequence[str], words: str) -> None:
    write_recording("run.json", a_recording(10))
    stand_for = {"MODEL": tiny, "CORE": cores[0], "FULL": "/dev/full"}
    result = cli(*(stand_for.get(word, word) for word in words.split()))
    assert result.exit_code == 1
    assert "Cannot write /dev/full: No space left on device" in result.stderr
    assert "written" not in result.stdout
    assert "/dev/full" not in result.stdout


def test_a_file_on_standard_output_has_it_for_itself(tiny: Path, cores: Sequence[str], cost_cache: Path) -> None:
    command = [sys.executable, "-c", "from placeit.cli import main; main()", "optimize", tiny, "-d", cores[0], "--budget", "1"]
    result = subprocess.run(
        [*command, "--placer", "heft", "-o", "/dev/stdout"],
        capture_output=True,
        check=False,
        encoding="utf-8",
        env=os.environ | {"PLACEIT_CACHE": str(cost_cache)},
    )
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["format"] == "placeit-placement"
    assert "chosen" in result.stderr


def test_outputs_can_go_to_a_pipe(cli: Any, tiny: Path, placement: Path, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    try:
        result = cli("run", tiny, "-p", placement, "--runs", 2, "--outputs", f"/dev/fd/{writer}", "--trace", "/dev/null")
        os.set_blocking(reader, False)
        archive = os.read(reader, 1 << 16)
    finally:
        os.close(reader)
        os.close(writer)
    assert result.exit_code == 0, result.stderr
    (tmp_path / "y.npz").write_bytes(archive)
    with np.load(tmp_path / "y.npz") as outputs:
        assert outputs["y"].shape == (1, 16, 16, 16)
