"""A process in which PyTorch is not installed: what needs it says so at once, and nothing else does."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

CHILD = """
import json, sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "torch_geometric"):
            raise ModuleNotFoundError(f"No module named '{name}'", name=name)

sys.meta_path.insert(0, NotInstalled())
from typer.testing import CliRunner
from placeit.cli import app

done = [CliRunner().invoke(app, command) for command in json.loads(sys.argv[1])]
print(json.dumps([(one.exit_code, one.stdout, one.stderr) for one in done]))
assert "torch" not in sys.modules
"""

LEARN, TORCH = "PyTorch, which is not installed: pip install 'placeit[learn]'", "pip install 'placeit[torch]'"


@pytest.fixture
def without_torch(tmp_path: Path, cost_cache: Path, monkeypatch: pytest.MonkeyPatch):
    """Run commands, one after the other, in a process without PyTorch."""
    monkeypatch.setenv("PLACEIT_CACHE", str(cost_cache))

    def run(*commands: list[object]) -> list[tuple[int, str, str]]:
        text = json.dumps([[str(word) for word in command] for command in commands])
        done = subprocess.run(
            [sys.executable, "-c", CHILD, text], cwd=tmp_path, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        return [tuple(one) for one in json.loads(done.stdout.splitlines()[-1])]

    return run


def test_a_model_is_placed_and_run_without_pytorch(without_torch, tiny: Path, cores: tuple[str, ...]) -> None:
    devices = ["--devices", ",".join(cores)]
    done = without_torch(
        ["devices", *devices],
        ["inspect", tiny],
        ["optimize", tiny, *devices, "--budget", 2, "--placer", "heft", "--placer", "giph", "--output", "placement.json"],
        ["run", tiny, "--placement", "placement.json", "--runs", 2],
        ["placers"],
    )
    assert [code for code, _, _ in done] == [0] * 5, done
    assert "\ngiph\n" in done[-1][1]


def test_what_needs_pytorch_says_what_to_install_before_it_reads_a_model(
    without_torch, cores: tuple[str, ...], tmp_path: Path
) -> None:
    for name in ("damaged.onnx", "damaged.pt2"):
        (tmp_path / name).write_text("no model")
    needs = {
        ("train", "giph", "--problems", "no such folder", "--output", "policy.safetensors"): LEARN,
        ("optimize", "damaged.onnx", "--placer", "hdp"): f"The placer 'hdp' needs {LEARN}",
        ("optimize", "damaged.onnx", "--placer", "guided:weights=damaged.pt2"): f"damaged.pt2 needs {LEARN}",
        ("optimize", "damaged.onnx", "--devices", f"torch:{cores[0]}"): f"'torch:{cores[0]}' needs PyTorch",
        ("inspect", "damaged.pt2"): TORCH,
        ("inspect", "chain-mm:shards=2"): TORCH,
    }
    for (code, _, said), words in zip(without_torch(*needs), needs.values(), strict=True):
        assert code != 0
        assert words in said
        assert "pip install 'placeit[" in said
