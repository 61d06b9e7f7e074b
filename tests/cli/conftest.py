"""A tiny model with two branches, a placement of it, and a way to call the command line."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from placeit.backends import load
from placeit.cli import app
from placeit.cli.options import SessionOptions
from placeit.cli.terminal import Lines
from placeit.core.placement import Placement
from placeit.devices import discover
from placeit.devices.host import allowed_cores
from placeit.devices.plain import plain_devices
from placeit.planning.coarsen import coarsen
from tests.schema_check import check_printed
from tests.steady import STEADY

Cli = Callable[..., Any]


@pytest.fixture(scope="session")
def cores() -> tuple[str, ...]:
    """One or two devices of one core each, as many as there are."""
    return tuple(f"CPU@{core}" for core in allowed_cores()[:2])


@pytest.fixture(scope="session")
def singles(cores: Sequence[str]) -> tuple[str, ...]:
    """Everything on the hardware of these cores that is raced as a single device: them, and what is plain beside two."""
    return (*cores, *(device.name for device in plain_devices(discover(cores), onnx=True)))


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two branches of one convolution each, between a convolution and a concatenation."""
    return make_tiny(tmp_path_factory.mktemp("tiny") / "tiny.onnx", batch=1)


@pytest.fixture(scope="session")
def tiny_open(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, its batch size left open."""
    return make_tiny(tmp_path_factory.mktemp("open") / "open.onnx", batch="n")


@pytest.fixture
def place_on(tiny: Path, tmp_path: Path) -> Callable[[Sequence[str]], Path]:
    """Write a placement that has one branch of the tiny model on the last of the devices, the rest on the first."""
    return lambda devices: split(tiny, devices, tmp_path / "placement.json")


@pytest.fixture
def placement(place_on: Callable[[Sequence[str]], Path], cores: Sequence[str]) -> Path:
    """Write such a placement for one or two cores."""
    return place_on(cores)


@pytest.fixture(scope="session")
def cost_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Keep measured costs for all tests, because measuring takes seconds."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def cli(tmp_path: Path, cost_cache: Path, monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Call ``placeit`` in a folder of the test's own, without lines of progress where the machine is slow.

    What ``--json`` prints must be as its schema says, in every test.
    """
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PLACEIT_CACHE", str(cost_cache))
    for runs in cost_cache.glob("runs-*.jsonl"):  # a search must not know measurements of another test
        runs.unlink()
    monkeypatch.setenv("COLUMNS", "1000")  # so that no table is narrowed, and no sentence broken
    monkeypatch.setattr(Lines, "EVERY", math.inf)

    def call(*args: object) -> Any:
        result = CliRunner().invoke(app, [str(arg) for arg in args])
        if "--json" in args and result.stdout:
            check_printed(result.stdout)
        return result

    return call


@pytest.fixture
def steady(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands search as :data:`tests.steady.STEADY` says."""
    monkeypatch.setattr(SessionOptions, "policy", lambda _: STEADY)


def split(model: Path, devices: Sequence[str], path: Path, *, prefix: str = "") -> Path:
    """Write a placement of the tiny model that has its left branch on the last device."""
    graph = load(model).graph
    grouping = coarsen(graph)
    on_last = grouping.group_of == grouping.group_of[graph.index[f"{prefix}left"]]
    Placement(graph.names, np.where(on_last, len(devices) - 1, 0).astype(np.int32), tuple(devices), graph.hash).save(path)
    return path


def make_tiny(path: Path, *, batch: int | str, channels: int = 8, prefix: str = "") -> Path:
    """Write the tiny model; names of its ops begin with the prefix."""
    random = np.random.default_rng(0)

    def weights(name: str, *shape: int) -> onnx.TensorProto:
        return numpy_helper.from_array((0.1 * random.standard_normal(shape)).astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], name="stem", pads=[1] * 4),
        helper.make_node("Conv", ["c0", "w1"], ["c1"], name="left", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], name="left_relu"),
        helper.make_node("Conv", ["c0", "w2"], ["c2"], name="right", pads=[1] * 4),
        helper.make_node("Relu", ["c2"], ["r2"], name="right_relu"),
        helper.make_node("Concat", ["r1", "r2"], ["y"], name="join", axis=1),
    ]
    for node in nodes:
        node.name = prefix + node.name
    graph = helper.make_graph(
        nodes,
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 2 * channels, 16, 16])],
        [
            weights("w0", channels, 3, 3, 3),
            weights("w1", channels, channels, 3, 3),
            weights("w2", channels, channels, 3, 3),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, str(path))
    return path
