"""The tool that runs the tests and the benchmark for NVIDIA GPUs on another machine."""

import importlib.util
import json
import os
import subprocess
import sys
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.metadata import requires
from pathlib import Path
from zipfile import ZipFile

import pytest
import torch
from packaging.requirements import Requirement

from placeit.learning.workloads.tensor_graphs import TENSOR_GRAPHS

ROOT = Path(__file__).parents[2]
TOOL = ROOT / "tools" / "gpu-report"
CARD = "NVIDIA Something, 80 GiB, compute 9.0"


@pytest.fixture(scope="module")
def tool():
    loader = SourceFileLoader("gpu_report", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("gpu_report", loader))
    sys.modules["gpu_report"] = module  # where dataclasses look
    writes, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        loader.exec_module(module)
    finally:
        sys.dont_write_bytecode = writes
    yield module
    del sys.modules["gpu_report"]


# -- packing -----------------------------------------------------------------------------------------------------------


def needs(lines):
    found = map(Requirement, lines)
    there = {"python_version": "3.12", "python_full_version": "3.12.3", "extra": ""}
    return {need.name.lower() for need in found if need.marker is None or need.marker.evaluate(there)}


def test_what_is_needed_is_carried_or_has_to_be_there(tool):
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    tests = ["pytest", "pytest-timeout", "hypothesis", *project["optional-dependencies"]["nvml"]]
    known = {*tool.CARRIED, *tool.PRESENT}
    assert needs([*project["dependencies"], *tests]) - known == set()
    for name in tool.CARRIED:
        assert needs(requires(name) or []) - known == set(), name


def test_packages_have_the_versions_of_the_constraints_however_these_spell_names(tool):
    assert tool.pinned(["b-c", "a"], "A==1.0\nB_c==2.0+cpu\nd==3\n") == ["B_c==2.0+cpu", "A==1.0"]
    constraints = (ROOT / "constraints.txt").read_text()
    assert len(tool.pinned(tool.CARRIED, constraints)) == len(tool.CARRIED)


def test_a_wheel_that_is_shrunk_lists_what_is_left(tool, tmp_path):
    wheel, record = tmp_path / "openvino-1-cp312.whl", "openvino-1.dist-info/RECORD"
    kept = {"openvino/__init__.py": b"import this\n" * 99, "openvino/libs/libopenvino.so": bytes(range(256))}
    dropped = {name + "x": b"large" for name in tool.DROPPED}
    with ZipFile(wheel, "w") as file:
        for name, data in (kept | dropped).items():
            file.writestr(name, data)
        file.writestr(record, "".join(f"{name},sha256=abc,5\n" for name in (*kept, *dropped, record)))
    tool.shrink(wheel)
    with ZipFile(wheel) as file:
        assert file.testzip() is None
        assert {name: file.read(name) for name in file.namelist() if name != record} == kept
        assert file.read(record).decode() == "".join(f"{name},sha256=abc,5\n" for name in (*kept, record))
    assert list(tmp_path.iterdir()) == [wheel]


def test_wheels_and_checkout_that_are_too_large_together_are_refused_and_the_largest_named(tool, tmp_path):
    (tmp_path / "large.whl").write_bytes(bytes(3 << 20))
    (tmp_path / "small.whl").write_bytes(bytes(1 << 20))
    assert tool.check_size(tmp_path, 1 << 20, 5.0).startswith("2 wheels of 4.0 MiB, a checkout of 1.0 MiB")
    with pytest.raises(SystemExit, match=r"too large: 2 wheels of 4\.0 MiB.*may have 4\.9 MiB(.|\n)*3\.0 MiB  large\.whl\n"):
        tool.check_size(tmp_path, 1 << 20, 4.9)


def test_wheels_are_packed_into_an_empty_folder_only(tool, tmp_path):
    (tmp_path / "old.whl").touch()
    with pytest.raises(SystemExit, match="is not empty: name another folder"):
        tool.pack(tmp_path, "python3.12")


@pytest.mark.parametrize("python", ["no-such-python", "false"])
def test_without_the_python_that_builds_the_wheel_of_placeit_the_error_says_so(tool, tmp_path, python):
    with pytest.raises(SystemExit, match=f"needs Python 3.12 or later, and {python} is not one: name one with --python"):
        tool.pack(tmp_path / "wheels", python)


# -- running -----------------------------------------------------------------------------------------------------------


class Machine:
    """A clock, and commands with what each of them prints, returns and takes."""

    def __init__(self, tool, out, seconds=600.0, **commands):
        self.time, self.limits, self._commands = 0.0, {}, commands
        self.run = tool.Run(out, seconds, self.call, lambda: self.time)
        for name in commands:
            self.run.do(tool.Step(name, [name], 100.0, "all.txt"))
        self.steps = {step.name: step for step in self.run.steps}
        self.text = (out / "report.md").read_text()
        self.data = json.loads((out / "report.json").read_text())

    def call(self, command, seconds, log):
        printed, code, takes = self._commands[command[0]]
        self.limits[command[0]] = seconds
        with log.open("a") as file:
            file.write(printed)
        self.time += min(takes, seconds)
        return code if takes <= seconds else None


def test_a_step_that_fails_stops_no_other_and_the_report_shows_its_output(tool, tmp_path):
    found = json.dumps({"cards": [CARD], "torch": "2.11.0"})
    machine = Machine(
        tool, tmp_path, environment=(found, 0, 5), tests=("E  | wrong\n= 1 failed =\n", 1, 30), rest=("fine", 0, 1)
    )
    assert [step.outcome for step in machine.run.steps] == ["ok", "failed with exit code 1", "ok"]
    assert machine.run.exit_code == 1
    assert machine.text.startswith(f"# {CARD}\n\n- torch: 2.11.0\n")
    assert "| tests | failed with exit code 1 | 30 | 1 failed |" in machine.text
    assert "## tests\n\n```text\nE  | wrong\n= 1 failed =\n```\n" in machine.text
    assert [step["tail"] for step in machine.data["steps"]][1:] == [["E  | wrong", "= 1 failed ="], ["fine"]]
    assert machine.data["cards"] == [CARD]


def test_a_step_has_its_own_limit_or_what_is_left_and_is_left_out_where_nothing_is(tool, tmp_path):
    machine = Machine(tool, tmp_path, 160.0, first=("begun", 0, 70), second=("begun", 0, 500), third=("", 0, 1))
    assert machine.limits == {"first": 100.0, "second": 160.0 - tool.RESERVE_S - 70}
    assert machine.steps["second"].outcome == "stopped: it took too long"
    assert machine.steps["third"].outcome == "left out: no time was left"
    assert machine.time <= 160.0 - tool.RESERVE_S


def test_without_a_card_the_report_and_the_exit_code_say_so(tool, tmp_path):
    machine = Machine(tool, tmp_path, environment=('{"cards": [], "python": "3.12.3"}', 0, 1), tests=("", 1, 1))
    assert machine.run.exit_code == 3
    assert machine.text.startswith("# No NVIDIA GPU\n")
    assert Machine(tool, tmp_path, environment=("Segmentation fault", 139, 1)).run.exit_code == 3


def test_what_a_benchmark_prints_last_becomes_tables_under_its_own_step(tool, tmp_path):
    def answer(value):
        rows = [{"copy": "host -> cuda:0", "gb_per_s": value}, {"graph": "ffnn", "median_ms": None}]
        return "copying\n" + json.dumps({"claims": [], "rows": rows}) + "\n"

    found = json.dumps({"cards": [CARD]})
    machine = Machine(
        tool, tmp_path, environment=(found, 0, 1), quick=(answer(55.123456), 0, 1), full=(answer(56.0), 0, 1), broken=("", 0, 1)
    )
    assert machine.run.exit_code == 0
    table = (
        "| copy | gb_per_s |\n| --- | --- |\n| host -> cuda:0 | {} |\n\n| graph | median_ms |\n| --- | --- |\n| ffnn | None |\n"
    )
    assert f"## quick\n\n{table.format('55.12')}" in machine.text
    assert f"## full\n\n{table.format('56')}" in machine.text
    assert machine.steps["broken"].answer is None  # of a file that others have written to before


def test_a_command_gives_its_exit_code_and_output_and_is_ended_when_its_time_is_over(tool, tmp_path, monkeypatch):
    log = tmp_path / "log.txt"
    monkeypatch.setattr(tool, "GRACE_S", 0.1)
    assert tool.call_for(os.environ, [sys.executable, "-c", "print('out'); exit(7)"], 100.0, log) == 7
    assert log.read_text() == "out\n"
    stubborn = "trap '' INT; echo $$; sleep 1000 & wait; wait; sleep 1000"
    assert tool.call_for(os.environ, ["sh", "-c", stubborn], 0.6, log) is None


def test_only_files_with_tests_for_gpus_are_run(tool):
    files = [Path(option) for option in tool.test_options() if option.endswith(".py")]
    assert ROOT / "tests" / "runtime" / "test_streams_torch.py" in files
    assert Path(__file__) not in files


def test_each_graph_of_the_benchmark_has_a_step_of_its_own(tool):
    assert tuple(TENSOR_GRAPHS) == tool.GRAPHS


def test_a_run_without_time_leaves_a_report_that_says_so(tmp_path):
    done = subprocess.run(
        [sys.executable, TOOL, "run", "--out", tmp_path, "--minutes", "0"], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 3, done.stderr
    assert "There is no NVIDIA GPU that PyTorch can use" in done.stdout
    assert (tmp_path / "report.md").read_text().count("left out: no time was left") >= 3


def test_a_folder_without_wheels_is_an_error_at_once(tmp_path):
    command = [sys.executable, TOOL, "run", "--out", tmp_path / "out", "--wheels", tmp_path]
    done = subprocess.run(command, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 2
    assert f"there are no wheels in {tmp_path}" in done.stderr


def test_wheels_in_a_folder_near_by_are_installed_where_they_are_missing(tool, tmp_path, monkeypatch):
    name, info = "placeit_no_such_package", "placeit_no_such_package-1.dist-info"
    with ZipFile(tmp_path / f"{name}-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "numpy-0.1-py3-none-any.whl").write_bytes(b"no wheel at all, but NumPy is there")

    paths = []

    def call_for(environment, command, seconds, log):
        log.touch()
        assert environment["PYTHONSAFEPATH"]  # so that the current folder, a checkout, is not the first
        paths.append(environment["PYTHONPATH"].split(os.pathsep)[:2])
        return install(environment, command, 300.0, log) if "pip" in command else 0

    install = tool.call_for
    monkeypatch.setattr(tool, "call_for", call_for)
    monkeypatch.chdir(tmp_path)
    tool.run(Path("out"), Path(), 9.0)
    assert all(path[1] == str(ROOT) and Path(path[0]).name.startswith("gpu-report-") for path in paths)
    first = json.loads((tmp_path / "out" / "report.json").read_text())["steps"][0]
    assert (first["name"], first["outcome"]) == ("installation", "ok")
    assert first["tail"][-1].startswith("Successfully installed placeit")


@pytest.mark.slow
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_a_whole_run_on_a_machine_without_a_card(tmp_path):
    done = subprocess.run([sys.executable, TOOL, "run", "--out", tmp_path], capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 3, done.stderr
    data = json.loads((tmp_path / "report.json").read_text())
    steps = {step["name"]: step for step in data["steps"]}
    assert [step["outcome"] for step in steps.values()] == ["ok"] * 3
    assert "skipped" in steps["tests"]["tail"][-1]
    assert steps["benchmark, quick"]["answer"]["rows"][0]["measured"] is False
    assert data["machine"]["torch"] == torch.__version__
