"""Tensor programs by name where a model file is accepted."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import placeit
from placeit import backends
from placeit.learning.workloads.tensor_graphs import TENSOR_GRAPHS

EXAMPLES = Path(__file__).parents[2] / "examples"
FFNN = "ffnn:shards=2,batch=16,features=4,hidden=12"


def test_every_program_goes_by_its_name() -> None:
    assert backends.programs().keys() == TENSOR_GRAPHS.keys()
    for name in TENSOR_GRAPHS:
        assert backends.files_of(f"{name}:shards=2") == []
    assert backends.files_of("chain-mm.onnx") == [Path("chain-mm.onnx")]


def test_options_are_those_of_the_program() -> None:
    model = placeit.load("chain-mm:shards=4,size=10,seed=3")
    assert str(model.path) == "chain-mm:shards=4,size=10,seed=3"
    assert model.graph.kinds.count("matmul") == 12
    assert model.outputs[0].shape == (5, 5)


def test_a_program_is_inspected(cli: Any) -> None:
    result = cli("inspect", FFNN, "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["model"], data["inputs"]) == (FFNN, [])
    assert data["kinds"]["matmul"] == 4


def test_a_program_is_optimized_run_and_compared(cli: Any, cores: Sequence[str], tmp_path: Path) -> None:
    placement = tmp_path / "placement.json"
    devices = ("--devices", ",".join(cores))
    found = cli("optimize", FFNN, *devices, "--budget", 2, "--placer", "enumerative", "-o", placement, "--json")
    assert found.exit_code == 0, found.stderr
    assert "inductor" not in found.stdout  # a program has no module to compile
    assert json.loads(found.stdout)["model"] == FFNN
    profiled = cli("profile", FFNN, *devices, "--json")
    assert profiled.exit_code == 0, profiled.stderr
    for command in ("run", "compare"):
        result = cli(command, FFNN, "-p", placement, "--runs", 3, "--json")
        assert result.exit_code == 0, result.stderr
        assert json.loads(result.stdout)["model"] == FFNN


@pytest.mark.parametrize(("file", "devices"), [("four_gpus", 4), ("two_meshes", 8)])
def test_a_program_is_placed_on_described_machines_with_little_memory(
    cli: Any, file: str, devices: int, tmp_path: Path
) -> None:
    cluster, placement = EXAMPLES / f"{file}.yaml", tmp_path / "placement.json"
    limits = [word for n in (0, 1) for word in ("--memory", f"gpu{n}=0B")]
    on = ("optimize", "chain-mm:shards=4,size=64", "--devices", cluster, "--budget", 5, "--placer", "enumerative")
    found = cli(*on, *limits, "-o", placement, "--json")
    assert found.exit_code == 0, found.stderr
    answer = placeit.Placement.load(placement)
    assert len(answer.device_names) == devices
    where = answer.as_dict()
    graph = placeit.load("chain-mm:shards=4,size=64").graph
    heavy = {where[name] for name, size in zip(graph.names, graph.param_bytes, strict=True) if size}
    assert heavy
    assert heavy.isdisjoint({"gpu0", "gpu1"})


@pytest.mark.slow
def test_a_policy_learns_on_described_machines_and_keeps_to_their_memory(cli: Any, tmp_path: Path) -> None:
    cluster = tmp_path / "cluster.yaml"
    text = (EXAMPLES / "four_gpus.yaml").read_text(encoding="utf-8")
    cluster.write_text(text.replace("16 GiB", "60 kB"), encoding="utf-8")
    model = "chain-mm:shards=4,size=64"  # the blocks that its ops read take 164 kB, and 8 kB each
    weights, placement = tmp_path / "weights.safetensors", tmp_path / "placement.json"
    on = ("--model", model, "--devices", cluster, "-o", weights, "--placement", placement, "--updates", 2, "--json")
    done = cli("train", "placeto:devices=4", *on)
    assert done.exit_code == 0, done.stderr
    graph, where = placeit.load(model).graph, placeit.Placement.load(placement).as_dict()
    used: dict[str, float] = {}
    for name, size in zip(graph.names, graph.param_bytes, strict=True):
        used[where[name]] = used.get(where[name], 0.0) + size
    assert sum(used.values()) > 60e3
    assert max(used.values()) <= 60e3


def test_inputs_of_a_program_can_be_given(cli: Any, cores: Sequence[str], tmp_path: Path) -> None:
    values = {name: np.full((4, 4), number, np.float32) for number, name in enumerate("ABCDE")}
    np.savez(tmp_path / "x.npz", **values)  # type: ignore[arg-type]
    placement = tmp_path / "placement.json"
    given = ("--inputs", tmp_path / "x.npz", "--devices", cores[0])
    found = cli("optimize", "chain-mm:size=4", *given, "--budget", 1, "--placer", "single", "-o", placement)
    assert found.exit_code == 0, found.stderr
    result = cli("run", "chain-mm:size=4", "-p", placement, "--runs", 1, "--outputs", tmp_path / "y.npz", *given)
    assert result.exit_code == 0, result.stderr
    whole = values["A"] @ values["B"] + values["C"] @ (values["D"] @ values["E"])
    with np.load(tmp_path / "y.npz") as outputs:
        assert sum(float(block.sum()) for block in outputs.values()) == whole.sum()
    np.savez(tmp_path / "x.npz", A=values["A"])
    assert "'B'" in cli("profile", "chain-mm:size=4", *given).stderr


def test_the_default_name_of_a_placement_is_the_programs(cli: Any, cores: Sequence[str]) -> None:
    found = cli("optimize", FFNN, "--devices", cores[0], "--budget", 1, "--placer", "single")
    assert found.exit_code == 0, found.stderr
    assert Path(f"{FFNN}.placement.json").is_file()


@pytest.mark.parametrize("suffix", [".onnx", ".xml"])
@pytest.mark.parametrize("name", ["chain-mm:shards=3,size=9", FFNN])
def test_a_program_is_exported_with_its_shards_and_computes_the_same(cli: Any, tmp_path: Path, name: str, suffix: str) -> None:
    output = tmp_path / f"program{suffix}"
    result = cli("export", name, "-o", output, "--json")
    assert result.exit_code == 0, result.stderr
    program, written = placeit.load(name), placeit.load(output)
    values = {key: value.numpy() for key, value in program.values.items()}
    assert {spec.name: spec.shape for spec in written.inputs} == {key: value.shape for key, value in values.items()}
    assert len([kind for kind in written.graph.kinds if kind == "MatMul"]) == program.graph.kinds.count("matmul")
    theirs = written.reference(None, "f32")(values)
    for key, value in program.whole.run(program.values).items():
        np.testing.assert_allclose(theirs[key], value.numpy(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("inspect", "chain-mn:shards=4"), "Tensor programs go by name: chain-mm, ffnn"),
        (("inspect", "chain-mm:help=1"), "has no option 'help'; its options are size, shards, seed, paper_sizes"),
        (("inspect", "chain-mm:shards=x"), "must be a whole number; got 'x'"),
        (("inspect", "chain-mm:shards=0"), "cannot be cut into 0 shards"),
        (("inspect", "ffnn:batch"), "write name:option=value"),
        (("inspect", "chain-mm", "--batch", "2"), "the sizes of a tensor program are among its options"),
        (("export", "chain-mm:size=8", "-o", "x.xml", "-p", "p.json"), "cannot be written for HETERO"),
        pytest.param(
            ("export", "llama-block:tokens=4,width=8,heads=2,hidden=4", "-o", "x.onnx"),
            "view_as_complex",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_what_is_no_program_or_does_not_suit_one_is_refused(cli: Any, command: Sequence[str], message: str) -> None:
    result = cli(*command)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert not list(Path().iterdir())
