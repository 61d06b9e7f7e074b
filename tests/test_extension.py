"""What is said where ``placeit._core`` is missing, built for another Python, or damaged."""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

import placeit

CHECKOUT, INSTALLED = ("run `make native` in ", ", which builds it for the Python in .venv."), ("install placeit again, with ",)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """A copy of the package without its extension."""
    copy = tmp_path_factory.mktemp("site") / "placeit"
    shutil.copytree(Path(placeit.__file__).parent, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__", "*.safetensors"))
    return copy


def python(package, *arguments):
    """What a Python that finds this copy first answers: exit code, and what it says."""
    command = [sys.executable, "-S", *arguments]  # without site, an editable installation is not found before the copy
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(package.parent), sysconfig.get_path("purelib")])}
    done = subprocess.run(command, env=environment, cwd=package.parent, capture_output=True, encoding="utf-8", check=False)
    return done.returncode, done.stderr


@pytest.mark.parametrize("remedy", [CHECKOUT, INSTALLED], ids=["checkout", "installed"])
@pytest.mark.parametrize(
    ("file", "what"),
    [
        (None, "is missing"),
        (
            "_core.cpython-399-x86_64-linux-gnu.so",
            "is built for another Python or processor (_core.cpython-399-x86_64-linux-gnu.so)",
        ),
        (f"_core{EXTENSION_SUFFIXES[0]}", "cannot be loaded ("),
    ],
    ids=["missing", "foreign", "damaged"],
)
def test_one_sentence_says_what_is_wrong_with_the_extension_and_what_to_do(package, file, what, remedy):
    written = [
        path
        for path, there in [(package.parent / "CMakeLists.txt", remedy is CHECKOUT), (package / (file or ""), file)]
        if there
    ]
    for path in written:
        path.write_bytes(b"no such thing\n")
    try:
        code, said = python(package, "-c", "import placeit; print(placeit.__version__); placeit.simulate")
    finally:
        for path in written:
            path.unlink()
    assert code == 1
    last = said.splitlines()[-1]
    assert last.startswith(f"placeit.core.errors.ExtensionError: placeit's compiled extension, {package / '_core'}, {what}")
    assert all(part in last for part in remedy)


def test_commands_say_it_without_a_traceback(package):
    code, said = python(package, "-m", "placeit", "optimize", "model.onnx", "--devices", "CPU@0")
    assert code == 1
    assert said.startswith("error: placeit's compiled extension, ")
    assert said.count("\n") == 1
