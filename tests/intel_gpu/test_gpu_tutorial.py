"""The tutorial on a CPU with a GPU, done where there is one."""

from pathlib import Path

import onnx
import pytest

from placeit.cli import demo
from tests.docs.pages import Reader


def test_the_tutorial_on_a_gpu_can_be_done(gpus: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_BLOCKS", 1)  # each op is compiled, which takes long
    monkeypatch.setattr(demo, "_CHANNELS", 8)
    monkeypatch.setenv("PLACEIT_CACHE", str(tmp_path / "costs"))
    monkeypatch.chdir(tmp_path)
    onnx.save(demo.demo_model(), "model.onnx")
    Reader().read("tutorials/cpu_and_gpu.md", "needs GPU.0")
