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


def test_a_class_of_a_module_in_this_folder_is_a_placer(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "placer_of_this_folder.py").write_text(
        "from dataclasses import dataclass\nimport numpy as np\n\n\n@dataclass(frozen=True)\nclass First:\n"
        "    def place(self, problem, cost, *, seed, evaluations, deadline=None):\n"
        "        return np.zeros(len(problem), np.int32)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ran = cli("bench", "run", "--placer", "placer_of_this_folder:First", "--problems", "vgg/soc/latency", "--json")
    (one,) = json.loads(ran.stdout)["solutions"]
    assert set(one["placement"]) == {bench.load(one["problem"]).problem.device_names[0]}


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
