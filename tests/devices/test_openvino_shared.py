"""Why one OpenVINO core is shared: a core that another thread frees takes away the stack on which signals are handled."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import placeit

ROOT = Path(placeit.__file__).parents[1]
MAKE_A_CORE = {
    "placeit/devices/openvino_shared.py",
    "placeit/backends/openvino/hetero.py",  # in a text for users
    "benchmarks/bundle.py",  # in other processes
    "benchmarks/executor.py",  # a second plugin, held as long as the process lives
    "tests/backends/test_hetero.py",  # a second plugin, held as long as the tests run
}


@pytest.mark.parametrize("folder", ["placeit", "tests", "benchmarks"])
def test_no_other_file_makes_a_core(folder: str) -> None:
    makes = re.compile(r"(?<![\w.])(?:openvino|ov|import_openvino\(\))\.Core\(\)")
    paths = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / folder).rglob("*.py")}
    found = {name for name, path in paths.items() if makes.search(path.read_text(encoding="utf-8"))}
    assert found == {name for name in MAKE_A_CORE if name.startswith(folder)}
