"""A first try: a model that is made on the spot, two boards, and what to do next."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from placeit.cli.demo import demo_model
from placeit.devices.host import allowed_cores

NOT_IN_BASE = ("torch", "ray", "onnxruntime", "matplotlib", "bokeh", "jinja2", "pandas", "ortools", "pynvml")
"""Packages that only extras bring."""

CHILD = f"""
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {NOT_IN_BASE!r}:
            raise ModuleNotFoundError(f"No module named '{{name}}'", name=name)

sys.meta_path.insert(0, NotInstalled())
from placeit.cli import main
main()
"""


def test_what_is_installed_by_default_is_enough_with_a_clean_home(tmp_path: Path) -> None:
    home, here = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    here.mkdir()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PLACEIT", "XDG"))}

    def placeit(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-c", CHILD, *words],
            cwd=here,
            env=environment | {"HOME": str(home), "COLUMNS": "80"},
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    shown = placeit("demo", "--budget", "3s")
    heads = [line.split("  ")[0] for line in shown.splitlines()]
    assert heads.index("chosen") < heads.index("next") < heads.index("time went into")
    assert {path.name for path in (here / "placeit-demo").iterdir()} == {"model.onnx", "boards.yaml", "placement.json"}
    command = shown.partition("\nnext")[2].partition("\n\n")[0].replace("\\\n", "")
    name, verb, *options = shlex.split(command)
    assert (name, verb) == ("placeit", "run" if len(allowed_cores()) > 1 else "explain")
    placeit(verb, *options, *(["--runs", "2"] if verb == "run" else []))
    assert "\n  placeit optimize YOUR_MODEL.onnx" in shown
    tried = placeit("try", "placeit-demo/model.onnx", "--budget", "2s", "-o", "page.html")
    page = (here / "page.html").read_text(encoding="utf-8")
    assert all(line in page for line in ("placeit-demo/model.onnx", "hardware", "versions", "next  ")), tried
    assert "error" not in placeit("run", "placeit-demo/model.onnx", "-d", "CPU", "--quiet")


def test_without_a_second_core_boards_are_simulated(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("placeit.devices.host.allowed_cores", lambda: (0,))
    result = cli("demo", "one", "--budget", "2s", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["placement_file"] == "one/placement.json"
    assert data["chosen"]["devices"].keys() == {"left", "right"}
    assert data["chosen"]["measured_s"] is None


def test_a_folder_that_cannot_be_made_is_said_at_once(cli: Any) -> None:
    Path("file").write_text("")
    result = cli("demo", "file")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: Cannot make the folder file: File exists.\n"


def test_the_model_is_valid_and_its_values_keep_their_size() -> None:
    model = demo_model()
    onnx.checker.check_model(model, full_check=True)
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype(np.float32)
    (features,) = ReferenceEvaluator(model).run(None, {"image": image})
    assert features.shape == (1, 64, 1, 1)
    assert 0.01 < float(features.mean()) < 100
