"""HSDAG's benchmark on a model that takes a millisecond: what it tells and keeps, not how good it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks._results import Origin, write_results
from benchmarks.papers.hsdag import bench
from benchmarks.papers.hsdag.__main__ import main
from benchmarks.papers.hsdag.learners import ABLATIONS, LEARNERS
from benchmarks.papers.hsdag.paper import ABLATIONS_MS, GRAPHS, LATENCY_MS, MODELS, SEARCH_S
from benchmarks.papers.hsdag.parts import PARTS


def test_figures_of_the_paper_are_of_its_models_and_of_rows_that_there_are() -> None:
    assert all(set(figures) == set(MODELS) for table in (LATENCY_MS, ABLATIONS_MS, SEARCH_S) for figures in table.values())
    assert set(GRAPHS) == set(MODELS)
    assert set(SEARCH_S) <= set(LEARNERS)
    assert set(ABLATIONS_MS) == {"original", *ABLATIONS}


def test_parts_that_were_not_run_stay_in_the_results(tmp_path: Path) -> None:
    machine = {"cpu": "a CPU", "cores": 2, "python": "3.11", "libraries": {"openvino": "1"}}

    def result(part: str, value: float) -> dict[str, object]:
        rows = [{"part": part, "value": value}]
        claims = [{"part": part, "name": "n", "value": value, "unit": "", "target": "<= 1", "holds": value <= 1}]
        return {"benchmark": "hsdag", "machine": machine, "commit": f"of {part}", "rows": rows, "claims": claims}

    write_results(tmp_path, "# Head", PARTS, result("table1", 0.25), Origin("first", [0], "quiet"))
    write_results(tmp_path, "# Head", PARTS, result("table5", 7.5), Origin("second", [3]))
    write_results(tmp_path, "# Head", PARTS, result("table1", 0.5), Origin("third", [0]))
    data = json.loads((tmp_path / "report.json").read_text())
    assert [row["value"] for row in data["rows"]] == [0.5, 7.5]
    assert [claim["holds"] for claim in data["claims"]] == [True, False]
    assert {part: (of["command"], of["seeds"]) for part, of in data["parts"].items()} == {
        "table1": ("third", [0]),
        "table5": ("second", [3]),
    }
    text = (tmp_path / "report.md").read_text()
    assert text.index("third") < text.index("seeds 3; a CPU, 2 cores") < text.index("Table 1.") < text.index("Table 5.")
    assert "quiet" not in text


@pytest.mark.slow
@pytest.mark.usefixtures("small_model")
def test_it_tells_each_row_and_keeps_what_was_learned(
    small_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench, "model_file", lambda _: small_file)
    monkeypatch.setattr(bench, "QUICK", bench.Sizes(updates=1, measured_s=1, budget_s=3, rounds=6))
    arguments = ["--quick", "--json", "--work", str(tmp_path / "work"), "--results", str(tmp_path / "results")]
    main([*arguments, "--part", "table1", "table2", "table5"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    raced = {row["what"]: row for row in rows if row["part"] == "table2"}
    assert list(raced) == ["placeit optimize", "fast", "slow", *list(LATENCY_MS)[2:], "HSDAG, from scratch"]
    assert all(row["error"] < 1e-4 and row["low_ms"] <= row["median_ms"] <= row["high_ms"] for row in raced.values())
    assert (raced["fast"]["over_best_single"], raced["fast"]["paper_ms"], raced["HSDAG"]["paper_ms"]) == (1, 16.0, 7.66)
    assert (raced["fast"]["ops_on_slow"], raced["slow"]["ops_on_slow"]) == (0, 1)
    searches = {row["search"]: row for row in rows if row["part"] == "table5"}
    assert list(searches) == ["placeit optimize", "Placeto", "RNN-based", "HSDAG", "HSDAG, from scratch"]
    assert searches["HSDAG, from scratch"]["simulated_s"] == 0 < searches["HSDAG"]["simulated_s"]

    def again(*_: object, **__: object) -> None:
        raise AssertionError

    monkeypatch.setattr(bench, "train", again)
    monkeypatch.setattr(bench, "optimize", again)
    main([*arguments, "--part", "table5"])
    assert json.loads(capsys.readouterr().out)["rows"] == list(searches.values())
    assert set(json.loads((tmp_path / "results" / "report.json").read_text())["parts"]) == {"table1", "table2", "table5"}
