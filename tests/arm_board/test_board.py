"""placeit's wheel on an ARM board: an emulated one, built by ``tests/arm_board``."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from placeit.core.placement import Placement
from placeit.session import Session
from tests.arm_board.build import on_board
from tests.cli.conftest import make_tiny, split

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(1800)]

# on the second, OpenVINO computes in f16 unless it is asked for f32
PROCESSORS = ("cortex-a72", "cortex-a76")
ERROR = 1e-5


@pytest.fixture
def on(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Run a command on a board with a processor; return what it prints. The board's folder /work is the test's."""

    def run(processor: str, *command: str) -> str:
        monkeypatch.setenv("QEMU_CPU", processor)
        monkeypatch.setenv("PLACEIT_CACHE", "/work/cache")
        done = subprocess.run(on_board(root, tmp_path, *command), capture_output=True, encoding="utf-8", check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_board_finds_its_devices_and_places_and_runs_a_model(on: Callable[..., str], processor: str, tmp_path: Path) -> None:
    make_tiny(tmp_path / "tiny.onnx", batch=1)
    devices = json.loads(on(processor, "placeit", "devices", "--json", "--quiet"))["devices"]
    assert "CPU" in [device["name"] for device in devices]
    named = ("--devices", "CPU@0,CPU@1")
    on(processor, "placeit", "optimize", "tiny.onnx", *named, "--budget", "20", "--output", "placement.json", "--quiet")
    ran = json.loads(on(processor, "placeit", "run", "tiny.onnx", "-p", "placement.json", "--runs", "2", "--json", "--quiet"))
    assert ran["output_error"]["max_rel"] <= ERROR


@pytest.mark.parametrize("processor", PROCESSORS)
def test_a_bundle_that_was_built_on_x86_computes_the_same_on_a_board(
    on: Callable[..., str], processor: str, tmp_path: Path
) -> None:
    model = make_tiny(tmp_path / "tiny.onnx", batch=1)
    placement = split(model, ("CPU@0", "CPU@1"), tmp_path / "placement.json")
    with Session(model, "CPU@0,CPU@1", cache=None) as session:
        session.profile()
        session.build(Placement.load(placement), tmp_path / "tiny.placeit")
    ran = json.loads(on(processor, "placeit", "run", "tiny.placeit", "--runs", "2", "--json", "--quiet"))
    assert ran["output_error"]["max_rel"] <= ERROR
