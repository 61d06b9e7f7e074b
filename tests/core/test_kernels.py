"""What is compiled is kept for the next process, and nothing that was made from anything else."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

CONSTANTS = "FACTOR = 3\n"
INNER = """
from typing import NamedTuple
from placeit.core.kernels import jit

class Pair(NamedTuple):
    left: int
    right: int

@jit
def scaled(x):
    return 2 * x
"""
OUTER = """
from constants import FACTOR
from inner import Pair, scaled
import inner as module
from placeit.core.kernels import jit

@jit
def run(pair: Pair) -> int:
    return FACTOR * scaled(pair.left) + pair.right

@jit
def through_the_module(x):
    return module.scaled(x) + 1

@jit
def twice(pair):
    return run(pair) + pair.left
"""
USE = """
from numba.core import event

compiled = []

class Listener(event.Listener):
    def on_start(self, what):
        compiled.append(what.data["dispatcher"].py_func.__name__)

    def on_end(self, what):
        pass

event.register("numba:compile", Listener())
import outer
print(outer.run(outer.Pair(10, 1)), outer.through_the_module(10), outer.twice(outer.Pair(10, 1)), sorted(set(compiled)))
"""
ALL = ["run", "scaled", "through_the_module", "twice"]


class Package:
    """Three modules, used by one process after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.home = folder.parent / "home"
        self.home.mkdir()
        folder.mkdir()
        self.write(constants=CONSTANTS, inner=INNER, outer=OUTER)

    def write(self, **modules: str) -> None:
        for name, text in modules.items():
            (self.folder / f"{name}.py").write_text(text)

    def use(self, program: str = USE, **variables: str) -> tuple[str, list[str]]:
        """Run a program; returns what it computed, and what was compiled for that."""
        ours = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "NUMBA_", "PYTHONHASHSEED"))}
        path = os.pathsep.join([str(self.folder), str(Path(__file__).parents[2])])
        # sources are compiled anew: a second may be too short for Python to notice that they have changed
        environment = {**ours, "PYTHONPATH": path, "HOME": str(self.home), "PYTHONDONTWRITEBYTECODE": "1", **variables}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, encoding="utf-8", check=False
        )
        assert done.returncode == 0, done.stderr
        figures, _, names = done.stdout.strip().partition("[")
        return figures.strip(), names.strip("]").replace("'", "").split(", ") if names != "]" else []

    def kept(self) -> list[Path]:
        return sorted(self.folder.rglob("*.nbc"))


@pytest.fixture
def package(tmp_path):
    return Package(tmp_path / "package")


def test_the_next_process_compiles_nothing(package):
    assert package.use() == ("61 21 71", ALL)
    assert package.use() == ("61 21 71", [])


@pytest.mark.parametrize(
    ("changes", "figures", "compiled"),
    [
        ({"inner": INNER.replace("2 * x", "5 * x")}, "151 51 161", ALL),
        pytest.param({"constants": "FACTOR = 4\n"}, "81 21 91", ["run", "twice"], marks=pytest.mark.slow),
        ({"constants": "from inner import jit\n\n@jit\ndef FACTOR():\n    return 4\n"}, None, None),
    ],
    ids=["a function of another module", "a constant of another module", "another thing of the same name"],
)
def test_what_was_compiled_with_anything_that_has_changed_is_not_used(package, changes, figures, compiled):
    package.use()
    if figures is None:
        changes = {**changes, "outer": OUTER.replace("FACTOR *", "FACTOR() *")}
        figures, compiled = "81 21 91", ["FACTOR", "run", "twice"]
    package.write(**changes)
    assert package.use() == (figures, compiled)
    assert package.use() == (figures, [])


def test_a_named_tuple_whose_fields_change_places_is_another_one(package):
    package.use()
    package.write(inner=INNER.replace("    left: int\n    right: int\n", "    right: int\n    left: int\n"))
    figures, compiled = package.use()
    assert figures == "16 21 17"
    assert compiled == ["run", "twice"]


@pytest.mark.slow
def test_a_module_that_has_moved_is_found_where_it_is(package):
    package.use()
    (package.folder / "inner.py").rename(package.folder / "elsewhere.py")
    package.write(
        outer=OUTER.replace("from inner import", "from elsewhere import").replace("import inner as", "import elsewhere as")
    )
    assert package.use() == ("61 21 71", ALL)
    assert package.use() == ("61 21 71", [])


def test_a_function_that_only_moves_within_its_file_is_not_compiled_again(package):
    package.use()
    package.write(inner=INNER.replace("class Pair", "# a comment\n\nclass Pair"))
    assert package.use() == ("61 21 71", [])


@pytest.mark.slow
def test_what_other_versions_have_left_goes_when_a_new_one_is_kept(package):
    package.use()
    before = package.kept()
    package.write(inner=INNER.replace("2 * x", "5 * x"))
    package.use()
    assert len(package.kept()) == len(before)
    assert not set(before) & set(package.kept())


def test_files_that_are_damaged_are_compiled_anew_and_replaced(package):
    package.use()
    kept = package.kept()
    for file, damage in zip(kept, (b"", b"no pickle", kept[2].read_bytes()[:200], b"cno.such.module\nname\n."), strict=False):
        file.write_bytes(damage)
    assert package.use() == ("61 21 71", ALL)
    assert package.use() == ("61 21 71", [])
    assert package.kept() == kept


def test_where_the_package_cannot_be_written_to_the_users_cache_is_used(package):
    (package.folder / "__pycache__").write_text("a file, in which no user can make another, root included")
    assert package.use() == ("61 21 71", ALL)
    assert package.use() == ("61 21 71", [])
    assert package.kept() == []
    assert len(list(package.home.rglob("*.nbc"))) == len(ALL)


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_mix_up_what_they_keep(package):
    """Numba's own cache would let two signatures have one file."""
    kinds = ("10", "10.5", "np.int8(10)", "np.float32(10)")
    programs = [f"import numpy as np\nimport outer\nprint(outer.through_the_module({kind}))" for kind in kinds]
    for _ in range(2):
        with ThreadPoolExecutor(len(programs)) as pool:
            assert [figures for figures, _ in pool.map(package.use, programs)] == ["21", "22.0", "21", "21.0"]
    assert len(package.kept()) == 2 * len(kinds)
    assert not list(package.folder.rglob("*.nbc.*"))


@pytest.mark.slow
def test_no_kernel_of_placeit_is_compiled_twice(package):
    warm = USE.partition("import outer")[0] + (
        "from placeit.optimizer.portfolio import DEFAULT_PLACERS\n"
        "from placeit.optimizer.warmup import compile_kernels\n"
        "compile_kernels([*DEFAULT_PLACERS, 'giph', 'exact', 'cpop', 'critical-path', 'random-task-eft'])\n"
        "print('', sorted(set(compiled)))"
    )
    kept = str(package.home)
    assert {"merge_groups", "makespan_kernel"} <= set(package.use(warm, NUMBA_CACHE_DIR=kept)[1])
    assert package.use(warm, NUMBA_CACHE_DIR=kept, PYTHONHASHSEED="7") == ("", [])
