"""``python -m tests.emulated_gpu`` says why it cannot build, and runs commands without GPUs only if it may."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

_ROOT = Path(__file__).parents[2]


@pytest.fixture
def without_pip(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty cache in which pip does not run, and OpenVINO finds no emulated GPU."""
    (tmp_path / "modules" / "pip").mkdir(parents=True)
    (tmp_path / "modules" / "pip" / "__init__.py").touch()
    kept = {name: value for name, value in os.environ.items() if name not in ("CI", "LD_LIBRARY_PATH")}
    return kept | {"PYTHONPATH": f"{tmp_path / 'modules'}:{_ROOT / 'tests'}", "XDG_CACHE_HOME": str(tmp_path / "cache")}


def _run(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.emulated_gpu", *arguments]
    return subprocess.run(command, cwd=_ROOT, env=environment, capture_output=True, encoding="utf-8", check=False)


def test_a_build_that_fails_is_an_error_that_names_the_cause_and_leaves_nothing(without_pip: dict[str, str]) -> None:
    done = _run(without_pip)
    assert done.returncode == 1
    assert "Cannot build the emulated GPUs" in done.stderr
    assert "pip" in done.stderr
    assert done.stdout == ""
    cache = Path(without_pip["XDG_CACHE_HOME"]) / "placeit-tests" / "emulated-gpu"
    assert [path.name for path in cache.iterdir()] == ["lock"]


@pytest.mark.parametrize("ci", [False, True], ids=["elsewhere", "in CI"])
def test_a_command_that_may_do_without_gpus_runs_and_hears_why_but_not_in_ci(without_pip: dict[str, str], ci: bool) -> None:
    from placeit.devices.openvino import openvino_core

    if any(name.split(".")[0] == "GPU" for name in openvino_core().available_devices):
        pytest.skip("needs a machine without a GPU")
    say = "import os; print(os.environ['EMULATED_GPU_MISSING'])"
    done = _run(without_pip | ({"CI": "true"} if ci else {}), "--optional", sys.executable, "-c", say)
    assert done.returncode == int(ci)
    assert "Cannot build the emulated GPUs" in (done.stderr if ci else done.stdout)
