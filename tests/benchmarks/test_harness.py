import json
import subprocess
import sys
from pathlib import Path

PROGRAM = """
'''What a demonstration shows.

Nothing.
'''
from benchmarks._harness import Args, Report, main

def run(args: Args, report: Report) -> None:
    print("chatter")
    report.note("a note")
    report.row(name="x", seconds=1.5, runs=2, missing=float("nan"))
    report.claim("fast", 0.5, "s", at_most=1)
    report.claim("slow", 2.0, "s", at_least=1, at_most=1.5)
    report.claim("not measured", None, "s", at_most=1)
    report.claim("just told", args.seed, "")

main("demo", run)
"""


def run(*arguments):
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=root, capture_output=True, encoding="utf-8", check=True)


def test_a_benchmark_prints_one_json_object_whatever_its_work_prints():
    done = run("--json", "--quick", "--seed", "7")
    result = json.loads(done.stdout)
    assert list(result) == ["benchmark", "machine", "commit", "claims", "rows"]
    assert result["benchmark"] == "demo"
    assert {"cpu", "cores", "python", "os", "libraries"} <= result["machine"].keys()
    assert result["machine"]["libraries"]["numpy"]
    assert result["rows"] == [{"name": "x", "seconds": 1.5, "runs": 2, "missing": None}]
    assert result["claims"] == [
        {"name": "fast", "value": 0.5, "unit": "s", "target": "<= 1", "holds": True},
        {"name": "slow", "value": 2.0, "unit": "s", "target": ">= 1 and <= 1.5", "holds": False},
        {"name": "not measured", "value": None, "unit": "s", "target": "<= 1", "holds": None},
        {"name": "just told", "value": 7.0, "unit": "", "target": None, "holds": None},
    ]
    assert "chatter" in done.stderr
    assert "a note" in done.stderr


def test_a_benchmark_prints_tables_for_people():
    lines = run().stdout.splitlines()
    assert lines[0].startswith("demo ")
    for words in (
        ["name", "seconds", "runs", "missing"],
        ["x", "1.5", "2", "-"],
        ["slow", "2", "s", ">=", "1", "and", "<=", "1.5", "no"],
    ):
        assert words in [line.split() for line in lines]


def test_results_are_kept_with_the_command_that_gives_them_the_commit_the_seed_and_the_machine(tmp_path):
    folder = tmp_path / "results" / "demo"
    done = run("--json", "--quick", "--seed", "7", "--note", "beside others", "--results", str(folder))
    kept, told = json.loads((folder / "report.json").read_text()), json.loads(done.stdout)
    assert kept["benchmark"] == "demo"
    assert kept["rows"] == [{"part": "demo", **row} for row in told["rows"]]
    assert kept["claims"] == [{"part": "demo", **claim} for claim in told["claims"]]
    origin = kept["parts"]["demo"]
    assert origin["command"] == f"python -m benchmarks.demo --quick --seed 7 --results {folder}"
    assert origin["seeds"] == [7]
    assert origin["note"] == "beside others"
    assert {name: origin[name] for name in ("machine", "commit")} == {name: told[name] for name in ("machine", "commit")}
    text = (folder / "report.md").read_text()
    for line in ("# demo", "## What a demonstration shows", "Nothing.", "| x | 1.5 | 2 | - |"):
        assert line in text.splitlines()
    assert origin["command"] in text
