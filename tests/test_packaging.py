"""Source distributions and wheels: what they need where they are installed."""

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

import pytest
import yaml

import placeit

ROOT = Path(__file__).parents[1]
TOOLS = {"PATH": sysconfig.get_path("scripts")}
"""An environment with CMake, Ninja and auditwheel, and without a compiler."""
SIMULATE = """
import placeit
from placeit.testing.problems import random_problem
problem = random_problem(20, 3)
devices = placeit.place(problem, "heft").devices
print(placeit.placer_names(), devices.tolist(), placeit.simulate(problem, devices[None]).tolist())
"""


def done(*command, **options):
    """What a command prints; it must succeed."""
    ran = subprocess.run(list(map(str, command)), stdout=-1, stderr=subprocess.STDOUT, encoding="utf-8", check=False, **options)
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    """A source distribution, unpacked."""
    folder = tmp_path_factory.mktemp("sdist")
    done(sys.executable, "-c", f"from scikit_build_core.build import build_sdist; build_sdist({str(folder)!r})", cwd=ROOT)
    (archive,) = folder.iterdir()
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return archive.with_name(archive.name.removesuffix(".tar.gz"))


def test_the_entry_points_of_what_is_installed_are_those_of_this_checkout():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"]
    wanted = {(group, name, target) for group, points in groups.items() for name, target in points.items()}
    found = {(entry.group, entry.name, entry.value) for entry in distribution("placeit").entry_points}
    assert found == wanted | {("console_scripts", "placeit", "placeit.__main__:main")}, "run `make setup`"


def build_wheel(source, folder, environment):
    command = "-m", "pip", "wheel", "--no-index", "--no-build-isolation", "--no-deps", "--wheel-dir"
    return subprocess.run(
        [sys.executable, *command, folder, source], env=environment, capture_output=True, encoding="utf-8", check=False
    )


def test_a_source_distribution_has_all_that_is_compiled_and_neither_results_nor_what_is_built(source):
    files = {str(path.relative_to(source)) for path in source.rglob("*") if path.is_file()}
    listed = done("git", "ls-files", cwd=ROOT).split()
    assert files >= {name for name in listed if name.startswith(("native/", "placeit/")) or name == "CMakeLists.txt"}
    left_out = ("build/", "dist/", "docs/results/", "docs/images/")
    assert not [name for name in files if name.startswith(left_out) or name.endswith((".so", ".pyc"))]


def test_the_description_is_the_readme_without_links_that_lead_nowhere(source):
    about = email.message_from_string((source / "PKG-INFO").read_text(encoding="utf-8"))
    assert (about["Version"], about["Description-Content-Type"]) == (placeit.__version__, "text/markdown")
    text = about.get_payload()
    assert text.startswith("# placeit\n")
    assert "behind one protocol (`placeit placers`): HEFT" in text
    assert not re.search(r"\]\((?!https?:)", text)
    assert not re.search(r"docs/\w+\.png|two sections", text)


def test_the_citation_file_has_what_its_format_demands(source):
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited.keys() >= {"cff-version", "message", "title", "authors"}
    about = email.message_from_string((source / "PKG-INFO").read_text(encoding="utf-8"))
    found = cited["title"], cited["license"], cited["abstract"], cited["authors"][0]["name"]
    assert found == tuple(about[name] for name in ("Name", "License-Expression", "Summary", "Author"))


@pytest.mark.parametrize(
    "compiler", [{}, pytest.param({"CXX": "no-such-compiler"}, marks=pytest.mark.nightly)], ids=["none", "a wrong CXX"]
)
def test_without_a_compiler_the_error_says_what_to_install(source, tmp_path, compiler):
    failed = build_wheel(source, tmp_path, TOOLS | compiler)
    assert failed.returncode == 1
    said = " ".join((failed.stdout + failed.stderr).split())
    assert "there is no working C++ compiler here. Install g++ (9 or later) or clang (10 or later)" in said


@pytest.mark.nightly  # `make dist` tries its wheels as well
@pytest.mark.timeout(900)
def test_a_wheel_runs_where_there_is_no_compiler(source, tmp_path):
    built = build_wheel(source, tmp_path / "built", os.environ)
    assert built.returncode == 0, built.stdout + built.stderr
    (wheel,) = (tmp_path / "built").iterdir()
    done("auditwheel", "repair", "--wheel-dir", tmp_path / "dist", wheel, env=TOOLS)
    (wheel,) = (tmp_path / "dist").iterdir()
    assert "-manylinux_2_" in wheel.name

    empty = tmp_path / "empty"
    venv.create(empty, with_pip=False, symlinks=True)
    python = empty / "bin" / "python"
    done(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-deps", wheel)
    site = done(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    Path(site, "rest.pth").write_text(sysconfig.get_path("purelib"))  # what placeit needs, without the checkout
    environment = {"PATH": str(python.parent), "HOME": str(tmp_path)}
    where = done(python, "-c", "import placeit._core as core; print(core.__file__)", env=environment, cwd=tmp_path)
    assert Path(where.strip()).parent == Path(site, "placeit")
    assert done(python, "-c", SIMULATE, env=environment, cwd=tmp_path) == done(sys.executable, "-c", SIMULATE, cwd=ROOT)
