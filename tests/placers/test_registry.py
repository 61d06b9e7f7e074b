from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from placeit.core.errors import UsageError
from placeit.placers import get_placer, parse_placer, placer_names, placer_options
from placeit.placers.annealing import Annealing
from placeit.placers.local_search import LocalSearch
from placeit.placers.metis import Metis

PLUGIN = Path(__file__).parents[1] / "plugin_package"


def test_an_unknown_name_is_an_error_that_lists_the_known_ones():
    with pytest.raises(UsageError, match=r"no placer 'hefd'; the placers are annealing, .*heft.*single"):
        get_placer("hefd")


def test_options_come_with_type_default_and_help():
    options = {option.name: option for option in placer_options("annealing")}
    assert options["evaluations"].type is int
    assert options["evaluations"].default == Annealing().evaluations
    assert "placements" in options["evaluations"].help


def test_a_placer_is_made_with_its_options_and_keeps_its_other_defaults():
    assert get_placer("annealing", evaluations=10) == Annealing(evaluations=10)


def test_an_option_that_a_placer_lacks_is_an_error_that_lists_its_options():
    with pytest.raises(UsageError, match="'metis' has no option 'cuts'; its options are ways"):
        get_placer("metis", cuts=1)
    with pytest.raises(UsageError, match="'heft' has no option 'speed'; it has none"):
        parse_placer("heft:speed=1")


@pytest.mark.parametrize("value", ["10", 1.5, True, None])
def test_an_option_of_another_type_is_an_error(value):
    with pytest.raises(UsageError, match="'ways' of the placer 'metis' is of type int"):
        get_placer("metis", ways=value)


def test_a_whole_number_will_do_for_a_float():
    assert get_placer("local-search", kick=1) == LocalSearch(kick=1)


@pytest.mark.parametrize(
    ("text", "placer"),
    [
        ("metis", Metis()),
        ("metis:ways=7", Metis(ways=7)),
        ("local-search:kick=0.5,batch=3", LocalSearch(kick=0.5, batch=3)),
        ("local-search:kick=1e-3", LocalSearch(kick=1e-3)),
    ],
)
def test_text_is_parsed_by_the_types_of_the_options(text, placer):
    assert parse_placer(text) == placer


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("metis:", "Cannot read '' in the placer 'metis:'"),
        ("metis:ways", "Cannot read 'ways' in the placer 'metis:ways'; write name:option=value,option=value"),
        ("metis:=3", "Cannot read '=3'"),
        ("metis:ways=3,", "Cannot read ''"),
        ("metis:ways=3,ways=4", "gives the option 'ways' twice"),
        ("metis:ways=many", "'ways' in the placer 'metis:ways=many' must be a whole number; got 'many'"),
        ("metis:ways=1.5", "must be a whole number"),
        ("metis:parts=3", "has no option 'parts'"),
        ("", "no placer ''"),
    ],
)
def test_text_of_another_form_is_an_error(text, message):
    with pytest.raises(UsageError, match=message):
        parse_placer(text)


def run_with_packages(folders: list[Path], code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a fresh interpreter that finds the packages of the given folders."""
    prelude = f"import sys; sys.path[:0] = {[str(folder) for folder in folders]!r}\n"
    return subprocess.run([sys.executable, "-c", prelude + code], capture_output=True, encoding="utf-8", check=False)


def installed(folder: Path, *, name: str, entry: str) -> Path:
    """Write what an installer leaves beside a package: its metadata, which is where entry points are found."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
    (info / "entry_points.txt").write_text(f"[placeit.placers]\n{entry}\n", encoding="utf-8")
    return folder


@pytest.fixture
def plugin(tmp_path):
    """The sample plug-in, as if it were installed, with the entry point that its own project file declares."""
    import tomllib

    project = tomllib.loads((PLUGIN / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    [(name, target)] = project["entry-points"]["placeit.placers"].items()
    return [PLUGIN, installed(tmp_path / "site", name=project["name"], entry=f"{name} = {target}")]


def test_an_installed_plugin_is_found_through_its_entry_point_and_passes_the_conformance_suite(plugin, tmp_path):
    test = tmp_path / "test_round_robin.py"
    test.write_text(
        "from placeit.testing.placers import PlacerConformance\n"
        "class TestRoundRobin(PlacerConformance):\n"
        "    placer = 'round-robin:hand=2'\n",
        encoding="utf-8",
    )
    path = [str(folder) for folder in plugin]
    code = (
        f"import os, pytest; os.environ['PYTHONPATH'] = os.pathsep.join({path!r})\n"
        f"sys.exit(pytest.main(['-q', '-p', 'no:cacheprovider', {str(test)!r}]))"
    )
    done = run_with_packages(plugin, code)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "passed" in done.stdout


def test_a_plugin_is_listed_by_name_without_being_imported(plugin):
    code = (
        "from placeit.placers import placer_names; print('round-robin' in placer_names(), 'placeit_round_robin' in sys.modules)"
    )
    assert run_with_packages(plugin, code).stdout == "True False\n"
    assert "round-robin" not in placer_names()


def test_two_placers_of_one_name_are_an_error_that_names_both(tmp_path):
    site = installed(tmp_path, name="other", entry="heft = other:Heft")
    code = (
        "import placeit.placers as p; from placeit.core.errors import UsageError\n"
        "try: p.placer_names()\nexcept UsageError as e: print(e)"
    )
    out = run_with_packages([site], code).stdout
    assert out.startswith("Two placers are named 'heft': placeit.placers.heft:Heft and other:Heft.")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("nowhere:Placer", r"'mine' \(nowhere:Placer\) cannot be loaded: No module named 'nowhere'"),
        ("placeit.core.errors:Missing", "cannot be loaded: .*Missing"),
        ("placeit.core.errors:UsageError", "is not a dataclass with a method 'place'"),
    ],
)
def test_a_plugin_that_cannot_be_used_is_an_error_that_names_it(tmp_path, target, message):
    site = installed(tmp_path, name="mine", entry=f"mine = {target}")
    code = (
        "import placeit.placers as p; from placeit.core.errors import UsageError\n"
        "try: p.get_placer('mine')\nexcept UsageError as e: print(e)"
    )
    import re

    assert re.search(message, run_with_packages([site], code).stdout)


def test_importing_the_registry_imports_no_placer():
    done = run_with_packages([], "import placeit.placers; print('placeit._core' in sys.modules, 'pymetis' in sys.modules)")
    assert done.stdout == "False False\n"
