"""What every benchmark shares: one JSON object, tables for people, and results that are kept by part."""

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks._harness import main
from benchmarks._results import Origin, write_results
from tests.schema_check import check_printed

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
    command = [sys.executable, "-c", PROGRAM, *arguments]
    return subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, encoding="utf-8", check=True)


def test_a_benchmark_prints_one_json_object_and_keeps_it_with_the_command_that_gives_it(tmp_path):
    folder = tmp_path / "results" / "demo"
    done = run("--json", "--quick", "--seed", "7", "--note", "beside others", "--results", str(folder))
    told, kept = check_printed(done.stdout), json.loads((folder / "report.json").read_text())
    assert list(told) == ["schema", "benchmark", "machine", "commit", "claims", "rows"]
    assert {"cpu", "cores", "python", "os", "libraries"} <= told["machine"].keys()
    assert told["rows"] == [{"name": "x", "seconds": 1.5, "runs": 2, "missing": None}]
    assert [tuple(claim.values()) for claim in told["claims"]] == [
        ("fast", 0.5, "s", "<= 1", True),
        ("slow", 2.0, "s", ">= 1 and <= 1.5", False),
        ("not measured", None, "s", "<= 1", None),
        ("just told", 7.0, "", None, None),
    ]
    assert "chatter" in done.stderr
    assert "a note" in done.stderr
    assert {kind: [{"part": "demo", **one} for one in told[kind]] for kind in ("rows", "claims")}.items() <= kept.items()
    origin = kept["parts"]["demo"]
    assert origin["command"] == f"python -m benchmarks.demo --quick --seed 7 --results {folder}"
    assert (origin["seeds"], origin["note"], origin["machine"]) == ([7], "beside others", told["machine"])
    text = (folder / "report.md").read_text()
    for line in ("# demo", "## What a demonstration shows", "Nothing.", "| x | 1.5 | 2 | - |", f"    {origin['command']}"):
        assert line in text.splitlines()


def test_a_benchmark_prints_tables_for_people():
    lines = [line.split() for line in run().stdout.splitlines()]
    assert lines[0][0] == "demo"
    for words in ("name seconds runs missing", "x 1.5 2 -", "slow 2 s >= 1 and <= 1.5 no"):
        assert words.split() in lines


def test_a_part_is_run_in_place_of_the_benchmark_and_kept_beside_it(tmp_path):
    def fill(args, report):
        report.row(ran=args.part)

    for part in ("demo", "other", "demo"):
        main("demo", fill, ["--part", part, "--results", str(tmp_path)], parts={"other": ModuleType("other", "Another part.")})
    kept = json.loads((tmp_path / "report.json").read_text())
    assert kept["rows"] == [{"part": part, "ran": part} for part in ("demo", "other")]
    assert kept["parts"]["other"]["command"] == f"python -m benchmarks.demo --part other --results {tmp_path}"
    assert "## Another part" in (tmp_path / "report.md").read_text()


def test_parts_that_were_not_run_stay_in_the_results(tmp_path):
    machine = {"cpu": "a CPU", "cores": 2, "python": "3.11", "libraries": {"openvino": "1"}}

    def write(part, value, *origin):
        rows = [{"part": part, "value": value}]
        claims = [{"part": part, "name": "n", "value": value, "unit": "", "target": "<= 1", "holds": value <= 1}]
        result = {"benchmark": "b", "machine": machine, "commit": f"of {part}", "rows": rows, "claims": claims}
        write_results(tmp_path, "# Head", {"one": write, "two": main}, result, Origin(*origin))

    write("one", 0.25, "first", [0], "quiet")
    write("two", 7.5, "second", [3])
    write("one", 0.5, "third", [0])
    data, text = json.loads((tmp_path / "report.json").read_text()), (tmp_path / "report.md").read_text()
    assert [row["value"] for row in data["rows"]] == [0.5, 7.5]
    assert [claim["holds"] for claim in data["claims"]] == [True, False]
    assert {part: (of["command"], of["seeds"]) for part, of in data["parts"].items()} == {
        "one": ("third", [0]),
        "two": ("second", [3]),
    }
    assert text.index("third") < text.index("seeds 3; a CPU, 2 cores")
    assert "quiet" not in text


def test_options_are_those_that_a_benchmark_knows(capsys):
    asked, known = [], {"models": ("a", "b"), "backends": ("x", "y")}
    for argv in ([], ["--models", "b", "--backend", "y"]):
        main("some", lambda args, _: asked.append((args.models, args.backend)), [*argv, "--json"], **known)
    assert asked == [((), "x"), (("b",), "y")]
    with pytest.raises(SystemExit):
        main("some", lambda *_: None, ["--models", "c"], **known)
    assert "invalid choice: 'c'" in capsys.readouterr().err
