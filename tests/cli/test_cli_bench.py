"""``placeit bench``: what it lists, runs, writes and checks. The problems have their tests in tests/bench."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from placeit import bench
from placeit.bench.submissions import best


def test_a_run_is_a_submission_with_the_best_of_its_placers(tmp_path: Path, cli: Any) -> None:
    file = tmp_path / "mine.json"
    ran = cli("bench", "run", "--placer", "heft", "--placer", "dp", "--problems", "vgg/*", "-o", str(file), "--json")
    found = json.loads(ran.stdout)["solutions"]
    assert {one["problem"] for one in found} == set(bench.names("vgg/*"))
    kept = bench.read(file)
    assert all(kept[one["problem"]].value <= one["value"] for one in found)
    assert not any(verdict.fault for verdict in bench.check(file))


OWN = """
from dataclasses import dataclass
import numpy as np


@dataclass(frozen=True)
class First:
    def place(self, problem, cost, *, seed, evaluations):
        return np.zeros(len(problem), np.int32)


@dataclass(frozen=True)
class Fails:
    def place(self, problem, cost, *, seed, evaluations):
        raise ValueError("no idea")


@dataclass(frozen=True)
class Interrupted:
    def place(self, problem, cost, *, seed, evaluations):
        if problem.devices == 5:
            raise KeyboardInterrupt
        return np.zeros(len(problem), np.int32)


@dataclass(frozen=True)
class Needs:
    steps: int
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write placers into a module of the working directory."""
    (tmp_path / "placers_of_this_folder.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, "placers_of_this_folder", raising=False)


def test_a_class_of_a_module_in_this_folder_is_a_placer(cli: Any, own: None) -> None:
    ran = cli("bench", "run", "--placer", "placers_of_this_folder:First", "--problems", "vgg/soc/latency", "--json")
    (one,) = json.loads(ran.stdout)["solutions"]
    assert set(one["placement"]) == {bench.load(one["problem"]).problem.device_names[0]}


def test_a_placer_that_fails_has_no_values_and_the_others_go_on(cli: Any, own: None) -> None:
    command = ("bench", "run", "--placer", "placers_of_this_folder:Fails", "--placer", "heft", "--problems", "vgg/*")
    ran = cli(*command, "-o", "mine.json")
    assert "on vgg/boards/memory and 2 others: It failed: ValueError: no idea" in ran.stdout
    assert "placers_of_this_folder:Fails - (3 of 3 without a placement), heft 1.000" in ran.stdout
    assert {one.placer for one in bench.read("mine.json").values()} == {"heft"}
    first = json.loads(cli(*command, "--json").stdout)["solutions"][0]
    assert (first["value"], first["gap"], first["failure"]) == (None, None, "It failed: ValueError: no idea")


def test_ctrl_c_keeps_what_was_run_and_the_rest_is_run_later(cli: Any, own: None) -> None:
    command = ("bench", "run", "--placer", "heft", "--placer", "placers_of_this_folder:Interrupted", "-o", "mine.json")
    ended = cli(*command, "--problems", "vgg/*")
    assert ended.exit_code == 130
    assert "Ended by Ctrl-C after 2 of 3 problems." in ended.stdout
    first = bench.read("mine.json")
    assert list(first) == bench.names("vgg/*")[:2]
    again = cli("bench", "run", "--placer", "heft", "-o", "mine.json", "--resume", "--problems", "vgg/*", "--json")
    data = json.loads(again.stdout)
    assert (data["kept"], [one["problem"] for one in data["solutions"]]) == (2, bench.names("vgg/*")[2:])
    assert list(bench.read("mine.json")) == bench.names("vgg/*")
    assert first.items() <= bench.read("mine.json").items()
    nothing = cli("bench", "run", "-o", "mine.json", "--resume", "--problems", "vgg/*")
    assert (nothing.exit_code, "mine.json had 3 of 3 problems" in nothing.stdout) == (0, True)
    assert "--resume needs -o FILE" in cli("bench", "run", "--resume").stderr


def test_an_error_in_the_module_of_a_placer_is_its_own_not_placeits(cli: Any, own: None, tmp_path: Path) -> None:
    (tmp_path / "broken_placer.py").write_text("1 / 0")
    broken = cli("bench", "run", "--placer", "broken_placer:First")
    assert "'broken_placer:First' cannot be loaded: ZeroDivisionError: division by zero. Correct the name, or" in broken.stderr
    needs = cli("bench", "run", "--placer", "placers_of_this_folder:Needs")
    assert "is not a dataclass with a method 'place'" in needs.stderr
    (tmp_path / "placers_of_this_folder.py").write_text(f"{OWN}\n    place = First.place\n")
    del sys.modules["placers_of_this_folder"]
    needs = cli("bench", "run", "--placer", "placers_of_this_folder:Needs")
    assert "cannot be made: TypeError: " in needs.stderr
    assert "'steps'" in needs.stderr


def test_problems_of_a_file_are_listed_run_and_checked(tmp_path: Path, cli: Any) -> None:
    file, mine = tmp_path / "chain.json", tmp_path / "mine.json"
    file.write_text(json.dumps({"devices": 2, "compute": [1.0, 2.0, 2.0], "comm": [0.5, 4.0, 4.0], "edges": [[0, 1], [0, 2]]}))
    (listed,) = json.loads(cli("bench", "list", "--problems", str(file), "--json").stdout)["problems"]
    assert (listed["problem"], listed["bound"], listed["best"]) == ("chain/latency", 3.0, None)
    ran = cli("bench", "run", "--problems", str(file), "--placer", "annealing", "--placer", "single", "-o", str(mine))
    assert "geometric mean: annealing 1.000, single 1.429 of the best values of this run" in ran.stdout
    checked = cli("bench", "check", str(mine), "--problems", str(file))
    assert (checked.exit_code, checked.stdout) == (0, "1 of 1 placements are correct\n")


def test_a_list_has_the_best_known_value_of_each_problem(cli: Any) -> None:
    found = json.loads(cli("bench", "list", "--problems", "vgg/*", "--json").stdout)["problems"]
    assert {one["problem"]: one["best"] for one in found} == {name: best()[name].value for name in bench.names("vgg/*")}
    assert all(one["bound"] <= one["best"] and one["gap"] == one["best"] / one["bound"] - 1 for one in found)


def test_a_check_says_what_is_wrong_and_fails(cli: Any, tmp_path: Path) -> None:
    name = bench.names("vgg/*")[0]
    file = tmp_path / "mine.json"
    bench.write(file, [best()[name]])
    right = cli("bench", "check", str(file))
    assert (right.exit_code, right.stdout) == (0, "1 of 1 placements are correct, 0 better than the best known\n")
    bench.write(tmp_path / "none.json", [])
    none = cli("bench", "check", str(tmp_path / "none.json"))
    assert (none.exit_code, "has no placements" in none.stderr) == (1, True)
    file.write_text(file.read_text().replace('"value": ', '"value": 1'))
    wrong = cli("bench", "check", str(file))
    assert wrong.exit_code == 1
    assert f"{name}: its value is {best()[name].value!r} s" in wrong.stdout
